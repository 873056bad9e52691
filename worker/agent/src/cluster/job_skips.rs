//! Corrupt records that a worker's trainers found in a job: each is reported once.

use std::collections::BTreeSet;

use shardfeed_plan::{Digest, Sample};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_reader::Skipped;

/// Maximum remembered corrupt records of a job, about 20 bytes each; more are not reported.
const KNOWN_MAX: usize = 1_000_000;

/// Maximum records in one report: the coordinator's limit, and its list's length for a job.
const REPORTED_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct JobSkips {
    /// Digest of the mixture whose shards `known` names, if the job has one.
    mixture: Option<Digest>,
    known: BTreeSet<Sample>,
    /// Records that the coordinator has not acknowledged, in the order in which they were found,
    /// and the mixture whose shards they name.
    unreported: Vec<(Option<Digest>, wire::SkippedRecord)>,
}

impl JobSkips {
    pub(super) fn count(&self) -> u64 {
        self.known.len() as u64
    }

    /// Adds a record, unless it is known. Records of the mixture before are forgotten: another one
    /// may number the shards otherwise.
    pub(super) fn add(&mut self, mixture: Option<Digest>, skipped: &Skipped) {
        if self.mixture != mixture {
            self.mixture = mixture;
            self.known.clear();
        }
        let Skipped { sample, offset, ref reason, .. } = *skipped;
        if self.known.len() >= KNOWN_MAX || !self.known.insert(sample) {
            return;
        }
        // The coordinator lists the first ones and only counts the others, which need no reason.
        let is_listed = self.unreported.len() < REPORTED_MAX;
        let record = wire::SkippedRecord {
            shard: sample.shard.into(),
            ordinal: sample.ordinal,
            offset,
            reason: if is_listed { reason.clone() } else { String::new() },
            path: String::new(),
        };
        self.unreported.push((mixture, record));
    }

    /// Returns the records of the next report, and their mixture.
    pub(super) fn next_report(&self) -> (Option<Digest>, Vec<wire::SkippedRecord>) {
        let mixture = self.unreported.first().and_then(|(mixture, _)| *mixture);
        let of_mixture = self.unreported.iter().take_while(|(other, _)| *other == mixture);
        (mixture, of_mixture.take(REPORTED_MAX).map(|(_, record)| record.clone()).collect())
    }

    /// Removes acknowledged records from the queue. Returns true if more are to be reported.
    pub(super) fn acknowledged(
        &mut self,
        mixture: Option<Digest>,
        records: &[wire::SkippedRecord],
    ) -> bool {
        let sample = |record: &wire::SkippedRecord| (record.shard, record.ordinal);
        let reported: BTreeSet<_> = records.iter().map(sample).collect();
        self.unreported
            .retain(|(of, record)| *of != mixture || !reported.contains(&sample(record)));
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
        (0..2 * most + 5).for_each(|ordinal| skips.add(None, &skipped(ordinal)));
        skips.add(None, &skipped(7));
        assert_eq!(skips.count(), 2 * most + 5);
        let mut ordinals = vec![];
        loop {
            let (mixture, report) = skips.next_report();
            assert!(report.len() <= REPORTED_MAX);
            ordinals.extend(report.iter().map(|record| record.ordinal));
            skips.add(None, &skipped(most));
            if !skips.acknowledged(mixture, &report) {
                break;
            }
        }
        assert!(ordinals.into_iter().eq(0..2 * most + 5));
        assert!(skips.next_report().1.is_empty());
    }

    #[test]
    fn a_report_has_the_records_of_one_mixture() {
        let mut skips = JobSkips::default();
        let mixtures = [b"one", b"two"].map(|name| Some(Digest::of_parts([name.as_slice()])));
        let skipped = |ordinal| Skipped {
            sample: Sample { shard: 0, ordinal },
            record: ordinal,
            offset: 0,
            reason: "torn".to_owned(),
        };
        skips.add(mixtures[0], &skipped(4));
        // The same number names another record.
        skips.add(mixtures[1], &skipped(4));
        skips.add(mixtures[1], &skipped(4));
        skips.add(mixtures[1], &skipped(5));
        assert_eq!(skips.count(), 2);
        for (mixture, ordinals) in mixtures.into_iter().zip([vec![4], vec![4, 5]]) {
            let (of, report) = skips.next_report();
            assert_eq!(of, mixture);
            assert!(report.iter().map(|record| record.ordinal).eq(ordinals));
            skips.acknowledged(of, &report);
        }
        assert!(skips.next_report().1.is_empty());
    }
}
