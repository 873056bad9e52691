//! Record specs: parsing, operators and outputs of a job, checked and prepared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfeed_image::PIXEL_CONTRACT;
use shardfeed_plan::DECODER_NONE;
use shardfeed_tfrecord::example::{
    ExampleParser, Feature, FeatureSpec, Partition, SequenceParser, SpecError,
};

use crate::column::{ColumnKind, Origin, Plan, items};
use crate::dtype::Dtype;
use crate::operator::{Operator, OperatorError, TableFault, TableRef};
use crate::program::{Made, Program};
use crate::record::{Row, RowError};
use crate::rows::{Cells, Parser};

/// Parsing of records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ParseSpec {
    /// As `tf.train.Example`s, to a column for each feature.
    Example(Vec<FeatureSpec>),
    /// As `tf.train.SequenceExample`s, to a column for each feature and each list.
    Sequence {
        /// Features that a record has once.
        context: Vec<FeatureSpec>,
        /// Features that a record has in every step.
        lists: Vec<FeatureSpec>,
    },
}

/// Parsing, operators and outputs of a job's records.
///
/// The serde form is for options and tests; processes exchange `shardfeed.common.v1.RecordSpec`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordSpec {
    /// Parsing; `None` keeps the record unchanged, in a column `record`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse: Option<ParseSpec>,
    /// Operators on the columns, applied in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<Operator>,
    /// Names of the columns of a batch; `None`: all columns after the last operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Vec<String>>,
}

impl From<ParseSpec> for RecordSpec {
    fn from(parse: ParseSpec) -> Self {
        Self { parse: Some(parse), operators: vec![], outputs: None }
    }
}

/// Error in a record spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A feature is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An operator cannot be applied.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// An output column does not exist, or is named twice.
    #[error("outputs name `{name}`, {what}")]
    Output {
        /// Name of the output.
        name: String,
        /// Description of the error.
        what: String,
    },
}

/// A record spec, checked and ready for use.
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
    /// Schema for unchanged records: one column `record` of byte strings.
    pub fn raw() -> Self {
        Self::new(RecordSpec::default()).expect("nothing is asked of the records")
    }

    /// Checks a spec and prepares it.
    ///
    /// Parsed columns are sorted by name, with those of lists last, then come the operators'
    /// columns in their order.
    ///
    /// # Errors  No record could satisfy the spec.
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
        let decodes = |operator: &Operator| operator.operation.definition().decodes_images();
        let decoder =
            if spec.operators.iter().any(decodes) { PIXEL_CONTRACT } else { DECODER_NONE };
        Ok(Self { spec, parser, program, columns, plans, decoder })
    }

    /// Opens the lookup tables of operators, so that errors are found before any record is read.
    ///
    /// A table that was not opened is opened by the first row that needs it.
    ///
    /// # Errors  A table does not exist, or is not the one that was declared.
    pub fn open_tables(&self) -> Result<(), TableFault> {
        self.program.open_tables()
    }

    /// Names and kinds of the columns, in the order of a batch.
    pub fn columns(&self) -> &[(Arc<str>, ColumnKind)] {
        &self.columns
    }

    /// The record spec, with features sorted by name.
    pub fn spec(&self) -> &RecordSpec {
        &self.spec
    }

    /// Lookup tables of the operators.
    pub fn tables(&self) -> impl Iterator<Item = &TableRef> {
        self.spec.operators.iter().filter_map(|operator| operator.operation.table())
    }

    /// The pixel contract that the job pins, or [`DECODER_NONE`].
    pub fn decoder(&self) -> &'static str {
        self.decoder
    }

    /// Checks the data of `rows` and locates their features.
    pub(crate) fn locate<'a>(&'a self, rows: &'a [Row<'a>]) -> Result<Cells<'a>, RowError> {
        Cells::locate(&self.parser, &self.plans, rows)
    }

    pub(crate) fn plans(&self) -> &[Plan] {
        &self.plans
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Known bytes of a row, including operators' intermediate columns; variable parts count as 0.
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

    /// True if batches consist of the unchanged records only.
    pub(crate) fn is_raw(&self) -> bool {
        matches!(self.parser, Parser::Raw)
            && self.program.is_empty()
            && self.plans.len() == 1
            && self.plans[0].origin == Origin::Record
    }

    /// Part of `budget_bytes` that operators may use for intermediate columns.
    pub fn made_bytes(&self, budget_bytes: u64) -> u64 {
        /// Divisor of the budget.
        const MADE_PART: u64 = 8;
        if self.program.is_empty() { 0 } else { budget_bytes / MADE_PART }
    }

    /// Limits the operators' memory from now on, except for a single row or image that needs more.
    pub fn bound_made(&self, bytes: u64) {
        self.program.memory().bound(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}

/// Creates the parser. Features are sorted, so that their order does not change the job's identity.
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

/// Returns a plan for each parsed column.
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

/// Returns the output columns in the order of `names`.
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
                "whose images differ in size from row to row; name a column made of them"
                    .to_owned(),
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

/// Returns the kind of a feature's column.
/// - `steps`: additional levels of a list compared with a feature.
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
