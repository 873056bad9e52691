//! Corrupt records that workers found: facts about a job's records, independent of the epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardfeed_plan::Sample;

use crate::answer::{Answer, Refusal};
use crate::bound::{SKIPPED_KEPT, SKIPPED_RUNS_MAX, check_count, check_text};
use crate::command::SessionId;
use crate::event::EventKind;
use crate::job::Job;
use crate::state::State;

/// A record that is in no batch because it is corrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRecord {
    /// Sample of the record.
    pub sample: Sample,
    /// Offset of its header in the uncompressed shard, bytes.
    pub offset: u64,
    /// Description of the damage.
    pub reason: String,
}

/// See [`crate::Change::ReportSkipped`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSkipped {
    /// Session of the reporter.
    pub session: SessionId,
    /// Name of the job that reads the records.
    pub job: String,
    /// The records; known ones are ignored.
    pub records: Vec<SkippedRecord>,
}

/// Samples as runs of adjacent ordinals, at most [`SKIPPED_RUNS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleRuns {
    /// Number of runs of all shards.
    runs: u64,
    /// Number of samples of all runs.
    samples: u64,
    /// By shard: the first ordinal of each run, and the ordinal after its last.
    shards: BTreeMap<u32, BTreeMap<u64, u64>>,
}

impl SampleRuns {
    /// True if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.samples
    }

    /// All samples, in order.
    pub fn iter(&self) -> impl Iterator<Item = Sample> + '_ {
        let runs =
            self.shards.iter().flat_map(|(shard, runs)| runs.iter().map(|run| (*shard, run)));
        runs.flat_map(|(shard, (start, end))| {
            (*start..*end).map(move |ordinal| Sample { shard, ordinal })
        })
    }

    /// True if the sample is included.
    pub fn contains(&self, Sample { shard, ordinal }: Sample) -> bool {
        let run = self.shards.get(&shard).and_then(|runs| runs.range(..=ordinal).next_back());
        run.is_some_and(|(_, end)| ordinal < *end)
    }

    /// Adds a sample; returns true if it is new and there is room for it.
    fn insert(&mut self, sample: Sample) -> bool {
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
    fn has_room(&self, Sample { shard, ordinal }: Sample) -> bool {
        let is_known = |ordinal: Option<u64>| {
            ordinal.is_some_and(|ordinal| self.contains(Sample { shard, ordinal }))
        };
        self.runs < SKIPPED_RUNS_MAX
            || is_known(ordinal.checked_sub(1))
            || is_known(ordinal.checked_add(1))
    }

    /// True if the counts match the runs, and the runs are disjoint, not adjacent and within the
    /// bound.
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

impl Job {
    /// Number of corrupt records that the job's workers found.
    pub fn skipped_count(&self) -> u64 {
        self.skipped.len() as u64 + self.skipped_more.count()
    }

    /// True if a report of this corrupt record would change anything.
    pub fn learns_of(&self, sample: Sample) -> bool {
        self.skipped.binary_search_by_key(&sample, |known| known.sample).is_err()
            && (self.skipped.len() < SKIPPED_KEPT
                || self.skipped_more.has_room(sample) && !self.skipped_more.contains(sample))
    }
}

impl State {
    /// Keeps corrupt records of a job: the first [`SKIPPED_KEPT`] as reported, and only the samples
    /// of further ones.
    pub(crate) fn report_skipped(&mut self, report: &ReportSkipped) -> Result<Answer, Refusal> {
        let ReportSkipped { session, job, records } = report;
        self.jobs.get(job)?.check_principal(self.sessions.live(*session)?)?;
        check_count("records in a report", records.len(), SKIPPED_KEPT, "report fewer")?;
        for record in records {
            check_text("the reason", &record.reason)?;
        }
        let Job { skipped, skipped_more, .. } = self.jobs.get_mut(job)?;
        let mut new = 0;
        for record in records {
            match skipped.binary_search_by_key(&record.sample, |known| known.sample) {
                Ok(_) => {}
                Err(place) if skipped.len() < SKIPPED_KEPT => {
                    skipped.insert(place, record.clone());
                    new += 1;
                }
                Err(_) => new += u64::from(skipped_more.insert(record.sample)),
            }
        }
        if new > 0 {
            self.events.tell(EventKind::RecordsSkipped { job: job.clone(), records: new });
        }
        Ok(Answer::Done)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use shardfeed_plan::Tail;

    use super::*;
    use crate::Change;
    use crate::fixture::Fixture;

    fn report(session: SessionId, ordinals: std::ops::Range<u64>) -> Change {
        let record = |ordinal| SkippedRecord {
            sample: Sample { shard: 1, ordinal },
            offset: ordinal * 100,
            reason: "torn".to_owned(),
        };
        let job = crate::fixture::JOB.to_owned();
        Change::ReportSkipped(ReportSkipped {
            session,
            job,
            records: ordinals.map(record).collect(),
        })
    }

    fn known(fixture: &Fixture) -> Vec<u64> {
        let job = fixture.state.job(crate::fixture::JOB).unwrap();
        job.skipped.iter().map(|record| record.sample.ordinal).collect()
    }

    #[test]
    fn each_record_is_known_once_whoever_tells_of_it() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        fixture.done(report(session, 3..5));
        let other = fixture.join("other");
        fixture.done(report(other, 1..4));
        assert_eq!(known(&fixture), [1, 2, 3, 4]);
        let again = State::from_snapshot(&fixture.state.snapshot()).unwrap();
        assert_eq!(again, fixture.state);
    }

    #[test]
    fn all_are_counted_and_the_first_are_listed() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let most = SKIPPED_KEPT as u64;
        fixture.done(report(session, 0..most));
        fixture.done(report(session, most + 2..most + 5));
        fixture.done(report(session, most - 2..most + 4));
        let job = fixture.state.job(crate::fixture::JOB).unwrap();
        assert_eq!(known(&fixture).len(), SKIPPED_KEPT);
        assert_eq!(job.skipped_count(), most + 5);
        let more = |ordinal| Sample { shard: 1, ordinal };
        assert!(job.skipped_more.iter().eq((most..most + 5).map(more)));
        assert!(
            !job.learns_of(more(3)) && !job.learns_of(more(most)) && job.learns_of(more(most + 5))
        );
        let again = State::from_snapshot(&fixture.state.snapshot()).unwrap();
        assert_eq!(again, fixture.state);
    }

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

    #[test]
    fn a_report_of_nobody_or_of_no_job_is_refused() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        assert!(fixture.apply(report(SessionId::MAX, 0..1)).is_err());
        let Change::ReportSkipped(of) = report(session, 0..1) else { unreachable!() };
        let of = ReportSkipped { job: "other".to_owned(), ..of };
        fixture.refused(Change::ReportSkipped(of), expect![[r#"there is no job `other`"#]]);
        assert_eq!(known(&fixture), [] as [u64; 0]);
    }
}
