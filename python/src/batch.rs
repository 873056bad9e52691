//! Native half of Python's `Batch`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use shardfeed_embedded::{BatchParts, Offered, RowPart};
use shardfeed_handoff::{BufferRange, SharedSlot};
use shardfeed_pipeline::{Batch, ColumnData, ColumnKind, Dtype};
use shardfeed_plan::Position;

use crate::buffer::{Item, NativeBuffer};
use crate::device::{self, DeviceArray, Lent, device_error};

/// A batch in its slot, on a device, or both. The slot is freed after the last of its arrays.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct NativeBatch {
    /// `None`: everything is on the device.
    slot: Option<Arc<SharedSlot>>,
    /// Its slot on the device, until that is released.
    lent: Mutex<Option<Arc<Lent>>>,
    /// The device slot is to be released when the batch is consumed; until then the batch may be
    /// requested again.
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
    /// Position of the loader after this batch.
    pub(crate) after: Position,
    parts: Option<BatchParts>,
}

impl NativeBatch {
    /// - `with_provenance`: whether callers may request the source of each row.
    pub(crate) fn new(offered: Offered, with_provenance: bool) -> Self {
        let Offered { epoch, step, batch, after, parts } = offered;
        let Batch { rows, columns, valid, shards, ordinals, mut slot } = batch;
        let lent = device::lent(&mut slot);
        let is_dense = |column: &ColumnData| {
            device::goes(&column.kind) && matches!(column.kind, ColumnKind::Dense { .. })
        };
        let is_elsewhere = lent.is_some() && !with_provenance && columns.iter().all(is_dense);
        Self {
            slot: (!is_elsewhere).then(|| Arc::new(slot)),
            lent: Mutex::new(lent),
            is_released: AtomicBool::new(false),
            columns,
            valid,
            shards,
            ordinals,
            rows,
            epoch,
            step,
            after,
            parts,
        }
    }

    /// Notes that the batch is consumed; its device slot, if released, is not requested again.
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
    /// Returns the values of a column, the offsets of its strings if any, and its splits.
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

    fn valid(&self) -> PyResult<NativeBuffer> {
        self.buffer(self.valid, Item::Bool)
    }

    /// Returns the shard ordinal and the ordinal in the shard of each row.
    fn provenance(&self) -> PyResult<(NativeBuffer, NativeBuffer)> {
        let shards = self.buffer(self.shards, Item::Int64)?;
        Ok((shards, self.buffer(self.ordinals, Item::Int64)?))
    }

    /// Returns the parts of the rows: rows, shards, records, their rows, first tokens, and numbers of
    /// tokens, as int64 one after the other. `None`: they were not asked for.
    fn parts<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let parts = py.detach(|| self.parts.as_ref().map(BatchParts::list))?;
        let columns: [fn(&RowPart) -> u64; 6] = [
            |part| part.row,
            |part| part.shard.into(),
            |part| part.record,
            |part| part.record_row,
            |part| part.first,
            |part| part.count,
        ];
        let bytes = columns.iter().flat_map(|column| parts.iter().map(column));
        let bytes: Vec<u8> = bytes.flat_map(u64::to_ne_bytes).collect();
        Some(PyBytes::new(py, &bytes))
    }

    /// Returns the arrays on the device: those of columns with their index, last the row validity.
    fn device_arrays(&self) -> Vec<(Option<usize>, DeviceArray)> {
        let lent = self.lent().clone();
        lent.map_or(vec![], |lent| device::arrays(&lent, &self.columns, self.rows))
    }

    /// Copies these arrays to addresses on their device, ordered on a stream (a `CUstream`), and
    /// releases the device slot.
    fn copy_out(&self, py: Python<'_>, targets: Vec<u64>, stream: u64) -> PyResult<()> {
        let Some(lent) = self.lent().clone() else {
            return Err(pyo3::exceptions::PyRuntimeError::new_err("this batch was copied already"));
        };
        py.detach(|| lent.copy_out(&targets, stream)).map_err(|error| device_error(py, &error))?;
        self.release();
        Ok(())
    }

    /// Releases the device slot when the batch is consumed, except for memory that arrays view.
    fn release(&self) {
        self.is_released.store(true, Ordering::Relaxed);
    }
}

/// Returns the item type of a buffer; Python views the bytes as the column's own type.
fn item(dtype: Dtype) -> Item {
    match dtype {
        Dtype::Int64 => Item::Int64,
        Dtype::Float32 => Item::Float32,
        _ => Item::Byte,
    }
}
