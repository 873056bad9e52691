//! Finds the requested features in a record.

use super::cells::{Cells, Count, Parts, Wanted};
use super::feature::{ListRef, map_entry};
use super::ragged::PartitionFault;
use super::spec::{DType, Feature, FeatureSpec, SpecError};
use super::wire::{WireError, next_message};

/// Reason why a record cannot be parsed as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    #[error("not a valid tf.train.Example: the record {what}, at byte {at} of it")]
    Malformed {
        /// Description of the error, following "the record".
        what: &'static str,
        /// Offset in bytes from the start of the record.
        at: usize,
    },
    #[error(
        "feature `{feature}` ({dtype}) is not in the record; give it a default or make it VarLen"
    )]
    Required { feature: String, dtype: DType },
    #[error("feature `{feature}` holds {found}, but {expected} was asked for; ask for {found}")]
    DTypeMismatch {
        feature: String,
        expected: DType,
        found: DType,
        /// Offset of the feature's value in bytes from the start of the record.
        at: usize,
    },
    #[error(
        "feature `{feature}` has {found} values, shape {shape:?} holds {expected}; correct the shape \
         or make it VarLen"
    )]
    CountMismatch {
        feature: String,
        shape: Vec<usize>,
        expected: usize,
        found: usize,
        /// Offset of the feature's value in bytes from the start of the record.
        at: usize,
    },
    #[error(
        "feature `{feature}` has {found} values, which is no multiple of the {stride} that shape \
         {shape:?} holds; correct the shape or make it VarLen"
    )]
    StrideMismatch {
        feature: String,
        /// Shape of one element.
        shape: Vec<usize>,
        stride: usize,
        found: usize,
        /// Offset of the feature's value in bytes from the start of the record.
        at: usize,
    },
    #[error("feature `{feature}` cannot be parted by `{key}`: {fault}")]
    Partition {
        feature: String,
        /// Key of the partition, or its kind.
        key: String,
        fault: PartitionFault,
    },
    #[error("feature `{feature}` has {values} values, but index `{key}` has {indices}")]
    IndexCount { feature: String, key: String, values: usize, indices: usize },
    #[error(
        "feature `{feature}`: index `{key}` has a {index}, but that dimension's size is {size}"
    )]
    IndexRange { feature: String, key: String, index: i64, size: usize },
    #[error("feature `{feature}`: its indices do not ascend; leave already_sorted out")]
    IndexOrder { feature: String },
    #[error(
        "feature list `{feature}` ({dtype}) is not in the record; allow it to be missing, or ask for \
         another one"
    )]
    RequiredList { feature: String, dtype: DType },
    #[error(
        "feature list `{feature}` has {found} values in step {step}, shape {shape:?} holds \
         {expected}; correct the shape or make it VarLen"
    )]
    StepCount { feature: String, step: usize, shape: Vec<usize>, expected: usize, found: usize },
    #[error("feature list `{feature}` has {steps} steps, but `{key}` has {others}")]
    Steps { feature: String, key: String, steps: usize, others: usize },
}

/// Finds features in Examples.
///
/// A parser is created once and can be used for any number of records by any number of threads.
#[derive(Clone, Debug)]
pub struct ExampleParser {
    features: Vec<FeatureSpec>,
    cells: Cells,
}

impl ExampleParser {
    /// Creates a parser for `features`. If there are none, records are only checked to be Examples.
    ///
    /// # Errors
    /// The error of the first feature that cannot be parsed as requested.
    pub fn new(features: Vec<FeatureSpec>) -> Result<Self, SpecError> {
        let requires = |spec: &&FeatureSpec| {
            matches!(spec.feature, Feature::FixedLenSequence { allow_missing: false, .. })
        };
        if let Some(spec) = features.iter().find(requires) {
            let what = "a record without the feature has none: set allow_missing".to_owned();
            return Err(SpecError::NoSense { feature: spec.name.clone(), what });
        }
        let cells = Cells::new(&features)?;
        Ok(Self { features, cells })
    }

    pub fn features(&self) -> &[FeatureSpec] {
        &self.features
    }

    /// Returns the number of keys that are read.
    ///
    /// Features of fixed and variable length have one key each, in the features' order; additional
    /// keys of other features follow.
    pub fn cells(&self) -> usize {
        self.cells.wanted.len()
    }

