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
}

/// Values for a record without the feature: as many as the shape has, in row-major order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultValue {
    /// `float_list`.
    Float32(Vec<f32>),
    /// `int64_list`.
    Int64(Vec<i64>),
    /// `bytes_list`.
    Bytes(Vec<Vec<u8>>),
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
            Feature::FixedLen { dtype, .. } | Feature::VarLen { dtype } => *dtype,
        }
    }

    /// The values for a record without the feature.
    #[must_use]
    pub fn default(&self) -> Option<&DefaultValue> {
        match &self.feature {
            Feature::FixedLen { default, .. } => default.as_ref(),
            Feature::VarLen { .. } => None,
        }
    }

    /// The number of values in every record: the product of the shape. `None` if it varies.
    ///
    /// # Errors
    /// [`SpecError::ShapeOverflow`].
    pub fn count(&self) -> Result<Option<usize>, SpecError> {
        let Feature::FixedLen { shape, .. } = &self.feature else {
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
        let (Some(default), Some(expected)) = (self.default(), count) else {
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
