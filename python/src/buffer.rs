//! A buffer of a slot, viewed through Python's buffer protocol or DLPack.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shardfeed_handoff::{BufferRange, SharedSlot};
use shardfeed_pipeline::Dtype;

use crate::dlpack::{Export, MemoryLocation, wishes};

/// Type of a buffer's items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Byte,
    Bool,
    Int64,
    Float32,
}

impl Item {
    fn format(self) -> &'static CStr {
        match self {
            Self::Byte => c"B",
            Self::Bool => c"?",
            Self::Int64 => c"q",
            Self::Float32 => c"f",
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            Self::Byte => Dtype::Uint8,
            Self::Bool => Dtype::Bool,
            Self::Int64 => Dtype::Int64,
            Self::Float32 => Dtype::Float32,
        }
    }

    fn bytes(self) -> usize {
        self.dtype().bytes()
    }
}

/// One buffer of a batch: one-dimensional, writable, in the slot, which its arrays keep alive.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct NativeBuffer {
    slot: Arc<SharedSlot>,
    range: BufferRange,
    item: Item,
    /// Number of items and bytes per item: the buffer protocol needs pointers to them.
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

impl NativeBuffer {
    pub(crate) fn new(slot: Arc<SharedSlot>, range: BufferRange, item: Item) -> Self {
        let bytes = item.bytes();
        let shape = [(range.len / bytes) as ffi::Py_ssize_t];
        Self { slot, range, item, shape, strides: [bytes as ffi::Py_ssize_t] }
    }
}

#[pymethods]
impl NativeBuffer {
    fn __dlpack_device__(&self) -> (i32, i32) {
        MemoryLocation::Cpu.numbers()
    }

    #[pyo3(signature = (*, stream=None, **arguments))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the host has no streams"));
        }
        assert!(self.range.start + self.range.len <= self.slot.size_bytes(), "it lies in its slot");
        let export = Export {
            address: (self.slot.base().addr().get() + self.range.start) as u64,
            place: MemoryLocation::Cpu,
            dtype: self.item.dtype(),
            shape: vec![self.shape[0] as i64],
            keeper: Arc::clone(&self.slot),
        };
        export.capsule(py, &wishes(arguments)?)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        let this = slf.get();
        let start = this.range.start;
        assert!(start + this.range.len <= this.slot.size_bytes(), "a buffer lies in its slot");
        let asked = |flag: c_int| flags & flag == flag;
        // SAFETY: `view` is not null and the interpreter owns it. The buffer lies in the slot's
        // mapping (asserted), which `self` keeps alive, and `view.obj` keeps `self` alive until the
        // view is released. `shape` and `strides` are fields of the frozen object, so they do not
        // move or change. The batch belongs to this trainer alone, so the trainer may write.
        unsafe {
            let view = &mut *view;
            view.buf = this.slot.base().as_ptr().add(start).cast::<c_void>();
            view.len = this.range.len as ffi::Py_ssize_t;
            view.readonly = 0;
            view.itemsize = this.strides[0];
            view.format = match asked(ffi::PyBUF_FORMAT) {
                true => this.item.format().as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            };
            view.ndim = 1;
            view.shape = match asked(ffi::PyBUF_ND) {
                true => this.shape.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            };
            view.strides = match asked(ffi::PyBUF_STRIDES) {
                true => this.strides.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            };
            view.suboffsets = std::ptr::null_mut();
            view.internal = std::ptr::null_mut();
            view.obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}
