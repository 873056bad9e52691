//! Progress of ranks: reports, and the loader state that all ranks have passed.

use shardfeed_plan::{LoaderState, STATE_FORMAT, Tail};

use super::Job;
use crate::job::generation::Generation;
use crate::job::origin::at_step;
use crate::log::{Answer, CursorReport, Events, LeaseRef, RankCursor, Refusal, Result};
use crate::state::{Moment, State};

impl State {
    /// Loader state of the first step that some rank of the current generation has not consumed.
    ///
    /// Ranks that have not joined are at the generation's origin. `None` before the job starts.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` with `tail="uneven"`, where each loader state belongs to one rank.
    pub fn latest_state(&self, job: &str) -> Result<Option<LoaderState>> {
        let job = self.jobs.get(job)?;
        if job.identity.tail == Tail::Uneven {
            return Err(Refusal::Invalid(format!(
                "with tail=\"uneven\" a state speaks for one rank, so job `{}` has no latest one; \
                 pass the states of all ranks as a list",
                job.name
            )));
        }
        Ok(job.current().and_then(|current| {
            let RankCursor { epoch, step } = current.cursor();
            Some(LoaderState {
                format: STATE_FORMAT,
                order: job.identity.order,
                job: job.identity.digest(),
                checks: job.identity.field_checks(),
                lanes: job.identity.lanes,
                epoch,
                generation: current.number,
                segments: at_step(current.segments_of(epoch)?, step),
                left_out: current.left_out_of(epoch),
                speaks_for: None,
                records: None,
                // Set only for dynamic jobs, which have no latest loader state.
                cluster: None,
                stages: job.stages_at(current, RankCursor { epoch, step }),
            })
        }))
    }

    pub(crate) fn report(&mut self, moment: Moment, cursors: &[CursorReport]) -> Answer {
        for report in cursors {
            if let Some(job) = self.jobs.by_name.get_mut(&report.lease.job) {
                job.report(moment, report, &mut self.events);
            }
        }
        Answer::Done
    }
}

impl Job {
    fn report(&mut self, moment: Moment, report: &CursorReport, events: &mut Events) {
        let CursorReport { lease, epoch, step } = report;
        let to = RankCursor { epoch: *epoch, step: *step };
        let is_dynamic = self.identity.is_dynamic();
        let known = self.generations.get_mut(&lease.generation);
        let Some(generation) = known.filter(|known| known.may_advance(lease, to, is_dynamic))
        else {
            self.stale_reports = self.stale_reports.saturating_add(1);
            return;
        };
        let sealed = generation.advance(lease.rank, to, moment.now_ms);
        self.seal(sealed, events);
    }
}

