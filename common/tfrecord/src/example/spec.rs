//! Requested features of Examples.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Types of values that an Example can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// `float_list`.
    Float32,
    /// `int64_list`.
    Int64,
    /// `bytes_list`, which TensorFlow calls string.
    Bytes,
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Layout of a feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Feature {
    /// The same number of values in every record: a dense column `[batch] + shape`.
    FixedLen {
        /// Shape of one record's values; empty for a single value.
        shape: Vec<usize>,
        dtype: DType,
        /// Values for a record without the feature; if `None`, such a record is an error.
        default: Option<DefaultValue>,
    },
    /// Any number of values; a record without the feature has none.
    VarLen { dtype: DType },
    /// Any number of elements of a shape, in a dense column `[batch, longest] + shape` that is
    /// padded after each record's elements.
    FixedLenSequence {
        /// Shape of one element; empty for a single value.
        shape: Vec<usize>,
        dtype: DType,
        /// If true, a record without the feature has no elements; otherwise it is an error.
        allow_missing: bool,
        /// Single value used for padding; default 0 or the empty string.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<DefaultValue>,
    },
    /// Any number of values, partitioned into rows and nested rows by other features of the record.
    Ragged {
        dtype: DType,
        /// Key of the values, if it differs from the feature's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value_key: Option<String>,
        /// Partitions, the outermost first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        partitions: Vec<Partition>,
    },
    /// Values at given indices of a sparse tensor of a fixed size.
    Sparse {
        dtype: DType,
        /// Keys of the indices, one per dimension; int64, as many as there are values.
        index_keys: Vec<String>,
        value_key: String,
        size: Vec<usize>,
        /// True if the indices ascend in every record; otherwise they are sorted.
        #[serde(default)]
        already_sorted: bool,
    },
}

/// Partition of the values of a [`Feature::Ragged`], or of the rows of the next partition, into
/// rows.
///
/// All but the last variant contain the key of an int64 feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Partition {
    /// Begin of each row and end of the last one: from 0 to the number of values.
    RowSplits(String),
    /// Number of values of each row.
    RowLengths(String),
    /// Begin of each row; the last one ends with the values.
    RowStarts(String),
    /// End of each row.
    RowLimits(String),
    /// Row number of each value, ascending; the last value's row is the last row.
    ValueRowIds(String),
    /// Number of values of every row.
    UniformRowLength(usize),
}

impl Partition {
    /// Returns the key from which the partition is read.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::RowSplits(key)
            | Self::RowLengths(key)
            | Self::RowStarts(key)
            | Self::RowLimits(key)
            | Self::ValueRowIds(key) => Some(key),
            Self::UniformRowLength(_) => None,
        }
    }
}

/// Values for a record without the feature: as many as the shape holds, in row-major order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultValue {
    /// `float_list`. Serialized as bits, so that all values including NaN are preserved; numbers
    /// are accepted as well.
    Float32(#[serde(with = "floats")] Vec<f32>),
    /// `int64_list`.
    Int64(Vec<i64>),
    /// `bytes_list`.
    Bytes(Vec<Vec<u8>>),
}

/// Serializes floats as strings such as `0x3f800000`.
mod floats {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Bits(String),
        Number(f32),
    }

    pub(super) fn serialize<S: Serializer>(values: &[f32], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(|value| format!("{:#010x}", value.to_bits())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
        let float = |written: Written| match written {
            Written::Number(value) => Ok(value),
            Written::Bits(text) => {
                let digits = text.strip_prefix("0x").unwrap_or(&text);
                let bits = u32::from_str_radix(digits, 16).map_err(serde::de::Error::custom)?;
                Ok(f32::from_bits(bits))
            }
        };
        Vec::<Written>::deserialize(from)?.into_iter().map(float).collect()
    }
}

impl DefaultValue {
    pub fn dtype(&self) -> DType {
        match self {
            Self::Float32(_) => DType::Float32,
            Self::Int64(_) => DType::Int64,
            Self::Bytes(_) => DType::Bytes,
        }
    }

    pub fn count(&self) -> usize {
        match self {
            Self::Float32(values) => values.len(),
            Self::Int64(values) => values.len(),
            Self::Bytes(values) => values.len(),
        }
    }
}

/// A requested feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureSpec {
    /// Key in the Example.
    pub name: String,
    pub feature: Feature,
}

impl FeatureSpec {
    pub fn dtype(&self) -> DType {
        match &self.feature {
            Feature::FixedLen { dtype, .. }
            | Feature::VarLen { dtype }
            | Feature::FixedLenSequence { dtype, .. }
            | Feature::Ragged { dtype, .. }
            | Feature::Sparse { dtype, .. } => *dtype,
        }
    }

    /// True if a record has any number of single values.
    pub fn is_list(&self) -> bool {
        match &self.feature {
            Feature::VarLen { .. } => true,
            Feature::FixedLenSequence { shape, .. } => shape.is_empty(),
            Feature::Ragged { partitions, .. } => partitions.is_empty(),
            _ => false,
        }
    }

