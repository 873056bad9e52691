//! Sizes and partitions of a column in one part of a batch, determined before writing.

use shardfeed_tfrecord::example::{
    DType, DefaultValue, EMPTY_ROWS_MAX, ListRef, ParseError, Partition, PartitionFault, Parts,
    Steps,
};

use crate::column::{ColumnKind, Origin, Plan, items};
use crate::dtype::Dtype;
use crate::samples::unbatch::Window;

/// Size and partitions of a column in some rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extent {
    /// Number of values, without padding.
    pub(crate) items: usize,
    /// Total bytes of all strings.
    pub(crate) bytes: usize,
    /// Padded: number of values, each of the column's shape, in the longest row.
    pub(crate) longest: usize,
    /// Ragged: length of each row of each level, the outermost first. Padded: length of each row.
    pub(crate) lengths: Vec<Vec<i64>>,
    /// Sparse: for each value its row in the part, then its position, ascending.
    pub(crate) places: Vec<i64>,
    /// Sparse: for each position the index of its value in the row.
    pub(crate) order: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LocatedRecord<'r, 'a> {
    pub(crate) cells: &'r [Option<ListRef<'a>>],
    pub(crate) lists: &'r [Steps<'a>],
    /// Rows around that of the sample.
    pub(crate) windows: &'r [Window],
    /// Row in the part.
    pub(crate) row: usize,
}

/// Memory that is reused for each record.
#[derive(Debug, Default)]
pub(crate) struct RecordScratch {
    numbers: Vec<i64>,
    counts: Vec<usize>,
    /// Positions of a record's values, one dimension after the other.
    places: Vec<i64>,
    /// Number of empty rows that row numbers may still create.
    empty: usize,
}

/// Returns the number of values, and the bytes of their strings.
fn size_of(cell: Option<&ListRef<'_>>, default: Option<&DefaultValue>) -> (usize, usize) {
    let bytes = |default: &DefaultValue| match default {
        DefaultValue::Bytes(values) => values.iter().map(Vec::len).sum(),
        DefaultValue::Int64(_) | DefaultValue::Float32(_) => 0,
    };
    match (cell, default) {
        (Some(list), _) => (list.count(), string_bytes(list)),
        (None, Some(default)) => (default.count(), bytes(default)),
        (None, None) => (0, 0),
    }
}

fn string_bytes(list: &ListRef<'_>) -> usize {
    if list.dtype() == DType::Bytes { list.data_bytes() } else { 0 }
}

/// Returns the numbers of a cell; none if the record does not have it.
fn numbers<'s>(list: Option<&ListRef<'_>>, place: &'s mut Vec<i64>) -> &'s [i64] {
    place.clear();
    if let Some(list) = list {
        place.resize(list.count(), 0);
        list.write_i64(place);
    }
    place
}

impl Extent {
    pub(crate) fn new(kind: &ColumnKind) -> Self {
        let levels = match kind {
            ColumnKind::Ragged { levels, .. } => *levels,
            ColumnKind::Padded { .. } => 1,
            ColumnKind::Dense { .. } | ColumnKind::Sparse { .. } => 0,
        };
        Self { lengths: vec![vec![]; levels], ..Self::default() }
    }

    /// Number of values, each of the column's shape, in the innermost rows.
    pub(crate) fn elements(&self) -> usize {
        self.lengths.last().map_or(0, |lengths| lengths.iter().sum::<i64>() as usize)
    }

    /// Returns the row that contains an item of a level.
    /// - `level`: 0 is the outermost; that of values is the number of levels.
    pub(crate) fn row_of(&self, level: usize, item: usize) -> usize {
        self.lengths[..level].iter().rev().fold(item, |item, lengths| {
            let mut end = 0;
            let contains = |length: &i64| {
                end += *length as usize;
                item < end
            };
            lengths.iter().position(contains).unwrap_or_default()
        })
    }

    /// Adds a record that is not parsed.
    pub(crate) fn add_record(&mut self, bytes: usize) {
        self.items += 1;
        self.bytes += bytes;
    }

    pub(crate) fn add_strings(&mut self, strings: &[Vec<u8>]) {
        self.grow(strings.len(), strings.iter().map(Vec::len).sum());
    }

    pub(crate) fn add_constant(&mut self, values: &DefaultValue) {
        let (count, bytes) = size_of(None, Some(values));
        self.grow(count, bytes);
    }

