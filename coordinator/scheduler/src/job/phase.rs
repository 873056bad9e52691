//! The phase of a job, as reports show it.

use super::Job;
use crate::job::generation::{Generation, Rank};
use crate::log::Hold;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobPhase {
    /// No rank is served, and the run has not ended.
    Waiting,
    /// At least one rank is served.
    Running,
    Paused,
    Cancelled,
    /// All ranks of the last run ended without an error.
    Finished,
    /// A rank of the last generation reported an error and did not start again.
    Failed,
}

impl JobPhase {
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Running, Self::Paused, Self::Cancelled, Self::Finished, Self::Failed];
}

impl Job {
    /// Returns the job's phase. A new generation starts from `Waiting` or `Running`, regardless of
    /// the previous generation's phase.
    pub fn phase(&self) -> JobPhase {
        match (self.held.as_ref().map(|held| held.hold), self.current()) {
            (Some(Hold::Paused), _) => JobPhase::Paused,
            (Some(Hold::Cancelled), _) => JobPhase::Cancelled,
            (None, None) => JobPhase::Waiting,
            (None, Some(current)) => current.phase(self.identity.is_dynamic()),
        }
    }

    /// The first rank of the current generation that ended with an error, and the error.
    pub fn failure(&self) -> Option<(u64, &str)> {
        let mut ranks = self.current()?.ranks.iter();
        ranks.find_map(|(number, rank)| Some((*number, rank.failure.as_deref()?)))
    }
}

impl Generation {
    fn phase(&self, is_dynamic: bool) -> JobPhase {
        let is_served = self.leases().next().is_some();
        let has_failed = self.ranks.values().any(|rank| rank.failure.is_some());
        let has_ended = |rank: &Rank| rank.has_finished() || self.has_nothing_for(rank);
        match () {
            // The other ranks of a step need the failed one; in a dynamic job they do not.
            () if has_failed && !(is_served && is_dynamic) => JobPhase::Failed,
            () if is_served => JobPhase::Running,
            () if self.is_complete() && self.ranks.values().all(has_ended) => JobPhase::Finished,
            () => JobPhase::Waiting,
        }
    }

    /// True if a rank is not served, and other ranks consumed every sample of its epoch.
    fn has_nothing_for(&self, rank: &Rank) -> bool {
        rank.lease.is_none() && self.is_over(rank.cursor.epoch)
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_plan::Tail;

    use super::*;
    use crate::fixture::{Fixture, JOB, dynamic_job, first_of_two, taken};
    use crate::{Change, SessionId, StartRank};

    fn phase(fixture: &Fixture) -> JobPhase {
        fixture.state.job(JOB).unwrap().phase()
    }

    fn end(fixture: &mut Fixture, rank: u64, failure: Option<&str>) {
        let lease = fixture.lease(rank);
        fixture.done(Change::EndRank {
            lease,
            is_told: true,
            failure: failure.map(str::to_owned),
            position: None,
        });
    }

    #[test]
    fn a_job_waits_runs_and_is_finished_when_all_ranks_ended() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        assert_eq!(phase(&fixture), JobPhase::Waiting);
        fixture.start(first_of_two(session));
        assert_eq!(phase(&fixture), JobPhase::Running);
        end(&mut fixture, 0, None);
        assert_eq!(phase(&fixture), JobPhase::Waiting, "rank 1 has not started");
        fixture.start(StartRank { rank: 1, trainer: "u".into(), ..first_of_two(session) });
        assert_eq!(phase(&fixture), JobPhase::Running);
        end(&mut fixture, 1, None);
        assert_eq!(phase(&fixture), JobPhase::Finished);
        let hold = |hold| Change::HoldJob { name: JOB.into(), hold, reason: String::new() };
        fixture.done(hold(Some(Hold::Paused)));
        assert_eq!(phase(&fixture), JobPhase::Paused);
        fixture.done(hold(Some(Hold::Cancelled)));
        assert_eq!(phase(&fixture), JobPhase::Cancelled);
        fixture.done(hold(None));
        assert_eq!(phase(&fixture), JobPhase::Finished);
    }

