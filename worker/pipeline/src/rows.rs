//! Runs of a batch's rows with one schema: located in their records first, then written into the
//! run's range of every buffer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardfeed_tfrecord::example::{DefaultValue, ListRef, Parts, Steps};

use crate::column::{ColumnKind, FoundStrings, Origin, Plan, items};
use crate::dtype::Dtype;
use crate::extent::{Extent, LocatedRecord, RecordScratch};
use crate::operator::Input;
use crate::record::{Row, RowError, RowFault};
use crate::samples::unbatch::Window;
use crate::schema::parse::RecordParser;

/// Feature cells and lists of a record.
type RecordCells<'a> = (Vec<Option<ListRef<'a>>>, Vec<Steps<'a>>);

/// Records that were checked and located, by their addresses.
#[derive(Debug, Default)]
pub(crate) struct LocatedRecords<'a>(BTreeMap<usize, RecordCells<'a>>);

impl<'a> LocatedRecords<'a> {
    /// Returns a row of each record.
    pub(crate) fn distinct<'r>(rows: impl Iterator<Item = &'r Row<'a>>) -> Vec<Row<'a>>
    where
        'a: 'r,
    {
        let mut seen = BTreeSet::new();
        rows.filter(|row| seen.insert(Self::address(row))).copied().collect()
    }

    /// Checks the data of records, and locates their features.
    ///
    /// Leaves out those where that fails: locating their rows finds the error.
    pub(crate) fn new(parser: &RecordParser, records: &[Row<'a>]) -> Self {
        let located = |row: &Row<'a>| {
            let (mut cells, mut lists) = (vec![], vec![]);
            parser.read(row, &mut cells, &mut lists).ok()?;
            Some((Self::address(row), (cells, lists)))
        };
        Self(records.iter().filter_map(located).collect())
    }

