//! Finding the wanted features in a record.

use super::feature::{ListRef, map_entry};
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
}

/// Finds features in Examples.
///
/// Made once, then used for any number of records, by any number of threads.
#[derive(Clone, Debug)]
pub struct ExampleParser {
    features: Vec<FeatureSpec>,
    /// The same order as `features`, without what only errors need.
    wanted: Vec<Wanted>,
    /// Open addressing: indexes into `features` plus one, at most half of them used; 0 is free.
    table: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    dtype: DType,
    count: Option<usize>,
    has_default: bool,
}

impl ExampleParser {
    /// Prepares for `features`. None is legal: then records are only checked to be Examples.
    ///
    /// # Errors
    /// What is wrong with the first feature that cannot be parsed as asked.
    pub fn new(features: Vec<FeatureSpec>) -> Result<Self, SpecError> {
        let wanted = features
            .iter()
            .map(|spec| {
                let count = spec.validate()?;
                Ok(Wanted { dtype: spec.dtype(), count, has_default: spec.default().is_some() })
            })
            .collect::<Result<_, _>>()?;
        let table = vec![0; (features.len() * 2 + 1).next_power_of_two()];
        let mut parser = Self { features, wanted, table };
        for (index, spec) in parser.features.iter().enumerate() {
            let name = spec.name.as_bytes();
            let slot = parser.slot(name);
            if parser.table[slot] != 0 {
                return Err(SpecError::Duplicate { feature: spec.name.clone() });
            }
            parser.table[slot] = index as u32 + 1; // More than 2^32 names do not fit in memory.
        }
        Ok(parser)
    }

    /// The features, in the order in which they are located.
    #[must_use]
    pub fn features(&self) -> &[FeatureSpec] {
        &self.features
    }

    /// Finds all features in `record`, in one walk and without allocating.
    ///
    /// - `located`: replaced; one for each of [`features`](Self::features), in that order. Empty after
    ///   an error.
    ///
    /// # Errors
    /// [`ParseError`]: the bytes are no Example, or not one with these features.
    pub fn locate<'a>(
        &self,
        record: &'a [u8],
        located: &mut Vec<Located<'a>>,
    ) -> Result<(), ParseError> {
        located.clear();
        located.resize(self.features.len(), Located::Missing);
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
            let wanted = self.wanted[index];
            *place = match list {
                Some(list) => {
                    if list.dtype() != wanted.dtype
                        || wanted.count.is_some_and(|count| count != list.count())
                    {
                        let at = place_in(record, list.wire());
                        return Err(self.mismatch(index, &list, at));
                    }
                    Located::Present(list)
                }
                None if wanted.has_default => Located::Default,
                None if wanted.count.is_some() => return Err(self.required(index)),
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
                if let Some(index) = self.find(key, expected) {
                    expected = index + 1;
                    // As in TensorFlow, one without a kind does not hide an earlier one.
                    if value.is_empty() {
                        continue;
                    }
                    located[index] =
                        Located::Present(ListRef::unread(self.wanted[index].dtype, value));
                }
            }
        }
        Ok(())
    }

    /// The index of the feature named `key`. Writers keep an order, so `expected` is tried first.
    #[inline]
    fn find(&self, key: &[u8], expected: usize) -> Option<usize> {
        if self.features.get(expected).is_some_and(|spec| spec.name.as_bytes() == key) {
            return Some(expected);
        }
        (self.table[self.slot(key)] as usize).checked_sub(1)
    }

    /// Where `name` is in the table, or would be.
    fn slot(&self, name: &[u8]) -> usize {
        let mask = self.table.len() - 1;
        let mut slot = hash(name) as usize & mask;
        // Half of the table is free, so this ends.
        while let Some(index) = (self.table[slot] as usize).checked_sub(1)
            && self.features[index].name.as_bytes() != name
        {
            slot = (slot + 1) & mask;
        }
        slot
    }

    #[cold]
    fn required(&self, index: usize) -> ParseError {
        let FeatureSpec { name, .. } = &self.features[index];
        ParseError::Required { feature: name.clone(), dtype: self.wanted[index].dtype }
    }

    #[cold]
    fn mismatch(&self, index: usize, list: &ListRef<'_>, at: usize) -> ParseError {
        let FeatureSpec { name, feature } = &self.features[index];
        let Wanted { dtype: expected, count, .. } = self.wanted[index];
        match (feature, count) {
            (Feature::FixedLen { shape, .. }, Some(count)) if expected == list.dtype() => {
                ParseError::CountMismatch {
                    feature: name.clone(),
                    shape: shape.clone(),
                    expected: count,
                    found: list.count(),
                    at,
                }
            }
            _ => ParseError::DTypeMismatch {
                feature: name.clone(),
                expected,
                found: list.dtype(),
                at,
            },
        }
    }
}

#[cold]
fn malformed(record: &[u8], WireError { what, at }: WireError<'_>) -> ParseError {
    ParseError::Malformed { what, at: place_in(record, at) }
}

/// Where `part`, a piece of `record`, starts in it.
fn place_in(record: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr().saturating_sub(record.as_ptr().addr())
}

/// Mixes all bytes of a key. Only the names asked for are in the table, so no record can make it slow.
fn hash(key: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, tail) = key.as_chunks::<8>();
    let mut hash = key.len() as u64;
    for word in words {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(ODD).rotate_left(29);
    }
    for &byte in tail {
        hash = (hash ^ u64::from(byte)).wrapping_mul(ODD);
    }
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests;
