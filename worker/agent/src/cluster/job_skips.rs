//! Corrupt records that a worker's trainers found in a job: each is reported once.

use std::collections::BTreeSet;

use shardfeed_plan::{Digest, Sample};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_reader::Skipped;

/// Maximum number of remembered corrupt records of a job, about 20 bytes each; more are not
/// reported.
const KNOWN_MAX: usize = 1_000_000;

/// Maximum number of records in one report: the coordinator's limit, and its list's length for a
/// job.
const REPORTED_MAX: usize = 1_000;

/// Corrupt records of a job.
#[derive(Debug, Default)]
pub(super) struct JobSkips {
    /// Digest of the mixture whose shards the samples name, if the job has one.
    mixture: Option<Digest>,
    known: BTreeSet<Sample>,
    /// Records that the coordinator has not acknowledged, in the order in which they were found.
    unreported: Vec<wire::SkippedRecord>,
}

impl JobSkips {
    /// Forgets the records of another mixture, which numbers the shards otherwise.
    pub(super) fn mixes(&mut self, mixture: Option<Digest>) {
        if self.mixture != mixture {
            *self = Self { mixture, ..Self::default() };
        }
    }

    /// Returns the number of corrupt records found.
    pub(super) fn count(&self) -> u64 {
        self.known.len() as u64
    }

    /// Adds a record, unless it is known.
    pub(super) fn add(&mut self, skipped: &Skipped) {
        let Skipped { sample, offset, ref reason, .. } = *skipped;
        if self.known.len() >= KNOWN_MAX || !self.known.insert(sample) {
            return;
        }
        // The coordinator lists the first ones and only counts the others, which need no reason.
        let is_listed = self.unreported.len() < REPORTED_MAX;
        self.unreported.push(wire::SkippedRecord {
            shard: sample.shard.into(),
            ordinal: sample.ordinal,
            offset,
            reason: if is_listed { reason.clone() } else { String::new() },
            path: String::new(),
        });
    }

    pub(super) fn next_report(&self) -> Vec<wire::SkippedRecord> {
        self.unreported.iter().take(REPORTED_MAX).cloned().collect()
    }

    /// Removes acknowledged records from the queue. Returns true if more are to be reported.
    pub(super) fn acknowledged(&mut self, records: &[wire::SkippedRecord]) -> bool {
        let sample = |record: &wire::SkippedRecord| (record.shard, record.ordinal);
        let reported: BTreeSet<_> = records.iter().map(sample).collect();
        self.unreported.retain(|record| !reported.contains(&sample(record)));
        !self.unreported.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_report_holds_are_reported_once_each() {
        let mut skips = JobSkips::default();
        let most = REPORTED_MAX as u64;
        let skipped = |ordinal| Skipped {
            sample: Sample { shard: 3, ordinal },
            record: ordinal,
            offset: 0,
            reason: "torn".to_owned(),
        };
        (0..2 * most + 5).for_each(|ordinal| skips.add(&skipped(ordinal)));
        skips.add(&skipped(7));
        assert_eq!(skips.count(), 2 * most + 5);
        let mut ordinals = vec![];
        loop {
            let report = skips.next_report();
            assert!(report.len() <= REPORTED_MAX);
            ordinals.extend(report.iter().map(|record| record.ordinal));
            skips.add(&skipped(most));
            if !skips.acknowledged(&report) {
                break;
            }
        }
        assert!(ordinals.into_iter().eq(0..2 * most + 5));
        assert!(skips.next_report().is_empty());
    }
}
