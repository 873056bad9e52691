//! A batch of records, written once, in place, into a slot.

use std::io;
use std::sync::Arc;

use rayon::prelude::*;
use shardfeed_handoff::{BufferRange, Layout, SharedSlot, SlotPool};
use shardfeed_plan::Sample;
use shardfeed_tfrecord as frame;
use shardfeed_tfrecord::example::ParseError;

use crate::column::{ColumnData, ColumnKind, Schema};
use crate::draw::DrawKey;
use crate::dtype::Dtype;
use crate::operator::OperatorFault;
use crate::record::Row;
use crate::rows::{Cells, Part, Total};

/// Rows are worked on in parts of about this many bytes; smaller parts cost more to hand around
/// than to do.
const PART_BYTES: usize = 128 << 10;

/// What operators hold of a part is no more than this, unless a single row needs more.
const PART_MADE_BYTES_MAX: usize = 4 << 20;

/// A finished batch.
#[derive(Debug)]
pub struct Batch {
    /// Rows, padding included.
    pub rows: usize,
    /// Columns, in the schema's order.
    pub columns: Vec<ColumnData>,
    /// Whether each row is no padding: one byte, 0 or 1, `[rows]`.
    pub valid: BufferRange,
    /// Shard ordinals, i64, `[rows]`.
    pub shards: BufferRange,
    /// Ordinals in the shard, i64, `[rows]`.
    pub ordinals: BufferRange,
    /// The slot that holds all of it.
    pub slot: SharedSlot,
}

/// A row that could not be used.
#[derive(Debug)]
pub struct RowError {
    /// Which sample.
    pub sample: Sample,
    /// Offset of its header in the uncompressed shard, in bytes.
    pub offset: u64,
    /// Bytes of its data.
    pub len: usize,
    /// What is wrong with it.
    pub fault: RowFault,
}

fn names(holds: &[String]) -> String {
    if holds.is_empty() {
        return String::new();
    }
    format!("; the record holds `{}`", holds.join("`, `"))
}

impl RowError {
    pub(crate) fn at(row: &Row<'_>, fault: impl Into<RowFault>) -> Self {
        let Row { sample, offset, .. } = *row;
        Self { sample, offset, len: row.len(), fault: fault.into() }
    }
}

/// What is wrong with a row.
#[derive(Debug, thiserror::Error)]
pub enum RowFault {
    /// The data is not what was written.
    #[error(transparent)]
    Data(#[from] frame::DataCrcMismatch),
    /// The data is not what the features say.
    #[error("{error}{}", names(.holds))]
    Parse {
        /// What is wrong.
        error: Box<ParseError>,
        /// Names of the features that the record does hold.
        holds: Vec<String>,
    },
    /// An operator cannot work on it.
    #[error("column `{output}`: {fault}")]
    Operator {
        /// What the operator makes.
        output: String,
        /// Why not.
        fault: OperatorFault,
    },
    /// There is no memory for the batch.
    #[error("no memory for a batch of {bytes} bytes: {source}")]
    Memory {
        /// Bytes of the slot.
        bytes: usize,
        /// What the system says.
        source: io::Error,
    },
}

impl RowFault {
    /// Whether the record is to blame, so that another one may stand in for it.
    pub fn is_of_record(&self) -> bool {
        match self {
            Self::Data(_) | Self::Parse { .. } => true,
            Self::Operator { fault, .. } => fault.is_of_record(),
            Self::Memory { .. } => false,
        }
    }
}

/// What a computing thread does with a part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Checksums, and where the features are.
    Parse,
    /// Operators, and values into the slot.
    Write,
}

/// When a stage of a part began, as its watch counts.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Time that the thread computed.
    pub cpu_ns: u64,
    /// Time that passed.
    pub wall_ns: u64,
}

/// Looks at clocks, which this crate never does.
pub trait Watch: Send + Sync + std::fmt::Debug {
    /// A stage of a part begins on this thread.
    fn begin(&self) -> Begun;
    /// It ended.
    fn end(&self, stage: Stage, begun: Begun);
    /// So many images were decoded although the library warned of their data.
    fn suspect_images(&self, count: u64);
}

