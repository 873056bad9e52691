//! Assembles a batch of records, written once, in place, into a slot.

use std::sync::Arc;

use rayon::prelude::*;
use shardfeed_handoff::{BufferLayout, BufferRange, SharedSlot, SlotPool};
use shardfeed_plan::Sample;
use shardfeed_tfrecord as frame;

use crate::column::{ColumnData, ColumnKind};
use crate::draw::DrawKey;
use crate::dtype::Dtype;
use crate::program::ProgramPart;
use crate::record::{Row, RowError, RowFault};
use crate::rows::{Cells, LocatedRecords, RunWriter, Total};
use crate::schema::{Schema, ShardSchemas};

mod row_images;

use row_images::RowImages;

/// Approximate bytes of a part of a batch; smaller parts cost more to distribute than to process.
const PART_BYTES: usize = 128 << 10;

/// Maximum bytes of operators' intermediate columns in a part, unless a single row needs more.
const PART_MADE_BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub struct Batch {
    /// Number of rows, including padding.
    pub rows: usize,
    /// Columns, in the schema's order.
    pub columns: Vec<ColumnData>,
    /// Flag of each row, 0 for padding, else 1: one byte each, `[rows]`.
    pub valid: BufferRange,
    /// Shard ordinals, i64, `[rows]`.
    pub shards: BufferRange,
    /// Ordinals in the shard, i64, `[rows]`.
    pub ordinals: BufferRange,
    pub slot: SharedSlot,
}

/// Stage of a computing thread's work on a part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Checking checksums and locating features.
    Parse,
    /// Running operators and writing values into the slot.
    Write,
}

/// Start of a stage of a part, as measured by its watch.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// CPU time of the thread.
    pub cpu_ns: u64,
    pub wall_ns: u64,
}

/// Access to clocks, which this crate never reads.
pub trait Watch: Send + Sync + std::fmt::Debug {
    /// Begins a stage of a part on this thread.
    fn begin(&self) -> Begun;
    fn end(&self, stage: Stage, begun: Begun);
    /// Reports the number of images that were decoded although the library issued a warning.
    fn suspect_images(&self, count: u64);
}

#[derive(Clone, Debug)]
pub struct Assembler {
    schemas: ShardSchemas,
    slots: SlotPool,
    watch: Option<Arc<dyn Watch>>,
    record_of: Option<RecordOf>,
    images: Option<Arc<RowImages>>,
}

/// Returns the index in its shard of the record that a sample is made of.
#[derive(Clone)]
struct RecordOf(Arc<dyn Fn(Sample) -> u64 + Send + Sync>);

impl std::fmt::Debug for RecordOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordOf")
    }
}

impl Assembler {
    pub fn new(schemas: impl Into<ShardSchemas>, slots: SlotPool) -> Self {
        Self { schemas: schemas.into(), slots, watch: None, record_of: None, images: None }
    }

    pub fn watched(self, watch: Arc<dyn Watch>) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Returns this assembler for samples that are only some of the records: batches name those.
    /// - `record_of`: returns the index in its shard of a sample's record.
    pub fn of_records(self, record_of: impl Fn(Sample) -> u64 + Send + Sync + 'static) -> Self {
        Self { record_of: Some(RecordOf(Arc::new(record_of))), ..self }
    }

    /// Returns this assembler for samples that are rows of records: it makes images for all rows of
    /// a record at once, and keeps those of later batches if [memory](Self::bound_images) permits.
    /// - `rows_of`: returns the rows of a sample's record that are samples, with their ordinals; none
    ///   if there are more than the given number.
    pub fn of_rows(
        self,
        rows_of: impl Fn(Sample, u64) -> Vec<(u64, u32)> + Send + Sync + 'static,
    ) -> Self {
        let has_images =
            self.schemas.all().iter().any(|schema| schema.program().shared_bytes() > 0);
        let images = has_images.then(|| Arc::new(RowImages::new(Box::new(rows_of))));
        Self { images, ..self }
    }