    /// Returns the cells of a feature.
    ///
    /// # Panics
    /// If `feature` is not below the number of features.
    pub fn parts(&self, feature: usize) -> &Parts {
        &self.cells.parts[feature]
    }

    /// Finds all features in `record` in one pass and without allocating.
    ///
    /// - `located`: replaced; one for each of the [`cells`](Self::cells), with the required number of
    ///   values if that is fixed. `None`: the record does not have it, and the default of the feature
    ///   applies, if there is one. Empty after an error.
    ///
    /// # Errors
    /// [`ParseError`]: the bytes are not an Example, or not one with these features.
    pub fn locate<'a>(
        &self,
        record: &'a [u8],
        located: &mut Vec<Option<ListRef<'a>>>,
    ) -> Result<(), ParseError> {
        located.clear();
        located.resize(self.cells.wanted.len(), None);
        let result = self.locate_all(record, located);
        if result.is_err() {
            located.clear();
        }
        result
    }

    fn locate_all<'a>(
        &self,
        record: &'a [u8],
        located: &mut [Option<ListRef<'a>>],
    ) -> Result<(), ParseError> {
        self.find_values(record, located).map_err(|error| malformed(record, error))?;
        for (index, place) in located.iter_mut().enumerate() {
            // Examined only now: if a key occurs twice, the last value counts and the first may be
            // invalid.
            if let Some(unread) = place {
                let read = ListRef::read(unread.wire());
                *place = read.map_err(|error| malformed(record, error))?;
            }
            let wanted = self.cells.wanted[index];
            match place {
                Some(list) if list.dtype() != wanted.dtype || !wanted.count.fits(list.count()) => {
                    return Err(self.mismatch(index, list, place_in(record, list.wire())));
                }
                None if wanted.is_required => return Err(self.required(index)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Walks the record and stores the unread value of each requested key in `located`.
    fn find_values<'a>(
        &self,
        mut record: &'a [u8],
        located: &mut [Option<ListRef<'a>>],
    ) -> Result<(), WireError<'a>> {
        let mut expected = 0;
        while let Some(mut features) = next_message(&mut record, 1)? {
            while let Some(entry) = next_message(&mut features, 1)? {
                let (key, value) = map_entry(entry)?;
                if let Some(index) = self.cells.keys.find(key, expected) {
                    expected = index + 1;
                    // As in TensorFlow, a feature without a list does not replace an earlier one.
                    if value.is_empty() {
                        continue;
                    }
                    located[index] = Some(ListRef::unread(self.cells.wanted[index].dtype, value));
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn required(&self, cell: usize) -> ParseError {
        let Wanted { dtype, .. } = self.cells.wanted[cell];
        ParseError::Required { feature: self.cells.keys.name(cell).to_owned(), dtype }
    }

    #[cold]
    fn mismatch(&self, cell: usize, list: &ListRef<'_>, at: usize) -> ParseError {
        let Wanted { dtype: expected, count, feature, .. } = self.cells.wanted[cell];
        let (feature, name) = (&self.features[feature].feature, self.cells.keys.name(cell));
        let (name, found) = (name.to_owned(), list.count());
        match (feature, count) {
            _ if expected != list.dtype() => {
                ParseError::DTypeMismatch { feature: name, expected, found: list.dtype(), at }
            }
            (Feature::FixedLenSequence { shape, .. }, Count::MultipleOf(stride)) => {
                ParseError::StrideMismatch {
                    feature: name,
                    shape: shape.clone(),
                    stride,
                    found,
                    at,
                }
            }
            (Feature::FixedLen { shape, .. }, Count::Exactly(expected)) => {
                let shape = shape.clone();
                ParseError::CountMismatch { feature: name, shape, expected, found, at }
            }
            _ => unreachable!("only these say how many values there are"),
        }
    }
}

#[cold]
pub(super) fn malformed(record: &[u8], WireError { what, at }: WireError<'_>) -> ParseError {
    ParseError::Malformed { what, at: place_in(record, at) }
}

/// Returns the offset of `part`, a slice of `record`, in it.
pub(super) fn place_in(record: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr().saturating_sub(record.as_ptr().addr())
}

#[cfg(test)]
mod tests;
