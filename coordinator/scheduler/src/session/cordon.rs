//! Workers that receive no new work, by name: a cordon outlives their sessions.

use crate::log::{
    Answer, CORDONS_MAX, Cordon, EventKind, LeaseRef, Result, SessionId, check_name, check_room,
};
use crate::state::State;

impl State {
    pub fn cordon(&self, worker: &str) -> Cordon {
        self.sessions.cordons.get(worker).copied().unwrap_or_default()
    }

    /// Workers that are cordoned or draining, by name.
    pub fn cordons(&self) -> impl Iterator<Item = (&str, Cordon)> {
        self.sessions.cordons.iter().map(|(worker, state)| (worker.as_str(), *state))
    }

    /// True if the worker of a rank receives no new work.
    pub(crate) fn is_cordoned_rank(&self, lease: &LeaseRef) -> bool {
        let rank = self.rank(&lease.job, lease.generation, lease.rank);
        let served = rank.and_then(|rank| rank.lease.as_ref());
        served.is_some_and(|served| self.sessions.cordon(served.session) != Cordon::Open)
    }

    pub(crate) fn cordon_worker(&mut self, worker: &str, state: Cordon) -> Result<Answer> {
        check_name("the worker's name", worker)?;
        let cordons = &mut self.sessions.cordons;
        if cordons.get(worker).copied().unwrap_or_default() != state {
            self.events.tell(EventKind::WorkerCordoned { worker: worker.to_owned(), state });
        }
        if state == Cordon::Open {
            cordons.remove(worker);
            return Ok(Answer::Done);
        }
        if !cordons.contains_key(worker) {
            let hint = "open workers that came back, or will not";
            check_room("cordoned workers", cordons.len() as u64, CORDONS_MAX as u64, hint)?;
        }
        cordons.insert(worker.to_owned(), state);
        if let Some(session) = self.sessions.by_worker.get(worker).copied() {
            self.drain(session);
        }
        Ok(Answer::Done)
    }

    /// Frees the scans of a draining worker and asks its ranks to give back the samples that they
    /// have not begun, where other ranks can get them.
    pub(crate) fn drain(&mut self, session: SessionId) {
        if self.sessions.cordon(session) != Cordon::Draining {
            return;
        }
        let Some(session) = self.sessions.live.get_mut(&session) else {
            return;
        };
        for scan in std::mem::take(&mut session.scans) {
            self.datasets.free(&scan);
        }
        for lease in &session.leases {
            let job = self.jobs.by_name.get_mut(&lease.job);
            let generation = job.and_then(|job| job.generations.get_mut(&lease.generation));
            let usable = generation.filter(|generation| generation.superseded_by.is_none());
            let pools = usable.into_iter().flat_map(|generation| generation.pools.values_mut());
            pools.for_each(|pool| pool.revoke(lease.rank, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::fixture::{Fixture, add, dynamic_job, facts, first_of_two, join, taken};
    use crate::{Change, JoinSession, StartRank};

    fn cordon(worker: &str, state: Cordon) -> Change {
        Change::CordonWorker { worker: worker.to_owned(), state }
    }

    #[test]
    fn a_cordon_is_of_the_name_and_not_of_the_session() {
        let mut fixture = Fixture::default();
        fixture.done(cordon("w", Cordon::Draining));
        let session = fixture.join("w");
        fixture.done(add());
        assert!(fixture.take(session, 1).is_empty());
        assert_eq!(fixture.state.cordon("w"), Cordon::Draining);
        fixture.done(Change::LeaveSession { session });
        assert_eq!(fixture.state.cordon("w"), Cordon::Draining);
        let again = State::from_snapshot(&fixture.state.snapshot()).unwrap();
        assert_eq!(again.cordons().collect::<Vec<_>>(), [("w", Cordon::Draining)]);
        assert_eq!(again.cordon("other"), Cordon::Open);
        fixture.refused(cordon("", Cordon::Open), expect!["the worker's name is empty"]);
    }

    #[test]
    fn a_worker_in_a_trainer_ignores_cordons() {
        let mut fixture = Fixture::default();
        fixture.done(cordon("w", Cordon::Cordoned));
        fixture.done(add());
        let inside = JoinSession { in_process: true, ..join("w", "i1") };
        fixture.apply(Change::JoinSession(inside)).unwrap();
        let session = fixture.state.sessions().next().unwrap().id;
        assert_eq!(fixture.take(session, 1).len(), 1);
    }

    #[test]
    fn a_draining_worker_frees_its_scans_and_what_it_has_not_begun() {
        let (mut fixture, session) = dynamic_job();
        let other = fixture.join("v");
        fixture.start(first_of_two(session));
        fixture.start(StartRank { rank: 1, trainer: "u".into(), ..first_of_two(other) });
        let first = taken(&mut fixture, 0, 0, 20);
        assert_eq!((first.pieces.len(), first.revoke_from), (2, None));
        fixture.done(Change::AddDataset(crate::AddDataset {
            name: "more".to_owned(),
            ..crate::fixture::add_dataset()
        }));
        assert_eq!(fixture.take(session, 1).len(), 1);
        fixture.done(cordon("w", Cordon::Draining));
        assert_eq!(fixture.take(other, 1).len(), 1, "the scan is free again");
        let told = taken(&mut fixture, 0, 4, 20);
        assert_eq!((told.pieces.len(), told.revoke_from), (0, Some(4)));
        let take = crate::Claim {
            released: Some(8),
            started: 8,
            step: 2,
            known: 1,
            ..crate::fixture::take_of(&fixture, 0, 20)
        };
        let released = crate::fixture::takes(&mut fixture, vec![take]).remove(0).unwrap();
        assert_eq!((released.truncated, released.pieces.len()), (Some(8), 0));
        let pool = &fixture.current().pools[&0];
        assert_eq!((pool.returned.samples(), facts().samples), (12, 40));
        // The other rank gets the samples that it gave back.
        assert_eq!(taken(&mut fixture, 1, 0, 12).pieces.len(), 2);
        // Its own rank ends with a short batch at most.
        assert_eq!(taken(&mut fixture, 0, 8, 20).pieces.len(), 0);
    }
}