impl Generation {
    /// True if a lease may move its rank's cursor to `to`.
    ///
    /// A lease that ended may still report the rank's minimum progress while that is in doubt.
    fn may_advance(&self, lease: &LeaseRef, to: RankCursor, is_dynamic: bool) -> bool {
        let rank = self.ranks.get(&lease.rank).filter(|rank| rank.cursor <= to);
        let pool = self.pools.get(&to.epoch);
        let is_late = || pool.is_some_and(|pool| pool.is_in_doubt_of(lease.rank, lease.fencing));
        self.superseded_by.is_none()
            && rank.is_some_and(|rank| rank.is_served_by(lease.fencing) || is_late())
            && to.is_possible()
            && (!is_dynamic || self.can_stand_at(lease.rank, to, false))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use shardfeed_plan::{EPOCHS, Intent, Segment, Steps};

    use super::*;
    use crate::fixture::{Fixture, JOB, first_of_two, from, segment, wrapped};
    use crate::{Change, LeaseRef, SEALED_KEPT, StartRank};

    fn running() -> Fixture {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        fixture.start_all(&first_of_two(session));
        fixture
    }

    fn stale(fixture: &Fixture) -> u64 {
        fixture.state.job(JOB).unwrap().stale_reports
    }

    fn sealed(fixture: &Fixture) -> Vec<(u64, u64, u64, u64)> {
        let sealed = fixture.state.job(JOB).unwrap().sealed.iter();
        sealed.map(|s| (s.epoch, s.generation, s.began_ms, s.sealed_ms)).collect()
    }

    #[test]
    fn reports_move_cursors_up_and_never_back() {
        let mut fixture = running();
        fixture.now_ms = 7;
        fixture.report(0, 0, 5);
        let at = RankCursor { epoch: 0, step: 5 };
        assert_eq!(fixture.cursor(0), at);
        fixture.now_ms = 9;
        fixture.report(0, 0, 5);
        assert_eq!((fixture.current().ranks[&0].cursor_ms, stale(&fixture)), (7, 0));
        fixture.report(0, 0, 4);
        assert_eq!(fixture.cursor(0), at);
        assert_eq!(stale(&fixture), 1);
        assert_eq!(fixture.state.rank(JOB, 1, 0), None);
        assert_eq!(fixture.state.rank("other", 0, 0), None);
    }

    #[test]
    fn stale_reports_are_passed_over_and_the_others_count() {
        let mut fixture = running();
        let good = fixture.lease(1);
        let report = |lease: LeaseRef, epoch, step| CursorReport { lease, epoch, step };
        let cursors = vec![
            report(LeaseRef { fencing: good.fencing - 1, ..good.clone() }, 0, 9),
            report(LeaseRef { generation: 5, ..good.clone() }, 0, 9),
            report(LeaseRef { rank: 9, ..good.clone() }, 0, 9),
            report(LeaseRef { job: "other".into(), ..good.clone() }, 0, 9),
            report(good.clone(), u64::MAX, 0),
            report(good, 0, 9),
        ];
        fixture.done(Change::Report { cursors });
        assert_eq!(fixture.cursor(1), RankCursor { epoch: 0, step: 9 });
        assert_eq!(stale(&fixture), 4);
    }

    #[test]
    fn the_last_sealed_epochs_are_kept_however_far_a_rank_jumps() {
        let mut fixture = running();
        for rank in [0, 1] {
            fixture.report(rank, EPOCHS, 0);
        }
        let epochs: Vec<_> = sealed(&fixture).iter().map(|sealed| sealed.0).collect();
        assert_eq!(epochs, (EPOCHS - SEALED_KEPT as u64..EPOCHS).collect::<Vec<_>>());
    }

    #[test]
    fn the_last_sealed_epochs_are_kept_one_by_one() {
        let mut fixture = running();
        for epoch in 1..=30 {
            fixture.report(0, epoch, 0);
            fixture.report(1, epoch, 0);
        }
        let epochs: Vec<_> = sealed(&fixture).iter().map(|sealed| sealed.0).collect();
        assert_eq!(epochs, (14..30).collect::<Vec<_>>());
    }

    #[test]
    fn epochs_far_ahead_of_the_slowest_rank_take_no_room() {
        let mut fixture = running();
        for epoch in 1..200 {
            fixture.report(0, epoch, 0);
        }
        assert_eq!(fixture.current().begun.len(), crate::EPOCHS_BEGUN_KEPT);
        fixture.report(1, 199, 0);
        assert_eq!(sealed(&fixture).len(), SEALED_KEPT);
    }

    #[test]
    fn the_latest_token_is_where_every_rank_has_been() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        assert_eq!(fixture.state.latest_state(JOB), Ok(None));
        let start = StartRank { intent: from(3, 2, 40), ..first_of_two(session) };
        fixture.start(start.clone());
        fixture.report(0, 2, 45);
        let state = |fixture: &Fixture| fixture.state.latest_state(JOB).unwrap().unwrap();
        // Rank 1 has not joined, so it is at the origin.
        assert_eq!((state(&fixture).epoch, state(&fixture).step()), (2, 40));
        fixture.start(StartRank { rank: 1, ..start });
        fixture.report(1, 2, 43);
        let latest = state(&fixture);
        assert_eq!((latest.generation, latest.segments.clone()), (4, vec![segment(43)]));
        assert_eq!(LoaderState::from_json(&latest.to_json()), Ok(latest.clone()));
        let identity = &fixture.state.job(JOB).unwrap().identity;
        latest.check_job(identity).unwrap();
        assert_eq!(latest.job, identity.digest());
    }

    #[test]
    fn the_latest_token_has_the_steps_beyond_the_earlier_segments() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let halved = |steps| Segment { lanes: 2, global_batch: 4, steps: Steps::All(steps) };
        let segments = vec![segment(10), halved(5)];
        let intent =
            Intent::Start { state_generation: Some(0), epoch: 2, segments, is_reshard: false };
        fixture.start_all(&StartRank { intent, ..first_of_two(session) });
        fixture.report(0, 2, 21);
        fixture.report(1, 2, 22);
        let state = |fixture: &Fixture| fixture.state.latest_state(JOB).unwrap().unwrap();
        assert_eq!(state(&fixture).segments, [segment(10), halved(11)]);
        fixture.report(0, 3, 7);
        fixture.report(1, 4, 0);
        assert_eq!((state(&fixture).epoch, state(&fixture).segments), (3, vec![halved(7)]));
    }

    #[test]
    fn an_uneven_job_has_no_latest_token() {
        let (fixture, _) = Fixture::with_job(Tail::Uneven);
        let refusal = |job| wrapped(&fixture.state.latest_state(job).unwrap_err().to_string());
        expect![[r#"
            with tail="uneven" a state speaks for one rank, so job
            `train` has no latest one; pass the states of all ranks as a
            list"#]]
        .assert_eq(&refusal(JOB));
        expect!["there is no job `other`"].assert_eq(&refusal("other"));
    }
}
