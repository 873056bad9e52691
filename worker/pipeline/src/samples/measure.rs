//! Measures: values of an expression over the features of a record, such as whether a filter keeps it.

mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use shardfeed_plan::Digest;
use shardfeed_tfrecord::example::{FeatureSpec, Parts};

use crate::column::{ColumnKind, Origin, Plan, items};
use crate::draw::DrawKey;
use crate::dtype::{Dtype, with_type};
use crate::operator::expression::{Dialect, Expression, Node, One, Two};
use crate::operator::{Operator, cast};
use crate::program::{Made, Program, ProgramPart};
use crate::record::{Row, RowError, RowFault};
use crate::rows::{Cells, LocatedRecords, Parser};
use crate::samples::measured::{Kept, MeasuredColumn, MeasuredColumns, of_passing};
use crate::samples::scope::{Needed, Scope};
use crate::samples::unbatch::{ROWS_MAX, Unbatch, UnbatchSpec};
use crate::schema::parse::{ParseSpec, parsed_plans, parser};
use value::Value;

/// Name of the record's index in its shard, unless a feature has this name.
const ORDINAL: &str = "ordinal";

/// Name of the shard's path, relative to the dataset, unless a feature has this name.
const SHARD_PATH: &str = "shard_path";

/// Maximum number of columns that an error lists.
const LISTED_MAX: usize = 20;

/// Maximum number of rows of which an expression is evaluated together.
const BLOCK: usize = 512;

/// An expression over the features of a record, or of one of its rows.
///
/// Its results are the same on every processor.
#[derive(Debug)]
pub(crate) struct Measure {
    expression: Expression,
    /// Source of each name of the expression.
    sources: Vec<NameSource>,
    /// Parser and columns of the features that the expression uses.
    parser: Parser,
    plans: Vec<Plan>,
    /// Columns of which the expression takes one row.
    unbatch: Option<Unbatch>,
    /// Parsing of these features.
    parse: Option<ParseSpec>,
    /// Operators that make columns of the features, and the program that runs them.
    operators: Vec<Operator>,
    program: Program,
    /// Parts of a filter that all have to hold, each for records that pass those before it; empty: it
    /// is evaluated as a whole. Operators of a later part may fail for records that an earlier one
    /// leaves out.
    stages: Vec<Self>,
    /// Start of the keys of its columns, if they have values of rows.
    of_rows: String,
    /// Keys of the values and of the lengths of each name's column, if the expression uses them.
    keys: Vec<[Option<String>; 2]>,
    /// True if the value is an integer in every record, unless it overflows.
    is_integer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameSource {
    Ordinal,
    ShardPath,
    /// Index of a column.
    Column(usize),
}

/// Kind of a node's value, known before any record is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Integer,
    /// A float64, or an integer in some records.
    Float,
    Text,
}

/// Values of a name in some rows.
enum NameValues<'a> {
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
    Texts(Vec<&'a [u8]>),
    /// The same text in each row.
    Text(&'a [u8]),
    /// A column of which only lengths are used.
    Unused,
}

impl<'a> NameValues<'a> {
    fn of_kept(column: &'a MeasuredColumn) -> Self {
        match column {
            MeasuredColumn::Integers(integers) => Self::Integers(integers.clone()),
            MeasuredColumn::Floats(floats) => Self::Floats(floats.clone()),
            MeasuredColumn::Doubles(doubles) => Self::Doubles(doubles.clone()),
            MeasuredColumn::Texts(texts) => Self::Texts(texts.iter().map(Vec::as_slice).collect()),
        }
    }

    /// Values of some rows.
    fn block(&self, rows: Range<usize>) -> Vec<Value<'a>> {
        match self {
            Self::Integers(integers) => {
                integers[rows].iter().copied().map(Value::Integer).collect()
            }
            Self::Floats(floats) => {
                floats[rows].iter().map(|float| Value::Float(f64::from(*float))).collect()
            }
            Self::Doubles(doubles) => doubles[rows].iter().copied().map(Value::Float).collect(),
            Self::Texts(texts) => texts[rows].iter().copied().map(Value::Text).collect(),
            Self::Text(text) => vec![Value::Text(text); rows.len()],
            Self::Unused => unreachable!("only the length of this column is used"),
        }
    }

    fn kept(&self) -> Option<MeasuredColumn> {
        Some(match self {
            Self::Integers(integers) => MeasuredColumn::Integers(integers.clone()),
            Self::Floats(floats) => MeasuredColumn::Floats(floats.clone()),
            Self::Doubles(doubles) => MeasuredColumn::Doubles(doubles.clone()),
            Self::Texts(texts) => {
                MeasuredColumn::Texts(texts.iter().map(|text| text.to_vec()).collect())
            }
            Self::Text(_) | Self::Unused => return None,
        })
    }
}

