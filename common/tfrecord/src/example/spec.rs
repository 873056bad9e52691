//! What is wanted of every Example.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The types of value that an Example can hold.
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
        f.pad(match self {
            Self::Float32 => "float32",
            Self::Int64 => "int64",
            Self::Bytes => "bytes",
        })
    }
}

/// How a feature is laid out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Feature {
    /// The same number of values in every record: a dense column `[batch] + shape`.
    FixedLen {
        /// The shape of one record's values; empty for a single value.
        shape: Vec<usize>,
        /// Their type.
        dtype: DType,
        /// Values for a record without the feature. Without a default such a record is an error.
        default: Option<DefaultValue>,
    },
    /// Any number of values; a record without the feature has none.
    VarLen {
        /// The type of the values.
        dtype: DType,
    },
    /// Any number of values of a shape, in a dense column `[batch, longest] + shape` that is padded behind
    /// each record's.
    FixedLenSequence {
        /// The shape of one of them; empty for a single value.
        shape: Vec<usize>,
        /// Their type.
        dtype: DType,
        /// Whether a record without the feature has none of them; else it is an error.
        allow_missing: bool,
        /// The one value that pads; else 0 or the empty string.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<DefaultValue>,
    },
    /// Any number of values, parted into rows and rows of rows by other features of the record.
    Ragged {
        /// The type of the values.
        dtype: DType,
        /// The key of the values, if it is not the feature's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value_key: Option<String>,
        /// How they are parted, the outermost first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        partitions: Vec<Partition>,
    },
    /// Values at places of a large and mostly empty tensor of a fixed size.
    Sparse {
        /// The type of the values.
        dtype: DType,
        /// The keys of the places, one for each dimension; int64, as many as values.
        index_keys: Vec<String>,
        /// The key of the values.
        value_key: String,
        /// The size of each dimension.
        size: Vec<usize>,
        /// Whether the places ascend in every record; else they are sorted.
        #[serde(default)]
        already_sorted: bool,
    },
}

/// How the values of a [`Feature::Ragged`], or the rows of the next partition, are parted into rows. All
/// but the last are keys of int64 features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Partition {
    /// Where each row begins, and where the last one ends: from 0 to the number of values.
    RowSplits(String),
    /// How many values each row has.
    RowLengths(String),
    /// Where each row begins; the last one ends with the values.
    RowStarts(String),
    /// Where each row ends.
    RowLimits(String),
    /// In which row each value is, ascending; there are as many rows as the last one says.
    ValueRowIds(String),
    /// All rows have so many values.
    UniformRowLength(usize),
}

impl Partition {
    /// The key that it is read from.
    #[must_use]
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

/// Values for a record without the feature: as many as the shape has, in row-major order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultValue {
    /// `float_list`. Written as their bits, so that they come back as they were, also those that are no
    /// number; numbers are read, too.
    Float32(#[serde(with = "floats")] Vec<f32>),
    /// `int64_list`.
    Int64(Vec<i64>),
    /// `bytes_list`.
    Bytes(Vec<Vec<u8>>),
}

/// Floats as texts like `0x3f800000`.
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
    /// The type of the values.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Float32(_) => DType::Float32,
            Self::Int64(_) => DType::Int64,
            Self::Bytes(_) => DType::Bytes,
        }
    }

    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Float32(values) => values.len(),
            Self::Int64(values) => values.len(),
            Self::Bytes(values) => values.len(),
        }
    }
}

/// One feature that is wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureSpec {
    /// Its key in the Example.
    pub name: String,
    /// Its layout.
    pub feature: Feature,
}

impl FeatureSpec {
    /// The type of the feature's values.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match &self.feature {
            Feature::FixedLen { dtype, .. }
            | Feature::VarLen { dtype }
            | Feature::FixedLenSequence { dtype, .. }
            | Feature::Ragged { dtype, .. }
            | Feature::Sparse { dtype, .. } => *dtype,
        }
    }

    /// The values for a record without the feature; of a sequence, the one that pads. A default
    /// without values is none, as in TensorFlow.
    #[must_use]
    pub fn default(&self) -> Option<&DefaultValue> {
        self.declared_default().filter(|default| default.count() > 0)
    }

    fn declared_default(&self) -> Option<&DefaultValue> {
        match &self.feature {
            Feature::FixedLen { default, .. } | Feature::FixedLenSequence { default, .. } => {
                default.as_ref()
            }
            Feature::VarLen { .. } | Feature::Ragged { .. } | Feature::Sparse { .. } => None,
        }
    }

    /// The number of values in every record, or of each part of a sequence: the product of the shape.
    /// `None` if there is no shape.
    ///
    /// # Errors
    /// [`SpecError::ShapeOverflow`].
    pub fn count(&self) -> Result<Option<usize>, SpecError> {
        let (Feature::FixedLen { shape, .. } | Feature::FixedLenSequence { shape, .. }) =
            &self.feature
        else {
            return Ok(None);
        };
        // Zeros count last: [0, huge, huge] holds nothing, but says nothing sensible either.
        let product = shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size.max(1)));
        match product {
            None => {
                Err(SpecError::ShapeOverflow { feature: self.name.clone(), shape: shape.clone() })
            }
            Some(_) if shape.contains(&0) => Ok(Some(0)),
            Some(count) => Ok(Some(count)),
        }
    }

    /// Checks the feature by itself and returns its count, as [`count`](Self::count) does.
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
                refuse("its shape holds no value, so nobody can say how many there are")
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

/// Why features cannot be parsed as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A name comes twice.
    #[error("feature `{feature}` is asked for twice; ask once and use the column twice")]
    Duplicate {
        /// The name.
        feature: String,
    },
    /// It makes no sense by itself.
    #[error("feature `{feature}`: {what}")]
    NoSense {
        /// The feature.
        feature: String,
        /// Why not.
        what: String,
    },
    /// Two features read one key as different types.
    #[error("key `{key}` is asked for as {first} and as {second}; ask for one type")]
    KeyDType {
        /// The key.
        key: String,
        /// One type.
        first: DType,
        /// The other one.
        second: DType,
    },
    /// The shape holds more values than can be counted.
    #[error("feature `{feature}`: shape {shape:?} holds more values than fit in memory")]
    ShapeOverflow {
        /// The feature.
        feature: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The default is of another type.
    #[error(
        "feature `{feature}`: the default is {found}, the feature {expected}; make them the same"
    )]
    DefaultDType {
        /// The feature.
        feature: String,
        /// The feature's type.
        expected: DType,
        /// The default's type.
        found: DType,
    },
    /// The default has another number of values.
    #[error(
        "feature `{feature}`: the default has {found} values, the shape holds {expected}; give one for \
         each (TensorFlow does not repeat a single one either)"
    )]
    DefaultCount {
        /// The feature.
        feature: String,
        /// Values that the shape holds.
        expected: usize,
        /// Values in the default.
        found: usize,
    },
}
