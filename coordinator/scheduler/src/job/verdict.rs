//! Validity and end of the leases of ranks.

use crate::job::lease::LeaseEnded;
use crate::log::{
    Answer, CursorReport, EventKind, Fencing, Hold, LeaseRef, RankCursor, RankRef, Refusal, Result,
    shortened,
};
use crate::state::{Moment, State};

impl State {
    /// Checks that a lease is valid.
    ///
    /// # Errors
    /// - `Superseded`, `Cancelled`: a later generation took over, or the job was cancelled; the
    ///   trainer must start again.
    /// - `Fenced`: another lease, or none, is the current one; the trainer may reconnect.
    pub fn verdict(&self, lease: &LeaseRef) -> Result<()> {
        let LeaseRef { job: name, generation, rank: number, fencing } = lease;
        let fenced = |reason: String| Err(fenced(*fencing, reason));
        let Some(job) = self.job(name) else {
            return fenced(format!("there is no job `{name}`"));
        };
        if let Some(refusal) = job.superseded(*generation) {
            return Err(refusal);
        }
        if let Some(held) = job.held.as_ref().filter(|held| held.hold == Hold::Cancelled) {
            return Err(held.refusal(name));
        }
        let Some(rank) = self.rank(name, *generation, *number) else {
            return fenced(format!("rank {number} has not joined generation {generation}"));
        };
        match &rank.lease {
            Some(lease) if lease.fencing == *fencing => Ok(()),
            Some(lease) => fenced(format!("lease {} took rank {number} over", lease.fencing)),
            None if rank.ended => fenced(format!("the trainer of rank {number} ended it")),
            None => match rank.moved_to {
                Some(to) => fenced(format!("rank {number} moved on to generation {to}")),
                None => fenced(format!("the session that served rank {number} ended")),
            },
        }
    }

    pub fn lease_of(&self, of: &RankRef) -> Option<LeaseRef> {
        let RankRef { job, generation, rank } = of.clone();
        let fencing = self.rank(&job, generation, rank)?.lease.as_ref()?.fencing;
        Some(LeaseRef { job, generation, rank, fencing })
    }

    /// Ends the lease of a rank that its session or trainer no longer has.
    ///
    /// Returns true if its generation was not superseded; `None`: it had no lease.
    pub(crate) fn free_rank(&mut self, of: &RankRef, at_ms: u64, why: LeaseEnded) -> Option<bool> {
        let job = self.jobs.by_name.get_mut(&of.job)?;
        let generation = job.generations.get_mut(&of.generation)?;
        let session = generation.ranks.get(&of.rank)?.lease.as_ref()?.session;
        generation.free(of.rank, self.sessions.worker_of(session), (at_ms, why));
        self.sessions.drop_lease(session, of);
        Some(generation.superseded_by.is_none())
    }

    pub(crate) fn end_rank(
        &mut self,
        moment: Moment,
        lease: &LeaseRef,
        failure: Option<&str>,
        (is_told, position): (bool, Option<RankCursor>),
    ) -> Result<Answer> {
        let LeaseRef { job, generation: number, rank, fencing } = lease;
        let is_served = |state: &Self| {
            let rank = state.rank(job, *number, *rank).filter(|rank| rank.is_served_by(*fencing));
            rank.map(|rank| rank.cursor)
        };
        let mut is_told = is_told;
        // In the same command, so that no sample before the position is free in between.
        if let (Some(to), Some(before)) = (position, is_served(self)) {
            if before < to {
                let RankCursor { epoch, step } = to;
                self.report(moment, &[CursorReport { lease: lease.clone(), epoch, step }]);
            }
            // A position outside of the rank's list is unknown.
            is_told &= is_served(self).is_some_and(|known| known >= to);
        }
        let known = self.jobs.by_name.get_mut(job);
        // In a deterministic job nothing is in doubt: the rank has the same samples afterwards.
        let is_final = is_told || known.as_ref().is_none_or(|job| !job.identity.is_dynamic());
        let known = known.and_then(|job| job.generations.get_mut(number));
        if let Some(generation) = known
            && let Some(ending) = generation.ranks.get_mut(rank)
            && ending.is_served_by(*fencing)
        {
            ending.ended = is_final;
            ending.failure = failure.map(shortened);
            let RankCursor { epoch, step } = ending.cursor;
            let why = if is_told { LeaseEnded::TrainerEnded } else { LeaseEnded::TrainerGone };
            let (job, generation, rank) = (job.clone(), *number, *rank);
            let of = RankRef { job: job.clone(), generation, rank };
            self.free_rank(&of, moment.now_ms, why);
            self.events.tell(EventKind::RankEnded { job, generation, rank, epoch, step });
            return Ok(Answer::Done);
        }
        match self.verdict(lease) {
            Err(refusal @ Refusal::Fenced { .. }) => Err(refusal),
            _ => Err(fenced(*fencing, format!("rank {rank} of generation {number} has ended"))),
        }
    }
}

