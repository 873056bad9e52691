//! Unbatching: a sample for each row of some columns of a record, with the rows around it.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardfeed_tfrecord::example::{
    DType, DefaultValue, EMPTY_ROWS_MAX, Feature, FeatureSpec, ListRef, ParseError, Partition,
    PartitionFault, Parts, Steps,
};

use crate::column::{ColumnKind, Origin, Plan, items};
use crate::dtype::Dtype;
use crate::record::RowFault;
use crate::schema::parse::Parser;

/// Maximum number of rows of a record that are samples.
pub(crate) const ROWS_MAX: usize = 1 << 20;

/// Maximum number of rows of a column that a sample has.
const OFFSETS_MAX: i64 = 4096;

/// Rows of a record that are samples, and the rows that each sample has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnbatchSpec {
    /// Columns with rows, sorted by name.
    pub columns: Vec<UnbatchColumn>,
    /// Rows before the first and after the last row of a record.
    pub edge: Edge,
    /// Every `stride`-th row of a record is a sample, beginning with row 0; >= 1.
    pub stride: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnbatchColumn {
    pub name: String,
    /// Offsets from a sample's row of the first and the last row that it has, which make a
    /// dimension. `None`: it has its row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offsets: Option<(i64, i64)>,
}

/// Rows that a sample has before the first or after the last row of its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// None: a row that lacks rows is no sample.
    #[default]
    Drop,
    /// The first or the last row again.
    Repeat,
    /// Zeros, or empty strings.
    Zero,
}

impl UnbatchSpec {
    /// Returns the spec of samples that have one row of each column.
    pub fn rows(names: &[String]) -> Self {
        let column = |name: &String| UnbatchColumn { name: name.clone(), offsets: None };
        let (edge, stride) = (Edge::Drop, 1);
        Self { columns: names.iter().map(column).collect(), edge, stride }
    }

    pub fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Checks names and numbers.
    ///
    /// # Errors  A description of the number that is out of range, or of the name.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (place, UnbatchColumn { name, offsets }) in self.columns.iter().enumerate() {
            if self.columns[..place].iter().any(|before| before.name == *name) {
                return Err(format!("column `{name}` is named twice"));
            }
            let Some((first, last)) = *offsets else { continue };
            let most = ROWS_MAX as i64;
            if !(-most <= first && first <= last && last <= most) {
                return Err(format!(
                    "the offsets of `{name}` are ({first}, {last}), not the first and the last one, \
                     between -{most} and {most}"
                ));
            }
            if last - first >= OFFSETS_MAX {
                return Err(format!(
                    "a sample would have {} rows of `{name}`; the most is {OFFSETS_MAX}",
                    last - first + 1
                ));
            }
        }
        match self.stride {
            0 => Err("stride is 0; it is 1 or more".to_owned()),
            _ => Ok(()),
        }
    }

    /// True if not every row is a sample.
    pub(crate) fn leaves_out(&self) -> bool {
        self.stride > 1 || self.edge == Edge::Drop && self.reach() != (0, 0)
    }

    /// True if a row is a sample.
    /// - `rows`: number of rows of its record.
    pub(crate) fn takes(&self, row: usize, rows: usize) -> bool {
        let (first, last) = self.reach();
        let row = row as i64;
        let has_all = row + first >= 0 && row + last < rows as i64;
        (row as u64).is_multiple_of(self.stride) && (has_all || self.edge != Edge::Drop)
    }

    /// Smallest and largest offset, with 0.
    pub(crate) fn reach(&self) -> (i64, i64) {
        let offsets = self.columns.iter().filter_map(|column| column.offsets);
        offsets.fold((0, 0), |(first, last), (from, to)| (first.min(from), last.max(to)))
    }
}

/// Columns of a parser of which a sample has one row, or some.
#[derive(Clone, Debug)]
pub(crate) struct Unbatch {
    columns: Vec<UnbatchedColumn>,
    edge: Edge,
}

#[derive(Clone, Debug)]
struct UnbatchedColumn {
    name: String,
    cell: RowsCell,
    row: RowShape,
    offsets: Option<(i64, i64)>,
}