impl Measure {
    /// Checks an expression.
    ///
    /// # Errors  A description of the error, which names the columns that exist.
    pub(crate) fn new(text: &str, scope: Scope<'_>) -> Result<Self, String> {
        match Self::of_any(text, scope)? {
            (_, ValueKind::Text) => {
                Err("the expression is a text; compare it, such as `name == 'a'`".into())
            }
            (measure, _) => Ok(measure),
        }
    }

    /// Checks an expression whose values are compared: numbers or texts.
    ///
    /// # Errors  As [`Measure::new`].
    pub(crate) fn of_key(text: &str, scope: Scope<'_>) -> Result<Self, String> {
        Self::of_any(text, scope).map(|(measure, _)| measure)
    }

    fn of_any(text: &str, scope: Scope<'_>) -> Result<(Self, ValueKind), String> {
        let expression = Expression::parse(text, Dialect::Filter)?;
        let needed = scope.needed(expression.names())?;
        let operators = needed.chosen(scope.operators);
        let mut parse = used_features(&needed.features, scope)?;
        let is_unparsed = parse.is_none() && !needed.features.iter().any(|name| name == "record");
        let (parser, plans, unbatch) = match is_unparsed {
            true => (Parser::Raw, vec![], None),
            false => {
                let parser = parser(&mut parse).map_err(|error| error.to_string())?;
                let mut plans = parsed_plans(&parser);
                let rows = UnbatchSpec::rows(scope.unbatched);
                let unbatch = Unbatch::new(&rows, &parser, &mut plans)?;
                (parser, plans, unbatch)
            }
        };
        let (program, Made { columns, .. }) =
            Program::new(&plans, &operators).map_err(|error| error.what)?;
        let (columns, plans): (Vec<_>, Vec<_>) =
            columns.into_iter().filter(|(name, _)| expression.names().contains(name)).unzip();
        let source = |name: &String| match columns.iter().position(|column| column == name) {
            Some(column) => Ok(NameSource::Column(column)),
            None if name == ORDINAL => Ok(NameSource::Ordinal),
            None if name == SHARD_PATH => Ok(NameSource::ShardPath),
            None => Err(format!("there is no column `{name}`")),
        };
        let sources = expression.names().iter().map(source).collect::<Result<_, _>>()?;
        let of_rows = scope.of_rows();
        let is_integer = false;
        let measure = Self {
            expression,
            sources,
            parser,
            plans,
            unbatch,
            parse,
            operators,
            program,
            stages: vec![],
            of_rows,
            keys: vec![],
            is_integer,
        };
        let kind = measure.kind()?;
        let stages = measure.staged(scope)?;
        let keys = (0..measure.sources.len()).map(|name| {
            let used = [("value", Node::Name(name)), ("length", Node::Len(name))];
            used.map(|(what, used)| measure.column_key(name, what, &used))
        });
        let (is_integer, keys) = (kind == ValueKind::Integer, keys.collect());
        Ok((Self { is_integer, stages, keys, ..measure }, kind))
    }

