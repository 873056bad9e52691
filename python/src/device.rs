//! Native half of batches on a device.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shardfeed_device::{
    BatchSource, ConsumerStream, Device, DeviceBatch, DeviceError, DeviceStats, Work,
};
use shardfeed_embedded::{LoadError, Loader};
use shardfeed_handoff::{BufferRange, SharedSlot};
use shardfeed_pipeline::{Batch, ColumnData, ColumnKind, Dtype};

use crate::changes::Made;
use crate::dlpack::{Export, MemoryLocation, wishes};
use crate::errors::named;

/// Ready batches of a loader, for the device's thread.
pub(crate) struct Ahead(pub(crate) Weak<Mutex<Option<Loader>>>);

impl BatchSource for Ahead {
    fn look(&mut self, count: usize, device: &Device) -> Vec<Work> {
        let mut found = vec![];
        if let Some(loader) = self.0.upgrade()
            // A thread that holds the lock is taking a batch, or waiting for one.
            && let Ok(mut loader) = loader.try_lock()
            && let Some(loader) = loader.as_mut()
        {
            loader.peek(count, &mut |batch| {
                let parts = parts(&batch.columns, batch.valid);
                if batch.slot.companion().is_none() {
                    found.push(device.prepare(&mut batch.slot, &parts));
                }
            });
        }
        found
    }
}

/// True if a column's values go to the device: numbers in equal rows.
pub(crate) fn goes(kind: &ColumnKind) -> bool {
    let is_whole = matches!(kind, ColumnKind::Dense { .. } | ColumnKind::Padded { .. });
    is_whole && kind.dtype() != Dtype::Bytes
}

/// Returns the data that goes to the device: the values of those columns, then the row validity.
fn parts(columns: &[ColumnData], valid: BufferRange) -> Vec<BufferRange> {
    let values = columns.iter().filter(|column| goes(&column.kind)).map(|column| column.values);
    values.chain([valid]).collect()
}

/// A batch on the device in use by the trainer.
pub(crate) struct Lent {
    batch: DeviceBatch,
    address: u64,
    made: Arc<Made>,
}

/// Starts copying a batch to the device if necessary, and lends its slot there when the copy is
/// done. Consumes nothing before.
/// - `made`: columns that the device changes.
/// - `patience`: maximum wait for a slot of the device.
/// - Returns false if there is no slot yet; call it again with the same batch.
pub(crate) fn lend(
    device: &Device,
    made: &Arc<Made>,
    batch: &mut Batch,
    patience: Duration,
) -> Result<bool, LoadError> {
    let failed = |error: DeviceError| LoadError::Device(error.to_string());
    if batch.slot.companion().is_none() {
        let work = device.prepare(&mut batch.slot, &parts(&batch.columns, batch.valid));
        device.stage(work);
    }
    let companion = batch.slot.companion().take().expect("it was prepared");
    let mut there = companion.downcast::<DeviceBatch>().expect("no other type is stored there");
    let Some(address) = there.lend(patience).map_err(failed)? else {
        *batch.slot.companion() = Some(there);
        return Ok(false);
    };
    *batch.slot.companion() =
        Some(Box::new(Lent { batch: *there, address, made: Arc::clone(made) }));
    Ok(true)
}

/// Takes the result of [`lend`] from the slot.
pub(crate) fn lent(slot: &mut SharedSlot) -> Option<Arc<Lent>> {
    let lent = slot.companion().take()?.downcast::<Lent>().ok()?;
    Some(Arc::from(lent))
}

impl Lent {
    /// Copies all parts to these addresses on the same device, ordered on a stream.
    pub(crate) fn copy_out(&self, targets: &[u64], stream: u64) -> Result<(), DeviceError> {
        if targets.len() != self.batch.places().len() {
            let (asked, there) = (targets.len(), self.batch.places().len());
            let message = format!("{asked} addresses for {there} arrays");
            return Err(DeviceError::Invalid(message));
        }
        let targets: Vec<_> = targets.iter().copied().enumerate().collect();
        self.batch.copy_out(&targets, ConsumerStream::from_handle(stream))
    }
}

