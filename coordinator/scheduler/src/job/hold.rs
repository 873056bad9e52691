//! Holds of jobs: a paused job waits, a cancelled job ends.

use super::Held;
use crate::job::lease::LeaseEnded;
use crate::log::{Answer, EventKind, Hold, Result, check_text};
use crate::state::{Moment, State};

impl State {
    pub(crate) fn hold_job(
        &mut self,
        Moment { now_ms, .. }: Moment,
        name: &str,
        hold: Option<Hold>,
        (principal, reason): (&str, &str),
    ) -> Result<Answer> {
        check_text("the reason", reason)?;
        let job = self.jobs.get_mut(name)?;
        let held = job.held.as_ref().map(|held| held.hold);
        if held == hold {
            return Ok(Answer::Done);
        }
        if (held, hold) == (Some(Hold::Cancelled), Some(Hold::Paused)) {
            return Err(job.held.as_ref().expect("it is held").refusal(name));
        }
        let (principal, reason) = (principal.to_owned(), reason.to_owned());
        job.held = hold.map(|hold| Held { hold, principal, reason, since_ms: now_ms });
        self.events.tell(EventKind::JobHeld { job: name.to_owned(), hold });
        if hold == Some(Hold::Cancelled) {
            let generations = job.generations.values();
            let leases = generations.flat_map(|generation| generation.leases_of(name));
            for (_, rank) in leases.collect::<Vec<_>>() {
                self.free_rank(&rank, now_ms, LeaseEnded::JobCancelled);
            }
        }
        Ok(Answer::Done)
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_plan::Tail;

    use super::*;
    use crate::fixture::{Fixture, JOB, dynamic_job, first_of_two, taken};
    use crate::{Change, StartRank};

    fn hold(hold: Option<Hold>) -> Change {
        Change::HoldJob { name: JOB.to_owned(), hold, reason: "the disk is full".to_owned() }
    }

    #[test]
    fn a_paused_job_keeps_its_leases_and_says_who_paused_it() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        fixture.start(first_of_two(session));
        fixture.now_ms = 70;
        fixture.done(hold(Some(Hold::Paused)));
        assert_eq!(fixture.state.verdict(&fixture.lease(0)), Ok(()));
        let held = fixture.state.job(JOB).unwrap().held.clone().unwrap();
        assert_eq!((held.principal.as_str(), held.since_ms), ("test", 70));
        // The other rank may start, and waits with it.
        fixture.start(StartRank { rank: 1, trainer: "u".into(), ..first_of_two(session) });
        fixture.now_ms = 80;
        fixture.done(hold(Some(Hold::Paused)));
        assert_eq!(fixture.state.job(JOB).unwrap().held.as_ref().unwrap().since_ms, 70);
        let again = State::from_snapshot(&fixture.state.snapshot()).unwrap();
        assert_eq!(again, fixture.state);
        fixture.done(hold(None));
        assert_eq!(fixture.state.job(JOB).unwrap().held, None);
    }

    #[test]
    fn what_a_cancelled_rank_was_granted_beyond_its_horizon_is_free() {
        let (mut fixture, session) = dynamic_job();
        fixture.start(first_of_two(session));
        assert!(!taken(&mut fixture, 0, 0, 20).pieces.is_empty());
        fixture.done(hold(Some(Hold::Cancelled)));
        let pool = &fixture.current().pools[&0];
        assert_eq!((pool.free(), pool.tally().in_doubt), (pool.samples - 4, 4));
        let returned = &pool.returns.kept;
        assert_eq!((returned.len(), returned[0].rank), (1, 0));
    }
}