    /// Adds those of another part of a batch.
    pub(crate) fn with(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    fn address(row: &Row<'_>) -> usize {
        row.stored.as_ptr().addr()
    }

    fn get(&self, row: &Row<'_>) -> Option<&RecordCells<'a>> {
        if self.0.is_empty() { None } else { self.0.get(&Self::address(row)) }
    }
}

/// Values of some rows, still in their records.
#[derive(Debug)]
pub(crate) struct Cells<'a> {
    pub(crate) rows: &'a [Row<'a>],
    plans: &'a [Plan],
    /// Row by row, one for each cell of the parser; empty for unparsed records.
    located: Vec<Option<ListRef<'a>>>,
    /// Row by row, one for each cell of the parser's lists.
    steps: Vec<Steps<'a>>,
    /// Row by row, one for each column of rows around that of the sample.
    windows: Vec<Window>,
    /// Number of feature cells of a row, of list cells, and of windows.
    cells: usize,
    lists: usize,
    windows_of_row: usize,
    pub(crate) extents: Vec<Extent>,
    /// Strings of tables, row after row.
    found: Vec<(&'a FoundStrings, Vec<Vec<u8>>)>,
}

/// Contiguous values of a row.
enum Values<'l, 'c, 'a> {
    Record(&'c [u8]),
    List(&'l ListRef<'a>),
    Default(&'c DefaultValue),
    Strings(&'c [Vec<u8>]),
}

impl<'a> Cells<'a> {
    /// Checks the data of `rows`, locates their features, and looks up strings of tables.
    /// - `known`: records located before.
    pub(crate) fn locate(
        parser: &RecordParser,
        plans: &'a [Plan],
        tables: &'a [Arc<FoundStrings>],
        rows: &'a [Row<'a>],
        known: &LocatedRecords<'a>,
    ) -> Result<Self, RowError> {
        let mut extents: Vec<Extent> = plans.iter().map(|plan| Extent::new(&plan.kind)).collect();
        let (mut cells, mut lists, mut scratch) = (vec![], vec![], RecordScratch::default());
        let (mut located, mut steps, mut windows) = (vec![], vec![], vec![]);
        for (number, row) in rows.iter().enumerate() {
            match known.get(row) {
                Some(known) => {
                    cells.clone_from(&known.0);
                    lists.clone_from(&known.1);
                }
                None => parser.read(row, &mut cells, &mut lists)?,
            }
            if parser.is_raw() {
                for (plan, extent) in plans.iter().zip(&mut extents) {
                    match &plan.origin {
                        Origin::Record => extent.add_record(row.len()),
                        Origin::Constant(values) => extent.add_constant(values),
                        _ => {}
                    }
                }
                continue;
            }
            let first_window = windows.len();
            if let Some(unbatch) = parser.unbatch() {
                let taken = unbatch.take(row.part, &mut cells, &lists, &mut windows);
                taken.map_err(|error| RowError::at(row, error))?;
            }
            let windows = &windows[first_window..];
            let found = LocatedRecord { cells: &cells, lists: &lists, windows, row: number };
            let mut columns = plans.iter().zip(&mut extents);
            let added =
                columns.try_for_each(|(plan, extent)| extent.add(plan, found, &mut scratch));
            added.map_err(|error| RowError::parse(row, &error))?;
            if number == 0 {
                located.reserve(rows.len() * cells.len());
                steps.reserve(rows.len() * lists.len());
            }
            located.extend_from_slice(&cells);
            steps.extend_from_slice(&lists);
        }
        let (cells, lists) = (cells.len(), lists.len());
        let (windows_of_row, found) = (windows.len() / rows.len().max(1), vec![]);
        let mut found = Self {
            rows,
            plans,
            located,
            steps,
            windows,
            cells,
            lists,
            windows_of_row,
            extents,
            found,
        };
        for table in tables {
            found.look_up(table)?;
        }
        Ok(found)
    }

    fn look_up(&mut self, table: &'a FoundStrings) -> Result<(), RowError> {
        let FoundStrings { output, keys, finder } = table;
        let strings = match keys.kind.dtype() {
            Dtype::Bytes => finder.strings(Input::Strings(&self.strings(keys))),
            _ => {
                let row_bytes = keys.kind.row_bytes();
                let mut numbers = vec![0_i64; self.rows.len() * row_bytes / size_of::<i64>()];
                let bytes = bytemuck::cast_slice_mut(&mut numbers);
                self.numbers(keys, bytes);
                finder.strings(Input::Numbers(bytes, row_bytes))
            }
        };
        let strings = strings.map_err(|(row, fault)| {
            RowError::at(
                &self.rows[row],
                RowFault::Operator { output: output.as_str().into(), fault },
            )
        })?;
        let is_of_table =
            |plan: &Plan| matches!(&plan.origin, Origin::Found(own) if **own == *table);
        let columns = self.plans.iter().zip(&mut self.extents);
        columns
            .filter(|(plan, _)| is_of_table(plan))
            .for_each(|(_, extent)| extent.add_strings(&strings));
        self.found.push((table, strings));
        Ok(())
    }

    /// Strings of a table in a row.
    fn found(&self, table: &FoundStrings, row: usize) -> &[Vec<u8>] {
        let found = self.found.iter().find(|(found, _)| *found == table);
        let (_, strings) = found.expect("all tables are looked up first");
        let per_row = strings.len() / self.rows.len().max(1);
        &strings[row * per_row..][..per_row]
    }

    /// Returns the strings of a column, row after row.
    pub(crate) fn strings<'c>(&'c self, plan: &'c Plan) -> Vec<&'c [u8]> {
        let mut strings = Vec::with_capacity(self.rows.len());
        for row in 0..self.rows.len() {
            self.for_each(plan, row, |values| match values {
                Values::Record(record) => strings.push(record),
                Values::List(list) => list.for_each_bytes(|one| strings.push(one)),
                Values::Default(DefaultValue::Bytes(values)) => {
                    strings.extend(values.iter().map(Vec::as_slice));
                }
                Values::Default(_) => {}
                Values::Strings(values) => strings.extend(values.iter().map(Vec::as_slice)),
            });
        }
        strings
    }

    /// Returns the number of values of each row in a column.
    pub(crate) fn lengths(&self, plan: &Plan) -> Vec<usize> {
        let length = |row: usize| {
            let mut length = 0;
            self.for_each(plan, row, |values| {
                if let Values::List(list) = values {
                    length += list.count();
                }
            });
            length
        };
        (0..self.rows.len()).map(length).collect()
    }

    /// Returns the number of steps of a feature list in each row.
    pub(crate) fn steps_of(&self, list: usize) -> Vec<usize> {
        (0..self.rows.len()).map(|row| self.steps[row * self.lists + list].steps()).collect()
    }

    fn record(&self, row: usize) -> LocatedRecord<'_, 'a> {
        LocatedRecord {
            cells: &self.located[row * self.cells..][..self.cells],
            lists: &self.steps[row * self.lists..][..self.lists],
            windows: &self.windows[row * self.windows_of_row..][..self.windows_of_row],
            row,
        }
    }

    /// Returns the extent of a parsed column.
    ///
    /// # Errors  A row that the column's partitions do not fit.
    pub(crate) fn extent(&self, plan: &Plan) -> Result<Extent, RowError> {
        let (mut extent, mut scratch) = (Extent::new(&plan.kind), RecordScratch::default());
        for (number, row) in self.rows.iter().enumerate() {
            let added = extent.add(plan, self.record(number), &mut scratch);
            added.map_err(|error| RowError::parse(row, &error))?;
        }
        Ok(extent)
    }

    /// Writes the numbers of a column of fixed or variable shape, row after row.
    pub(crate) fn numbers(&self, plan: &Plan, out: &mut [u8]) {
        let extent = Extent::new(&plan.kind);
        let mut column = PartColumn {
            values: out,
            offsets: &mut [],
            splits: vec![],
            bytes_before: 0,
            sums_before: vec![],
            rows_before: 0,
            room: None,
        };
        match plan.kind.dtype() {
            Dtype::Bool => column.write_pads(self, plan),
            Dtype::Int64 => column.write_numbers::<i64>(self, plan, &extent),
            _ => column.write_numbers::<f32>(self, plan, &extent),
        }
    }

    /// Calls `visit` with all values of a row in a column, in order.
    #[inline]
    fn for_each<'c>(
        &'c self,
        plan: &'c Plan,
        row: usize,
        mut visit: impl FnMut(Values<'_, 'c, 'a>),
    ) {
        let (cells, lists) = (self.cells, self.lists);
        match &plan.origin {
            Origin::Record => visit(Values::Record(self.rows[row].data())),
            Origin::Constant(values) => visit(Values::Default(values)),
            Origin::Found(table) => visit(Values::Strings(self.found(table, row))),
            Origin::Feature(
                Parts::One { values } | Parts::Ragged { values, .. } | Parts::Sparse { values, .. },
            ) => match (&self.located[row * cells + values], plan.default()) {
                (Some(list), _) => visit(Values::List(list)),
                (None, Some(default)) => visit(Values::Default(default)),
                (None, None) => {}
            },
            Origin::Around(around) => {
                let LocatedRecord { cells, lists, windows, .. } = self.record(row);
                let default = plan.default();
                around.for_each(windows[around.window], cells, lists, &mut |list| match (
                    &list, default,
                ) {
                    (Some(list), _) => visit(Values::List(list)),
                    (None, Some(default)) => visit(Values::Default(default)),
                    (None, None) => {}
                });
            }
            Origin::List(Parts::One { values } | Parts::Ragged { values, .. }) => {
                let steps = self.steps[row * lists + values];
                steps.iter().flatten().for_each(|list| visit(Values::List(&list)));
            }
            other => unreachable!("{other:?} is in no schema"),
        }
    }
}

/// Sizes of a column in a whole batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Total {
    /// Values in the buffer, including padding.
    pub(crate) items: usize,
    pub(crate) bytes: usize,
    /// Length of each split, without the leading 0.
    pub(crate) splits: Vec<usize>,
    /// Padded: number of values, each of the column's shape, in each row including padding.
    pub(crate) longest: usize,
}

impl Total {
    /// Sizes of some rows.
    /// - `longest`: of the whole batch. `extent`: of these rows, `rows` in number.
    fn of(plan: &Plan, extent: &Extent, rows: usize, longest: usize) -> Self {
        let kind = &plan.kind;
        let items = match kind {
            ColumnKind::Dense { shape, .. } => rows * items(shape),
            ColumnKind::Padded { shape, .. } => rows * longest * items(shape),
            ColumnKind::Ragged { shape, .. } if matches!(plan.origin, Origin::Rows(..)) => {
                extent.elements() * items(shape)
            }
            ColumnKind::Ragged { .. } | ColumnKind::Sparse { .. } => extent.items,
        };
        let bytes = match kind.dtype() {
            Dtype::Bytes => extent.bytes + (items - extent.items) * pad_bytes(plan).len(),
            dtype => items * dtype.bytes(),
        };
        let splits = match kind {
            ColumnKind::Dense { .. } => vec![],
            ColumnKind::Padded { .. } => vec![rows],
            ColumnKind::Ragged { .. } => extent.lengths.iter().map(Vec::len).collect(),
            ColumnKind::Sparse { size, .. } => vec![extent.items * (1 + size.len())],
        };
        Self { items, bytes, splits, longest }
    }

