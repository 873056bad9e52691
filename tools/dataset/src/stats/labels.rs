//! Counts the values of a feature, as long as there are few different ones.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// Maximum number of different values; if there are more, none is counted.
pub(super) const LABELS_MAX: usize = 4_096;

/// Maximum length of a string that may be a label, bytes; longer ones are content.
pub(super) const LABEL_BYTES_MAX: usize = 64;

/// Values with their counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Labels<T: Ord> {
    Counted(BTreeMap<T, u64>),
    /// There are more than `LABELS_MAX` different values.
    TooMany,
    /// A value is longer than `LABEL_BYTES_MAX`, so that the values are not labels.
    TooLong,
}

impl<T: Ord> Default for Labels<T> {
    fn default() -> Self {
        Self::Counted(BTreeMap::new())
    }
}

impl<T: Ord> Labels<T> {
    pub(super) fn add<Q>(&mut self, value: &Q)
    where
        T: Borrow<Q>,
        Q: Ord + ToOwned<Owned = T> + ?Sized,
    {
        let Self::Counted(counts) = self else {
            return;
        };
        if let Some(count) = counts.get_mut(value) {
            *count += 1;
        } else if counts.len() < LABELS_MAX {
            counts.insert(value.to_owned(), 1);
        } else {
            *self = Self::TooMany;
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Counted(counts), Self::Counted(others)) => {
                for (value, count) in others {
                    *counts.entry(value).or_default() += count;
                }
                if counts.len() > LABELS_MAX {
                    *self = Self::TooMany;
                }
            }
            (Self::TooLong, _) => {}
            (_, Self::TooLong) => *self = Self::TooLong,
            _ => *self = Self::TooMany,
        }
    }

    /// The values with their counts, in order; `None` if they were not counted.
    pub(super) fn counted(&self) -> Option<&BTreeMap<T, u64>> {
        match self {
            Self::Counted(counts) => Some(counts),
            Self::TooMany | Self::TooLong => None,
        }
    }
}

impl Labels<Vec<u8>> {
    pub(super) fn add_bytes(&mut self, value: &[u8]) {
        match value.len() {
            0..=LABEL_BYTES_MAX => self.add(value),
            _ => *self = Self::TooLong,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(values: impl IntoIterator<Item = i64>) -> Labels<i64> {
        let mut labels = Labels::default();
        values.into_iter().for_each(|value| labels.add(&value));
        labels
    }

    #[test]
    fn the_bound_is_the_number_of_values_wherever_they_are() {
        let most = LABELS_MAX as i64;
        assert_eq!(labels(0..most).counted().map(BTreeMap::len), Some(LABELS_MAX));
        assert_eq!(labels(0..=most), Labels::TooMany);
        let mut halves = labels(0..most / 2 + 1);
        halves.merge(labels(most / 2..most));
        assert_eq!(halves.counted().map(BTreeMap::len), Some(LABELS_MAX));
        halves.merge(labels([most]));
        assert_eq!(halves, Labels::TooMany);
    }

    #[test]
    fn a_long_value_outweighs_many_in_any_order() {
        let long = || {
            let mut labels = Labels::default();
            labels.add_bytes(&[7; LABEL_BYTES_MAX]);
            assert!(labels.counted().is_some());
            labels.add_bytes(&[7; LABEL_BYTES_MAX + 1]);
            labels
        };
        let mut first = long();
        first.merge(Labels::TooMany);
        let mut second = Labels::TooMany;
        second.merge(long());
        assert_eq!((first, second), (Labels::TooLong, Labels::TooLong));
    }

    proptest! {
        #[test]
        fn parts_in_any_order_are_the_whole(values in prop::collection::vec(0..20_i64, 0..60), cut in 0..60_usize) {
            let (first, second) = values.split_at(cut.min(values.len()));
            let mut merged = labels(second.to_vec());
            merged.merge(labels(first.to_vec()));
            prop_assert_eq!(merged, labels(values));
        }
    }
}
