//! Exports memory to frameworks by DLPack, in capsules, old and new, that keep it alive.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shardfeed_pipeline::Dtype;

/// Location of memory, as numbered by dlpack.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLocation {
    Cpu,
    Cuda(usize),
}

impl MemoryLocation {
    pub(crate) fn numbers(self) -> (i32, i32) {
        match self {
            Self::Cpu => (1, 0),
            Self::Cuda(ordinal) => (2, i32::try_from(ordinal).unwrap_or(i32::MAX)),
        }
    }
}

/// Requests of a consumer besides the memory.
#[derive(Default)]
pub(crate) struct Wishes {
    /// Newest capsule version that it knows.
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) dl_device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

/// Memory to export: compact, row-major.
pub(crate) struct Export<K> {
    pub(crate) address: u64,
    pub(crate) place: MemoryLocation,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<i64>,
    /// Keeps the memory alive and unchanged. Dropped by any thread, with or without the GIL.
    pub(crate) keeper: Arc<K>,
}

impl<K: Send + Sync + 'static> Export<K> {
    /// Returns a capsule, with the struct of DLPack 1.0 for consumers that know it.
    ///
    /// # Errors  `BufferError` for unsupported requests: copies, other devices.
    pub(crate) fn capsule<'py>(
        self,
        py: Python<'py>,
        wishes: &Wishes,
    ) -> PyResult<Bound<'py, PyAny>> {
        if wishes.copy == Some(true) {
            return Err(PyBufferError::new_err(
                "copies are not made here: take it as it is, and copy that",
            ));
        }
        if wishes.dl_device.is_some_and(|device| device != self.place.numbers()) {
            return Err(PyBufferError::new_err(
                "it is on another device: take it as it is, and copy that",
            ));
        }
        if wishes.max_version.is_some_and(|(major, _)| major >= 1) {
            return capsule(py, self, |tensor| ManagedVersioned {
                version: Version { major: 1, minor: 0 },
                context: std::ptr::null_mut(),
                deleter: free::<ManagedVersioned, K>,
                flags: 0,
                tensor,
            });
        }
        capsule(py, self, |tensor| Managed {
            tensor,
            context: std::ptr::null_mut(),
            deleter: free::<Managed, K>,
        })
    }
}

/// Parses the arguments of `__dlpack__`; the stream is handled by the caller.
pub(crate) fn wishes(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<Wishes> {
    let mut wishes = Wishes::default();
    for (name, value) in arguments.into_iter().flatten() {
        match name.extract::<String>()?.as_str() {
            "max_version" => wishes.max_version = value.extract()?,
            "dl_device" => {
                // An enum in some frameworks, convertible to an int.
                let device: Option<(Bound<'_, PyAny>, i32)> = value.extract()?;
                let kind = |(kind, number): (Bound<'_, PyAny>, i32)| {
                    Ok::<_, PyErr>((kind.call_method0("__index__")?.extract()?, number))
                };
                wishes.dl_device = device.map(kind).transpose()?;
            }
            "copy" => wishes.copy = value.extract()?,
            other => {
                let message = format!("__dlpack__() has no argument {other:?}");
                return Err(pyo3::exceptions::PyTypeError::new_err(message));
            }
        }
    }
    Ok(wishes)
}

#[repr(C)]
struct Device {
    kind: i32,
    number: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Self),
}

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Self),
    flags: u64,
    tensor: Tensor,
}

/// Owned by a consumer until it calls the deleter. The struct visible to it comes first, so that a
/// pointer to that is one to all of it.
#[repr(C)]
struct Given<M, K> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _keeper: Arc<K>,
}

trait Struct {
    const NAME: &'static CStr;
}

impl Struct for Managed {
    const NAME: &'static CStr = c"dltensor";
}

impl Struct for ManagedVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";
}

fn capsule<'py, M: Struct, K: Send + Sync + 'static>(
    py: Python<'py>,
    export: Export<K>,
    make: impl FnOnce(Tensor) -> M,
) -> PyResult<Bound<'py, PyAny>> {
    let Export { address, place, dtype, mut shape, keeper } = export;
    let (kind, number) = place.numbers();
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    let tensor = Tensor {
        data: address as *mut c_void,
        device: Device { kind, number },
        dimensions: i32::try_from(shape.len()).unwrap_or(i32::MAX),
        dtype: data_type(dtype),
        // The vectors' items do not move when the vectors are moved.
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let given = Box::new(Given { managed: make(tensor), shape, strides, _keeper: keeper });
    // Owned by the capsule from here on; its destructor frees it unless a consumer has taken it.
    let given = Box::into_raw(given).cast::<M>();
    // SAFETY: the pointer is to a boxed `Given<M, K>`, which begins with `M` and lives until it is
    // freed; without a capsule nothing else frees it; the name is static; the GIL is held (`py`).
    unsafe {
        let end = end_capsule::<M, K>;
        let capsule = ffi::PyCapsule_New(given.cast(), M::NAME.as_ptr(), Some(end));
        if capsule.is_null() {
            free::<M, K>(given);
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr(py, capsule))
    }
}

/// Frees a capsule that was not consumed: a consumer renames the capsule.
unsafe extern "C" fn end_capsule<M: Struct, K: Send + Sync + 'static>(capsule: *mut ffi::PyObject) {
    // SAFETY: called once by the interpreter, with the capsule created above for the same types;
    // under its first name it holds the pointer to a `Given<M, K>` that was not freed.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 1 {
            free::<M, K>(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast());
        }
    }
}

/// The deleter: called once by the owner of the struct, on any thread.
unsafe extern "C" fn free<M, K: Send + Sync + 'static>(managed: *mut M) {
    // SAFETY: `managed` is the pointer of a boxed `Given<M, K>`, whose first field it is; only this
    // call frees the box.
    unsafe { drop(Box::from_raw(managed.cast::<Given<M, K>>())) }
}

fn data_type(dtype: Dtype) -> DataType {
    let code = match dtype {
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => 0,
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Bytes => 1,
        Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => 2,
        Dtype::Bfloat16 => 4,
        Dtype::Bool => 6,
    };
    DataType { code, bits: 8 * dtype.bytes() as u8, lanes: 1 }
}
