//! Rows of a part of a batch: found in their records first, then written into the part's share of
//! every buffer.

use std::iter::Sum;

use shardfeed_tfrecord as frame;
use shardfeed_tfrecord::example::{DType, DefaultValue, Located, ParseError, describe};

use crate::assemble::{RowError, RowFault};
use crate::column::{ColumnKind, Schema, item_bytes, items};
use crate::record::{RawRecord, Row};

/// How much a column holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    /// Numbers or strings.
    pub(crate) items: usize,
    /// Bytes of all strings.
    pub(crate) bytes: usize,
}

impl Sum for Sizes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), |sum, more| Self {
            items: sum.items + more.items,
            bytes: sum.bytes + more.bytes,
        })
    }
}

/// The values of some rows, still in their records.
#[derive(Debug)]
pub(crate) struct Cells<'a> {
    rows: &'a [Row],
    /// Row by row, one for each column; empty for unparsed records.
    located: Vec<Located<'a>>,
    /// Of each column.
    defaults: Vec<Option<&'a DefaultValue>>,
    /// Of each column.
    pub(crate) sizes: Vec<Sizes>,
}

impl<'a> Cells<'a> {
    /// Checks the data of `rows` and finds their features.
    pub(crate) fn locate(schema: &'a Schema, rows: &'a [Row]) -> Result<Self, RowError> {
        let columns = schema.columns().len();
        let mut sizes = vec![Sizes::default(); columns];
        let defaults: Vec<_> = (0..columns).map(|column| schema.default_of(column)).collect();
        let (mut cells, mut located) = (Vec::new(), Vec::new());
        if schema.parser().is_some() {
            located.reserve(rows.len() * columns);
        }
        for row in rows {
            let record = &row.record;
            frame::check_data(record.data(), record.stored_crc())
                .map_err(|e| RowError::at(record, e))?;
            match schema.parser() {
                None => {
                    sizes[0].items += 1;
                    sizes[0].bytes += record.len;
                }
                Some(parser) => {
                    parser
                        .locate(record.data(), &mut cells)
                        .map_err(|error| RowError::at(record, parse_fault(record, error)))?;
                    located.extend_from_slice(&cells);
                    let cells = cells.iter().zip(&defaults);
                    for (size, (cell, default)) in sizes.iter_mut().zip(cells) {
                        let more = size_of(cell, *default);
                        size.items += more.items;
                        size.bytes += more.bytes;
                    }
                }
            }
        }
        Ok(Self { rows, located, defaults, sizes })
    }

    fn for_each_bytes(&self, columns: usize, row: usize, column: usize, mut f: impl FnMut(&[u8])) {
        if self.located.is_empty() {
            return f(self.rows[row].record.data());
        }
        match (&self.located[row * columns + column], self.defaults[column]) {
            (Located::Present(list), _) => list.for_each_bytes(f),
            (Located::Default, Some(DefaultValue::Bytes(values))) => {
                values.iter().for_each(|value| f(value));
            }
            (Located::Default | Located::Missing, _) => {}
        }
    }
}

/// A name that is not there is most often a name misspelt, so the error says what there is.
fn parse_fault(record: &RawRecord, error: ParseError) -> RowFault {
    const NAMES_MAX: usize = 40;
    let held = describe(record.data()).unwrap_or_default();
    let holds = held.into_iter().take(NAMES_MAX).map(|feature| feature.name);
    RowFault::Parse { error: Box::new(error), holds: holds.collect() }
}

fn size_of(cell: &Located<'_>, default: Option<&DefaultValue>) -> Sizes {
    match (cell, default) {
        (Located::Present(list), _) => {
            let bytes = if list.dtype() == DType::Bytes { list.data_bytes() } else { 0 };
            Sizes { items: list.count(), bytes }
        }
        (Located::Default, Some(default)) => {
            let bytes = match default {
                DefaultValue::Bytes(values) => values.iter().map(Vec::len).sum(),
                DefaultValue::Int64(_) | DefaultValue::Float32(_) => 0,
            };
            Sizes { items: default.count(), bytes }
        }
        (Located::Default | Located::Missing, _) => Sizes::default(),
    }
}

/// One part's share of every buffer of a batch.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    columns: Vec<Column<'a>>,
    valid: &'a mut [u8],
    shards: &'a mut [i64],
    ordinals: &'a mut [i64],
}

#[derive(Debug)]
struct Column<'a> {
    dtype: DType,
    values: &'a mut [u8],
    /// Ends of this part's strings in the whole column; empty for numbers.
    offsets: &'a mut [i64],
    /// Ends of this part's rows in the whole column; empty for fixed shapes.
    row_splits: &'a mut [i64],
    /// Bytes and items of the parts before.
    bytes_before: usize,
    items_before: usize,
}

/// A buffer of the whole batch that is handed out part by part.
struct Rest<'a>(&'a mut [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, len: usize) -> &'a mut [u8] {
        let (first, rest) = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        first
    }

    fn numbers(&mut self, count: usize) -> &'a mut [i64] {
        bytemuck::cast_slice_mut(self.bytes(8 * count))
    }

    /// Skips the leading zero of offsets and row splits.
    fn ends(buffer: &'a mut [u8]) -> Self {
        let mut rest = Self(buffer);
        rest.numbers(1)[0] = 0;
        rest
    }
}