    /// Returns the parts that all have to hold, those without operators first; empty: there is one.
    fn staged(&self, scope: Scope<'_>) -> Result<Vec<Self>, String> {
        if self.operators.is_empty() {
            return Ok(vec![]);
        }
        let (mut plain, mut others) = (vec![], vec![]);
        for part in self.expression.conjuncts() {
            let is_plain = scope.needed(&Self::names_of(&part)?)?.operators.is_empty();
            if is_plain { plain.push(format!("({part})")) } else { others.push(part) }
        }
        let first = (!plain.is_empty()).then(|| plain.join(" and "));
        let parts: Vec<String> = first.into_iter().chain(others).collect();
        let parts = parts.iter().filter(|_| parts.len() > 1);
        parts.map(|part| Self::of_any(part, scope).map(|(stage, _)| stage)).collect()
    }

    /// Returns the names that an expression uses, whether they exist or not.
    ///
    /// # Errors  It is not an expression.
    pub(crate) fn names_of(text: &str) -> Result<Vec<String>, String> {
        Ok(Expression::parse(text, Dialect::Filter)?.names().to_vec())
    }

    /// Names of the columns that the expression uses.
    pub(crate) fn names(&self) -> &[String] {
        self.expression.names()
    }

    /// Returns bytes that identify the expression and the features that it uses.
    ///
    /// Shards with equal digests have the same samples under equal keys, unless the expression
    /// depends on paths.
    pub(crate) fn key(&self) -> Vec<u8> {
        let names: Vec<_> = self.names().to_vec();
        format!("{}\n{self}", self.origin_of(&names)).into_bytes()
    }

    /// Returns the features, and the operators if there are some, that make columns.
    fn origin_of(&self, names: &[String]) -> String {
        let needed = Needed::by(&self.operators, names).expect("the operators were checked");
        let features = self.parse.as_ref().map(|parse| parse.named(&needed.features));
        let features = serde_json::to_string(&features).expect("features are plain data");
        if needed.operators.is_empty() {
            return features;
        }
        let operators = needed.chosen(&self.operators).into_iter();
        let operators = operators.map(|one| (one.for_identity(), one.operation.version()));
        let operators = serde_json::to_string(&operators.collect::<Vec<_>>());
        format!("{features}\n{}", operators.expect("operators are plain data"))
    }

    /// Parsing of the features that the expression uses; `None`: of none.
    pub(crate) fn parse(&self) -> Option<&ParseSpec> {
        self.parse.as_ref()
    }

    /// True if the value is an integer in every record.
    pub(crate) fn is_integer(&self) -> bool {
        self.is_integer
    }

    pub(crate) fn depends_on_path(&self) -> bool {
        self.sources.contains(&NameSource::ShardPath)
    }