    #[inline]
    pub(crate) fn add(
        &mut self,
        plan: &Plan,
        found: LocatedRecord<'_, '_>,
        scratch: &mut RecordScratch,
    ) -> Result<(), ParseError> {
        // By far the most common case, and the cheapest.
        if let Origin::Feature(Parts::One { values }) = &plan.origin
            && let Some(list) = &found.cells[*values]
        {
            let count = list.count();
            self.grow(count, string_bytes(list));
            self.add_row(&plan.kind, count);
            return Ok(());
        }
        scratch.empty = EMPTY_ROWS_MAX;
        self.add_any(plan, found, scratch)
    }

    fn add_any(
        &mut self,
        plan: &Plan,
        found: LocatedRecord<'_, '_>,
        scratch: &mut RecordScratch,
    ) -> Result<(), ParseError> {
        match &plan.origin {
            Origin::Constant(values) => {
                self.add_constant(values);
                Ok(())
            }
            Origin::Rows(_, parsed) => self.add(parsed, found, scratch),
            Origin::Around(around) => {
                let window = found.windows[around.window];
                around.for_each(window, found.cells, found.lists, &mut |list| {
                    let (count, bytes) = size_of(list.as_ref(), plan.default());
                    self.grow(count, bytes);
                });
                Ok(())
            }
            Origin::IsPad(_) => {
                if let ColumnKind::Dense { shape, .. } = &plan.kind {
                    self.grow(items(shape), 0);
                }
                Ok(())
            }
            Origin::Record | Origin::Step(_) | Origin::Found(_) => Ok(()),
            Origin::Feature(Parts::One { values }) => {
                let (count, bytes) = size_of(found.cells[*values].as_ref(), plan.default());
                self.grow(count, bytes);
                self.add_row(&plan.kind, count);
                Ok(())
            }
            Origin::Feature(Parts::Ragged { values, partitions, together }) => {
                let (count, bytes) = size_of(found.cells[*values].as_ref(), None);
                self.grow(count, bytes);
                scratch.counts.clear();
                scratch.counts.push(whole(plan, count, *together)?);
                for (place, (partition, cell)) in partitions.iter().enumerate() {
                    let list = cell.and_then(|cell| found.cells[cell]);
                    self.part(plan, place, partition, std::iter::once(list), scratch)?;
                }
                self.lengths[0].push(scratch.counts[0] as i64);
                Ok(())
            }
            Origin::Feature(Parts::Sparse { indices, values }) => {
                self.add_places(plan, indices, *values, found, scratch)
            }
            Origin::List(Parts::One { values }) => {
                let steps = found.lists[*values];
                self.add_steps(plan, &steps);
                if let ColumnKind::Padded { .. } = plan.kind {
                    self.longest = self.longest.max(steps.steps());
                } else {
                    let counts = steps.iter().map(|step| step.map_or(0, |list| list.count()));
                    self.lengths[1].extend(counts.map(|count| count as i64));
                }
                self.lengths[0].push(steps.steps() as i64);
                Ok(())
            }
            Origin::List(Parts::Ragged { values, partitions, together }) => {
                let steps = found.lists[*values];
                self.add_steps(plan, &steps);
                scratch.counts.clear();
                for step in steps.iter() {
                    let count = step.map_or(0, |list| list.count());
                    scratch.counts.push(whole(plan, count, *together)?);
                }
                for (place, (partition, cell)) in partitions.iter().enumerate() {
                    let Some(cell) = *cell else {
                        self.part(plan, place, partition, steps.iter().map(|_| None), scratch)?;
                        continue;
                    };
                    let others = found.lists[cell];
                    if others.steps() != steps.steps() {
                        return Err(ParseError::Steps {
                            feature: name(plan),
                            key: partition.key().unwrap_or_default().to_owned(),
                            steps: steps.steps(),
                            others: others.steps(),
                        });
                    }
                    self.part(plan, place, partition, others.iter(), scratch)?;
                }
                self.lengths[1].extend(scratch.counts.iter().map(|&count| count as i64));
                self.lengths[0].push(steps.steps() as i64);
                Ok(())
            }
            other => unreachable!("{other:?} is in no schema"),
        }
    }

    fn grow(&mut self, count: usize, bytes: usize) {
        self.items += count;
        self.bytes += bytes;
    }

    fn add_steps(&mut self, plan: &Plan, steps: &Steps<'_>) {
        let is_bytes = plan.kind.dtype() == Dtype::Bytes;
        let bytes = if is_bytes { steps.data_bytes() } else { 0 };
        self.grow(steps.count(), bytes);
    }

