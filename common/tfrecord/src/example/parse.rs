//! Finding the wanted features in a record.

use super::cells::{Cells, Count, Parts, Wanted};
use super::feature::{ListRef, map_entry};
use super::ragged::PartitionFault;
use super::spec::{DType, Feature, FeatureSpec, SpecError};
use super::wire::{WireError, next_message};

/// Where a wanted feature is in one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located<'a> {
    /// In the record; with the right number of values if the feature has a fixed one.
    Present(ListRef<'a>),
    /// Not in the record: its spec's default stands in.
    Default,
    /// Not in the record, and any number of values will do: none.
    Missing,
}

/// Why a record cannot be parsed as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes are no Example.
    #[error("not a valid tf.train.Example: the record {what}, at byte {at} of it")]
    Malformed {
        /// What is wrong, as "the record ...".
        what: &'static str,
        /// Where, in bytes from the record's start.
        at: usize,
    },
    /// A feature with a fixed number of values and no default is not there.
    #[error(
        "feature `{feature}` ({dtype}) is not in the record; give it a default or make it VarLen"
    )]
    Required {
        /// The feature.
        feature: String,
        /// Its type, as asked for.
        dtype: DType,
    },
    /// A feature is of another type.
    #[error("feature `{feature}` holds {found}, but {expected} was asked for; ask for {found}")]
    DTypeMismatch {
        /// The feature.
        feature: String,
        /// The type asked for.
        expected: DType,
        /// The type in the record.
        found: DType,
        /// Where the feature's value is, in bytes from the record's start.
        at: usize,
    },
    /// A feature with a fixed number of values has another number of them.
    #[error(
        "feature `{feature}` has {found} values, shape {shape:?} holds {expected}; correct the shape \
         or make it VarLen"
    )]
    CountMismatch {
        /// The feature.
        feature: String,
        /// The shape asked for.
        shape: Vec<usize>,
        /// The number of values that it holds.
        expected: usize,
        /// The number of values in the record.
        found: usize,
        /// Where the feature's value is, in bytes from the record's start.
        at: usize,
    },
    /// A sequence of values of a shape has a part of one too many.
    #[error(
        "feature `{feature}` has {found} values, which is no multiple of the {stride} that shape \
         {shape:?} holds; correct the shape or make it VarLen"
    )]
    StrideMismatch {
        /// The feature.
        feature: String,
        /// The shape of one.
        shape: Vec<usize>,
        /// The number of values that it holds.
        stride: usize,
        /// The number of values in the record.
        found: usize,
        /// Where the feature's value is, in bytes from the record's start.
        at: usize,
    },
    /// A partition does not fit the values.
    #[error("feature `{feature}` cannot be parted by `{key}`: {fault}")]
    Partition {
        /// The feature.
        feature: String,
        /// Key of the partition, or what it is.
        key: String,
        /// Why not.
        fault: PartitionFault,
    },
    /// There is another number of places than of values.
    #[error("feature `{feature}` has {values} values, but index `{key}` has {indices}")]
    IndexCount {
        /// The feature.
        feature: String,
        /// Key of the index.
        key: String,
        /// Values of the feature.
        values: usize,
        /// Values of the index.
        indices: usize,
    },
    /// A place is outside of the tensor.
    #[error(
        "feature `{feature}`: index `{key}` has a {index}, but that dimension's size is {size}"
    )]
    IndexRange {
        /// The feature.
        feature: String,
        /// Key of the index.
        key: String,
        /// The place.
        index: i64,
        /// The size.
        size: usize,
    },
    /// Places are not in ascending order, as was promised.
    #[error("feature `{feature}`: its indices do not ascend; leave already_sorted out")]
    IndexOrder {
        /// The feature.
        feature: String,
    },
    /// A list that is needed is not in the record.
    #[error(
        "feature list `{feature}` ({dtype}) is not in the record; allow it to be missing, or ask for \
         another one"
    )]
    RequiredList {
        /// The feature.
        feature: String,
        /// Its type, as asked for.
        dtype: DType,
    },
    /// A step of a list has another number of values than its shape.
    #[error(
        "feature list `{feature}` has {found} values in step {step}, shape {shape:?} holds \
         {expected}; correct the shape or make it VarLen"
    )]
    StepCount {
        /// The feature.
        feature: String,
        /// Which step.
        step: usize,
        /// The shape asked for.
        shape: Vec<usize>,
        /// The number of values that it holds.
        expected: usize,
        /// The number of values in the step.
        found: usize,
    },
    /// Lists that belong together have different numbers of steps.
    #[error("feature list `{feature}` has {steps} steps, but `{key}` has {others}")]
    Steps {
        /// The feature.
        feature: String,
        /// Key of the other list.
        key: String,
        /// Steps of the feature.
        steps: usize,
        /// Steps of the other one.
        others: usize,
    },
}