    /// Returns the shape of a record's rows, if it is the same in all records and the feature is
    /// ragged by uniform row lengths only.
    pub fn uniform_rows(&self) -> Option<Vec<usize>> {
        let Feature::Ragged { partitions, .. } = &self.feature else { return None };
        let length = |partition: &Partition| match partition {
            Partition::UniformRowLength(length) => Some(*length),
            _ => None,
        };
        partitions.iter().map(length).collect::<Option<Vec<_>>>().filter(|shape| !shape.is_empty())
    }

    /// Returns the values for a record without the feature.
    ///
    /// As in TensorFlow, a default without values counts as none.
    pub fn default(&self) -> Option<&DefaultValue> {
        let is_fixed = matches!(self.feature, Feature::FixedLen { .. });
        self.declared_default().filter(|default| is_fixed && default.count() > 0)
    }

    /// Returns the value behind a record's elements of a sequence; `None`: 0 or the empty string.
    pub fn padding(&self) -> Option<&DefaultValue> {
        let is_padded = matches!(self.feature, Feature::FixedLenSequence { .. });
        self.declared_default().filter(|_| is_padded)
    }

    fn declared_default(&self) -> Option<&DefaultValue> {
        match &self.feature {
            Feature::FixedLen { default, .. } | Feature::FixedLenSequence { default, .. } => {
                default.as_ref()
            }
            Feature::VarLen { .. } | Feature::Ragged { .. } | Feature::Sparse { .. } => None,
        }
    }

    /// Returns the number of values in every record, or in each element of a sequence: the product
    /// of the shape. `None` if there is no shape.
    ///
    /// # Errors
    /// [`SpecError::ShapeOverflow`].
    pub fn count(&self) -> Result<Option<usize>, SpecError> {
        let (Feature::FixedLen { shape, .. } | Feature::FixedLenSequence { shape, .. }) =
            &self.feature
        else {
            return Ok(None);
        };
        // Zeros are applied last: [0, huge, huge] holds no values, but is still an overflow.
        let product = shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size.max(1)));
        match product {
            None => {
                Err(SpecError::ShapeOverflow { feature: self.name.clone(), shape: shape.clone() })
            }
            Some(_) if shape.contains(&0) => Ok(Some(0)),
            Some(count) => Ok(Some(count)),
        }
    }

    /// Checks the feature alone and returns its count like [`count`](Self::count).
    pub(super) fn validate(&self) -> Result<Option<usize>, SpecError> {
        let count = self.count()?;
        self.validate_parts(count)?;
        let expected = match &self.feature {
            Feature::FixedLenSequence { .. } => Some(1),
            _ => count,
        };
        let (Some(default), Some(expected)) = (self.declared_default(), expected) else {
            return Ok(count);
        };
        if default.dtype() != self.dtype() {
            return Err(SpecError::DefaultDType {
                feature: self.name.clone(),
                expected: self.dtype(),
                found: default.dtype(),
            });
        }
        if default.count() != expected {
            let (feature, found) = (self.name.clone(), default.count());
            return Err(SpecError::DefaultCount { feature, expected, found });
        }
        Ok(count)
    }

    fn validate_parts(&self, count: Option<usize>) -> Result<(), SpecError> {
        let refuse = |what: &'static str| {
            Err(SpecError::NoSense { feature: self.name.clone(), what: what.to_owned() })
        };
        match &self.feature {
            Feature::FixedLenSequence { .. } if count == Some(0) => {
                refuse("its shape holds no value, so the number of values is unknown")
            }
            Feature::Ragged { partitions, .. } => {
                match partitions.contains(&Partition::UniformRowLength(0)) {
                    true => refuse("rows of no values: a uniform row length is 1 or more"),
                    false => Ok(()),
                }
            }
            Feature::Sparse { index_keys, size, .. } if index_keys.len() != size.len() => {
                refuse("it needs one size for each index key")
            }
            Feature::Sparse { index_keys, .. } if index_keys.is_empty() => {
                refuse("it needs an index key")
            }
            Feature::Sparse { size, .. } if size.contains(&0) => {
                refuse("a dimension of size 0 holds no value")
            }
            _ => Ok(()),
        }
    }
}

/// Reason why features cannot be parsed as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    #[error("feature `{feature}` is asked for twice; ask once and use the column twice")]
    Duplicate { feature: String },
    #[error("feature `{feature}`: {what}")]
    NoSense { feature: String, what: String },
    #[error("key `{key}` is asked for as {first} and as {second}; ask for one type")]
    KeyDType { key: String, first: DType, second: DType },
    #[error("feature `{feature}`: shape {shape:?} holds more values than fit in memory")]
    ShapeOverflow { feature: String, shape: Vec<usize> },
    #[error(
        "feature `{feature}`: the default is {found}, the feature {expected}; make them the same"
    )]
    DefaultDType { feature: String, expected: DType, found: DType },
    #[error(
        "feature `{feature}`: the default has {found} values, the shape holds {expected}; give one for \
         each (TensorFlow does not repeat a single one either)"
    )]
    DefaultCount { feature: String, expected: usize, found: usize },
}