impl<'a> Part<'a> {
    /// Cuts the buffers of a batch, in the order of its layout, into the shares of `parts`.
    pub(crate) fn split_all(
        schema: &Schema,
        parts: &[Cells<'_>],
        buffers: &mut impl Iterator<Item = &'a mut [u8]>,
    ) -> Vec<Self> {
        let mut next = || buffers.next().expect("the layout has this buffer");
        let mut shares: Vec<Vec<Column<'a>>> = parts.iter().map(|_| Vec::new()).collect();
        for (index, (_, kind)) in schema.columns().iter().enumerate() {
            let mut values = Rest(next());
            let (is_bytes, is_ragged, dtype) = match kind {
                ColumnKind::Dense { dtype, .. } => (false, false, *dtype),
                ColumnKind::Ragged { dtype } => (false, true, *dtype),
                ColumnKind::Bytes { .. } => (true, false, DType::Bytes),
                ColumnKind::RaggedBytes => (true, true, DType::Bytes),
            };
            let mut offsets = is_bytes.then(|| Rest::ends(next()));
            let mut row_splits = is_ragged.then(|| Rest::ends(next()));
            let mut before = Sizes::default();
            for (share, cells) in shares.iter_mut().zip(parts) {
                let (size, rows) = (cells.sizes[index], cells.rows.len());
                let bytes = match kind {
                    ColumnKind::Dense { shape, .. } => rows * items(shape) * item_bytes(dtype),
                    ColumnKind::Ragged { .. } => size.items * item_bytes(dtype),
                    ColumnKind::Bytes { .. } | ColumnKind::RaggedBytes => size.bytes,
                };
                share.push(Column {
                    dtype,
                    values: values.bytes(bytes),
                    offsets: offsets.as_mut().map_or(&mut [], |rest| rest.numbers(size.items)),
                    row_splits: row_splits.as_mut().map_or(&mut [], |rest| rest.numbers(rows)),
                    bytes_before: before.bytes,
                    items_before: before.items,
                });
                before.bytes += size.bytes;
                before.items += size.items;
            }
        }
        let (mut valid, mut shards, mut ordinals) = (Rest(next()), Rest(next()), Rest(next()));
        let with_rows = shares.into_iter().zip(parts).map(|(columns, cells)| {
            let rows = cells.rows.len();
            let (valid, shards) = (valid.bytes(rows), shards.numbers(rows));
            Self { columns, valid, shards, ordinals: ordinals.numbers(rows) }
        });
        with_rows.collect()
    }

    /// Writes `cells`, each value once.
    pub(crate) fn write(mut self, cells: &Cells<'_>) {
        for (index, row) in cells.rows.iter().enumerate() {
            self.valid[index] = u8::from(row.valid);
            self.shards[index] = i64::from(row.record.sample.shard);
            self.ordinals[index] = row.record.sample.ordinal as i64;
        }
        let width = self.columns.len();
        for (index, column) in self.columns.iter_mut().enumerate() {
            match column.dtype {
                DType::Bytes => column.write_bytes(cells, width, index),
                DType::Int64 | DType::Float32 => column.write_numbers(cells, width, index),
            }
        }
    }
}

impl Column<'_> {
    fn write_bytes(&mut self, cells: &Cells<'_>, width: usize, index: usize) {
        let (mut at, mut item) = (0, 0);
        for row in 0..cells.rows.len() {
            cells.for_each_bytes(width, row, index, |value| {
                self.values[at..at + value.len()].copy_from_slice(value);
                at += value.len();
                self.offsets[item] = (self.bytes_before + at) as i64;
                item += 1;
            });
            if let Some(end) = self.row_splits.get_mut(row) {
                *end = (self.items_before + item) as i64;
            }
        }
    }

    fn write_numbers(&mut self, cells: &Cells<'_>, width: usize, index: usize) {
        let bytes = item_bytes(self.dtype);
        let mut item = 0;
        for row in 0..cells.rows.len() {
            let (cell, default) = (&cells.located[row * width + index], cells.defaults[index]);
            let count = size_of(cell, default).items;
            let values = &mut self.values[item * bytes..(item + count) * bytes];
            match (cell, default) {
                (Located::Present(list), _) if self.dtype == DType::Int64 => {
                    list.write_i64(bytemuck::cast_slice_mut(values));
                }
                (Located::Present(list), _) => list.write_f32(bytemuck::cast_slice_mut(values)),
                (Located::Default, Some(DefaultValue::Int64(default))) => {
                    values.copy_from_slice(bytemuck::cast_slice(default));
                }
                (Located::Default, Some(DefaultValue::Float32(default))) => {
                    values.copy_from_slice(bytemuck::cast_slice(default));
                }
                (Located::Default | Located::Missing, _) => {}
            }
            item += count;
            if let Some(end) = self.row_splits.get_mut(row) {
                *end = (self.items_before + item) as i64;
            }
        }
    }
}