/// Finds features in Examples.
///
/// Made once, then used for any number of records, by any number of threads.
#[derive(Clone, Debug)]
pub struct ExampleParser {
    features: Vec<FeatureSpec>,
    cells: Cells,
}

impl ExampleParser {
    /// Prepares for `features`. None is legal: then records are only checked to be Examples.
    ///
    /// # Errors
    /// What is wrong with the first feature that cannot be parsed as asked.
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

    /// The features, as they were given.
    #[must_use]
    pub fn features(&self) -> &[FeatureSpec] {
        &self.features
    }

    /// How many keys are read. Those of fixed and variable lengths are one each, in the features' order;
    /// keys that others need beside them follow.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.cells.wanted.len()
    }

    /// The cells that a feature is made of.
    ///
    /// # Panics
    /// If there are not so many features.
    #[must_use]
    pub fn parts(&self, feature: usize) -> &Parts {
        &self.cells.parts[feature]
    }

    /// Finds all features in `record`, in one walk and without allocating.
    ///
    /// - `located`: replaced; one for each of the [`cells`](Self::cells). Empty after an error.
    ///
    /// # Errors
    /// [`ParseError`]: the bytes are no Example, or not one with these features.
    pub fn locate<'a>(
        &self,
        record: &'a [u8],
        located: &mut Vec<Located<'a>>,
    ) -> Result<(), ParseError> {
        located.clear();
        located.resize(self.cells.wanted.len(), Located::Missing);
        let result = self.locate_all(record, located);
        if result.is_err() {
            located.clear();
        }
        result
    }

    fn locate_all<'a>(
        &self,
        record: &'a [u8],
        located: &mut [Located<'a>],
    ) -> Result<(), ParseError> {
        self.find_values(record, located).map_err(|error| malformed(record, error))?;
        for (index, place) in located.iter_mut().enumerate() {
            // Only now: of a key that comes twice, the last value counts and the first may be bad.
            let list = match place {
                Located::Present(unread) => {
                    ListRef::read(unread.wire()).map_err(|error| malformed(record, error))?
                }
                Located::Default | Located::Missing => None,
            };
            let wanted = self.cells.wanted[index];
            *place = match list {
                Some(list) => {
                    if list.dtype() != wanted.dtype || !wanted.count.fits(list.count()) {
                        let at = place_in(record, list.wire());
                        return Err(self.mismatch(index, &list, at));
                    }
                    Located::Present(list)
                }
                None if wanted.has_default => Located::Default,
                None if wanted.is_required => return Err(self.required(index)),
                None => Located::Missing,
            };
        }
        Ok(())
    }

    /// Walks over the record and puts the value of each wanted key in its place, unread.
    fn find_values<'a>(
        &self,
        mut record: &'a [u8],
        located: &mut [Located<'a>],
    ) -> Result<(), WireError<'a>> {
        let mut expected = 0;
        while let Some(mut features) = next_message(&mut record, 1)? {
            while let Some(entry) = next_message(&mut features, 1)? {
                let (key, value) = map_entry(entry)?;
                if let Some(index) = self.cells.keys.find(key, expected) {
                    expected = index + 1;
                    // As in TensorFlow, one without a kind does not hide an earlier one.
                    if value.is_empty() {
                        continue;
                    }
                    located[index] =
                        Located::Present(ListRef::unread(self.cells.wanted[index].dtype, value));
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

/// Where `part`, a piece of `record`, starts in it.
pub(super) fn place_in(record: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr().saturating_sub(record.as_ptr().addr())
}

#[cfg(test)]
mod tests;