/// Makes batches of records.
#[derive(Clone, Debug)]
pub struct Assembler {
    schema: Arc<Schema>,
    slots: SlotPool,
    watch: Option<Arc<dyn Watch>>,
}

impl Assembler {
    /// An assembler that writes into slots of `slots`.
    pub fn new(schema: Arc<Schema>, slots: SlotPool) -> Self {
        Self { schema, slots, watch: None }
    }

    /// The same, whose stages `watch` measures.
    pub fn watched(self, watch: Arc<dyn Watch>) -> Self {
        Self { watch: Some(watch), ..self }
    }

    fn timed<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let Some(watch) = &self.watch else {
            return work();
        };
        let begun = watch.begin();
        let done = work();
        watch.end(stage, begun);
        done
    }

    /// Checks, parses and writes `rows` on the threads of the current rayon pool.
    /// - `key`: what random operators draw by, beside the sample.
    ///
    /// # Errors  A row that is damaged or not what the features say, the first one of those; or one that an
    /// operator cannot work on.
    pub fn assemble(&self, rows: &[Row<'_>], key: &DrawKey) -> Result<Batch, RowError> {
        let made = self.assemble_within(rows, key, |_| true)?;
        Ok(made.expect("there was room"))
    }

    /// As [`Assembler::assemble`], if there is room: nothing is written before that is known.
    /// - `has_room`: whether a slot for so many bytes may be taken.
    /// - Returns `None` if there is no room.
    ///
    /// # Errors  As [`Assembler::assemble`].
    pub fn assemble_within(
        &self,
        rows: &[Row<'_>],
        key: &DrawKey,
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<Option<Batch>, RowError> {
        let parts: Vec<Cells<'_>> = rows
            .par_chunks(self.rows_per_part(rows))
            .map(|part| self.timed(Stage::Parse, || Cells::locate(&self.schema, part)))
            .collect::<Vec<_>>()
            .into_iter()
            .collect::<Result<_, _>>()?;
        let plans = self.schema.plans().iter().enumerate();
        let totals: Vec<Total> =
            plans.map(|(index, plan)| Total::of_all(plan, index, &parts)).collect();
        let (layout, batch) = self.lay_out(rows.len(), &totals);
        if !has_room(layout.bytes()) {
            return Ok(None);
        }
        let memory =
            |source| RowError::at(&rows[0], RowFault::Memory { bytes: layout.bytes(), source });
        let mut slot = self.slots.take(layout.bytes()).map_err(memory)?;
        let mut buffers = layout.split(slot.bytes_mut()).into_iter();
        let writers = Part::split_all(&self.schema, &totals, &parts, &mut buffers);
        let written: Vec<Result<(), RowError>> = parts
            .par_iter()
            .zip(writers)
            .map(|(cells, part)| self.timed(Stage::Write, || part.write(&self.schema, cells, key)))
            .collect();
        if let Some(watch) = &self.watch {
            watch.suspect_images(self.schema.program().memory().take_suspect_images());
        }
        written.into_iter().collect::<Result<(), _>>()?;
        let Places { columns, valid, shards, ordinals } = batch;
        let (rows, slot) = (rows.len(), slot.share());
        Ok(Some(Batch { rows, columns, valid, shards, ordinals, slot }))
    }

    /// Whether records are delivered as they are, so that they can be [read straight](Self::assemble_straight)
    /// into their batch.
    pub fn is_straight(&self) -> bool {
        self.schema.is_raw()
    }

    /// A batch of records as they are, each read to where it belongs, one after the other.
    /// - `rows`: each record's sample and bytes, and whether it is no padding. `has_room`: as for
    ///   [`Assembler::assemble_within`].
    /// - `read`: fills the bytes that are there for a record and, behind them, its stored checksum.
    /// - Returns `None` if there is no room, `read` says `false`, the system has no memory, or the data is
    ///   not what its checksum says: whoever assembles the rows finds out what is wrong.
    pub fn assemble_straight(
        &self,
        rows: &[(Sample, usize, bool)],
        has_room: impl FnOnce(usize) -> bool,
        mut read: impl FnMut(usize, &mut [u8]) -> bool,
    ) -> Option<Batch> {
        let bytes = rows.iter().map(|(_, len, _)| len).sum();
        let total = Total { items: rows.len(), bytes, ..Total::default() };
        let (layout, Places { columns, valid, shards, ordinals }) =
            self.lay_out(rows.len(), std::slice::from_ref(&total));
        if !has_room(layout.bytes()) {
            return None;
        }
        let mut slot = self.slots.take(layout.bytes()).ok()?;
        let memory = slot.bytes_mut();
        let (first, mut at) = (columns[0].values.start, columns[0].values.start);
        let mut ends = Vec::with_capacity(rows.len() + 1);
        ends.push(0_i64);
        for (index, (_, len, _)) in rows.iter().enumerate() {
            // The checksum lies where the next record comes or, behind the last one, the offsets, which
            // are longer.
            let stored = &mut memory[at..at + len + frame::FOOTER_BYTES];
            if !read(index, stored) {
                return None;
            }
            let (data, footer) = stored.split_at(*len);
            let crc = u32::from_le_bytes(footer.try_into().expect("four bytes"));
            frame::check_data(data, crc).ok()?;
            at += len;
            ends.push((at - first) as i64);
        }
        let mut buffers = layout.split(memory).into_iter().skip(1);
        let mut next = || buffers.next().expect("the layout has this buffer");
        next().copy_from_slice(bytemuck::cast_slice(&ends));
        let flags = next().iter_mut().zip(rows);
        flags.for_each(|(flag, (_, _, valid))| *flag = u8::from(*valid));
        let numbers: &mut [i64] = bytemuck::cast_slice_mut(next());
        numbers.iter_mut().zip(rows).for_each(|(to, (sample, ..))| *to = i64::from(sample.shard));
        let numbers: &mut [i64] = bytemuck::cast_slice_mut(next());
        numbers.iter_mut().zip(rows).for_each(|(to, (sample, ..))| *to = sample.ordinal as i64);
        let (rows, slot) = (rows.len(), slot.share());
        Some(Batch { rows, columns, valid, shards, ordinals, slot })
    }

    /// Whether `row` can stand in a batch; says nothing of the rows beside it.
    /// - `key`: as for [`Assembler::assemble`].
    ///
    /// # Errors  What is wrong with it.
    pub fn check(&self, row: &Row<'_>, key: &DrawKey) -> Result<(), RowError> {
        let cells = Cells::locate(&self.schema, std::slice::from_ref(row))?;
        cells.carry_out(&self.schema, key, |_| None)
    }

    fn rows_per_part(&self, rows: &[Row<'_>]) -> usize {
        let threads = rayon::current_num_threads();
        let bytes: usize = rows.iter().map(Row::len).sum();
        let parts = (bytes / PART_BYTES).clamp(1, 4 * threads);
        let program = self.schema.program();
        if program.is_empty() {
            return rows.len().div_ceil(parts).max(1);
        }
        let made_bytes = program.memory().bytes_max() / threads;
        let fit = made_bytes.min(PART_MADE_BYTES_MAX) / program.row_bytes().max(1);
        rows.len().div_ceil(parts).clamp(1, fit.max(1))
    }

    /// Places of all buffers; [`Part::split_all`] takes them in the same order.
    fn lay_out(&self, rows: usize, totals: &[Total]) -> (Layout, Places) {
        let mut layout = Layout::default();
        let mut columns = Vec::with_capacity(totals.len());
        for ((name, kind), total) in self.schema.columns().iter().zip(totals) {
            let values = layout.push(total.bytes);
            let is_bytes = kind.dtype() == Dtype::Bytes;
            let offsets = is_bytes.then(|| layout.push(8 * (total.items + 1)));
            let leading = usize::from(matches!(kind, ColumnKind::Ragged { .. }));
            let splits = total.splits.iter().map(|count| layout.push(8 * (count + leading)));
            let splits = splits.collect();
            let (name, kind) = (Arc::clone(name), kind.clone());
            columns.push(ColumnData { name, kind, values, offsets, splits });
        }
        let valid = layout.push(rows);
        let shards = layout.push(8 * rows);
        let ordinals = layout.push(8 * rows);
        (layout, Places { columns, valid, shards, ordinals })
    }
}

struct Places {
    columns: Vec<ColumnData>,
    valid: BufferRange,
    shards: BufferRange,
    ordinals: BufferRange,
}
