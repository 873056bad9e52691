//! Corrupt records that workers met: facts of a job's records, whatever the epoch.

use serde::{Deserialize, Serialize};
use shardfeed_plan::Sample;

use crate::answer::{Answer, Refusal};
use crate::bound::{SKIPPED_KEPT, check_count, check_text};
use crate::command::SessionId;
use crate::event::Happening;
use crate::state::State;

/// A record that stands in no batch, because it is corrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRecord {
    /// Which sample.
    pub sample: Sample,
    /// Offset of its header in the uncompressed shard, in bytes.
    pub offset: u64,
    /// What is wrong with it, in words.
    pub reason: String,
}

/// See [`crate::Change::ReportSkipped`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSkipped {
    /// The reporter's session.
    pub session: SessionId,
    /// The job that reads them.
    pub job: String,
    /// The records; those that are known are passed over.
    pub records: Vec<SkippedRecord>,
}

impl State {
    /// Remembers corrupt records of a job, the first [`SKIPPED_KEPT`] that it hears of, by sample.
    pub(crate) fn report_skipped(&mut self, report: &ReportSkipped) -> Result<Answer, Refusal> {
        let ReportSkipped { session, job, records } = report;
        self.sessions.live(*session)?;
        check_count("records in a report", records.len(), SKIPPED_KEPT, "tell fewer")?;
        for record in records {
            check_text("the reason", &record.reason)?;
        }
        let skipped = &mut self.jobs.get_mut(job)?.skipped;
        let before = skipped.len();
        for record in records {
            if skipped.len() >= SKIPPED_KEPT {
                break;
            }
            if let Err(place) = skipped.binary_search_by_key(&record.sample, |known| known.sample) {
                skipped.insert(place, record.clone());
            }
        }
        let new = (skipped.len() - before) as u64;
        if new > 0 {
            self.events.tell(Happening::RecordsSkipped { job: job.clone(), records: new });
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
    fn no_more_are_kept_than_are_bounded() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let most = SKIPPED_KEPT as u64;
        fixture.done(report(session, 0..most));
        fixture.done(report(session, most..most + 5));
        assert_eq!(known(&fixture).len(), SKIPPED_KEPT);
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