    #[inline]
    fn add_row(&mut self, kind: &ColumnKind, count: usize) {
        if self.lengths.is_empty() {
            return;
        }
        let length = match kind {
            ColumnKind::Padded { shape, .. } => count / items(shape).max(1),
            _ => count,
        };
        if let ColumnKind::Padded { .. } = kind {
            self.longest = self.longest.max(length);
        }
        if let Some(lengths) = self.lengths.first_mut() {
            lengths.push(length as i64);
        }
    }

    /// Applies one more partition; the number of rows that it makes replaces each count.
    /// - `place`: index of the partition, from the innermost. `lists`: one for each count.
    fn part<'a>(
        &mut self,
        plan: &Plan,
        place: usize,
        partition: &Partition,
        lists: impl Iterator<Item = Option<ListRef<'a>>>,
        RecordScratch { numbers: ints, counts, empty, .. }: &mut RecordScratch,
    ) -> Result<(), ParseError> {
        let level = self.lengths.len() - 1 - place;
        for (count, list) in counts.iter_mut().zip(lists) {
            let said = numbers(list.as_ref(), ints);
            let rows = partition.part(said, *count, empty, &mut self.lengths[level]);
            *count = rows.map_err(|fault| parting(plan, partition.key(), fault))?;
        }
        Ok(())
    }

    fn add_places(
        &mut self,
        plan: &Plan,
        indices: &[usize],
        values: usize,
        found: LocatedRecord<'_, '_>,
        scratch: &mut RecordScratch,
    ) -> Result<(), ParseError> {
        let RecordScratch { numbers: ints, places, .. } = scratch;
        let ColumnKind::Sparse { size, .. } = &plan.kind else {
            unreachable!("only a sparse column has places");
        };
        let (count, bytes) = size_of(found.cells[values].as_ref(), None);
        places.clear();
        for (dimension, (&cell, &size)) in indices.iter().zip(size).enumerate() {
            let said = numbers(found.cells[cell].as_ref(), ints);
            let key = || index_key(plan, dimension);
            if said.len() != count {
                let (feature, indices) = (name(plan), said.len());
                return Err(ParseError::IndexCount { feature, key: key(), values: count, indices });
            }
            let is_outside =
                |index: &&i64| usize::try_from(**index).map_or(true, |index| index >= size);
            if let Some(&index) = said.iter().find(is_outside) {
                return Err(ParseError::IndexRange {
                    feature: name(plan),
                    key: key(),
                    index,
                    size,
                });
            }
            places.extend_from_slice(said);
        }
        self.grow(count, bytes);
        let begin = self.order.len();
        self.order.extend(0..count as u32);
        let place = |value: u32| (0..indices.len()).map(move |d| d * count + value as usize);
        let order = &mut self.order[begin..];
        let compare =
            |a: &u32, b: &u32| place(*a).map(|at| places[at]).cmp(place(*b).map(|at| places[at]));
        if !order.is_sorted_by(|a, b| compare(a, b).is_le()) {
            if plan.is_sorted() {
                return Err(ParseError::IndexOrder { feature: name(plan) });
            }
            order.sort_by(compare);
        }
        for &value in &*order {
            self.places.push(found.row as i64);
            self.places.extend(place(value).map(|at| places[at]));
        }
        Ok(())
    }
}

/// Returns the number of groups of `together` values; fails if values are left over.
fn whole(plan: &Plan, count: usize, together: usize) -> Result<usize, ParseError> {
    if count.is_multiple_of(together) {
        return Ok(count / together);
    }
    Err(parting(plan, None, PartitionFault::Uneven { items: count, length: together }))
}

#[cold]
fn parting(plan: &Plan, key: Option<&str>, fault: PartitionFault) -> ParseError {
    let key = key.unwrap_or("uniform_row_length").to_owned();
    ParseError::Partition { feature: name(plan), key, fault }
}

fn name(plan: &Plan) -> String {
    plan.spec.as_ref().map(|spec| spec.name.clone()).unwrap_or_default()
}

fn index_key(plan: &Plan, dimension: usize) -> String {
    use shardfeed_tfrecord::example::Feature;
    match plan.spec.as_ref().map(|spec| &spec.feature) {
        Some(Feature::Sparse { index_keys, .. }) => index_keys[dimension].clone(),
        _ => String::new(),
    }
}