    /// Sizes of a column in all runs of a batch.
    pub(crate) fn of_all(kind: &ColumnKind, index: usize, runs: &[Cells<'_>]) -> Self {
        let longest = runs.iter().map(|part| part.extents[index].longest).max().unwrap_or(0);
        let mut sum = Self { longest, splits: vec![0; kind.splits()], ..Self::default() };
        for part in runs {
            let (plan, extent) = (&part.plans[index], &part.extents[index]);
            let one = Self::of(plan, extent, part.rows.len(), longest);
            sum.items += one.items;
            sum.bytes += one.bytes;
            sum.splits.iter_mut().zip(one.splits).for_each(|(sum, one)| *sum += one);
        }
        sum
    }
}

fn pad_bytes(plan: &Plan) -> &[u8] {
    match plan.padding() {
        Some(DefaultValue::Bytes(values)) => values.first().map_or(&[], Vec::as_slice),
        _ => &[],
    }
}

/// Writes a run of rows: its range of every buffer of a batch.
#[derive(Debug)]
pub(crate) struct RunWriter<'a> {
    columns: Vec<PartColumn<'a>>,
    valid: &'a mut [u8],
    shards: &'a mut [i64],
    ordinals: &'a mut [i64],
}

#[derive(Debug)]
struct PartColumn<'a> {
    values: &'a mut [u8],
    /// Ends of this part's strings in the whole column; empty for numbers.
    offsets: &'a mut [i64],
    splits: Vec<&'a mut [i64]>,
    /// Bytes of the previous parts, and the sums of their row lengths for each split.
    bytes_before: usize,
    sums_before: Vec<i64>,
    rows_before: usize,
    /// Padded: values of each row, including padding.
    room: Option<usize>,
}