    /// Bytes that the images of a row of a later batch take; 0: there are none.
    pub fn image_row_bytes(&self) -> u64 {
        let bytes =
            self.schemas.all().iter().map(|schema| RowImages::row_bytes(schema) as u64).max();
        self.images.as_ref().and(bytes).unwrap_or(0)
    }

    /// Limits the bytes of images of later batches from now on.
    /// - `batches`: maximum number of batches between two rows of a record.
    pub fn bound_images(&self, bytes: u64, batches: u64) {
        if let Some(images) = &self.images {
            images.bound(usize::try_from(bytes).unwrap_or(usize::MAX), batches);
        }
    }

    /// Writes the records' indexes in their shards.
    fn write_ordinals(&self, samples: impl Iterator<Item = Sample>, bytes: &mut [u8]) {
        let ordinal = |sample: Sample| {
            self.record_of.as_ref().map_or(sample.ordinal, |record| (record.0)(sample))
        };
        let numbers: &mut [i64] = bytemuck::cast_slice_mut(bytes);
        numbers.iter_mut().zip(samples).for_each(|(to, sample)| *to = ordinal(sample) as i64);
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
    /// - `key`: key of random operators' draws, in addition to the sample.
    ///
    /// # Errors
    ///
    /// The first row that is damaged or misfits the features, or in which an operator fails.
    pub fn assemble(&self, rows: &[Row<'_>], key: &DrawKey) -> Result<Batch, RowError> {
        let made = self.assemble_within(rows, key, |_| true)?;
        Ok(made.expect("there was room"))
    }

    /// Assembles as [`Assembler::assemble`], if memory permits; nothing is written before that.
    /// - `has_room`: returns true if a slot of this many bytes may be taken.
    /// - Returns `None` if it may not.
    ///
    /// # Errors  As [`Assembler::assemble`].
    pub fn assemble_within<'r>(
        &self,
        rows: &'r [Row<'r>],
        key: &DrawKey,
        has_room: impl FnOnce(usize) -> bool,
    ) -> Result<Option<Batch>, RowError> {
        let records = self.records(rows);
        let locate = |part: &'r [Row<'r>]| {
            let runs = self.schemas.runs(part);
            runs.map(|(schema, run)| schema.locate(run, &records)).collect::<Result<Vec<_>, _>>()
        };
        let located: Vec<Vec<Cells<'_>>> = rows
            .par_chunks(self.rows_per_part(rows))
            .map(|part| self.timed(Stage::Parse, || locate(part)))
            .collect::<Vec<_>>()
            .into_iter()
            .collect::<Result<_, _>>()?;
        let runs_of_parts: Vec<usize> = located.iter().map(Vec::len).collect();
        let runs: Vec<Cells<'_>> = located.into_iter().flatten().collect();
        let columns = self.schemas.first().columns().iter().enumerate();
        let totals: Vec<Total> =
            columns.map(|(index, (_, kind))| Total::of_all(kind, index, &runs)).collect();
        let (layout, batch) = self.lay_out(rows.len(), &totals);
        if !has_room(layout.bytes()) {
            return Ok(None);
        }
        let memory =
            |source| RowError::at(&rows[0], RowFault::Memory { bytes: layout.bytes(), source });
        let mut slot = self.slots.take(layout.bytes()).map_err(memory)?;
        let images = self.images.as_ref().map(|images| {
            images.of_batch(&self.schemas, rows, key.epoch, |schema, rows| {
                self.timed(Stage::Write, || row_images::make(schema, rows, key))
            })
        });
        let mut images = images.as_deref().unwrap_or_default();
        let images = runs.iter().map(|cells| {
            let (first, others) = images.split_at(cells.rows.len().min(images.len()));
            images = others;
            first
        });
        let mut buffers = layout.split(slot.bytes_mut()).into_iter();
        let columns = self.schemas.first().columns();
        let writers = RunWriter::split_all(columns, &totals, &runs, &mut buffers);
        let mut all = runs.iter().zip(writers).zip(images);
        let mut part = |runs: usize| all.by_ref().take(runs).collect::<Vec<_>>();
        let parts: Vec<_> = runs_of_parts.into_iter().map(&mut part).collect();
        let write = |((cells, writer), images): ((&Cells<'_>, RunWriter<'_>), &[_])| {
            let mut made = writer.write(cells);
            let program = self.schemas.of(cells.rows[0].sample.shard).program();
            program.run(cells, key, &ProgramPart::Rows(images), |step| made.remove(&step))
        };
        let written: Vec<Result<(), RowError>> = parts
            .into_par_iter()
            .map(|part| self.timed(Stage::Write, || part.into_iter().try_for_each(write)))
            .collect();
        if let Some(watch) = &self.watch {
            let suspect = |schema: &Arc<Schema>| schema.program().memory().take_suspect_images();
            watch.suspect_images(self.schemas.all().iter().map(suspect).sum());
        }
        written.into_iter().collect::<Result<(), _>>()?;
        let BatchRanges { columns, valid, shards, ordinals } = batch;
        if self.record_of.is_some() {
            let samples = rows.iter().map(|row| row.sample);
            self.write_ordinals(samples, &mut slot.bytes_mut()[ordinals.bytes()]);
        }
        let (rows, slot) = (rows.len(), slot.share());
        Ok(Some(Batch { rows, columns, valid, shards, ordinals, slot }))
    }

    /// True if records are delivered unchanged, so that they can be
    /// [read directly](Self::assemble_straight) into their batch.
    pub fn is_straight(&self) -> bool {
        self.schemas.only().is_some_and(|schema| schema.is_raw())
    }

    /// Assembles a batch of unchanged records, each read directly to its position.
    /// - `rows`: sample, bytes, and `false` for padding, of each. `has_room`: as `assemble_within`.
    /// - `read`: fills a record's bytes, followed by its stored checksum.
    /// - Returns `None` if memory does not permit it, `read` returns `false`, the system has no
    ///   memory, or data does not match its checksum; assembling the rows normally finds the error.
    pub fn assemble_straight(
        &self,
        rows: &[(Sample, usize, bool)],
        has_room: impl FnOnce(usize) -> bool,
        mut read: impl FnMut(usize, &mut [u8]) -> bool,
    ) -> Option<Batch> {
        let bytes = rows.iter().map(|(_, len, _)| len).sum();
        let total = Total { items: rows.len(), bytes, ..Total::default() };
        let (layout, BatchRanges { columns, valid, shards, ordinals }) =
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
            // The checksum is overwritten by the next record or, after the last one, by the
            // offsets, which are longer.
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
        self.write_ordinals(rows.iter().map(|(sample, ..)| *sample), next());
        let (rows, slot) = (rows.len(), slot.share());
        Some(Batch { rows, columns, valid, shards, ordinals, slot })
    }

    /// Checks whether `row` can be part of a batch, independent of other rows.
    /// - `key`: as for [`Assembler::assemble`].
    ///
    /// # Errors  The error in the row.
    pub fn check(&self, row: &Row<'_>, key: &DrawKey) -> Result<(), RowError> {
        let schema = self.schemas.of(row.sample.shard);
        let cells = schema.locate(std::slice::from_ref(row), &LocatedRecords::default())?;
        schema.program().run(&cells, key, &ProgramPart::Rows(&[]), |_| None)
    }

    /// Checks and locates each record of which a batch may have several rows once.
    fn records<'a>(&'a self, rows: &[Row<'a>]) -> LocatedRecords<'a> {
        if !self.schemas.all().iter().any(|schema| schema.has_rows()) {
            return LocatedRecords::default();
        }
        let of_rows = |row: &Row<'_>| self.schemas.of(row.sample.shard).has_rows();
        let records = LocatedRecords::distinct(rows.iter().filter(|row| of_rows(row)));
        let locate = |part: &[Row<'a>]| {
            let runs = self.schemas.runs(part);
            runs.map(|(schema, run)| LocatedRecords::new(schema.parser(), run))
                .fold(LocatedRecords::default(), LocatedRecords::with)
        };
        let parts = records.par_chunks(self.rows_per_part(&records));
        let parts = parts.map(|part| self.timed(Stage::Parse, || locate(part)));
        parts.reduce(LocatedRecords::default, LocatedRecords::with)
    }

    fn rows_per_part(&self, rows: &[Row<'_>]) -> usize {
        let schemas = self.schemas.all().iter();
        schemas.map(|schema| Self::rows_per_part_of(schema, rows)).min().unwrap_or(1)
    }

    fn rows_per_part_of(schema: &Schema, rows: &[Row<'_>]) -> usize {
        let threads = rayon::current_num_threads();
        let bytes: usize = rows.iter().map(Row::len).sum();
        let parts = (bytes / PART_BYTES).clamp(1, 4 * threads);
        let program = schema.program();
        if program.is_empty() {
            return rows.len().div_ceil(parts).max(1);
        }
        let made_bytes = program.memory().bytes_max() / threads;
        // A value takes at least one byte of its record.
        let values_max = bytes.div_ceil(rows.len().max(1));
        let fit = made_bytes.min(PART_MADE_BYTES_MAX) / program.row_bytes(values_max).max(1);
        rows.len().div_ceil(parts).clamp(1, fit.max(1))
    }

    /// Lays out all buffers; [`RunWriter::split_all`] takes them in the same order.
    fn lay_out(&self, rows: usize, totals: &[Total]) -> (BufferLayout, BatchRanges) {
        let mut layout = BufferLayout::default();
        let mut columns = Vec::with_capacity(totals.len());
        for ((name, kind), total) in self.schemas.first().columns().iter().zip(totals) {
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
        (layout, BatchRanges { columns, valid, shards, ordinals })
    }
}

struct BatchRanges {
    columns: Vec<ColumnData>,
    valid: BufferRange,
    shards: BufferRange,
    ordinals: BufferRange,
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shardfeed_tfrecord::example::{Value, encode_example};

    use super::*;
    use crate::operator::Operator;
    use crate::schema::RecordSpec;

    #[test]
    fn a_part_has_as_many_rows_as_the_values_of_ragged_columns_allow() {
        let parse = json!([{"name": "v", "feature": {"var_len": {"dtype": "int64"}}}]);
        let operators: Vec<Operator> = serde_json::from_value(json!([
            {"output": "h", "operation": {"one_hot":
                {"input": "v", "depth": 4096, "on": 1.0, "off": 0.0, "dtype": "float32"}}},
            {"output": "o", "operation": {"slice": {"input": "h", "begin": [0], "size": [1]}}},
        ]))
        .unwrap();
        let parse = Some(serde_json::from_value(parse).unwrap());
        let outputs = Some(vec!["o".to_owned()]);
        let schema = RecordSpec { parse, operators, outputs, ..RecordSpec::default() };
        let schema = Schema::new(schema).unwrap();
        let rows_of = |values: usize| {
            let mut stored = vec![];
            encode_example(&[("v", Value::Int64(&vec![1; values]))], &mut stored);
            stored.extend([0; frame::FOOTER_BYTES]);
            let row = Row::of_record(Sample { shard: 0, ordinal: 0 }, &stored);
            Assembler::rows_per_part_of(&schema, &[row; 64])
        };
        // A value takes 16 KiB between the operators, and at most 4 MiB are for a part.
        assert_eq!(rows_of(200), 1);
        assert!((2..64).contains(&rows_of(20)), "{}", rows_of(20));
    }
}
