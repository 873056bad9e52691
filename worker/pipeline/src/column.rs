//! The columns of a batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfeed_handoff::BufferRange;
use shardfeed_image::PIXEL_CONTRACT;
use shardfeed_plan::DECODER_NONE;
use shardfeed_tfrecord::example::{
    DefaultValue, ExampleParser, Feature, FeatureSpec, Partition, Parts, SequenceParser, SpecError,
};

use crate::dtype::Dtype;
use crate::operator::{Operator, OperatorError, TableFault, TableRef};
use crate::program::{Made, Program};

/// What a column is, and which buffers it has in its slot. Byte strings lie end to end in `values`;
/// string i is `values[offsets[i]..offsets[i + 1]]`, and what is said of values below is of strings then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Values of a fixed shape: `[rows] + shape`, row-major.
    Dense {
        /// Type of the values.
        dtype: Dtype,
        /// Shape of one row.
        shape: Vec<usize>,
    },
    /// Rows of any number of values of a shape, padded to the longest row of the batch:
    /// `[rows, longest] + shape`. One split, `[rows]`, says how many each row has.
    Padded {
        /// Type of the values.
        dtype: Dtype,
        /// Shape of one of a row's values.
        shape: Vec<usize>,
    },
    /// Rows of any number of values, or of rows of these: `[n] + shape`. The splits begin with the
    /// outermost, `[rows + 1]`: row r is what lies from `splits[r]` to `splits[r + 1]` in the next one,
    /// or in the values.
    Ragged {
        /// Type of the values.
        dtype: Dtype,
        /// How many splits there are, 1 or more.
        levels: usize,
        /// Shape of one value.
        shape: Vec<usize>,
    },
    /// Values at places of a tensor of `[rows] + size`. One split, `[n, 1 + size.len()]`, has the place
    /// of each, ascending.
    Sparse {
        /// Type of the values.
        dtype: Dtype,
        /// Size of one row.
        size: Vec<usize>,
    },
}

impl ColumnKind {
    /// Type of the values.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Dense { dtype, .. }
            | Self::Padded { dtype, .. }
            | Self::Ragged { dtype, .. }
            | Self::Sparse { dtype, .. } => *dtype,
        }
    }

    /// Bytes of a row of numbers of a fixed shape; 0 for what has none.
    pub(crate) fn row_bytes(&self) -> usize {
        match self {
            Self::Dense { dtype: Dtype::Bytes, .. } => 0,
            Self::Dense { dtype, shape } => dtype.bytes() * items(shape),
            _ => 0,
        }
    }

    /// How many splits it has.
    pub fn splits(&self) -> usize {
        match self {
            Self::Dense { .. } => 0,
            Self::Padded { .. } | Self::Sparse { .. } => 1,
            Self::Ragged { levels, .. } => *levels,
        }
    }
}

/// A column of one batch, by the places of its buffers in the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnData {
    /// Name of the feature.
    pub name: Arc<str>,
    /// What it is.
    pub kind: ColumnKind,
    /// Numbers, or bytes of all strings end to end.
    pub values: BufferRange,
    /// Byte strings: i64, `[strings + 1]`, where each starts in `values`, and the end.
    pub offsets: Option<BufferRange>,
    /// i64 each; what they say depends on the kind.
    pub splits: Vec<BufferRange>,
}

/// How records are parsed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ParseSpec {
    /// As `tf.train.Example`s, to a column for each feature.
    Example(Vec<FeatureSpec>),
    /// As `tf.train.SequenceExample`s, to a column for each feature and each list.
    Sequence {
        /// What a record has once.
        context: Vec<FeatureSpec>,
        /// What it has in every step.
        lists: Vec<FeatureSpec>,
    },
}

/// What becomes of a record, as a job declares it. Serde's form is that of options and tests; processes
/// exchange `shardfeed.common.v1.RecordSpec`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordSpec {
    /// How it is parsed; `None`: it stays as it is, in a column `record`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse: Option<ParseSpec>,
    /// What is made of its columns, one after the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<Operator>,
    /// The columns of a batch by name; `None`: all that are there at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<String>>,
}

impl From<ParseSpec> for RecordSpec {
    fn from(parse: ParseSpec) -> Self {
        Self { parse: Some(parse), operators: vec![], outputs: None }
    }
}

/// Why records cannot become what is declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A feature makes no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An operator cannot do what is asked.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// There is no such column to give out, or it is named twice.
    #[error("outputs name `{name}`, {what}")]
    Output {
        /// The name.
        name: String,
        /// What is wrong with it.
        what: String,
    },
}

/// What finds a record's features.
#[derive(Debug)]
pub(crate) enum Parser {
    Raw,
    Example(ExampleParser),
    Sequence(SequenceParser),
}

