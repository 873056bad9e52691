//! The columns of a batch.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfeed_handoff::BufferRange;
use shardfeed_plan::DECODER_NONE;
use shardfeed_tfrecord::example::{
    DType, DefaultValue, ExampleParser, Feature, FeatureSpec, Partition, Parts, SequenceParser,
    SpecError,
};

/// Version of what parsing makes of a record; part of a job's identity.
const PARSE_VERSION: u32 = 1;

/// Name of the only column of unparsed records.
const RAW_COLUMN: &str = "record";

/// What a column is, and which buffers it has in its slot. Byte strings lie end to end in `values`;
/// string i is `values[offsets[i]..offsets[i + 1]]`, and what is said of values below is of strings then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Values of a fixed shape: `[rows] + shape`, row-major.
    Dense {
        /// Type of the values.
        dtype: DType,
        /// Shape of one row.
        shape: Vec<usize>,
    },
    /// Rows of any number of values of a shape, padded to the longest row of the batch:
    /// `[rows, longest] + shape`. One split, `[rows]`, says how many each row has.
    Padded {
        /// Type of the values.
        dtype: DType,
        /// Shape of one of a row's values.
        shape: Vec<usize>,
    },
    /// Rows of any number of values, or of rows of these: `[n] + shape`. The splits begin with the
    /// outermost, `[rows + 1]`: row r is what lies from `splits[r]` to `splits[r + 1]` in the next one,
    /// or in the values.
    Ragged {
        /// Type of the values.
        dtype: DType,
        /// How many splits there are, 1 or more.
        levels: usize,
        /// Shape of one value.
        shape: Vec<usize>,
    },
    /// Values at places of a tensor of `[rows] + size`. One split, `[n, 1 + size.len()]`, has the place
    /// of each, ascending.
    Sparse {
        /// Type of the values.
        dtype: DType,
        /// Size of one row.
        size: Vec<usize>,
    },
}

impl ColumnKind {
    /// Type of the values.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Dense { dtype, .. }
            | Self::Padded { dtype, .. }
            | Self::Ragged { dtype, .. }
            | Self::Sparse { dtype, .. } => *dtype,
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

/// What becomes of a record.
#[derive(Debug)]
pub struct Schema {
    parser: Parser,
    columns: Vec<(Arc<str>, ColumnKind)>,
    plans: Vec<Plan>,
    operators: String,
}

impl Schema {
    /// Records as they are: one column `record` of byte strings.
    pub fn raw() -> Self {
        let kind = ColumnKind::Dense { dtype: DType::Bytes, shape: vec![] };
        let operators = format!("raw/{PARSE_VERSION}");
        let plans = vec![Plan { kind: kind.clone(), origin: Origin::Record, spec: None }];
        Self { parser: Parser::Raw, columns: vec![(RAW_COLUMN.into(), kind)], plans, operators }
    }

    /// Records parsed to columns, sorted by name; those of lists come last.
    ///
    /// # Errors  A specification that no record can meet.
    pub fn parsed(spec: ParseSpec) -> Result<Self, SpecError> {
        // Sorted, so that the same features in another order are the same job.
        let sorted = |mut features: Vec<FeatureSpec>| {
            features.sort_by(|a, b| a.name.cmp(&b.name));
            features
        };
        match spec {
            ParseSpec::Example(features) => {
                let parser = ExampleParser::new(sorted(features))?;
                let text = json(parser.features());
                let operators = format!("parse_example/{PARSE_VERSION} {text}");
                Ok(Self::new(Parser::Example(parser), operators))
            }
            ParseSpec::Sequence { context, lists } => {
                let (context, lists) = (sorted(context), sorted(lists));
                let both = context.iter().find(|spec| lists.iter().any(|l| l.name == spec.name));
                if let Some(both) = both {
                    return Err(SpecError::Duplicate { feature: both.name.clone() });
                }
                let parser = SequenceParser::new(context, lists)?;
                let (context, lists) = (json(parser.context().features()), json(parser.lists()));
                let operators = format!("parse_sequence_example/{PARSE_VERSION} {context} {lists}");
                Ok(Self::new(Parser::Sequence(parser), operators))
            }
        }
    }

    fn new(parser: Parser, operators: String) -> Self {
        let of_features = |parser: &ExampleParser| -> Vec<Plan> {
            let plan = |(index, spec): (usize, &FeatureSpec)| {
                let parts = parser.parts(index).clone();
                Plan {
                    kind: kind(spec, 0),
                    origin: Origin::Feature(parts),
                    spec: Some(spec.clone()),
                }
            };
            parser.features().iter().enumerate().map(plan).collect()
        };
        let plans = match &parser {
            Parser::Raw => vec![],
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
        };
        let column = |plan: &Plan| {
            let name = plan.spec.as_ref().map_or("", |spec| spec.name.as_str());
            (name.into(), plan.kind.clone())
        };
        let columns = plans.iter().map(column).collect();
        Self { parser, columns, plans, operators }
    }

    /// Columns by name and kind, in the order of a batch's.
    pub fn columns(&self) -> &[(Arc<str>, ColumnKind)] {
        &self.columns
    }

    /// How records are parsed, as JSON for another process that shall do the same; `None` for raw ones.
    pub fn parse_json(&self) -> Option<String> {
        match &self.parser {
            Parser::Raw => None,
            Parser::Example(parser) => Some(json(parser.features())),
            Parser::Sequence(parser) => {
                let (context, lists) = (parser.context().features(), parser.lists());
                let (context, lists) = (context.to_vec(), lists.to_vec());
                Some(json(&ParseSpec::Sequence { context, lists }))
            }
        }
    }

    /// What the job's identity says of it.
    pub fn operators(&self) -> &str {
        &self.operators
    }

    /// Id of the decoder; parsing needs none.
    pub fn decoder(&self) -> &str {
        DECODER_NONE
    }

    pub(crate) fn parser(&self) -> &Parser {
        &self.parser
    }

    pub(crate) fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Bytes of a row that are known beforehand; variable parts count nothing.
    pub fn fixed_row_bytes(&self) -> usize {
        let bytes = |kind: &ColumnKind| match kind {
            ColumnKind::Dense { dtype: DType::Bytes, shape } => 8 * items(shape),
            ColumnKind::Dense { dtype, shape } => item_bytes(*dtype) * items(shape),
            ColumnKind::Padded { .. } | ColumnKind::Sparse { .. } => 8,
            ColumnKind::Ragged { .. } => 8,
        };
        self.columns.iter().map(|(_, kind)| bytes(kind)).sum()
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("features are plain data")
}

pub(crate) fn items(shape: &[usize]) -> usize {
    shape.iter().product()
}

pub(crate) fn item_bytes(dtype: DType) -> usize {
    match dtype {
        DType::Int64 => 8,
        DType::Float32 => 4,
        DType::Bytes => 1,
    }
}

/// - `steps`: levels that a list has beside those of a feature.
fn kind(spec: &FeatureSpec, steps: usize) -> ColumnKind {
    let dtype = spec.dtype();
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