/// Shape of a row of a column.
#[derive(Clone, Debug)]
enum RowShape {
    /// The same for all rows.
    Fixed { shape: Vec<usize> },
    /// As many values as a step has.
    Step,
    /// As many values as a partition has, whose numbers are in a cell.
    Partition(Partition, usize),
}

/// Cell that has the rows of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowsCell {
    /// Of a feature: its values, row after row.
    Feature(usize),
    /// Of a feature list: each step is a row.
    List(usize),
}

impl UnbatchedColumn {
    /// Returns the number of rows of a record.
    fn rows(&self, cells: &[Option<ListRef<'_>>], lists: &[Steps<'_>]) -> Result<usize, RowFault> {
        let cell = match self.cell {
            RowsCell::List(list) => return Ok(lists[list].steps()),
            RowsCell::Feature(cell) => cells[cell],
        };
        let count = cell.map_or(0, |list| list.count());
        let RowShape::Fixed { shape } = &self.row else {
            return Ok(self.lengths(count, cells)?.len());
        };
        let length = items(shape);
        if count.is_multiple_of(length) {
            return Ok(count / length);
        }
        let fault = PartitionFault::Uneven { items: count, length };
        Err(self.parting("uniform_row_length", fault))
    }

    /// Returns the number of values of each row of a feature.
    /// - `count`: number of its values.
    fn lengths(&self, count: usize, cells: &[Option<ListRef<'_>>]) -> Result<Vec<usize>, RowFault> {
        let (partition, cell) = match &self.row {
            RowShape::Fixed { shape } => {
                let length = items(shape);
                return Ok(vec![length; count / length]);
            }
            RowShape::Partition(partition, cell) => (partition, cells[*cell]),
            RowShape::Step => unreachable!("a list has steps"),
        };
        let (mut numbers, mut lengths, mut empty) = (vec![], vec![], EMPTY_ROWS_MAX);
        if let Some(list) = cell {
            numbers.resize(list.count(), 0);
            list.write_i64(&mut numbers);
        }
        let parted = partition.part(&numbers, count, &mut empty, &mut lengths);
        parted.map_err(|fault| self.parting(partition.key().unwrap_or_default(), fault))?;
        Ok(lengths.into_iter().map(|length| length as usize).collect())
    }

    fn parting(&self, key: &str, fault: PartitionFault) -> RowFault {
        let (feature, key) = (self.name.clone(), key.to_owned());
        RowFault::Record(ParseError::Partition { feature, key, fault }.to_string())
    }

    /// Returns the values of each row; `None`: it has none, or not those of its shape.
    fn values<'a>(
        &self,
        cells: &[Option<ListRef<'a>>],
        lists: &[Steps<'a>],
    ) -> Result<Vec<Option<ListRef<'a>>>, RowFault> {
        match self.cell {
            RowsCell::List(list) => Ok(lists[list].iter().map(|step| self.fitting(step)).collect()),
            RowsCell::Feature(cell) => {
                let Some(list) = cells[cell] else {
                    let rows = self.rows(cells, lists)?;
                    return Ok(vec![None; rows]);
                };
                let mut first = 0;
                let range = |length| {
                    first += length;
                    list.range(first - length, length)
                };
                Ok(self.lengths(list.count(), cells)?.into_iter().map(range).collect())
            }
        }
    }

    /// Returns the values if they have the shape of a row.
    fn fitting<'a>(&self, values: Option<ListRef<'a>>) -> Option<ListRef<'a>> {
        match &self.row {
            RowShape::Fixed { shape } => values.filter(|list| list.count() == items(shape)),
            RowShape::Step | RowShape::Partition(..) => values,
        }
    }
}