    /// Checks the data of records, and returns for each whether it is a sample.
    /// - `rows`: records of one shard, whose samples are the records themselves.
    /// - `shard_path`: relative to the dataset.
    /// - `kept`: takes the values of the features, if the rows are all records that follow.
    ///
    /// # Errors  The first record whose data or features are damaged.
    pub(crate) fn passes(
        &self,
        rows: &[Row<'_>],
        shard_path: &str,
        mut kept: Kept<'_>,
    ) -> Result<Vec<bool>, RowError> {
        if let Some((first, others)) = self.stages.split_first() {
            let mut passes = first.passes(rows, shard_path, kept.as_deref_mut())?;
            for stage in others {
                passes = stage.passes_of(rows, &passes, shard_path, kept.as_deref_mut())?;
            }
            return Ok(passes);
        }
        self.evaluate(rows, shard_path, kept, |_, value| Ok(value.is_true()))
    }

    /// As [`Measure::passes`], of the records that `passes` names; false for all others.
    pub(crate) fn passes_of(
        &self,
        rows: &[Row<'_>],
        passes: &[bool],
        shard_path: &str,
        kept: Kept<'_>,
    ) -> Result<Vec<bool>, RowError> {
        let holds = |rows: &[Row<'_>], kept: Kept<'_>| self.passes(rows, shard_path, kept);
        let found = of_passing(rows, passes, kept, holds)?;
        Ok(found.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// As [`Measure::passes`], of values that were measured before; `None`: some are not known.
    pub(crate) fn kept_passes(
        &self,
        columns: &MeasuredColumns,
        shard_path: &str,
    ) -> Option<Vec<bool>> {
        self.of_kept(columns, shard_path, |_, value| Some(value.is_true()))
    }

    /// Checks the data of records, and returns the cost of each for balanced steps. Source:
    /// docs/ORDER.md, section 15.
    /// - `rows`, `shard_path`: as for [`Measure::passes`].
    ///
    /// # Errors  The first record that is damaged, or whose value is no cost.
    pub(crate) fn costs(
        &self,
        rows: &[Row<'_>],
        shard_path: &str,
        kept: Kept<'_>,
    ) -> Result<Vec<u64>, RowError> {
        self.evaluate(rows, shard_path, kept, |row, value| {
            self.cost(value).ok_or_else(|| {
                let (expression, value) = (self.to_string().into(), value.to_string().into());
                RowError::at(row, RowFault::Cost { expression, value })
            })
        })
    }

    /// As [`Measure::costs`] of the records that `passes` names, of values that were measured before;
    /// `None`: some are not known, or are no costs.
    pub(crate) fn kept_costs(
        &self,
        columns: &MeasuredColumns,
        shard_path: &str,
        passes: &[bool],
    ) -> Option<Vec<u64>> {
        self.of_kept(columns, shard_path, |row, value| match passes[row] {
            true => self.cost(value),
            false => Some(0),
        })
    }

    fn cost(&self, value: Value<'_>) -> Option<u64> {
        if self.is_integer { value.integer_cost() } else { value.float_cost() }
    }

    /// Checks the data of records, and returns bytes that are equal for equal values.
    /// - `rows`, `shard_path`: as for [`Measure::passes`].
    ///
    /// # Errors  The first record whose data or features are damaged.
    pub(crate) fn keys(
        &self,
        rows: &[Row<'_>],
        shard_path: &str,
        kept: Kept<'_>,
    ) -> Result<Vec<Vec<u8>>, RowError> {
        self.evaluate(rows, shard_path, kept, |row, value| {
            let place = row.sample.ordinal.wrapping_mul(ROWS_MAX as u64) + u64::from(row.part);
            Ok(self.key_of(value, place))
        })
    }

    /// As [`Measure::keys`], of values that were measured before; `None`: some are not known.
    pub(crate) fn kept_keys(
        &self,
        columns: &MeasuredColumns,
        shard_path: &str,
    ) -> Option<Vec<Vec<u8>>> {
        self.of_kept(columns, shard_path, |row, value| Some(self.key_of(value, row as u64)))
    }

    /// - `place`: of the record or row in its shard; others have other places.
    fn key_of(&self, value: Value<'_>, place: u64) -> Vec<u8> {
        // NaN equals nothing.
        let key = value.key(self.is_integer);
        key.unwrap_or_else(|| [&b"n"[..], &place.to_le_bytes()].concat())
    }

    /// Returns the keys of the columns that the expression needs.
    pub(crate) fn columns(&self) -> Vec<String> {
        self.keys.iter().flatten().flatten().cloned().collect()
    }

    fn column_key(&self, name: usize, what: &str, used: &Node) -> Option<String> {
        let is_column = matches!(self.sources[name], NameSource::Column(_));
        (is_column && self.expression.nodes().contains(used)).then(|| {
            let names = std::slice::from_ref(&self.names()[name]);
            format!("{}{what} {} {}", self.of_rows, names[0], self.origin_of(names))
        })
    }

    /// Returns what `result` makes of the values of each record, of values that were measured before;
    /// `None`: some are not known, or `result` has none.
    fn of_kept<T>(
        &self,
        columns: &MeasuredColumns,
        shard_path: &str,
        result: impl Fn(usize, Value<'_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let rows = columns.records();
        let value = |(name, source): (usize, &NameSource)| match source {
            NameSource::Ordinal => Some(NameValues::Integers(columns.ordinals())),
            NameSource::ShardPath => Some(NameValues::Text(shard_path.as_bytes())),
            NameSource::Column(_) => match &self.keys[name][0] {
                Some(key) => Some(NameValues::of_kept(columns.get(key)?)),
                None => Some(NameValues::Unused),
            },
        };
        let values: Option<Vec<_>> = self.sources.iter().enumerate().map(value).collect();
        let length = |(name, source): (usize, &NameSource)| match (source, &self.keys[name][1]) {
            (_, Some(key)) => match columns.get(key)? {
                MeasuredColumn::Integers(lengths) => {
                    Some(lengths.iter().map(|length| *length as usize).collect())
                }
                _ => None,
            },
            (NameSource::ShardPath, None) => Some(vec![shard_path.len(); rows]),
            (_, None) => Some(vec![]),
        };
        let lengths: Option<Vec<_>> = self.sources.iter().enumerate().map(length).collect();
        let found = |row, value: Value<'_>| result(row, value).ok_or(());
        self.of_each(rows, &values?, &lengths?, found).ok()
    }

    /// Returns what `result` makes of the value of each row.
    fn evaluate<T>(
        &self,
        rows: &[Row<'_>],
        shard_path: &str,
        kept: Kept<'_>,
        result: impl Fn(&Row<'_>, Value<'_>) -> Result<T, RowError>,
    ) -> Result<Vec<T>, RowError> {
        let parser = (&self.parser, self.unbatch.as_ref());
        let known = match self.unbatch {
            Some(_) => LocatedRecords::new(&self.parser, &LocatedRecords::distinct(rows.iter())),
            None => LocatedRecords::default(),
        };
        let cells = Cells::locate(parser, &self.plans, self.program.tables(), rows, &known)?;
        let made = self.run(&cells)?;
        let values = |source: &NameSource| match source {
            NameSource::Ordinal => {
                NameValues::Integers(rows.iter().map(|row| row.sample.ordinal as i64).collect())
            }
            NameSource::ShardPath => NameValues::Text(shard_path.as_bytes()),
            NameSource::Column(column) => of_column(&self.plans[*column], &cells, &made),
        };
        let values: Vec<_> = self.sources.iter().map(values).collect();
        let names = self.sources.iter().zip(&values).enumerate();
        let lengths: Vec<_> = names
            .map(|(name, (source, values))| match (source, values) {
                _ if !self.expression.nodes().contains(&Node::Len(name)) => vec![],
                (_, NameValues::Texts(texts)) => texts.iter().map(|text| text.len()).collect(),
                (_, NameValues::Text(text)) => vec![text.len(); rows.len()],
                (NameSource::Column(column), _) => lengths(&self.plans[*column], &cells),
                (NameSource::Ordinal | NameSource::ShardPath, _) => vec![],
            })
            .collect();
        if let Some(kept) = kept {
            self.keep(&values, &lengths, kept);
        }
        self.of_each(rows.len(), &values, &lengths, |row, value| result(&rows[row], value))
    }

    /// Runs the operators, and returns the columns of their steps.
    fn run(&self, cells: &Cells<'_>) -> Result<BTreeMap<usize, Vec<u64>>, RowError> {
        let mut bytes = BTreeMap::new();
        for plan in &self.plans {
            if let Origin::Step(step) = plan.origin {
                bytes.insert(step, plan.kind.row_bytes() * cells.rows.len());
            }
        }
        let words = |(step, bytes): (&usize, &usize)| (*step, vec![0_u64; bytes.div_ceil(8)]);
        let mut made: BTreeMap<usize, Vec<u64>> = bytes.iter().map(words).collect();
        let out = made.iter_mut().map(|(step, words)| {
            (*step, &mut bytemuck::cast_slice_mut::<u64, u8>(words)[..bytes[step]])
        });
        let mut out: BTreeMap<usize, &mut [u8]> = out.collect();
        let key =
            DrawKey { digest: Digest::from_bytes([0; 32]), seed: 0, epoch: 0, sources: [].into() };
        self.program.run(cells, &key, &ProgramPart::Rows(&[]), |step| out.remove(&step))?;
        Ok(made)
    }

    /// Keeps the values of the features of records.
    fn keep(&self, values: &[NameValues<'_>], lengths: &[Vec<usize>], kept: &mut MeasuredColumns) {
        for ((values, lengths), [value_key, length_key]) in
            values.iter().zip(lengths).zip(&self.keys)
        {
            if let Some(key) = value_key.as_ref().filter(|key| kept.takes(key))
                && let Some(values) = values.kept()
            {
                kept.push(key, values);
            }
            if let Some(key) = length_key {
                let lengths = lengths.iter().map(|length| *length as i64);
                kept.push(key, MeasuredColumn::Integers(lengths.collect()));
            }
        }
    }

    /// Returns what `result` makes of the value of each row.
    fn of_each<T, E>(
        &self,
        rows: usize,
        values: &[NameValues<'_>],
        lengths: &[Vec<usize>],
        mut result: impl FnMut(usize, Value<'_>) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let mut results = Vec::with_capacity(rows);
        for first in (0..rows).step_by(BLOCK) {
            let block = self.block(first..rows.min(first + BLOCK), values, lengths);
            for (row, value) in (first..).zip(block) {
                results.push(result(row, value)?);
            }
        }
        Ok(results)
    }

    /// Returns the values of some rows: of all of them node by node, which is several times faster than
    /// row by row.
    fn block<'a>(
        &'a self,
        rows: Range<usize>,
        values: &[NameValues<'a>],
        lengths: &[Vec<usize>],
    ) -> Vec<Value<'a>> {
        const CHECKED: &str = "the number of operands was checked";
        let mut stack: Vec<Vec<Value<'a>>> = vec![];
        for node in self.expression.nodes() {
            let constant = |value| vec![value; rows.len()];
            let block = match node {
                Node::Integer(integer) => constant(Value::Integer(*integer)),
                Node::Number(number) => constant(Value::Float(*number)),
                Node::Text(text) => constant(Value::Text(text.as_bytes())),
                Node::Name(name) => values[*name].block(rows.clone()),
                Node::Len(name) => {
                    let lengths = lengths[*name][rows.clone()].iter();
                    lengths.map(|length| Value::Integer(*length as i64)).collect()
                }
                Node::One(one) => {
                    let mut block = stack.pop().expect(CHECKED);
                    block.iter_mut().for_each(|value| *value = value.apply(*one));
                    block
                }
                Node::Two(two) => {
                    let second = stack.pop().expect(CHECKED);
                    let mut first = stack.pop().expect(CHECKED);
                    for (value, other) in first.iter_mut().zip(second) {
                        *value = value.combine(*two, other);
                    }
                    first
                }
                Node::Where => {
                    let (no, mut yes) = (stack.pop().expect(CHECKED), stack.pop().expect(CHECKED));
                    let holds = stack.pop().expect(CHECKED);
                    for ((value, no), holds) in yes.iter_mut().zip(no).zip(holds) {
                        if !holds.is_true() {
                            *value = no;
                        }
                    }
                    yes
                }
                Node::In(count) => {
                    let choices = stack.split_off(stack.len() - count);
                    let mut block = stack.pop().expect(CHECKED);
                    for (row, value) in block.iter_mut().enumerate() {
                        let is_one = choices.iter().any(|choice| value.equals(&choice[row]));
                        *value = Value::truth(is_one);
                    }
                    block
                }
            };
            stack.push(block);
        }
        stack.pop().expect(CHECKED)
    }

    /// Returns the kind of the result.
    ///
    /// # Errors  Values of different kinds meet, or a column does not fit.
    fn kind(&self) -> Result<ValueKind, String> {
        use ValueKind::{Float, Integer, Text};
        const CHECKED: &str = "the parser counts operands";
        let mut stack: Vec<ValueKind> = vec![];
        for (place, node) in self.expression.nodes().iter().enumerate() {
            let here = || self.expression.text_to(place);
            let joint = |kinds: &[ValueKind]| match kinds.contains(&Float) {
                true => Float,
                false => kinds[0],
            };
            let numbers = |kinds: &[ValueKind]| match kinds.contains(&Text) {
                true => Err(format!("`{}` needs numbers, but has a text", here())),
                false => Ok(joint(kinds)),
            };
            let is_text = |kind: &&ValueKind| **kind == Text;
            let same = |kinds: &[ValueKind]| match kinds.iter().filter(is_text).count() {
                texts if texts == 0 || texts == kinds.len() => Ok(joint(kinds)),
                _ => Err(format!("`{}` has a number and a text; they do not compare", here())),
            };
            let kind = match node {
                Node::Integer(_) => Integer,
                Node::Number(_) => Float,
                Node::Text(_) => Text,
                Node::Name(name) => self.kind_of(*name)?,
                Node::Len(name) => self.check_length(*name).map(|()| Integer)?,
                Node::One(One::Hash) => match stack.pop().expect(CHECKED) {
                    Integer | Text => Integer,
                    Float => {
                        return Err(format!(
                            "`{}` has a float; `hash` takes an integer or a text",
                            here()
                        ));
                    }
                },
                Node::One(one) => match (one, numbers(&[stack.pop().expect(CHECKED)])?) {
                    (One::Not, _) => Integer,
                    (One::Negate | One::Abs | One::Sign | One::Floor, kind) => kind,
                    (_, _) => Float,
                },
                Node::Two(two) => {
                    let kinds = stack.split_off(stack.len() - 2);
                    match two {
                        Two::Less
                        | Two::LessOrEqual
                        | Two::Greater
                        | Two::GreaterOrEqual
                        | Two::Equal
                        | Two::NotEqual => same(&kinds).map(|_| Integer)?,
                        Two::And | Two::Or => numbers(&kinds).map(|_| Integer)?,
                        Two::Divide => numbers(&kinds).map(|_| Float)?,
                        _ => numbers(&kinds)?,
                    }
                }
                Node::Where => {
                    let kinds = stack.split_off(stack.len() - 3);
                    numbers(&kinds[..1])?;
                    same(&kinds[1..])?
                }
                Node::In(count) => {
                    same(&stack.split_off(stack.len() - count - 1)).map(|_| Integer)?
                }
            };
            stack.push(kind);
        }
        Ok(stack.pop().expect(CHECKED))
    }

    fn kind_of(&self, name: usize) -> Result<ValueKind, String> {
        let plan = match self.sources[name] {
            NameSource::Ordinal => return Ok(ValueKind::Integer),
            NameSource::ShardPath => return Ok(ValueKind::Text),
            NameSource::Column(column) => &self.plans[column],
        };
        match &plan.kind {
            ColumnKind::Dense { dtype, shape } if items(shape) == 1 => Ok(match dtype {
                Dtype::Bytes => ValueKind::Text,
                dtype if *dtype == Dtype::Bool || dtype.is_integer() => ValueKind::Integer,
                _ => ValueKind::Float,
            }),
            ColumnKind::Dense { shape, .. } => Err(format!(
                "column `{}` has shape {shape:?}; an expression takes one value a record",
                self.names()[name]
            )),
            _ => Err(format!(
                "column `{}` has any number of values a record; an expression takes its length, \
                 `len({0})`, or a column of one value",
                self.names()[name]
            )),
        }
    }

    /// Checks that a name has a length.
    fn check_length(&self, name: usize) -> Result<(), String> {
        let plan = match self.sources[name] {
            NameSource::Ordinal => None,
            NameSource::ShardPath => return Ok(()),
            NameSource::Column(column) => Some(&self.plans[column]),
        };
        let has_length = plan.is_some_and(|plan| match &plan.kind {
            ColumnKind::Dense { dtype, shape } => *dtype == Dtype::Bytes && items(shape) == 1,
            ColumnKind::Padded { .. } => true,
            ColumnKind::Ragged { .. } => {
                let parsed = plan.parsed();
                // The length of a feature list is that of its steps.
                let is_list = matches!(parsed.origin, Origin::List(_));
                let spec = parsed.spec.as_ref();
                spec.is_some_and(|spec| is_list || spec.is_list() || spec.uniform_rows().is_some())
            }
            ColumnKind::Sparse { .. } => false,
        });
        if has_length {
            return Ok(());
        }
        Err(format!(
            "`len({})` is not known: len takes one byte string, a VarLenFeature, a \
             FixedLenSequenceFeature, a RaggedFeature without partitions or of uniform row lengths, or a \
             feature list",
            self.names()[name]
        ))
    }
}

/// The canonical text.
impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expression.fmt(f)
    }
}

/// Returns the parsing of the features that an expression uses; `None`: of none.
/// - `names`: columns that it uses and no operator makes.
fn used_features(names: &[String], scope: Scope<'_>) -> Result<Option<ParseSpec>, String> {
    let Scope { parse, operators, .. } = scope;
    let features = parse.map_or(vec![], ParseSpec::names);
    for name in names {
        let is_raw = parse.is_none() && name == "record";
        let is_known = features.contains(&name.as_str()) || is_raw;
        if !is_known && name != ORDINAL && name != SHARD_PATH {
            let known = features.iter().copied();
            let known = known.chain(parse.is_none().then_some("record"));
            let known = known.chain(operators.iter().map(|operator| operator.output.as_str()));
            let more = (features.len() + operators.len()).saturating_sub(LISTED_MAX);
            let known: Vec<_> = known.take(LISTED_MAX).chain([ORDINAL, SHARD_PATH]).collect();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return Err(format!(
                "there is no column `{name}`; there are `{}`{more}",
                known.join("`, `")
            ));
        }
    }
    let has_used = names.iter().any(|name| features.contains(&name.as_str()));
    Ok(parse.filter(|_| has_used).map(|parse| parse.named(names)))
}

/// Returns the values of a column of one value per row.
/// - `made`: columns of operators' steps.
fn of_column<'a>(
    plan: &'a Plan,
    cells: &'a Cells<'a>,
    made: &BTreeMap<usize, Vec<u64>>,
) -> NameValues<'a> {
    let rows = cells.rows.len();
    if let (Origin::Step(step), ColumnKind::Dense { dtype, shape }) = (&plan.origin, &plan.kind) {
        return match items(shape) {
            1 => of_step(*dtype, bytemuck::cast_slice(&made[step]), rows),
            _ => NameValues::Unused,
        };
    }
    match &plan.kind {
        ColumnKind::Dense { shape, .. } if items(shape) != 1 => NameValues::Unused,
        ColumnKind::Dense { dtype: Dtype::Bytes, .. } => NameValues::Texts(cells.strings(plan)),
        ColumnKind::Dense { dtype: Dtype::Int64, .. } => {
            let mut integers = vec![0_i64; rows];
            cells.numbers(plan, bytemuck::cast_slice_mut(&mut integers));
            NameValues::Integers(integers)
        }
        ColumnKind::Dense { .. } => {
            let mut floats = vec![0_f32; rows];
            cells.numbers(plan, bytemuck::cast_slice_mut(&mut floats));
            NameValues::Floats(floats)
        }
        _ => NameValues::Unused,
    }
}

/// Returns the values of an operator's column of one number per row.
fn of_step(dtype: Dtype, bytes: &[u8], rows: usize) -> NameValues<'static> {
    if dtype == Dtype::Float32 {
        return NameValues::Floats(bytemuck::cast_slice(bytes)[..rows].to_vec());
    }
    if dtype == Dtype::Bool || dtype.is_integer() {
        let mut integers = vec![0_i64; rows];
        with_type!(dtype, From => cast(&bytemuck::cast_slice::<u8, From>(bytes)[..rows], &mut integers));
        return NameValues::Integers(integers);
    }
    let mut doubles = vec![0_f64; rows];
    with_type!(dtype, From => cast(&bytemuck::cast_slice::<u8, From>(bytes)[..rows], &mut doubles));
    NameValues::Doubles(doubles)
}

/// Returns the number of values of each row in a column of variable length.
fn lengths(plan: &Plan, cells: &Cells<'_>) -> Vec<usize> {
    let plan = plan.parsed();
    if let Origin::List(
        Parts::One { values } | Parts::Ragged { values, .. } | Parts::Sparse { values, .. },
    ) = &plan.origin
    {
        return cells.steps_of(*values);
    }
    let per_step = match &plan.kind {
        ColumnKind::Padded { shape, .. } => items(shape).max(1),
        _ => {
            let rows = plan.spec.as_ref().and_then(FeatureSpec::uniform_rows);
            rows.map_or(1, |shape| items(&shape).max(1))
        }
    };
    cells.lengths(plan).into_iter().map(|values| values / per_step).collect()
}

#[cfg(test)]
mod tests;