/// Where a column's values come from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    /// The record as it is.
    Record,
    /// A feature.
    Feature(Parts),
    /// A list of features.
    List(Parts),
    /// An operator.
    Step(usize),
}

/// A column, and how it is made.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: ColumnKind,
    pub(crate) origin: Origin,
    /// Its spec in the parser, if there is one.
    pub(crate) spec: Option<FeatureSpec>,
}

impl Plan {
    /// What stands where a record has no such feature, or pads it.
    pub(crate) fn default(&self) -> Option<&DefaultValue> {
        self.spec.as_ref()?.default()
    }

    pub(crate) fn is_sorted(&self) -> bool {
        let feature = self.spec.as_ref().map(|spec| &spec.feature);
        matches!(feature, Some(Feature::Sparse { already_sorted: true, .. }))
    }
}

/// What becomes of a record, checked and ready.
#[derive(Debug)]
pub struct Schema {
    spec: RecordSpec,
    parser: Parser,
    program: Program,
    columns: Vec<(Arc<str>, ColumnKind)>,
    plans: Vec<Plan>,
    decoder: &'static str,
}

impl Schema {
    /// Records as they are: one column `record` of byte strings.
    pub fn raw() -> Self {
        Self::new(RecordSpec::default()).expect("nothing is asked of the records")
    }

    /// Records parsed to columns, sorted by name, those of lists last; then what operators make, in their
    /// order.
    ///
    /// # Errors  What no record can meet.
    pub fn new(mut spec: RecordSpec) -> Result<Self, SchemaError> {
        let parser = parser(&mut spec)?;
        let parsed = parsed_plans(&parser);
        let (program, Made { columns: all, images }) = Program::new(&parsed, &spec.operators)?;
        let chosen = match &spec.outputs {
            None => all,
            Some(names) => choose(&all, &images, names)?,
        };
        let columns = chosen.iter().map(|(name, plan)| (name.as_str().into(), plan.kind.clone()));
        let columns = columns.collect();
        let plans = chosen.into_iter().map(|(_, plan)| plan).collect();
        let decoder = if Program::decodes(&spec.operators) { PIXEL_CONTRACT } else { DECODER_NONE };
        Ok(Self { spec, parser, program, columns, plans, decoder })
    }

    /// Opens the tables that operators look things up in, so that what is wrong with them is known before
    /// anything is read. A table that was not opened is opened by the first row that needs it.
    ///
    /// # Errors  A table is not there, or is not the one that was declared.
    pub fn open_tables(&self) -> Result<(), TableFault> {
        self.program.open_tables()
    }

    /// Columns by name and kind, in the order of a batch's.
    pub fn columns(&self) -> &[(Arc<str>, ColumnKind)] {
        &self.columns
    }

    /// What was declared, with features sorted by name.
    pub fn spec(&self) -> &RecordSpec {
        &self.spec
    }

    /// The tables that operators look things up in.
    pub fn tables(&self) -> impl Iterator<Item = &TableRef> {
        self.spec.operators.iter().filter_map(|operator| operator.operation.table())
    }