impl Unbatch {
    /// Replaces the plans of columns by those of their rows, and adds those of made columns; `None`
    /// if there is none of the columns.
    ///
    /// # Errors  A column has no rows, or a made column exists.
    pub(crate) fn new(
        UnbatchSpec { columns: asked, edge, .. }: &UnbatchSpec,
        parser: &Parser,
        plans: &mut Vec<Plan>,
    ) -> Result<Option<Self>, String> {
        let mut cells = match parser {
            Parser::Raw => 0,
            Parser::Example(parser) => parser.cells(),
            Parser::Sequence(parser) => parser.context().cells(),
        };
        let (mut columns, mut made, mut windows) = (vec![], vec![], 0);
        for plan in plans.iter_mut() {
            let name = plan.spec.as_ref().map_or("", |spec| &spec.name);
            let Some(UnbatchColumn { name, offsets }) =
                asked.iter().find(|column| column.name == name)
            else {
                continue;
            };
            let spec = plan.spec.as_ref().expect("a plan with a name has a spec");
            let (row, dtype) = (row_shape(spec, &plan.origin)?, spec.dtype());
            let cell = match &plan.origin {
                Origin::Feature(Parts::One { values } | Parts::Ragged { values, .. }) => {
                    RowsCell::Feature(*values)
                }
                Origin::List(Parts::One { values }) => RowsCell::List(*values),
                Origin::List(Parts::Ragged { values, partitions, .. }) if partitions.is_empty() => {
                    RowsCell::List(*values)
                }
                _ => return Err(no_rows(name)),
            };
            // Not in the cell of the feature, which other columns may have, too.
            let (mut origin, mut default) = (Origin::Feature(Parts::One { values: cells }), None);
            let mut shape = match &row {
                RowShape::Fixed { shape } => Some(shape.clone()),
                RowShape::Step | RowShape::Partition(..) => None,
            };
            match (*offsets, &mut shape) {
                (None, _) => cells += 1,
                (Some(_), None) => {
                    return Err(format!(
                        "rows of column `{name}` have any number of values; offsets takes rows of one \
                         shape"
                    ));
                }
                (Some((first, last)), Some(shape)) => {
                    let (rows, values) = ((last - first + 1) as usize, items(shape));
                    if *edge != Edge::Drop {
                        made.push(pad_plan(name, windows, rows));
                    }
                    let around = Around { cell, values, window: windows, edge: *edge };
                    windows += 1;
                    shape.insert(0, rows);
                    (origin, default) = (Origin::Around(around), Some(zeros(dtype, values)));
                }
            }
            let (feature, kind) = match shape {
                Some(shape) => {
                    let kind =
                        ColumnKind::Dense { dtype: Dtype::from(dtype), shape: shape.clone() };
                    (Feature::FixedLen { shape, dtype, default }, kind)
                }
                None => {
                    let of = Dtype::from(dtype);
                    let kind = ColumnKind::Ragged { dtype: of, levels: 1, shape: vec![] };
                    (Feature::VarLen { dtype }, kind)
                }
            };
            *plan = Plan { kind, origin, spec: Some(FeatureSpec { name: name.clone(), feature }) };
            let (name, offsets) = (name.clone(), *offsets);
            columns.push(UnbatchedColumn { name, cell, row, offsets });
        }
        for plan in made {
            let name = |plan: &Plan| plan.spec.as_ref().map(|spec| spec.name.clone());
            if let Some(both) = plans.iter().find(|other| name(other) == name(&plan)) {
                let name = name(both).unwrap_or_default();
                return Err(format!(
                    "a feature has the name `{name}`, of the column that marks padding"
                ));
            }
            plans.push(plan);
        }
        let edge = *edge;
        Ok((!columns.is_empty()).then_some(Self { columns, edge }))
    }