    #[test]
    fn a_job_whose_trainers_are_gone_without_a_report_waits() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        fixture.start_all(&first_of_two(session));
        end(&mut fixture, 0, None);
        let gone = Change::EndRank {
            lease: fixture.lease(1),
            is_told: false,
            failure: None,
            position: None,
        };
        fixture.done(gone);
        assert_eq!(phase(&fixture), JobPhase::Waiting);
        let session = fixture.join("w2");
        let trainer = "u".to_owned();
        fixture.start(StartRank { rank: 1, trainer, ..first_of_two(session) });
        end(&mut fixture, 1, None);
        assert_eq!(phase(&fixture), JobPhase::Finished);
    }

    #[test]
    fn a_job_without_its_workers_waits() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        fixture.start_all(&first_of_two(session));
        fixture.done(Change::LeaveSession { session });
        assert_eq!(phase(&fixture), JobPhase::Waiting);
    }

    #[test]
    fn a_rank_with_an_error_fails_the_job_until_it_starts_again() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        fixture.start_all(&first_of_two(session));
        end(&mut fixture, 1, Some("ValueError: loss is NaN"));
        assert_eq!(phase(&fixture), JobPhase::Failed);
        let job = fixture.state.job(JOB).unwrap();
        assert_eq!(job.failure(), Some((1, "ValueError: loss is NaN")));
        end(&mut fixture, 0, None);
        assert_eq!(phase(&fixture), JobPhase::Failed);
        let again = StartRank { run: Some("r2".into()), ..first_of_two(session) };
        fixture.start(again);
        assert_eq!(phase(&fixture), JobPhase::Running, "a generation followed");
        assert_eq!(fixture.state.job(JOB).unwrap().failure(), None);
    }

    /// Ranks 0 and 1 of a dynamic job, each behind a worker; returns the session of rank 1's
    /// worker.
    fn two_ranks_of_a_pool() -> (Fixture, SessionId) {
        let (mut fixture, session) = dynamic_job();
        fixture.start(StartRank { trainer: "t-0".into(), ..first_of_two(session) });
        let second = fixture.join("v");
        let trainer = "t-1".into();
        fixture.start(StartRank { rank: 1, session: second, trainer, ..first_of_two(session) });
        (fixture, second)
    }

    #[test]
    fn ranks_of_a_shared_pool_do_without_a_lost_one() {
        let (mut fixture, _) = two_ranks_of_a_pool();
        assert_eq!(taken(&mut fixture, 0, 0, 25).pieces.len(), 3);
        assert_eq!(taken(&mut fixture, 1, 0, 25).pieces.len(), 1);
        end(&mut fixture, 1, Some("OSError: [Errno 5]"));
        assert_eq!(phase(&fixture), JobPhase::Running, "rank 0 takes over");
        // A rank that has a batch left gets nothing near the end.
        fixture.report(0, 0, 7);
        taken(&mut fixture, 0, 28, 40);
        fixture.report(0, 0, 10);
        let pool = &fixture.current().pools[&0];
        assert!(pool.is_done());
        let tally = pool.tally();
        assert_eq!((tally.delivered, tally.total), (40, 40));
        end(&mut fixture, 0, None);
        assert_eq!(phase(&fixture), JobPhase::Failed);
    }

    #[test]
    fn a_lost_rank_of_a_shared_pool_does_not_keep_its_job_from_finishing() {
        let (mut fixture, lost) = two_ranks_of_a_pool();
        taken(&mut fixture, 1, 0, 10);
        let take = taken(&mut fixture, 1, 8, 10);
        assert!(!take.ended);
        fixture.done(Change::ExpireSessions { sessions: vec![lost] });
        assert_eq!(fixture.current().pools[&0].tally().in_doubt, 4);
        fixture.apply(Change::DeclareGone { job: JOB.into(), rank: 1 }).unwrap();
        taken(&mut fixture, 0, 0, 40);
        fixture.report(0, 0, 10);
        end(&mut fixture, 0, None);
        assert_eq!(phase(&fixture), JobPhase::Finished);
        let pool = &fixture.current().pools[&0];
        assert!(pool.is_done());
        let tally = pool.tally();
        assert_eq!((tally.delivered, tally.duplicated, tally.redelivered), (40, 0, 4));
    }
}