/// Unassigned rest of a buffer of the whole batch.
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

    /// Writes the leading zero of offsets and splits, and returns the rest.
    fn ends(buffer: &'a mut [u8]) -> Self {
        let mut rest = Self(buffer);
        rest.numbers(1)[0] = 0;
        rest
    }
}

impl<'a> RunWriter<'a> {
    /// Splits the buffers of a batch, in the order of its layout, among `runs`.
    pub(crate) fn split_all(
        columns: &[(Arc<str>, ColumnKind)],
        totals: &[Total],
        runs: &[Cells<'_>],
        buffers: &mut impl Iterator<Item = &'a mut [u8]>,
    ) -> Vec<Self> {
        let mut next = || buffers.next().expect("the layout has this buffer");
        let mut shares: Vec<Vec<PartColumn<'a>>> = runs.iter().map(|_| Vec::new()).collect();
        for (index, ((_, kind), total)) in columns.iter().zip(totals).enumerate() {
            let mut values = Rest(next());
            let mut offsets = (kind.dtype() == Dtype::Bytes).then(|| Rest::ends(next()));
            let is_ragged = matches!(kind, ColumnKind::Ragged { .. });
            let split = |_| if is_ragged { Rest::ends(next()) } else { Rest(next()) };
            let mut splits: Vec<Rest<'a>> = (0..kind.splits()).map(split).collect();
            let (mut bytes_before, mut rows_before) = (0, 0);
            let mut sums_before = vec![0; kind.splits()];
            for (share, cells) in shares.iter_mut().zip(runs) {
                let (extent, rows) = (&cells.extents[index], cells.rows.len());
                let own = Total::of(&cells.plans[index], extent, rows, total.longest);
                let numbers = |(rest, count): (&mut Rest<'a>, &usize)| rest.numbers(*count);
                share.push(PartColumn {
                    values: values.bytes(own.bytes),
                    offsets: offsets.as_mut().map_or(&mut [], |rest| rest.numbers(own.items)),
                    splits: splits.iter_mut().zip(&own.splits).map(numbers).collect(),
                    bytes_before,
                    sums_before: sums_before.clone(),
                    rows_before,
                    room: match kind {
                        ColumnKind::Padded { shape, .. } => Some(total.longest * items(shape)),
                        _ => None,
                    },
                });
                bytes_before += own.bytes;
                rows_before += rows;
                for (sum, lengths) in sums_before.iter_mut().zip(&extent.lengths) {
                    *sum += lengths.iter().sum::<i64>();
                }
            }
        }
        let (mut valid, mut shards, mut ordinals) = (Rest(next()), Rest(next()), Rest(next()));
        let with_rows = shares.into_iter().zip(runs).map(|(columns, cells)| {
            let rows = cells.rows.len();
            let (valid, shards) = (valid.bytes(rows), shards.numbers(rows));
            Self { columns, valid, shards, ordinals: ordinals.numbers(rows) }
        });
        with_rows.collect()
    }

    /// Writes `cells`, each value once.
    /// - Returns the memory of the operators' columns, by step.
    pub(crate) fn write(self, cells: &Cells<'_>) -> BTreeMap<usize, &'a mut [u8]> {
        let mut made = BTreeMap::new();
        for (index, row) in cells.rows.iter().enumerate() {
            self.valid[index] = u8::from(row.valid);
            self.shards[index] = i64::from(row.sample.shard);
            self.ordinals[index] = row.sample.ordinal as i64;
        }
        let columns = self.columns.into_iter().zip(cells.plans).zip(&cells.extents);
        for ((mut column, plan), extent) in columns {
            if let Origin::Step(step) | Origin::Rows(step, _) = plan.origin {
                made.insert(step, std::mem::take(&mut column.values));
                column.write_splits(plan, extent);
                continue;
            }
            match plan.kind.dtype() {
                Dtype::Bytes => column.write_bytes(cells, plan, extent),
                Dtype::Int64 => column.write_numbers::<i64>(cells, plan, extent),
                Dtype::Float32 => column.write_numbers::<f32>(cells, plan, extent),
                Dtype::Bool => column.write_pads(cells, plan),
                other => unreachable!("no record holds {other}"),
            }
            column.write_splits(plan, extent);
        }
        made
    }
}

/// A number as stored in a list.
trait ListNumber: bytemuck::Pod + Default {
    fn write(list: &ListRef<'_>, values: &mut [Self]);
    fn default_of(default: &DefaultValue) -> &[Self];
}

impl ListNumber for i64 {
    fn write(list: &ListRef<'_>, values: &mut [Self]) {
        list.write_i64(values);
    }

    fn default_of(default: &DefaultValue) -> &[Self] {
        if let DefaultValue::Int64(values) = default { values } else { &[] }
    }
}

impl ListNumber for f32 {
    fn write(list: &ListRef<'_>, values: &mut [Self]) {
        list.write_f32(values);
    }

    fn default_of(default: &DefaultValue) -> &[Self] {
        if let DefaultValue::Float32(values) = default { values } else { &[] }
    }
}

impl PartColumn<'_> {
    fn write_splits(&mut self, plan: &Plan, extent: &Extent) {
        match &plan.kind {
            ColumnKind::Dense { .. } => {}
            ColumnKind::Padded { .. } => self.splits[0].copy_from_slice(&extent.lengths[0]),
            ColumnKind::Ragged { .. } => {
                let levels = self.splits.iter_mut().zip(&extent.lengths).zip(&self.sums_before);
                for ((ends, lengths), before) in levels {
                    let mut sum = *before;
                    for (end, length) in ends.iter_mut().zip(lengths) {
                        sum += length;
                        *end = sum;
                    }
                }
            }
            ColumnKind::Sparse { size, .. } => {
                self.splits[0].copy_from_slice(&extent.places);
                let rows = self.splits[0].iter_mut().step_by(1 + size.len());
                rows.for_each(|row| *row += self.rows_before as i64);
            }
        }
    }

    fn write_bytes(&mut self, cells: &Cells<'_>, plan: &Plan, extent: &Extent) {
        let (mut at, mut item) = (0, 0);
        let (values, offsets, before) = (&mut *self.values, &mut *self.offsets, self.bytes_before);
        let mut put = |value: &[u8]| {
            values[at..at + value.len()].copy_from_slice(value);
            at += value.len();
            offsets[item] = (before + at) as i64;
            item += 1;
            item
        };
        let pad = pad_bytes(plan);
        let (mut sorted, mut end, mut strings) = (0, 0, vec![]);
        for row in 0..cells.rows.len() {
            let mut count = 0;
            if let ColumnKind::Sparse { .. } = plan.kind {
                strings.clear();
                cells.for_each(plan, row, |values| {
                    if let Values::List(list) = values {
                        list.for_each_bytes(|value| strings.push(value));
                    }
                });
                let order = &extent.order[sorted..sorted + strings.len()];
                for &value in order {
                    put(strings[value as usize]);
                }
                sorted += strings.len();
                continue;
            }
            cells.for_each(plan, row, |values| match values {
                Values::Record(value) => count = put(value),
                Values::List(list) => list.for_each_bytes(|value| count = put(value)),
                Values::Default(DefaultValue::Bytes(values)) => {
                    values.iter().for_each(|value| count = put(value));
                }
                Values::Strings(strings) => strings.iter().for_each(|value| count = put(value)),
                Values::Default(_) => {}
            });
            if let Some(room) = self.room {
                end += room;
                while count.max(end - room) < end {
                    count = put(pad);
                }
            }
        }
    }

    /// Writes which rows around each row are outside of its record.
    fn write_pads(&mut self, cells: &Cells<'_>, plan: &Plan) {
        let (Origin::IsPad(window), ColumnKind::Dense { shape, .. }) = (&plan.origin, &plan.kind)
        else {
            unreachable!("no record holds bool");
        };
        for (row, marks) in self.values.chunks_exact_mut(items(shape)).enumerate() {
            let Window { before, after, .. } = cells.record(row).windows[*window];
            let end = marks.len() - after;
            marks[..before].fill(1);
            marks[before..end].fill(0);
            marks[end..].fill(1);
        }
    }

    fn write_numbers<T: ListNumber>(&mut self, cells: &Cells<'_>, plan: &Plan, extent: &Extent) {
        let all: &mut [T] = bytemuck::cast_slice_mut(self.values);
        let is_sparse = matches!(plan.kind, ColumnKind::Sparse { .. });
        let pad = plan.padding().and_then(|default| T::default_of(default).first().copied());
        let (mut at, mut scratch) = (0, vec![]);
        for row in 0..cells.rows.len() {
            let begin = at;
            cells.for_each(plan, row, |values| match values {
                Values::List(list) => {
                    let end = at + list.count();
                    T::write(list, &mut all[at..end]);
                    at = end;
                }
                Values::Default(default) => {
                    let default = T::default_of(default);
                    all[at..at + default.len()].copy_from_slice(default);
                    at += default.len();
                }
                Values::Record(_) | Values::Strings(_) => {}
            });
            if is_sparse {
                scratch.clear();
                scratch.extend_from_slice(&all[begin..at]);
                let order = &extent.order[begin..at];
                let sorted = order.iter().map(|&value| scratch[value as usize]);
                all[begin..at].iter_mut().zip(sorted).for_each(|(place, value)| *place = value);
            }
            if let Some(room) = self.room {
                all[at..begin + room].fill(pad.unwrap_or_default());
                at = begin + room;
            }
        }
    }
}
