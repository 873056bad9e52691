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
use crate::operator::expression::{BLOCK, Dialect, Expression, Leaf, Node, One, Operand, Two};
use crate::operator::{Operator, cast};
use crate::program::{Made, Program, ProgramPart};
use crate::record::{Row, RowError, RowFault};
use crate::rows::{Cells, LocatedRecords};
use crate::samples::measured::{Kept, MeasuredColumn, MeasuredColumns, of_passing};
use crate::samples::scope::{Needed, Scope};
use crate::samples::unbatch::{ROWS_MAX, UnbatchSpec};
use crate::schema::SchemaError;
use crate::schema::parse::{ParseSpec, RecordParser};
use value::Value;

/// Name of the record's index in its shard, unless a feature has this name.
const ORDINAL: &str = "ordinal";

/// Name of the shard's path, relative to the dataset, unless a feature has this name.
const SHARD_PATH: &str = "shard_path";

/// Maximum number of columns that an error lists.
const LISTED_MAX: usize = 20;

/// An expression over the features of a record, or of one of its rows.
///
/// Its results are the same on every processor.
#[derive(Debug)]
pub(crate) struct Measure {
    expression: Expression,
    /// Source of each leaf of the expression.
    sources: Vec<LeafSource>,
    /// Parser of the features that the expression uses, or of one row of them, and its columns.
    parser: RecordParser,
    plans: Vec<Plan>,
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
    /// Key of each leaf of the expression, if it is of a column.
    keys: Vec<Option<String>>,
    /// True if the value is an integer in every record, unless it overflows.
    is_integer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeafSource {
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

impl<'a> MeasuredColumn<&'a [u8]> {
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
        }
    }
}

