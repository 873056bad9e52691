//! Workers: live and ended sessions.

use shardfeed_proto::common::v1::Account;
use shardfeed_proto::coordinator::v1::{Cordon, Lease, Worker, WorkerState};
use shardfeed_scheduler::{EndReason, EndedSession, JoinSession, LeaseRef, Session, State};
use tokio::time::Instant;

use crate::leader::core::Live;

/// Returns the workers as shown to users, live ones first.
/// - `all`: also workers whose session ended, as far as kept.
pub(crate) fn workers(
    state: &State,
    live: &Live,
    all: bool,
    (now, now_ms): (Instant, u64),
) -> Vec<Worker> {
    let live = state.sessions().map(|session| {
        let Session { id, join, joined_ms, leases, scans, .. } = session;
        let cordon = cordon_to(state.cordon(&join.worker));
        let serving: Vec<_> = leases.iter().filter_map(|rank| state.lease_of(rank)).collect();
        let seen = live.sessions.seen(*id).map(|seen| now.duration_since(seen).as_millis() as u64);
        Worker {
            leases: leases.len() as u64,
            scans: scans.len() as u64,
            seen_ms: seen,
            accounts: serving.iter().map(|lease| account(live, lease, now)).collect(),
            serving: serving.iter().map(lease_to).collect(),
            ..worker(*id, join, now_ms.saturating_sub(*joined_ms), WorkerState::Live, cordon)
        }
    });
    let ended = state.ended_sessions().filter(|_| all).map(|ended| {
        let EndedSession { id, join, joined_ms, reason, .. } = ended;
        let cordon = cordon_to(state.cordon(&join.worker));
        let state = match reason {
            EndReason::Left => WorkerState::Left,
            EndReason::Expired => WorkerState::Expired,
            EndReason::Replaced => WorkerState::Replaced,
        };
        worker(*id, join, now_ms.saturating_sub(*joined_ms), state, cordon)
    });
    live.chain(ended).collect()
}

fn cordon_to(state: shardfeed_scheduler::Cordon) -> Cordon {
    match state {
        shardfeed_scheduler::Cordon::Open => Cordon::Open,
        shardfeed_scheduler::Cordon::Cordoned => Cordon::Cordoned,
        shardfeed_scheduler::Cordon::Draining => Cordon::Draining,
    }
}

fn worker(id: u64, join: &JoinSession, age_ms: u64, state: WorkerState, cordon: Cordon) -> Worker {
    Worker {
        name: join.worker.clone(),
        host: join.host.clone(),
        session: id,
        state: state.into(),
        in_process: join.in_process,
        version: join.version.clone(),
        age_ms,
        endpoint: join.endpoint.clone(),
        decoders: join.decoders.clone(),
        cordon: cordon.into(),
        ..Worker::default()
    }
}

/// Returns the time breakdown of a served rank, as far as known.
fn account(live: &Live, lease: &LeaseRef, now: Instant) -> Account {
    live.progress.of_rank(lease).and_then(|rank| rank.account(now)).unwrap_or_default()
}

pub(crate) fn lease_to(lease: &LeaseRef) -> Lease {
    let LeaseRef { job, generation, rank, fencing } = lease.clone();
    Lease { job, generation, rank, fencing }
}
