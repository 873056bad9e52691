//! The columns of a batch.

use std::sync::Arc;

use shardfeed_handoff::BufferRange;
use shardfeed_plan::DECODER_NONE;
use shardfeed_tfrecord::example::{
    DType, DefaultValue, ExampleParser, Feature, FeatureSpec, SpecError,
};

/// Version of what parsing makes of a record; part of a job's identity.
const PARSE_VERSION: u32 = 1;

/// Name of the only column of unparsed records.
const RAW_COLUMN: &str = "record";

/// What a column is, and which buffers it has in its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Numbers of a fixed shape: `values`, `[rows] + shape`, row-major.
    Dense {
        /// Type of the values.
        dtype: DType,
        /// Shape of one row.
        shape: Vec<usize>,
    },
    /// Any number of numbers a row: `values`, `[n]`; row r is `values[splits[r]..splits[r + 1]]`.
    Ragged {
        /// Type of the values.
        dtype: DType,
    },
    /// Byte strings of a fixed shape: item i is `values[offsets[i]..offsets[i + 1]]`, row-major.
    Bytes {
        /// Shape of one row.
        shape: Vec<usize>,
    },
    /// Any number of byte strings a row: items as in `Bytes`, rows as in `Ragged`.
    RaggedBytes,
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
    /// Byte strings: i64, `[items + 1]`, where each starts in `values`, and the end.
    pub offsets: Option<BufferRange>,
    /// Ragged: i64, `[rows + 1]`, where each row's items start, and the end.
    pub row_splits: Option<BufferRange>,
}

/// What becomes of a record.
#[derive(Debug)]
pub struct Schema {
    parser: Option<ExampleParser>,
    columns: Vec<(Arc<str>, ColumnKind)>,
    operators: String,
}

impl Schema {
    /// Records as they are: one column `record` of byte strings.
    pub fn raw() -> Self {
        let kind = ColumnKind::Bytes { shape: vec![] };
        let operators = format!("raw/{PARSE_VERSION}");
        Self { parser: None, columns: vec![(RAW_COLUMN.into(), kind)], operators }
    }

    /// `tf.train.Example`s parsed to one column a feature.
    ///
    /// # Errors  A specification that no record can meet.
    pub fn parsed(mut features: Vec<FeatureSpec>) -> Result<Self, SpecError> {
        // Sorted, so that the same features in another order are the same job.
        features.sort_by(|a, b| a.name.cmp(&b.name));
        let columns = features.iter().map(|spec| (spec.name.as_str().into(), kind(&spec.feature)));
        let columns = columns.collect();
        let text = serde_json::to_string(&features).expect("features are plain data");
        let operators = format!("parse_example/{PARSE_VERSION} {text}");
        let parser = Some(ExampleParser::new(features)?);
        Ok(Self { parser, columns, operators })
    }

    /// Columns by name and kind, in the order of a batch's.
    pub fn columns(&self) -> &[(Arc<str>, ColumnKind)] {
        &self.columns
    }

    /// The features as JSON, for another process that shall do the same; `None` for raw records.
    pub fn features_json(&self) -> Option<String> {
        let parser = self.parser.as_ref()?;
        Some(serde_json::to_string(parser.features()).expect("features are plain data"))
    }

    /// What the job's identity says of it.
    pub fn operators(&self) -> &str {
        &self.operators
    }

    /// Id of the decoder; parsing needs none.
    pub fn decoder(&self) -> &str {
        DECODER_NONE
    }

    pub(crate) fn parser(&self) -> Option<&ExampleParser> {
        self.parser.as_ref()
    }

    /// What stands in a column where a record has no such feature.
    pub(crate) fn default_of(&self, column: usize) -> Option<&DefaultValue> {
        match &self.parser.as_ref()?.features()[column].feature {
            Feature::FixedLen { default, .. } => default.as_ref(),
            _ => None,
        }
    }

    /// Bytes of a row that are known beforehand; variable parts count nothing.
    pub fn fixed_row_bytes(&self) -> usize {
        let bytes = |kind: &ColumnKind| match kind {
            ColumnKind::Dense { dtype, shape } => item_bytes(*dtype) * items(shape),
            ColumnKind::Bytes { shape } => 8 * items(shape),
            ColumnKind::Ragged { .. } | ColumnKind::RaggedBytes => 8,
        };
        self.columns.iter().map(|(_, kind)| bytes(kind)).sum()
    }
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

fn kind(feature: &Feature) -> ColumnKind {
    match feature {
        Feature::FixedLen { shape, dtype: DType::Bytes, .. } => {
            ColumnKind::Bytes { shape: shape.clone() }
        }
        Feature::FixedLen { shape, dtype, .. } => {
            ColumnKind::Dense { dtype: *dtype, shape: shape.clone() }
        }
        Feature::VarLen { dtype: DType::Bytes } => ColumnKind::RaggedBytes,
        Feature::VarLen { dtype } => ColumnKind::Ragged { dtype: *dtype },
        other => unreachable!("ExampleParser::new refuses {other:?}"),
    }
}
