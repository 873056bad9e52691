//! Corrupt records that workers found: facts about a job's records, independent of the epoch.

use super::Job;
use crate::log::{Answer, EventKind, ReportSkipped, Result, SKIPPED_KEPT, check_count, check_text};
use crate::state::State;

impl State {
    /// Keeps a job's corrupt records: the first [`SKIPPED_KEPT`] as reported, then only samples.
    /// Ignores those of a mixture that numbers its shards otherwise than that of the current
    /// generation: they may arrive late.
    pub(crate) fn report_skipped(&mut self, report: &ReportSkipped) -> Result<Answer> {
        let ReportSkipped { session, job, records, mixture } = report;
        let known = self.jobs.get(job)?;
        known.check_principal(self.sessions.live(*session)?)?;
        check_count("records in a report", records.len(), SKIPPED_KEPT, "report fewer")?;
        for record in records {
            check_text("the reason", &record.reason)?;
        }
        if mixture.is_some() && !known.numbers_as_current(*mixture) {
            return Ok(Answer::Done);
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
    use super::*;
    use crate::fixture::Fixture;
    use crate::{Change, SessionId, SkippedRecord};
    use expect_test::expect;
    use shardfeed_plan::{Sample, Tail};

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
            mixture: None,
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
    fn a_report_of_nobody_or_of_no_job_is_refused() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        assert!(fixture.apply(report(SessionId::MAX, 0..1)).is_err());
        let Change::ReportSkipped(of) = report(session, 0..1) else { unreachable!() };
        let of = ReportSkipped { job: "other".to_owned(), ..of };
        fixture.refused(Change::ReportSkipped(of), expect![[r#"there is no job `other`"#]]);
        assert_eq!(known(&fixture), [] as [u64; 0]);
    }
}
