//! Workers that get nothing new, by name: a cordon outlives their sessions.

use std::fmt;

use crate::answer::{Answer, Refusal};
use crate::bound::{CORDONS_MAX, check_name, check_room};
use crate::command::{Cordon, LeaseRef, SessionId, StartRank};
use crate::job::Jobs;
use crate::session::Sessions;
use crate::state::State;

impl fmt::Display for Cordon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
        })
    }
}

impl Sessions {
    /// What a session may get. A worker in a trainer's process gets everything: it is where the
    /// work of others goes.
    pub(crate) fn cordon(&self, session: SessionId) -> Cordon {
        let join = self.live.get(&session).map(|session| &session.join);
        let cordoned = join.filter(|join| !join.in_process);
        cordoned.and_then(|join| self.cordons.get(&join.worker)).copied().unwrap_or_default()
    }

    /// Whether the worker of a rank gets nothing new.
    pub(crate) fn is_cordoned_rank(&self, lease: &LeaseRef, jobs: &Jobs) -> bool {
        let generation = jobs.by_name.get(&lease.job);
        let generation = generation.and_then(|job| job.generations.get(&lease.generation));
        let rank = generation.and_then(|generation| generation.ranks.get(&lease.rank));
        let served = rank.and_then(|rank| rank.lease.as_ref());
        served.is_some_and(|served| self.cordon(served.session) != Cordon::Open)
    }

    /// Refuses a rank that a cordoned worker does not serve yet.
    pub(crate) fn may_serve(&self, start: &StartRank) -> Result<(), Refusal> {
        let state = self.cordon(start.session);
        let Some(session) = self.live.get(&start.session).filter(|_| state != Cordon::Open) else {
            return Ok(());
        };
        let mut own = session.leases.iter();
        if own.any(|own| own.job == start.job && own.rank == start.rank) {
            return Ok(());
        }
        Err(Refusal::Cordoned { worker: session.join.worker.clone(), state })
    }
}

impl State {
    /// What the worker of that name may get.
    pub fn cordon(&self, worker: &str) -> Cordon {
        self.sessions.cordons.get(worker).copied().unwrap_or_default()
    }

    /// Workers that get less than everything, by name.
    pub fn cordons(&self) -> impl Iterator<Item = (&str, Cordon)> {
        self.sessions.cordons.iter().map(|(worker, state)| (worker.as_str(), *state))
    }

    pub(crate) fn cordon_worker(&mut self, worker: &str, state: Cordon) -> Result<Answer, Refusal> {
        check_name("the worker's name", worker)?;
        let cordons = &mut self.sessions.cordons;
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

    /// Frees the scans of a draining worker and asks its ranks to give back what they have not
    /// begun, where others can have it.
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
            for pool in pools.filter(|pool| pool.quota.is_none()) {
                pool.revoke(lease.rank, 0);
            }
        }
    }
}
