//! A batch, as Python's `Batch` sees it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use shardfeed_embedded::Offered;
use shardfeed_handoff::{BufferRange, SharedSlot};
use shardfeed_pipeline::{Batch, ColumnData, ColumnKind, Dtype};
use shardfeed_plan::Position;

use crate::buffer::{Item, NativeBuffer};
use crate::device::{self, DeviceArray, Lent, device_error};

/// A batch in its slot, on a device, or both. A slot is free again when the batch and all arrays of it are
/// gone.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct NativeBatch {
    /// `None`: everything is on the device.
    slot: Option<Arc<SharedSlot>>,
    /// Its place on the device, as long as that is its.
    lent: Mutex<Option<Arc<Lent>>>,
    /// That place is given back once the batch is consumed: until then it may be asked for again.
    is_released: AtomicBool,
    columns: Vec<ColumnData>,
    valid: BufferRange,
    shards: BufferRange,
    ordinals: BufferRange,
    #[pyo3(get)]
    rows: usize,
    #[pyo3(get)]
    epoch: u64,
    #[pyo3(get)]
    step: u64,
    /// Where the loader stands after this batch.
    pub(crate) after: Position,
}

impl NativeBatch {
    /// - `with_provenance`: whether it is asked which records it is made of.
    pub(crate) fn new(offered: Offered, with_provenance: bool) -> Self {
        let Offered { epoch, step, batch, after } = offered;
        let Batch { rows, columns, valid, shards, ordinals, mut slot } = batch;
        let lent = device::lent(&mut slot);
        let is_dense = |column: &ColumnData| {
            device::goes(&column.kind) && matches!(column.kind, ColumnKind::Dense { .. })
        };
        let is_elsewhere = lent.is_some() && !with_provenance && columns.iter().all(is_dense);
        let slot = (!is_elsewhere).then(|| Arc::new(slot));
        let (lent, is_released) = (Mutex::new(lent), AtomicBool::new(false));
        Self { slot, lent, is_released, columns, valid, shards, ordinals, rows, epoch, step, after }
    }

    /// The batch is consumed: nobody asks for its place on the device again if that was released.
    pub(crate) fn consumed(&self) {
        if self.is_released.load(Ordering::Relaxed) {
            drop(self.lent().take());
        }
    }

    fn buffer(&self, range: BufferRange, item: Item) -> PyResult<NativeBuffer> {
        let slot = self.slot.as_ref().ok_or_else(|| {
            pyo3::exceptions::PyRuntimeError::new_err("this batch is on the device alone")
        })?;
        Ok(NativeBuffer::new(Arc::clone(slot), range, item))
    }

    fn lent(&self) -> MutexGuard<'_, Option<Arc<Lent>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl NativeBatch {
    /// Values of a column, its strings' offsets if it has any, and its splits.
    fn column(
        &self,
        index: usize,
    ) -> PyResult<(NativeBuffer, Option<NativeBuffer>, Vec<NativeBuffer>)> {
        let column = self
            .columns
            .get(index)
            .ok_or_else(|| pyo3::exceptions::PyIndexError::new_err("no such column"))?;
        let numbers = |range: BufferRange| self.buffer(range, Item::Int64);
        let values = self.buffer(column.values, item(column.kind.dtype()))?;
        let splits = column.splits.iter().copied().map(numbers).collect::<PyResult<_>>()?;
        Ok((values, column.offsets.map(numbers).transpose()?, splits))
    }

    /// One bool a row.
    fn valid(&self) -> PyResult<NativeBuffer> {
        self.buffer(self.valid, Item::Bool)
    }

    /// Shard ordinal and ordinal in the shard of each row.
    fn provenance(&self) -> PyResult<(NativeBuffer, NativeBuffer)> {
        let shards = self.buffer(self.shards, Item::Int64)?;
        Ok((shards, self.buffer(self.ordinals, Item::Int64)?))
    }

    /// The arrays that are on the device: each column's, by its place, and at last which rows are valid.
    fn device_arrays(&self) -> Vec<(Option<usize>, DeviceArray)> {
        let lent = self.lent().clone();
        lent.map_or(vec![], |lent| device::arrays(&lent, &self.columns, self.rows))
    }

    /// Copies these arrays to addresses on their device, in the order of a stream (a `CUstream`), and releases
    /// the batch's place there.
    fn copy_out(&self, py: Python<'_>, targets: Vec<u64>, stream: u64) -> PyResult<()> {
        let Some(lent) = self.lent().clone() else {
            return Err(pyo3::exceptions::PyRuntimeError::new_err("this batch was copied already"));
        };
        py.detach(|| lent.copy_out(&targets, stream)).map_err(|error| device_error(py, &error))?;
        self.release();
        Ok(())
    }

    /// Gives the batch's place on the device back as soon as the batch is consumed, but for what arrays view.
    fn release(&self) {
        self.is_released.store(true, Ordering::Relaxed);
    }
}

/// What a buffer says of itself; Python views the bytes as the column's own type.
fn item(dtype: Dtype) -> Item {
    match dtype {
        Dtype::Int64 => Item::Int64,
        Dtype::Float32 => Item::Float32,
        _ => Item::Byte,
    }
}