impl Measure {
    /// Checks an expression.
    ///
    /// # Errors  A description of the error, which names the columns that exist.
    pub(crate) fn new(text: &str, scope: Scope<'_>) -> Result<Self, String> {
        match Self::of_any(Self::parsed(text)?, scope)? {
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
        Self::of_any(Self::parsed(text)?, scope).map(|(measure, _)| measure)
    }

    fn parsed(text: &str) -> Result<Expression, String> {
        Expression::parse(text, Dialect::Filter)
    }

    fn of_any(expression: Expression, scope: Scope<'_>) -> Result<(Self, ValueKind), String> {
        let names = expression.names();
        let needed = scope.needed(&names)?;
        let operators = needed.chosen(scope.operators);
        let mut parse = used_features(&needed.features, scope)?;
        let is_unparsed = parse.is_none() && !needed.features.iter().any(|name| name == "record");
        let (parser, plans) = match is_unparsed {
            true => (RecordParser::raw(), vec![]),
            false => {
                let rows = UnbatchSpec::rows(scope.unbatched);
                RecordParser::new(&mut parse, Some(&rows)).map_err(SchemaError::what)?
            }
        };
        let (program, Made { columns, .. }) =
            Program::new(&plans, &operators).map_err(|error| error.what)?;
        let (columns, plans): (Vec<_>, Vec<_>) =
            columns.into_iter().filter(|(name, _)| names.contains(name)).unzip();
        let source =
            |Leaf { name, .. }: &Leaf| match columns.iter().position(|column| column == name) {
                Some(column) => Ok(LeafSource::Column(column)),
                None if name == ORDINAL => Ok(LeafSource::Ordinal),
                None if name == SHARD_PATH => Ok(LeafSource::ShardPath),
                None => Err(format!("there is no column `{name}`")),
            };
        let sources = expression.leaves().iter().map(source).collect::<Result<_, _>>()?;
        let of_rows = scope.of_rows();
        let is_integer = false;
        let measure = Self {
            expression,
            sources,
            parser,
            plans,
            parse,
            operators,
            program,
            stages: vec![],
            of_rows,
            keys: vec![],
            is_integer,
        };
        let kind = measure.kind(measure.expression.root())?;
        let stages = measure.staged(scope)?;
        let leaves = measure.expression.leaves().iter().zip(&measure.sources);
        let keys = leaves.map(|(leaf, source)| measure.column_key(leaf, *source));
        let (is_integer, keys) = (kind == ValueKind::Integer, keys.collect());
        Ok((Self { is_integer, stages, keys, ..measure }, kind))
    }

    /// Returns the parts that all have to hold, those without operators first; empty: there is one.
    fn staged(&self, scope: Scope<'_>) -> Result<Vec<Self>, String> {
        if self.operators.is_empty() {
            return Ok(vec![]);
        }
        let (mut plain, mut others): (Option<Expression>, Vec<Expression>) = (None, vec![]);
        for part in self.expression.conjuncts() {
            match scope.needed(&part.names())?.operators.is_empty() {
                true => plain = Some(plain.map_or(part.clone(), |plain| plain.and(part))),
                false => others.push(part),
            }
        }
        let parts: Vec<Expression> = plain.into_iter().chain(others).collect();
        if parts.len() == 1 {
            return Ok(vec![]);
        }
        let stage = |part| Self::of_any(part, scope).map(|(stage, _)| stage);
        parts.into_iter().map(stage).collect()
    }

    /// Returns the names that an expression uses, whether they exist or not.
    ///
    /// # Errors  It is not an expression.
    pub(crate) fn names_of(text: &str) -> Result<Vec<String>, String> {
        Ok(Self::parsed(text)?.names())
    }

    /// Returns the canonical text of the expression that holds where both do.
    ///
    /// # Errors  One of them is not an expression.
    pub(crate) fn joined(first: &str, second: &str) -> Result<String, String> {
        Ok(Self::parsed(first)?.and(Self::parsed(second)?).to_string())
    }

    /// Names of the columns that the expression uses.
    pub(crate) fn names(&self) -> Vec<String> {
        self.expression.names()
    }

    /// Returns bytes that identify the expression and the features that it uses.
    ///
    /// Shards with equal digests have the same samples under equal keys, unless the expression
    /// depends on paths.
    pub(crate) fn key(&self) -> Vec<u8> {
        format!("{}\n{self}", self.origin_of(&self.names())).into_bytes()
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
        self.sources.contains(&LeafSource::ShardPath)
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
                let what = format!(
                    "the cost `{self}` is {value}; balance takes finite numbers that are not negative"
                );
                RowError::at(row, RowFault::Record(what))
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
        self.keys.iter().flatten().cloned().collect()
    }

    fn column_key(&self, leaf: &Leaf, source: LeafSource) -> Option<String> {
        let Leaf { name, is_length } = leaf;
        matches!(source, LeafSource::Column(_)).then(|| {
            let what = if *is_length { "length" } else { "value" };
            let origin = self.origin_of(std::slice::from_ref(name));
            format!("{}{what} {name} {origin}", self.of_rows)
        })
    }

    /// Leaves with their sources.
    fn leaves(&self) -> impl Iterator<Item = (&Leaf, LeafSource)> {
        self.expression.leaves().iter().zip(self.sources.iter().copied())
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
        let value = |((leaf, source), key): ((&Leaf, LeafSource), &Option<String>)| match source {
            LeafSource::Ordinal => Some(MeasuredColumn::Integers(columns.ordinals())),
            LeafSource::ShardPath => Some(of_path(leaf, shard_path, rows)),
            LeafSource::Column(_) => {
                let kept = columns.get(key.as_ref()?)?;
                let fits = !leaf.is_length || matches!(kept, MeasuredColumn::Integers(_));
                fits.then(|| kept.borrowed())
            }
        };
        let values: Option<Vec<_>> = self.leaves().zip(&self.keys).map(value).collect();
        self.of_each(rows, &values?, |row, value| result(row, value).ok_or(())).ok()
    }

    /// Returns what `result` makes of the value of each row.
    fn evaluate<T>(
        &self,
        rows: &[Row<'_>],
        shard_path: &str,
        kept: Kept<'_>,
        result: impl Fn(&Row<'_>, Value<'_>) -> Result<T, RowError>,
    ) -> Result<Vec<T>, RowError> {
        let known = match self.parser.unbatch() {
            Some(_) => LocatedRecords::new(&self.parser, &LocatedRecords::distinct(rows.iter())),
            None => LocatedRecords::default(),
        };
        let cells = Cells::locate(&self.parser, &self.plans, self.program.tables(), rows, &known)?;
        let made = self.run(&cells)?;
        let values = |(leaf, source): (&Leaf, LeafSource)| match source {
            LeafSource::Ordinal => {
                let ordinals = rows.iter().map(|row| row.sample.ordinal as i64);
                MeasuredColumn::Integers(ordinals.collect())
            }
            LeafSource::ShardPath => of_path(leaf, shard_path, rows.len()),
            LeafSource::Column(column) => match leaf.is_length {
                true => {
                    let lengths = lengths(&self.plans[column], &cells).into_iter();
                    MeasuredColumn::Integers(lengths.map(|length| length as i64).collect())
                }
                false => of_column(&self.plans[column], &cells, &made),
            },
        };
        let values: Vec<_> = self.leaves().map(values).collect();
        if let Some(kept) = kept {
            for (values, key) in values.iter().zip(&self.keys) {
                if let Some(key) = key.as_ref().filter(|key| kept.takes(key)) {
                    kept.push(key, values.owned());
                }
            }
        }
        self.of_each(rows.len(), &values, |row, value| result(&rows[row], value))
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

    /// Returns what `result` makes of the value of each row.
    fn of_each<T, E>(
        &self,
        rows: usize,
        values: &[MeasuredColumn<&[u8]>],
        mut result: impl FnMut(usize, Value<'_>) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let mut results = Vec::with_capacity(rows);
        for first in (0..rows).step_by(BLOCK) {
            let block = first..rows.min(first + BLOCK);
            for (row, value) in block.clone().zip(self.block(&block, values)) {
                results.push(result(row, value)?);
            }
        }
        Ok(results)
    }

    /// Returns the values of some rows.
    fn block<'a>(
        &'a self,
        rows: &Range<usize>,
        values: &[MeasuredColumn<&'a [u8]>],
    ) -> Vec<Value<'a>> {
        self.expression.root().values(&|node: &'a Node| match node {
            Node::Integer(integer) => vec![Value::Integer(*integer); rows.len()],
            Node::Number(number) => vec![Value::Float(*number); rows.len()],
            Node::Text(text) => vec![Value::Text(text.as_bytes()); rows.len()],
            Node::Leaf(leaf) => values[*leaf].block(rows.clone()),
            _ => unreachable!("{node:?} is no leaf"),
        })
    }

    /// Returns the kind of the result of a part.
    ///
    /// # Errors  Values of different kinds meet, or a column does not fit.
    fn kind(&self, node: &Node) -> Result<ValueKind, String> {
        use ValueKind::{Float, Integer, Text};
        match node {
            Node::Integer(_) => Ok(Integer),
            Node::Number(_) => Ok(Float),
            Node::Text(_) => Ok(Text),
            Node::Leaf(leaf) => self.kind_of(*leaf),
            Node::One(One::Hash, value) => match self.kind(value)? {
                Integer | Text => Ok(Integer),
                Float => Err(format!(
                    "`{}` has a float; `hash` takes an integer or a text",
                    self.expression.text(node)
                )),
            },
            Node::One(one, value) => {
                let kind = match (one, &**value) {
                    // Written as `not in`.
                    (One::Not, Node::In(value, choices)) => self.kind_in(node, value, choices)?,
                    (_, value) => self.kind(value)?,
                };
                match (one, self.numbers(node, &[kind])?) {
                    (One::Not, _) => Ok(Integer),
                    (One::Negate | One::Abs | One::Sign | One::Floor, kind) => Ok(kind),
                    (_, _) => Ok(Float),
                }
            }
            Node::Two(two, operands) => {
                let kinds = self.kinds(&operands[..])?;
                match two {
                    Two::Less
                    | Two::LessOrEqual
                    | Two::Greater
                    | Two::GreaterOrEqual
                    | Two::Equal
                    | Two::NotEqual => self.same(node, &kinds).map(|_| Integer),
                    Two::And | Two::Or => self.numbers(node, &kinds).map(|_| Integer),
                    Two::Divide => self.numbers(node, &kinds).map(|_| Float),
                    _ => self.numbers(node, &kinds),
                }
            }
            Node::Where(operands) => {
                let kinds = self.kinds(&operands[..])?;
                self.numbers(node, &kinds[..1])?;
                self.same(node, &kinds[1..])
            }
            Node::In(value, choices) => self.kind_in(node, value, choices),
        }
    }

    fn kinds(&self, nodes: &[Node]) -> Result<Vec<ValueKind>, String> {
        nodes.iter().map(|node| self.kind(node)).collect()
    }

    /// Returns the kind of a membership.
    /// - `shown`: its node, or that of its negation.
    fn kind_in(&self, shown: &Node, value: &Node, choices: &[Node]) -> Result<ValueKind, String> {
        let kinds = [vec![self.kind(value)?], self.kinds(choices)?].concat();
        self.same(shown, &kinds).map(|_| ValueKind::Integer)
    }

    /// Returns the joint kind of operands that are numbers.
    fn numbers(&self, node: &Node, kinds: &[ValueKind]) -> Result<ValueKind, String> {
        if kinds.contains(&ValueKind::Text) {
            let text = self.expression.text(node);
            return Err(format!("`{text}` needs numbers, but has a text"));
        }
        self.same(node, kinds)
    }

    /// Returns the joint kind of operands that are compared.
    fn same(&self, node: &Node, kinds: &[ValueKind]) -> Result<ValueKind, String> {
        let texts = kinds.iter().filter(|kind| **kind == ValueKind::Text).count();
        if texts > 0 && texts < kinds.len() {
            let text = self.expression.text(node);
            return Err(format!("`{text}` has a number and a text; they do not compare"));
        }
        Ok(if kinds.contains(&ValueKind::Float) { ValueKind::Float } else { kinds[0] })
    }

    fn kind_of(&self, leaf: usize) -> Result<ValueKind, String> {
        let Leaf { name, is_length } = &self.expression.leaves()[leaf];
        let plan = match self.sources[leaf] {
            LeafSource::ShardPath if *is_length => return Ok(ValueKind::Integer),
            LeafSource::ShardPath => return Ok(ValueKind::Text),
            LeafSource::Ordinal if *is_length => return Err(no_length(name)),
            LeafSource::Ordinal => return Ok(ValueKind::Integer),
            LeafSource::Column(column) => &self.plans[column],
        };
        match &plan.kind {
            _ if *is_length && has_length(plan) => Ok(ValueKind::Integer),
            _ if *is_length => Err(no_length(name)),
            ColumnKind::Dense { dtype, shape } if items(shape) == 1 => Ok(match dtype {
                Dtype::Bytes => ValueKind::Text,
                dtype if *dtype == Dtype::Bool || dtype.is_integer() => ValueKind::Integer,
                _ => ValueKind::Float,
            }),
            ColumnKind::Dense { shape, .. } => Err(format!(
                "column `{name}` has shape {shape:?}; an expression takes one value a record",
            )),
            _ => Err(format!(
                "column `{name}` has any number of values a record; an expression takes its length, \
                 `len({name})`, or a column of one value",
            )),
        }
    }
}

/// True if an expression may take the length of a column.
fn has_length(plan: &Plan) -> bool {
    match &plan.kind {
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
    }
}

fn no_length(name: &str) -> String {
    format!(
        "`len({name})` is not known: len takes one byte string, a VarLenFeature, a \
         FixedLenSequenceFeature, a RaggedFeature without partitions or of uniform row lengths, or a \
         feature list"
    )
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
) -> MeasuredColumn<&'a [u8]> {
    let rows = cells.rows.len();
    match (&plan.origin, plan.kind.dtype()) {
        (Origin::Step(step), dtype) => of_step(dtype, bytemuck::cast_slice(&made[step]), rows),
        (_, Dtype::Bytes) => MeasuredColumn::Texts(cells.strings(plan)),
        (_, Dtype::Int64) => {
            let mut integers = vec![0_i64; rows];
            cells.numbers(plan, bytemuck::cast_slice_mut(&mut integers));
            MeasuredColumn::Integers(integers)
        }
        _ => {
            let mut floats = vec![0_f32; rows];
            cells.numbers(plan, bytemuck::cast_slice_mut(&mut floats));
            MeasuredColumn::Floats(floats)
        }
    }
}

/// Returns the values of an operator's column of one number per row.
fn of_step(dtype: Dtype, bytes: &[u8], rows: usize) -> MeasuredColumn<&'static [u8]> {
    if dtype == Dtype::Float32 {
        return MeasuredColumn::Floats(bytemuck::cast_slice(bytes)[..rows].to_vec());
    }
    if dtype == Dtype::Bool || dtype.is_integer() {
        let mut integers = vec![0_i64; rows];
        with_type!(dtype, From => cast(&bytemuck::cast_slice::<u8, From>(bytes)[..rows], &mut integers));
        return MeasuredColumn::Integers(integers);
    }
    let mut doubles = vec![0_f64; rows];
    with_type!(dtype, From => cast(&bytemuck::cast_slice::<u8, From>(bytes)[..rows], &mut doubles));
    MeasuredColumn::Doubles(doubles)
}

/// Returns the path of a shard in each row, or its length.
fn of_path<'a>(leaf: &Leaf, shard_path: &'a str, rows: usize) -> MeasuredColumn<&'a [u8]> {
    match leaf.is_length {
        true => MeasuredColumn::Integers(vec![shard_path.len() as i64; rows]),
        false => MeasuredColumn::Texts(vec![shard_path.as_bytes(); rows]),
    }
}

/// Returns the length of each row in a column: bytes of its string, values or steps.
fn lengths(plan: &Plan, cells: &Cells<'_>) -> Vec<usize> {
    if let ColumnKind::Dense { .. } = plan.kind {
        return cells.strings(plan).into_iter().map(<[u8]>::len).collect();
    }
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
