//! Parsing of records: its declaration, and the columns that it makes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use shardfeed_tfrecord::check_data;
use shardfeed_tfrecord::example::{
    ExampleParser, Feature, FeatureSpec, ListRef, Partition, SequenceParser, SpecError, Steps,
};

use super::error::SchemaError;
use crate::column::{ColumnKind, Origin, Plan};
use crate::dtype::Dtype;
use crate::record::{Row, RowError};
use crate::samples::unbatch::{Unbatch, UnbatchSpec};

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

impl ParseSpec {
    /// Names of the features, those of lists last.
    pub(crate) fn names(&self) -> Vec<&str> {
        let (features, lists): (&[FeatureSpec], &[FeatureSpec]) = match self {
            Self::Example(features) => (features, &[]),
            Self::Sequence { context, lists } => (context, lists),
        };
        features.iter().chain(lists).map(|spec| spec.name.as_str()).collect()
    }

    /// Returns the parsing of the features with these names only.
    pub(crate) fn named(&self, names: &[String]) -> Self {
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let among = |features: &[FeatureSpec]| {
            features.iter().filter(|spec| names.contains(&*spec.name)).cloned().collect()
        };
        match self {
            Self::Example(features) => Self::Example(among(features)),
            Self::Sequence { context, lists } => {
                Self::Sequence { context: among(context), lists: among(lists) }
            }
        }
    }
}

#[derive(Debug)]
pub(crate) enum Parser {
    Raw,
    Example(ExampleParser),
    Sequence(SequenceParser),
}

/// Parser of records, of which samples may have one row or some.
#[derive(Debug)]
pub(crate) struct RecordParser {
    parser: Parser,
    unbatch: Option<Unbatch>,
}

impl RecordParser {
    /// Creates the parser of unchanged records.
    pub(crate) fn raw() -> Self {
        Self { parser: Parser::Raw, unbatch: None }
    }

    /// Creates the parser of a declaration, whose features it sorts. Returns it with its columns.
    /// - `unbatch`: columns with rows, if the features have some of them.
    ///
    /// # Errors  A feature is invalid, or a column has no rows.
    pub(crate) fn new(
        parse: &mut Option<ParseSpec>,
        unbatch: Option<&UnbatchSpec>,
    ) -> Result<(Self, Vec<Plan>), SchemaError> {
        Self::of(parser(parse)?, unbatch).map_err(SchemaError::Unbatch)
    }

    /// As [`RecordParser::new`], of a parser.
    pub(crate) fn of(
        parser: Parser,
        unbatch: Option<&UnbatchSpec>,
    ) -> Result<(Self, Vec<Plan>), String> {
        let mut plans = parsed_plans(&parser);
        let unbatch = unbatch.map(|spec| Unbatch::new(spec, &parser, &mut plans)).transpose()?;
        Ok((Self { parser, unbatch: unbatch.flatten() }, plans))
    }

    pub(crate) fn is_raw(&self) -> bool {
        matches!(self.parser, Parser::Raw)
    }

    /// Columns with rows; `None`: records have none.
    pub(crate) fn unbatch(&self) -> Option<&Unbatch> {
        self.unbatch.as_ref()
    }

    /// Checks the data of a record, and locates its features; of an unparsed one nothing.
    pub(crate) fn read<'a>(
        &self,
        record: &Row<'a>,
        cells: &mut Vec<Option<ListRef<'a>>>,
        lists: &mut Vec<Steps<'a>>,
    ) -> Result<(), RowError> {
        let data = record.data();
        check_data(data, record.stored_crc()).map_err(|error| RowError::at(record, error))?;
        let found = match &self.parser {
            Parser::Raw => Ok(()),
            Parser::Example(parser) => parser.locate(data, cells),
            Parser::Sequence(parser) => parser.locate(data, cells, lists),
        };
        found.map_err(|error| RowError::parse(record, &error))
    }
}

/// Creates the parser. Features are sorted, so that their order does not change the job's identity.
pub(crate) fn parser(parse: &mut Option<ParseSpec>) -> Result<Parser, SpecError> {
    let sort = |features: &mut Vec<FeatureSpec>| features.sort_by(|a, b| a.name.cmp(&b.name));
    match parse {
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
