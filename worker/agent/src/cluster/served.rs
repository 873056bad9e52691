//! A rank that this worker serves, as its session knows it.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use shardfeed_pipeline::Account;
use shardfeed_plan::{Mode, Segment};
use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_reader::{LeaseRequest, LeaseUpdate, Notifier, account_to, lapsed};
use shardfeed_source::Lock;
use tokio::sync::Mutex as AsyncMutex;

use crate::cluster::report::RankReport;

#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) request: LeaseRequest,
    /// Number of this lease among those of its control.
    pub(crate) serial: u64,
    pub(crate) moves: Moves,
    state: Lock<ServedState>,
    /// Notifier for the events of its lease.
    bell: Lock<Option<Notifier>>,
}

/// Provisional moves, oldest first; locked while they are reported to the coordinator.
pub(crate) type Moves = Arc<AsyncMutex<Vec<Moved>>>;

/// A move that was granted while no coordinator answered. Its generation is the one after `from`:
/// every rank counts so, and the coordinator gets the same number if no other rank moved.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub(crate) from: u64,
    pub(crate) epoch: u64,
    pub(crate) segments: Vec<Segment>,
    /// The coordinator knows the move; the position in `left` may still be unreported.
    pub(crate) is_told: bool,
    /// First step that was not consumed when the rank moved on, as (epoch, step).
    pub(crate) left: Option<(u64, u64)>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ServedState {
    pub(crate) generation: u64,
    /// 0: not confirmed yet.
    pub(crate) fencing: u64,
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) ready: u64,
    /// Ordinals of the shards of the batches in flight.
    pub(crate) reading: Vec<u32>,
    pub(crate) account: Option<(Account, Instant)>,
    /// Reason why the lease is no longer valid.
    pub(crate) verdict: Option<WireError>,
    /// Reason why no batches are delivered, if the job is paused.
    pub(crate) paused: Option<String>,
    /// The error with which the rank ends.
    pub(crate) failure: Option<String>,
}

impl Served {
    pub(crate) fn new(
        request: LeaseRequest,
        serial: u64,
        moves: Moves,
        state: ServedState,
    ) -> Arc<Self> {
        let (state, bell) = (Lock::new(state), Lock::default());
        Arc::new(Self { request, serial, moves, state, bell })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ServedState> {
        self.state.lock()
    }

    pub(crate) fn lease(&self) -> wire::Lease {
        self.lease_of(&self.lock())
    }

    pub(crate) fn lease_of(&self, state: &ServedState) -> wire::Lease {
        let ServedState { generation, fencing, .. } = *state;
        wire::Lease { job: self.request.job.clone(), generation, rank: self.request.rank, fencing }
    }

    pub(crate) fn watch(&self, bell: Notifier) {
        *self.bell.lock() = Some(bell);
    }

    pub(crate) fn ring(&self, news: LeaseUpdate) {
        let bell = self.bell.lock().clone();
        if let Some(bell) = bell {
            bell.ring(news);
        }
    }

    /// Handles the end of the session that it was leased in. A deterministic rank continues and is
    /// confirmed in a new session. Samples granted to a dynamic rank may belong to another rank by
    /// now, so its trainer restarts from its position.
    pub(crate) fn lapse(&self) {
        let mut state = self.lock();
        match self.request.mode {
            Mode::Deterministic => state.fencing = 0,
            Mode::Dynamic => {
                state.verdict.get_or_insert_with(lapsed);
            }
        }
        drop(state);
        self.ring(LeaseUpdate::Ended);
    }

    pub(crate) fn report(&self) -> RankReport {
        let ServedState { generation, epoch, step, ready, account, .. } = self.lock().clone();
        RankReport {
            job: self.request.job.clone(),
            rank: self.request.rank,
            generation,
            epoch,
            step,
            ready,
            account: account.map(|(account, _)| account),
        }
    }

    pub(crate) fn progress(&self) -> wire::RankProgress {
        let lease = Some(self.lease());
        let ServedState { epoch, step, ready, reading, account, .. } = self.lock().clone();
        let aged = |(account, told): (Account, Instant)| {
            account.aged(u64::try_from(told.elapsed().as_micros()).unwrap_or(u64::MAX))
        };
        let account = account.map(aged).as_ref().map(account_to);
        wire::RankProgress { lease, epoch, step, ready, reading, account }
    }
}
