//! Samples of corrupt records, as runs of adjacent ordinals.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardfeed_plan::Sample;

use crate::log::SKIPPED_RUNS_MAX;

/// Samples as runs of adjacent ordinals, at most [`SKIPPED_RUNS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleRuns {
    runs: u64,
    samples: u64,
    /// By shard: the first ordinal of each run, and the ordinal after its last.
    shards: BTreeMap<u32, BTreeMap<u64, u64>>,
}

impl SampleRuns {
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    pub fn count(&self) -> u64 {
        self.samples
    }

    pub fn iter(&self) -> impl Iterator<Item = Sample> + '_ {
        let runs =
            self.shards.iter().flat_map(|(shard, runs)| runs.iter().map(|run| (*shard, run)));
        runs.flat_map(|(shard, (start, end))| {
            (*start..*end).map(move |ordinal| Sample { shard, ordinal })
        })
    }

    pub fn contains(&self, Sample { shard, ordinal }: Sample) -> bool {
        let run = self.shards.get(&shard).and_then(|runs| runs.range(..=ordinal).next_back());
        run.is_some_and(|(_, end)| ordinal < *end)
    }

    /// Adds a sample; returns true if it is new and there is room for it.
    pub(super) fn insert(&mut self, sample: Sample) -> bool {
        let Sample { shard, ordinal } = sample;
        let Some(end) = ordinal.checked_add(1).filter(|_| self.has_room(sample)) else {
            return false;
        };
        if self.contains(sample) {
            return false;
        }
        let runs = self.shards.entry(shard).or_default();
        let before = runs.range(..ordinal).next_back().filter(|(_, end)| **end == ordinal);
        let start = before.map_or(ordinal, |(start, _)| *start);
        let next = runs.remove(&end);
        runs.insert(start, next.unwrap_or(end));
        self.samples += 1;
        self.runs = self.runs + 1 - u64::from(start < ordinal) - u64::from(next.is_some());
        true
    }

    /// True if one more sample can be kept, which is always so next to a known one.
    pub(super) fn has_room(&self, Sample { shard, ordinal }: Sample) -> bool {
        let is_known = |ordinal: Option<u64>| {
            ordinal.is_some_and(|ordinal| self.contains(Sample { shard, ordinal }))
        };
        self.runs < SKIPPED_RUNS_MAX
            || is_known(ordinal.checked_sub(1))
            || is_known(ordinal.checked_add(1))
    }

    /// True if the counts match the runs, which are disjoint, not adjacent and within the bound.
    pub(crate) fn is_counted(&self) -> bool {
        let runs = || self.shards.values().flatten();
        let samples = runs().fold(0u64, |sum, (start, end)| sum + end.saturating_sub(*start));
        let is_apart = |runs: &BTreeMap<u64, u64>| {
            let is_before = |((_, end), (next, _)): ((&u64, &u64), (&u64, &u64))| end < next;
            !runs.is_empty() && runs.iter().zip(runs.iter().skip(1)).all(is_before)
        };
        (self.runs, self.samples) == (runs().count() as u64, samples)
            && self.runs <= SKIPPED_RUNS_MAX
            && self.shards.values().all(is_apart)
            && runs().all(|(start, end)| start < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_bounded_and_still_grow() {
        let mut runs = SampleRuns::default();
        let sample = |ordinal| Sample { shard: 1, ordinal };
        for run in 0..SKIPPED_RUNS_MAX {
            assert!(runs.insert(sample(3 * run)));
        }
        assert!(!runs.insert(sample(3 * SKIPPED_RUNS_MAX)) && !runs.insert(sample(u64::MAX)));
        assert!(runs.insert(sample(1)) && !runs.insert(sample(1)) && runs.insert(sample(2)));
        assert!(runs.insert(sample(3 * SKIPPED_RUNS_MAX)), "two runs became one");
        assert!(runs.is_counted());
        assert_eq!(runs.count(), SKIPPED_RUNS_MAX + 3);
    }

    proptest::proptest! {
        #[test]
        fn runs_are_a_set(picks in proptest::collection::vec((0u32..3, 0u64..20), 0..80)) {
            let (mut runs, mut set) = (SampleRuns::default(), std::collections::BTreeSet::new());
            for (shard, ordinal) in picks {
                let sample = Sample { shard, ordinal };
                proptest::prop_assert_eq!(runs.insert(sample), set.insert(sample));
                proptest::prop_assert!(runs.contains(sample) && runs.is_counted());
            }
            proptest::prop_assert_eq!(runs.count(), set.len() as u64);
            proptest::prop_assert!(runs.iter().eq(set));
        }
    }
}