/// Returns the arrays of a batch on the device: those of columns with their index, and validity.
pub(crate) fn arrays(
    lent: &Arc<Lent>,
    columns: &[ColumnData],
    rows: usize,
) -> Vec<(Option<usize>, DeviceArray)> {
    let on_device = columns.iter().enumerate().filter(|(_, column)| goes(&column.kind));
    let kinds = on_device
        .map(|(index, column)| (Some(index), Some(lent.made.get(&index).unwrap_or(&column.kind))));
    let places = lent.batch.places().iter();
    let array = |((index, kind), place): ((Option<usize>, Option<&ColumnKind>), &BufferRange)| {
        let dtype = kind.map_or(Dtype::Bool, ColumnKind::dtype);
        let shape = kind.map_or(vec![rows], |kind| shape(kind, rows, place.len));
        let shape = shape.into_iter().map(|size| size as i64).collect();
        let lent = Arc::clone(lent);
        (index, DeviceArray { lent, place: *place, dtype, shape, stream: None })
    };
    kinds.chain([(None, None)]).zip(places).map(array).collect()
}

/// Returns the shape of a column: rows, number of values if padded, and the shape of one value.
fn shape(kind: &ColumnKind, rows: usize, bytes: usize) -> Vec<usize> {
    let mut sizes = vec![rows];
    match kind {
        ColumnKind::Padded { shape, .. } => {
            let of_one = kind.dtype().bytes() * shape.iter().product::<usize>() * rows;
            sizes.push(bytes.checked_div(of_one).unwrap_or(0));
            sizes.extend(shape);
        }
        ColumnKind::Dense { shape, .. }
        | ColumnKind::Ragged { shape, .. }
        | ColumnKind::Sparse { size: shape, .. } => sizes.extend(shape),
    }
    sizes
}

/// An array on a GPU that views its batch there: compact, row-major, `[rows, ...]`.
///
/// Frameworks import it by DLPack without a copy. The slot is reused after the batch and its arrays
/// are freed, and after the work that was queued by then on the streams that imported them.
#[pyclass(frozen, module = "shardfeed")]
pub(crate) struct DeviceArray {
    lent: Arc<Lent>,
    place: BufferRange,
    dtype: Dtype,
    shape: Vec<i64>,
    /// The only stream that uses it, as DLPack numbers it, if specified.
    stream: Option<i64>,
}

impl DeviceArray {
    fn ordinal(&self) -> usize {
        self.lent.batch.device().ordinal()
    }

    fn address(&self) -> u64 {
        self.lent.address + self.place.start as u64
    }

    /// Orders work queued on this stream from now on after the copy, and before the slot's next
    /// use.
    fn read(&self, py: Python<'_>, stream: ConsumerStream) -> Result<(), DeviceError> {
        py.detach(|| self.lent.batch.read(stream))
    }
}

/// `CU_STREAM_LEGACY`.
const LEGACY: i64 = 1;

/// Flag for `__cuda_array_interface__`: the array is writable.
const READ_ONLY: bool = false;

