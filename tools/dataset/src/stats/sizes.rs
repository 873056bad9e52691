//! Histogram of record sizes: exact for small ones, approximate for large ones.

use std::collections::BTreeMap;

use super::numbers::Integers;

/// Leading bits of a size that are kept: all bits of small ones, and of others all but 1/128.
const EXACT_BITS: u32 = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    integers: Integers,
    /// Number of sizes by the largest one of their bucket.
    buckets: BTreeMap<u64, u64>,
}

impl Sizes {
    pub(super) fn add(&mut self, bytes: usize) {
        self.integers.add_size(bytes);
        *self.buckets.entry(last_of_bucket(bytes as u64)).or_default() += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.integers.merge(&other.integers);
        for (&last, count) in &other.buckets {
            *self.buckets.entry(last).or_default() += count;
        }
    }

    /// Minimum, maximum, sum and number of the sizes.
    pub(super) fn integers(&self) -> &Integers {
        &self.integers
    }

    /// Size that `percent` of the records do not exceed, or up to 1/128 more; `None` without any.
    pub(super) fn percentile(&self, percent: u64) -> Option<u64> {
        let (min, max) = self.integers.range()?;
        let wanted = (u128::from(self.integers.count()) * u128::from(percent)).div_ceil(100);
        let mut seen = 0_u128;
        let found = self.buckets.iter().find(|&(_, &count)| {
            seen += u128::from(count);
            seen >= wanted
        });
        Some(found.map_or(max as u64, |(&last, _)| last).clamp(min as u64, max as u64))
    }
}

/// Returns the largest size with the same leading bits.
fn last_of_bucket(bytes: u64) -> u64 {
    let bits = u64::BITS - bytes.leading_zeros();
    bytes | ((1 << bits.saturating_sub(EXACT_BITS)) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(values: &[usize]) -> Sizes {
        let mut sizes = Sizes::default();
        values.iter().for_each(|&value| sizes.add(value));
        sizes
    }

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        for bytes in (1..5_000).chain((1 << 30) - 5..(1 << 30) + 5) {
            let (before, last) = (last_of_bucket(bytes - 1), last_of_bucket(bytes));
            assert!(last == before || before == bytes - 1, "{bytes}");
            assert!(bytes <= last && last - bytes <= bytes / 128, "{bytes}");
        }
    }

    #[test]
    fn nothing_has_no_percentiles_and_one_is_all_of_them() {
        assert_eq!(Sizes::default().percentile(50), None);
        let one = sizes(&[123_457]);
        assert_eq!((one.percentile(50), one.percentile(99)), (Some(123_457), Some(123_457)));
    }

    proptest! {
        #[test]
        fn percentiles_are_near_and_never_below(
            mut values in prop::collection::vec(0..10_000_000_usize, 1..200),
            percent in 1..=100_u64,
        ) {
            let found = sizes(&values).percentile(percent).unwrap() as usize;
            values.sort_unstable();
            let exact = values[(values.len() * percent as usize).div_ceil(100) - 1];
            prop_assert!(exact <= found && found <= exact + exact / 128, "{exact} as {found}");
        }

        #[test]
        fn parts_in_any_order_are_the_whole(
            first in prop::collection::vec(0..100_000_usize, 0..50),
            second in prop::collection::vec(0..1_000_usize, 0..50),
        ) {
            let whole = sizes(&[first.clone(), second.clone()].concat());
            let mut merged = sizes(&second);
            merged.merge(&sizes(&first));
            prop_assert_eq!(merged, whole);
        }
    }
}
