//! Keys of a record from which a feature is built. A key is one *cell*, even if several features
//! read it.

use std::collections::BTreeMap;

use super::keys::CellKeys;
use super::spec::{DType, Feature, FeatureSpec, Partition, SpecError};

/// The cells of one feature.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parts {
    /// A feature that consists of its values only.
    One { values: usize },
    /// [`Feature::Ragged`].
    Ragged {
        values: usize,
        /// Partitions, the innermost first, with the cells of those that are read from the record.
        partitions: Vec<(Partition, Option<usize>)>,
        /// Values of one innermost row that always belong together: the product of the trailing
        /// uniform row lengths.
        together: usize,
    },
    /// [`Feature::Sparse`].
    Sparse {
        /// Cells of the indices, one per dimension.
        indices: Vec<usize>,
        values: usize,
    },
}

/// Requirements on a cell in every record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) dtype: DType,
    pub(super) count: Count,
    /// True if a record without it is an error.
    pub(super) is_required: bool,
    /// Feature that imposes the requirement.
    pub(super) feature: usize,
}

/// Number of values that a cell must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Any,
    Exactly(usize),
    MultipleOf(usize),
}

impl Count {
    pub(super) fn fits(self, count: usize) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(exactly) => count == exactly,
            Self::MultipleOf(stride) => count.is_multiple_of(stride),
        }
    }
}

/// Cells of a list of features.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    pub(super) keys: CellKeys,
    pub(super) wanted: Vec<Wanted>,
    pub(super) parts: Vec<Parts>,
}

#[derive(Default)]
struct Gathered<'a> {
    by_key: BTreeMap<&'a str, usize>,
    keys: Vec<String>,
    wanted: Vec<Wanted>,
}

impl<'a> Gathered<'a> {
    fn cell(&mut self, key: &'a str, dtype: DType, feature: usize) -> Result<usize, SpecError> {
        if let Some(&cell) = self.by_key.get(key) {
            let first = self.wanted[cell].dtype;
            if first != dtype {
                return Err(SpecError::KeyDType { key: key.to_owned(), first, second: dtype });
            }
            return Ok(cell);
        }
        let cell = self.keys.len();
        self.by_key.insert(key, cell);
        self.keys.push(key.to_owned());
        let (count, is_required) = (Count::Any, false);
        self.wanted.push(Wanted { dtype, count, is_required, feature });
        Ok(cell)
    }
}

impl Cells {
    /// Builds the cells of `features`.
    ///
    /// The cells of the features' values come first, in the features' order; a key that is read
    /// twice has one cell.
    pub(super) fn new(features: &[FeatureSpec]) -> Result<Self, SpecError> {
        let mut names = BTreeMap::new();
        for (index, spec) in features.iter().enumerate() {
            if names.insert(spec.name.as_str(), index).is_some() {
                return Err(SpecError::Duplicate { feature: spec.name.clone() });
            }
        }
        let mut gathered = Gathered::default();
        let mut values = Vec::with_capacity(features.len());
        for (index, spec) in features.iter().enumerate() {
            let count = spec.validate()?;
            let key = match &spec.feature {
                Feature::Ragged { value_key, .. } => value_key.as_ref().unwrap_or(&spec.name),
                Feature::Sparse { value_key, .. } => value_key,
                _ => &spec.name,
            };
            let cell = gathered.cell(key, spec.dtype(), index)?;
            values.push(cell);
            let wanted = &mut gathered.wanted[cell];
            match &spec.feature {
                Feature::FixedLen { .. } => {
                    wanted.count = Count::Exactly(count.unwrap_or(1));
                    wanted.is_required = spec.default().is_none();
                    wanted.feature = index;
                }
                Feature::FixedLenSequence { allow_missing, .. } => {
                    wanted.count = Count::MultipleOf(count.unwrap_or(1));
                    wanted.is_required = !allow_missing;
                    wanted.feature = index;
                }
                _ => {}
            }
        }
        let parts = features.iter().enumerate().zip(values).map(|((index, spec), values)| {
            Ok(match &spec.feature {
                Feature::Ragged { partitions, .. } => {
                    let uniform = |one: &&Partition| matches!(one, Partition::UniformRowLength(_));
                    let last = partitions.iter().rev().take_while(uniform).count();
                    let (parted, together) = partitions.split_at(partitions.len() - last);
                    let together = together.iter().try_fold(1_usize, |product, one| match one {
                        Partition::UniformRowLength(length) => product.checked_mul(*length),
                        _ => Some(product),
                    });
                    let together = together.ok_or_else(|| SpecError::NoSense {
                        feature: spec.name.clone(),
                        what: "its rows hold more values than fit in memory".to_owned(),
                    })?;
                    let mut found = Vec::with_capacity(parted.len());
                    for partition in parted.iter().rev() {
                        let cell =
                            partition.key().map(|key| gathered.cell(key, DType::Int64, index));
                        found.push((partition.clone(), cell.transpose()?));
                    }
                    Parts::Ragged { values, partitions: found, together }
                }
                Feature::Sparse { index_keys, .. } => {
                    let cells =
                        index_keys.iter().map(|key| gathered.cell(key, DType::Int64, index));
                    Parts::Sparse { indices: cells.collect::<Result<_, _>>()?, values }
                }
                _ => Parts::One { values },
            })
        });
        let parts = parts.collect::<Result<Vec<_>, SpecError>>()?;
        let Gathered { keys, wanted, .. } = gathered;
        Ok(Self { keys: CellKeys::new(keys), wanted, parts })
    }
}