#[pymethods]
impl DeviceArray {
    /// Rows, and the shape of one row.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, &self.shape)
    }

    /// Name of the type of its values.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// Location, such as "cuda:0".
    #[getter]
    fn device(&self) -> String {
        format!("cuda:{}", self.ordinal())
    }

    /// Size of its values in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.place.len
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        MemoryLocation::Cuda(self.ordinal()).numbers()
    }

    /// Returns a DLPack capsule.
    ///
    /// Work queued on `stream` from now on is ordered after the copy to the device. The stream must
    /// outlive everything made from the capsule.
    #[pyo3(signature = (*, stream=None, **arguments))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wishes = wishes(arguments)?;
        let refused = |error: &DeviceError| match error {
            DeviceError::Invalid(message) => PyBufferError::new_err(message.clone()),
            other => device_error(py, other),
        };
        let stream = ConsumerStream::from_dlpack(stream).map_err(|error| refused(&error))?;
        let export = Export {
            address: self.address(),
            place: MemoryLocation::Cuda(self.ordinal()),
            dtype: self.dtype,
            shape: self.shape.clone(),
            keeper: Arc::clone(&self.lent),
        };
        let capsule = export.capsule(py, &wishes)?;
        self.read(py, stream).map_err(|error| refused(&error))?;
        Ok(capsule)
    }

    /// Returns the same array for work on this stream only, for consumers of
    /// `__cuda_array_interface__`, which then names this stream. 1 and 2 are the default streams;
    /// other values are a `CUstream`, which must outlive everything made from the array.
    fn for_stream(&self, stream: i64) -> PyResult<Self> {
        match ConsumerStream::from_dlpack(Some(stream)) {
            Ok(known) if known != ConsumerStream::Unknown => {}
            Ok(_) => return Err(PyValueError::new_err("stream=-1 is no stream")),
            Err(error) => return Err(PyValueError::new_err(error.to_string())),
        }
        let Self { lent, place, dtype, shape, .. } = self;
        let (lent, shape) = (Arc::clone(lent), shape.clone());
        Ok(Self { lent, place: *place, dtype: *dtype, shape, stream: Some(stream) })
    }

    /// Describes the array for CuPy, Numba and others, version 3.
    ///
    /// Its stream is that of `for_stream`, else the legacy default stream, which is then ordered
    /// after the copy; a consumer must order its own stream after that. The slot of such a batch is
    /// reused after the work queued on that stream before the batch was released and, for the
    /// default stream, on the streams that it waits for. Work on a non-blocking stream must have
    /// finished by then, or must name its stream with `for_stream`.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Some(kind) = type_text(self.dtype) else {
            // Feature detection must find no such attribute.
            let message =
                format!("{} has no name in __cuda_array_interface__; use DLPack", self.dtype);
            return Err(PyAttributeError::new_err(message));
        };
        let failed = |error: DeviceError| device_error(py, &error);
        let number = self.stream.unwrap_or(LEGACY);
        let stream = ConsumerStream::from_dlpack(Some(number)).map_err(failed)?;
        self.read(py, stream).map_err(failed)?;
        let address = if self.place.len == 0 { 0 } else { self.address() };
        let dict = PyDict::new(py);
        dict.set_item("shape", self.shape(py)?)?;
        dict.set_item("typestr", kind)?;
        dict.set_item("data", (address, READ_ONLY))?;
        dict.set_item("strides", py.None())?;
        dict.set_item("stream", number)?;
        dict.set_item("version", 3)?;
        Ok(dict)
    }

    fn __len__(&self) -> PyResult<usize> {
        let rows = self.shape.first().copied().unwrap_or(0);
        usize::try_from(rows).map_err(|_| PyIndexError::new_err("no rows"))
    }

    fn __repr__(&self) -> String {
        format!(
            "DeviceArray(shape={:?}, dtype={}, device={})",
            self.shape,
            self.dtype.name(),
            self.device()
        )
    }
}

/// Returns the name of a type in numpy's array interface, if it has one.
fn type_text(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::Bool => "|b1",
        Dtype::Uint8 => "|u1",
        Dtype::Int8 => "|i1",
        Dtype::Uint16 => "<u2",
        Dtype::Int16 => "<i2",
        Dtype::Uint32 => "<u4",
        Dtype::Int32 => "<i4",
        Dtype::Int64 => "<i8",
        Dtype::Float16 => "<f2",
        Dtype::Float32 => "<f4",
        Dtype::Float64 => "<f8",
        Dtype::Bfloat16 | Dtype::Bytes => return None,
    })
}

pub(crate) fn device_error(py: Python<'_>, error: &DeviceError) -> PyErr {
    let class = match error {
        DeviceError::NoLibrary { .. }
        | DeviceError::Incomplete { .. }
        | DeviceError::NoDevice { .. }
        | DeviceError::NoSuchDevice { .. } => "ConfigError",
        _ => "DeviceError",
    };
    named(py, class, &error.to_string())
}

pub(crate) fn set_stats(dict: &Bound<'_, PyDict>, device: &Device) -> PyResult<()> {
    let stats = device.stats();
    let DeviceStats { slots, slot_bytes, ahead, batches, late, .. } = stats;
    let DeviceStats { bytes, pageable, pinned_bytes, extra_slots, .. } = stats;
    dict.set_item("device", format!("cuda:{}", device.ordinal()))?;
    dict.set_item("device_slots", slots)?;
    dict.set_item("device_slot_bytes", slot_bytes)?;
    dict.set_item("device_ahead", ahead)?;
    dict.set_item("device_batches", batches)?;
    dict.set_item("device_late_batches", late)?;
    dict.set_item("device_bytes", bytes)?;
    dict.set_item("device_pageable_batches", pageable)?;
    dict.set_item("device_pinned_bytes", pinned_bytes)?;
    dict.set_item("device_extra_slots", extra_slots)
}
