use std::sync::Arc;

use shardfeed_handoff::BufferRange;
use shardfeed_tfrecord::example::{DefaultValue, Feature, FeatureSpec, Parts};

use crate::dtype::Dtype;
pub(crate) use crate::dtype::items;
use crate::operator::Finder;
use crate::samples::unbatch::Around;

/// Kind of a column, and the buffers that it has in its slot.
///
/// Byte strings are stored end to end in `values`; string i is
/// `values[offsets[i]..offsets[i + 1]]`. The descriptions of values below then apply to strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Values of a fixed shape: `[rows] + shape`, row-major.
    Dense {
        dtype: Dtype,
        /// Shape of one row.
        shape: Vec<usize>,
    },
    /// Rows with a variable number of values of a shape, padded to the longest row of the batch:
    /// `[rows, longest] + shape`. One split, `[rows]`, has the number of values of each row.
    Padded {
        dtype: Dtype,
        /// Shape of one value of a row.
        shape: Vec<usize>,
    },
    /// Rows with a variable number of values, or of such rows: `[n] + shape`. The splits begin with
    /// the outermost, `[rows + 1]`: row r consists of the items `splits[r]` to `splits[r + 1]` of
    /// the next split, or of the values.
    Ragged {
        dtype: Dtype,
        /// Number of splits, 1 or more.
        levels: usize,
        /// Shape of one value.
        shape: Vec<usize>,
    },
    /// Values at positions of a tensor of `[rows] + size`. One split, `[n, 1 + size.len()]`, has
    /// the position of each, ascending.
    Sparse {
        dtype: Dtype,
        /// Size of one row.
        size: Vec<usize>,
    },
}

impl ColumnKind {
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Dense { dtype, .. }
            | Self::Padded { dtype, .. }
            | Self::Ragged { dtype, .. }
            | Self::Sparse { dtype, .. } => *dtype,
        }
    }

    /// Bytes of a row of fixed-shape numbers; 0 for other kinds.
    pub(crate) fn row_bytes(&self) -> usize {
        match self {
            Self::Dense { dtype: Dtype::Bytes, .. } => 0,
            Self::Dense { dtype, shape } => dtype.bytes() * items(shape),
            _ => 0,
        }
    }

    pub fn splits(&self) -> usize {
        match self {
            Self::Dense { .. } => 0,
            Self::Padded { .. } | Self::Sparse { .. } => 1,
            Self::Ragged { levels, .. } => *levels,
        }
    }
}

/// A column of one batch, as ranges of its buffers in the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnData {
    pub name: Arc<str>,
    pub kind: ColumnKind,
    /// Numbers, or the bytes of all strings end to end.
    pub values: BufferRange,
    /// Byte strings: i64, `[strings + 1]`, start of each string in `values`, and the end.
    pub offsets: Option<BufferRange>,
    /// i64 each; their meaning depends on the kind.
    pub splits: Vec<BufferRange>,
}

/// Source of a column's values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Origin {
    /// The unchanged record.
    Record,
    Feature(Parts),
    List(Parts),
    /// The same strings in every row.
    Constant(DefaultValue),
    /// Strings of a table.
    Found(Arc<FoundStrings>),
    /// Rows around that of the sample.
    Around(Around),
    /// For each row of a window, whether it is outside of the record.
    IsPad(usize),
    /// An operator.
    Step(usize),
    /// An operator on each value of the rows of a parsed column, whose partitions it keeps.
    Rows(usize, Box<Plan>),
}

/// Strings of a table, found by the keys in a parsed column of a fixed shape.
#[derive(Debug)]
pub(crate) struct FoundStrings {
    /// Name of the column, for errors.
    pub(crate) output: String,
    pub(crate) keys: Plan,
    pub(crate) finder: Arc<Finder>,
}

impl PartialEq for FoundStrings {
    /// True for the same operator.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// A column, and its source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) kind: ColumnKind,
    pub(crate) origin: Origin,
    /// Spec of the feature in the parser, if there is one.
    pub(crate) spec: Option<FeatureSpec>,
}

impl Plan {
    /// Values for a record without this feature.
    pub(crate) fn default(&self) -> Option<&DefaultValue> {
        self.spec.as_ref()?.default()
    }

    /// Value for padding.
    pub(crate) fn padding(&self) -> Option<&DefaultValue> {
        self.spec.as_ref()?.padding()
    }

    /// Returns the parsed column whose rows an operator's column has, or the column itself.
    pub(crate) fn parsed(&self) -> &Self {
        match &self.origin {
            Origin::Rows(_, parsed) => parsed,
            _ => self,
        }
    }

    pub(crate) fn is_sorted(&self) -> bool {
        let feature = self.spec.as_ref().map(|spec| &spec.feature);
        matches!(feature, Some(Feature::Sparse { already_sorted: true, .. }))
    }
}