    /// Returns the number of rows of a record.
    ///
    /// # Errors  The columns have different numbers of rows.
    pub(crate) fn rows(
        &self,
        cells: &[Option<ListRef<'_>>],
        lists: &[Steps<'_>],
    ) -> Result<usize, RowFault> {
        let (first, others) = self.columns.split_first().expect("there are columns");
        let found = first.rows(cells, lists)?;
        for other in others {
            let rows = other.rows(cells, lists)?;
            if rows != found {
                return Err(RowFault::Record(format!(
                    "column `{}` has {found} rows and `{}` {rows}; unbatch takes columns with as many \
                     rows in each record",
                    first.name, other.name
                )));
            }
        }
        Ok(found)
    }

    /// Appends the cells of one row of the record, and the windows of the rows around it.
    ///
    /// # Errors  The columns have different numbers of rows, or not that row.
    pub(crate) fn take<'a>(
        &self,
        row: u32,
        cells: &mut Vec<Option<ListRef<'a>>>,
        lists: &[Steps<'a>],
        windows: &mut Vec<Window>,
    ) -> Result<(), RowFault> {
        let rows = self.rows(cells, lists)?;
        let row = row as usize;
        for column in &self.columns {
            let missing = || RowFault::no_row(&column.name, row, rows);
            if row >= rows {
                return Err(missing());
            }
            if let Some(offsets) = column.offsets {
                let window = Window::of(row, offsets, rows);
                let is_whole = window.before == 0 && window.after == 0;
                let has_rows = column.has_rows(window.start, window.inside.max(1), lists);
                if !has_rows || self.edge == Edge::Drop && !is_whole {
                    return Err(missing());
                }
                windows.push(window);
                continue;
            }
            let values = match (column.cell, &column.row) {
                (RowsCell::Feature(cell), RowShape::Fixed { shape }) => {
                    let length = items(shape);
                    cells[cell].and_then(|list| list.range(row * length, length))
                }
                (RowsCell::Feature(cell), _) => {
                    let list = cells[cell];
                    let lengths = column.lengths(list.map_or(0, |list| list.count()), cells)?;
                    list.and_then(|list| list.range(lengths[..row].iter().sum(), lengths[row]))
                }
                (RowsCell::List(list), _) => column.fitting(lists[list].iter().nth(row).flatten()),
            };
            if values.is_none() && column.is_required() {
                return Err(missing());
            }
            cells.push(values);
        }
        Ok(())
    }

    /// Returns the values of a column in each row of a record; `None`: there is no such column.
    ///
    /// # Errors  A row has not the values of its shape.
    pub(crate) fn each<'a>(
        &self,
        name: &str,
        cells: &[Option<ListRef<'a>>],
        lists: &[Steps<'a>],
    ) -> Result<Option<Vec<Option<ListRef<'a>>>>, RowFault> {
        let Some(column) = self.columns.iter().find(|column| column.name == name) else {
            return Ok(None);
        };
        let values = column.values(cells, lists)?;
        match values.iter().position(Option::is_none).filter(|_| column.is_required()) {
            Some(row) => Err(RowFault::no_row(name, row, values.len())),
            None => Ok(Some(values)),
        }
    }
}

impl UnbatchedColumn {
    /// True if a row has values in every record.
    fn is_required(&self) -> bool {
        matches!(self.row, RowShape::Fixed { .. })
    }

    /// True if steps of a list have the values of a row; those of a feature do.
    fn has_rows(&self, start: usize, count: usize, lists: &[Steps<'_>]) -> bool {
        let RowsCell::List(list) = self.cell else { return true };
        let steps = lists[list].iter().skip(start).take(count);
        steps.filter(|step| self.fitting(*step).is_some()).count() == count
    }
}

impl Around {
    /// True if it has zeros or empty strings for rows outside of the record.
    pub(crate) fn has_zeros(&self) -> bool {
        self.edge == Edge::Zero
    }
}

/// Rows of a column around the row of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Around {
    cell: RowsCell,
    /// Number of values of a row.
    values: usize,
    /// Index of the column's window among those of a row.
    pub(crate) window: usize,
    edge: Edge,
}

/// Rows of a record that a sample has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// First row of the record; if none is inside, the nearest one.
    start: usize,
    /// Number of rows inside of the record, and of those before and after it.
    inside: usize,
    pub(crate) before: usize,
    pub(crate) after: usize,
}

impl Window {
    /// Returns the rows from the first to the last offset from `row`.
    /// - `rows`: number of rows of the record, >= 1.
    fn of(row: usize, (first, last): (i64, i64), rows: usize) -> Self {
        let (start, end, rows) = (row as i64 + first, row as i64 + last + 1, rows as i64);
        let inside = (end.min(rows) - start.max(0)).max(0);
        let before = (end.min(0) - start.min(0)).max(0);
        let after = end - start - inside - before;
        Self {
            start: start.clamp(0, rows - 1) as usize,
            inside: inside as usize,
            before: before as usize,
            after: after as usize,
        }
    }
}

impl Around {
    /// Calls `visit` with the rows of a window in order; `None`: a row of zeros.
    pub(crate) fn for_each<'a>(
        &self,
        window: Window,
        cells: &[Option<ListRef<'a>>],
        lists: &[Steps<'a>],
        visit: &mut dyn FnMut(Option<ListRef<'a>>),
    ) {
        let Window { start, inside, before, after } = window;
        let outside = |row, times, visit: &mut dyn FnMut(Option<ListRef<'a>>)| {
            for _ in 0..times {
                match self.edge {
                    Edge::Zero => visit(None),
                    Edge::Drop | Edge::Repeat => self.rows(row..row + 1, cells, lists, visit),
                }
            }
        };
        outside(start, before, visit);
        if inside > 0 {
            self.rows(start..start + inside, cells, lists, visit);
        }
        outside(start + inside.saturating_sub(1), after, visit);
    }

    /// Calls `visit` with rows of the record.
    fn rows<'a>(
        &self,
        rows: Range<usize>,
        cells: &[Option<ListRef<'a>>],
        lists: &[Steps<'a>],
        visit: &mut dyn FnMut(Option<ListRef<'a>>),
    ) {
        match self.cell {
            RowsCell::Feature(cell) => {
                let (first, values) = (rows.start * self.values, rows.len() * self.values);
                visit(cells[cell].and_then(|list| list.range(first, values)));
            }
            RowsCell::List(list) => {
                lists[list].iter().skip(rows.start).take(rows.len()).for_each(visit);
            }
        }
    }
}

/// Returns a row of zeros, or of empty strings.
fn zeros(dtype: DType, values: usize) -> DefaultValue {
    match dtype {
        DType::Int64 => DefaultValue::Int64(vec![0; values]),
        DType::Float32 => DefaultValue::Float32(vec![0.0; values]),
        DType::Bytes => DefaultValue::Bytes(vec![vec![]; values]),
    }
}

/// Returns the plan of the column that marks padding.
fn pad_plan(column: &str, window: usize, rows: usize) -> Plan {
    let feature = Feature::FixedLen { shape: vec![rows], dtype: DType::Int64, default: None };
    let spec = Some(FeatureSpec { name: format!("{column}_is_pad"), feature });
    let kind = ColumnKind::Dense { dtype: Dtype::Bool, shape: vec![rows] };
    Plan { kind, origin: Origin::IsPad(window), spec }
}

fn row_shape(spec: &FeatureSpec, origin: &Origin) -> Result<RowShape, String> {
    let is_list = matches!(origin, Origin::List(_));
    let partitions = match &spec.feature {
        Feature::Ragged { partitions, .. } => &partitions[..],
        _ => &[],
    };
    let is_one = !matches!(spec.feature, Feature::FixedLenSequence { .. }) && spec.is_list();
    if is_list && is_one {
        return Ok(RowShape::Step);
    }
    if let (Origin::Feature(Parts::Ragged { partitions: parts, .. }), [partition]) =
        (origin, partitions)
        && let [(_, Some(cell))] = parts[..]
    {
        return Ok(RowShape::Partition(partition.clone(), cell));
    }
    let shape = match &spec.feature {
        _ if spec.is_list() => vec![],
        Feature::Ragged { .. } => spec.uniform_rows().ok_or_else(|| no_rows(&spec.name))?,
        Feature::FixedLenSequence { shape, .. } => shape.clone(),
        Feature::FixedLen { shape, default: None, .. } if !shape.is_empty() => shape[1..].to_vec(),
        Feature::FixedLen { default: Some(_), .. } => {
            return Err(format!(
                "column `{}` has a default; the rows of a record are counted in its own values",
                spec.name
            ));
        }
        _ => return Err(no_rows(&spec.name)),
    };
    match items(&shape) {
        0 => Err(format!("column `{}` has rows of shape {shape:?}, without values", spec.name)),
        _ => Ok(RowShape::Fixed { shape }),
    }
}

fn no_rows(name: &str) -> String {
    format!(
        "column `{name}` has no rows to take one by one: unbatch takes a VarLenFeature, a \
         FixedLenSequenceFeature, a RaggedFeature of uniform row lengths or of one partition, or a \
         FixedLenFeature with a shape"
    )
}