fn fenced(fencing: Fencing, reason: String) -> Refusal {
    Refusal::Fenced { what: "lease".to_owned(), fencing, reason }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use shardfeed_plan::{Intent, Tail};

    use super::*;
    use crate::fixture::{Fixture, JOB, first_of_two, segment, wrapped};
    use crate::{Change, StartRank};

    fn running() -> (Fixture, StartRank) {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let start = first_of_two(session);
        fixture.start_all(&start);
        (fixture, start)
    }

    #[expect(clippy::needless_pass_by_value, reason = "expect! makes values")]
    fn check(fixture: &Fixture, lease: &LeaseRef, says: Expect) {
        says.assert_eq(&match fixture.state.verdict(lease) {
            Ok(()) => "live".to_owned(),
            Err(refusal @ Refusal::Fenced { .. }) => {
                format!("fenced:\n{}", wrapped(&refusal.to_string()))
            }
            Err(refusal) => format!("superseded:\n{}", wrapped(&refusal.to_string())),
        });
    }

    #[test]
    fn a_lease_ends_with_its_session_or_its_trainer_or_a_move() {
        let (mut fixture, start) = running();
        let (first, second) = (fixture.lease(0), fixture.lease(1));
        fixture.done(Change::EndRank {
            lease: second.clone(),
            is_told: true,
            failure: None,
            position: None,
        });
        check(
            &fixture,
            &second,
            expect![[r#"
            fenced:
            lease 10 is no longer valid: the trainer of rank 1 ended it"#]],
        );
        let move_on = Intent::Move { from: 0, epoch: 0, segments: vec![segment(0)] };
        fixture.start(StartRank { intent: move_on, trainer: "t-0".into(), ..start.clone() });
        check(
            &fixture,
            &first,
            expect![[r#"
            fenced:
            lease 9 is no longer valid: rank 0 moved on to generation 1"#]],
        );
        let moved = fixture.lease(0);
        fixture.done(Change::ExpireSessions { sessions: vec![start.session] });
        check(
            &fixture,
            &moved,
            expect![[r#"
                fenced:
                lease 12 is no longer valid: the session that served rank 0
                ended"#]],
        );
    }

    #[test]
    fn what_was_never_granted_is_not_good() {
        let (fixture, _) = running();
        let good = fixture.lease(0);
        check(
            &fixture,
            &LeaseRef { job: "other".into(), ..good },
            expect![[r#"
            fenced:
            lease 9 is no longer valid: there is no job `other`"#]],
        );
        check(
            &fixture,
            &LeaseRef { generation: 5, ..good.clone() },
            expect![[r#"
                fenced:
                lease 9 is no longer valid: rank 0 has not joined generation
                5"#]],
        );
        check(
            &fixture,
            &LeaseRef { rank: 5, ..good.clone() },
            expect![[r#"
                fenced:
                lease 9 is no longer valid: rank 5 has not joined generation
                0"#]],
        );
        check(
            &fixture,
            &LeaseRef { fencing: u64::MAX, ..good },
            expect![[r#"
                fenced:
                lease 18446744073709551615 is no longer valid: lease 9 took
                rank 0 over"#]],
        );
    }

    #[test]
    fn only_the_current_lease_ends_its_rank() {
        let (mut fixture, _) = running();
        let lease = fixture.lease(0);
        let end = |lease: LeaseRef| Change::EndRank {
            lease,
            is_told: true,
            failure: None,
            position: None,
        };
        fixture.refused(
            end(LeaseRef { fencing: 1, ..lease.clone() }),
            expect!["lease 1 is no longer valid: lease 9 took rank 0 over"],
        );
        fixture.refused(
            end(LeaseRef { job: "other".into(), ..lease }),
            expect!["lease 9 is no longer valid: there is no job `other`"],
        );
        fixture.report(0, 0, 6);
        fixture.done(end(lease.clone()));
        let rank = &fixture.current().ranks[&0];
        assert_eq!((rank.ended, rank.lease.is_none(), rank.cursor.step), (true, true, 6));
        assert_eq!(fixture.state.job(JOB).unwrap().current().unwrap().ranks_served(), 1);
        fixture.refused(
            end(lease),
            expect!["lease 9 is no longer valid: the trainer of rank 0 ended it"],
        );
    }
}
