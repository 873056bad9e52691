//! Histogram of record sizes: exact for small ones, approximate for large ones.

use super::numbers::Integers;

/// Sizes below this have one bucket each.
const EXACT: u64 = 256;

/// Buckets between two powers of two: none is wider than 1/128 of its sizes.
const BUCKETS_PER_DOUBLING: u64 = EXACT / 2;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    integers: Integers,
    /// Number of sizes in each bucket, up to the bucket of the largest size.
    buckets: Vec<u64>,
}

impl Sizes {
    pub(super) fn add(&mut self, bytes: usize) {
        self.integers.add_size(bytes);
        let bucket = bucket_of(bytes as u64);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.integers.merge(&other.integers);
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (count, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += more;
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
        let found = self.buckets.iter().position(|&count| {
            seen += u128::from(count);
            seen >= wanted
        });
        let last = found.map_or(max as u64, |bucket| last_of(bucket as u64));
        Some(last.clamp(min as u64, max as u64))
    }
}

fn bucket_of(bytes: u64) -> usize {
    if bytes < EXACT {
        return bytes as usize;
    }
    // Number of bits below the top eight bits.
    let shift = u64::from(bytes.ilog2() - EXACT.ilog2() + 1);
    let place = (bytes >> shift) - BUCKETS_PER_DOUBLING;
    (EXACT + (shift - 1) * BUCKETS_PER_DOUBLING + place) as usize
}

/// Returns the largest size in a bucket.
fn last_of(bucket: u64) -> u64 {
    if bucket < EXACT {
        return bucket;
    }
    let (doubling, place) =
        ((bucket - EXACT) / BUCKETS_PER_DOUBLING, (bucket - EXACT) % BUCKETS_PER_DOUBLING);
    let shift = doubling + 1;
    ((BUCKETS_PER_DOUBLING + place) << shift) | ((1 << shift) - 1)
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
        let mut before = None;
        for bytes in (0..5_000).chain((1 << 30) - 5..(1 << 30) + 5) {
            let bucket = bucket_of(bytes);
            assert!(bytes <= last_of(bucket as u64), "{bytes}");
            if before.is_some_and(|(size, _)| size + 1 == bytes) {
                let last = before.map_or(0, |(_, bucket)| bucket);
                assert!(bucket == last || bucket == last + 1, "{bytes}");
                assert_eq!(bucket == last + 1, last_of(last as u64) == bytes - 1, "{bytes}");
            }
            before = Some((bytes, bucket));
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