    /// The pixel contract that the job pins, or [`DECODER_NONE`].
    pub fn decoder(&self) -> &'static str {
        self.decoder
    }

    pub(crate) fn parser(&self) -> &Parser {
        &self.parser
    }

    pub(crate) fn plans(&self) -> &[Plan] {
        &self.plans
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of a row that are known beforehand, with what operators have in between; variable parts count
    /// nothing.
    pub fn fixed_row_bytes(&self) -> usize {
        let bytes = |kind: &ColumnKind| match kind {
            ColumnKind::Dense { dtype: Dtype::Bytes, shape } => 8 * items(shape),
            ColumnKind::Dense { dtype, shape } => dtype.bytes() * items(shape),
            ColumnKind::Padded { .. } | ColumnKind::Sparse { .. } => 8,
            ColumnKind::Ragged { .. } => 8,
        };
        let columns: usize = self.columns.iter().map(|(_, kind)| bytes(kind)).sum();
        columns + self.program.row_bytes()
    }

    /// Whether batches are records as they are and nothing else.
    pub(crate) fn is_raw(&self) -> bool {
        matches!(self.parser, Parser::Raw)
            && self.program.is_empty()
            && self.plans.len() == 1
            && self.plans[0].origin == Origin::Record
    }

    /// Of `budget_bytes` the part that operators may use for what is in between.
    pub fn made_bytes(&self, budget_bytes: u64) -> u64 {
        /// One part in so many.
        const MADE_PART: u64 = 8;
        if self.program.is_empty() { 0 } else { budget_bytes / MADE_PART }
    }

    /// From here on operators use no more than that, unless a single row or image needs more.
    pub fn bound_made(&self, bytes: u64) {
        self.program.memory().bound(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}

/// What parses records. Features are sorted, so that the same ones in another order are the same job.
fn parser(spec: &mut RecordSpec) -> Result<Parser, SpecError> {
    let sort = |features: &mut Vec<FeatureSpec>| features.sort_by(|a, b| a.name.cmp(&b.name));
    match &mut spec.parse {
        None => Ok(Parser::Raw),
        Some(ParseSpec::Example(features)) => {
            sort(features);
            Ok(Parser::Example(ExampleParser::new(features.clone())?))
        }
        Some(ParseSpec::Sequence { context, lists }) => {
            sort(context);
            sort(lists);
            let both = context
                .iter()
                .find(|spec| lists.binary_search_by(|list| list.name.cmp(&spec.name)).is_ok());
            if let Some(both) = both {
                return Err(SpecError::Duplicate { feature: both.name.clone() });
            }
            Ok(Parser::Sequence(SequenceParser::new(context.clone(), lists.clone())?))
        }
    }
}

/// A plan for each column that parsing gives.
fn parsed_plans(parser: &Parser) -> Vec<Plan> {
    let of_features = |parser: &ExampleParser| -> Vec<Plan> {
        let plan = |(index, spec): (usize, &FeatureSpec)| {
            let parts = parser.parts(index).clone();
            Plan { kind: kind(spec, 0), origin: Origin::Feature(parts), spec: Some(spec.clone()) }
        };
        parser.features().iter().enumerate().map(plan).collect()
    };
    match parser {
        Parser::Raw => {
            let kind = ColumnKind::Dense { dtype: Dtype::Bytes, shape: vec![] };
            vec![Plan { kind, origin: Origin::Record, spec: None }]
        }
        Parser::Example(parser) => of_features(parser),
        Parser::Sequence(parser) => {
            let mut plans = of_features(parser.context());
            plans.extend(parser.lists().iter().enumerate().map(|(index, spec)| Plan {
                kind: kind(spec, 1),
                origin: Origin::List(parser.parts(index).clone()),
                spec: Some(spec.clone()),
            }));
            plans
        }
    }
}

/// The columns that are asked for, in the order in which they are.
fn choose(
    all: &[(String, Plan)],
    images: &[String],
    names: &[String],
) -> Result<Vec<(String, Plan)>, SchemaError> {
    let mut chosen: Vec<(String, Plan)> = vec![];
    let mut seen = BTreeSet::new();
    let by_name: BTreeMap<&str, &Plan> = all.iter().map(|(name, plan)| (&**name, plan)).collect();
    for name in names {
        let wrong = |what: String| SchemaError::Output { name: name.clone(), what };
        if !seen.insert(name) {
            return Err(wrong("which they name before; once is enough".to_owned()));
        }
        if images.contains(name) {
            return Err(wrong(
                "whose images differ in size from row to row; name what is made of them".to_owned(),
            ));
        }
        let Some(found) = by_name.get(&**name) else {
            let known: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
            return Err(wrong(format!("but there are `{}`", known.join("`, `"))));
        };
        chosen.push((name.clone(), (*found).clone()));
    }
    if chosen.is_empty() {
        return Err(SchemaError::Output {
            name: String::new(),
            what: "which is nothing; name a column, or leave outputs out".to_owned(),
        });
    }
    Ok(chosen)
}

pub(crate) fn items(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// - `steps`: levels that a list has beside those of a feature.
fn kind(spec: &FeatureSpec, steps: usize) -> ColumnKind {
    let dtype = Dtype::from(spec.dtype());
    match &spec.feature {
        Feature::FixedLen { shape, .. } => ColumnKind::Dense { dtype, shape: shape.clone() },
        Feature::FixedLenSequence { shape, .. } => {
            ColumnKind::Padded { dtype, shape: shape.clone() }
        }
        Feature::VarLen { .. } => ColumnKind::Ragged { dtype, levels: 1 + steps, shape: vec![] },
        Feature::Ragged { partitions, .. } => {
            let uniform = partitions.iter().rev().map_while(|partition| match partition {
                Partition::UniformRowLength(length) => Some(*length),
                _ => None,
            });
            let mut shape: Vec<usize> = uniform.collect();
            shape.reverse();
            let levels = 1 + steps + partitions.len() - shape.len();
            ColumnKind::Ragged { dtype, levels, shape }
        }
        Feature::Sparse { size, .. } => ColumnKind::Sparse { dtype, size: size.clone() },
        other => unreachable!("the parsers refuse {other:?}"),
    }
}
