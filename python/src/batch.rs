//! A batch, as Python's `Batch` sees it.

use std::sync::Arc;

use pyo3::prelude::*;
use shardfeed_embedded::Delivered;
use shardfeed_handoff::{BufferRange, SharedSlot};
use shardfeed_pipeline::{Batch, ColumnData, Dtype};
use shardfeed_plan::Position;

use crate::buffer::{Item, NativeBuffer};

/// A batch in its slot. The slot is free again when the batch and all arrays of it are gone.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct NativeBatch {
    slot: Arc<SharedSlot>,
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
    pub(crate) fn new(delivered: Delivered, after: Position) -> Self {
        let Delivered { epoch, step, batch, .. } = delivered;
        let Batch { rows, columns, valid, shards, ordinals, slot } = batch;
        let slot = Arc::new(slot);
        Self { slot, columns, valid, shards, ordinals, rows, epoch, step, after }
    }

    fn buffer(&self, range: BufferRange, item: Item) -> NativeBuffer {
        NativeBuffer::new(Arc::clone(&self.slot), range, item)
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
        let values = self.buffer(column.values, item(column.kind.dtype()));
        let splits = column.splits.iter().copied().map(numbers).collect();
        Ok((values, column.offsets.map(numbers), splits))
    }

    /// One bool a row.
    fn valid(&self) -> NativeBuffer {
        self.buffer(self.valid, Item::Bool)
    }

    /// Shard ordinal and ordinal in the shard of each row.
    fn provenance(&self) -> (NativeBuffer, NativeBuffer) {
        (self.buffer(self.shards, Item::Int64), self.buffer(self.ordinals, Item::Int64))
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
