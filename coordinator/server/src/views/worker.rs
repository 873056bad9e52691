//! Workers: live sessions, and those that ended.

use shardfeed_proto::coordinator::v1::{Cordon, Lease, Worker, WorkerState};
use shardfeed_scheduler::{EndReason, EndedSession, JoinSession, RankRef, Session, State};
use tokio::time::Instant;

use crate::sessions::Sessions;

/// Workers as people see them, live ones first.
/// - `all`: also those that are gone, as far as they are remembered.
pub(crate) fn workers(
    state: &State,
    sessions: &Sessions,
    all: bool,
    (now, now_ms): (Instant, u64),
) -> Vec<Worker> {
    let live = state.sessions().map(|session| {
        let Session { id, join, joined_ms, leases, scans } = session;
        let cordon = cordon_to(state.cordon(&join.worker));
        let seen = sessions.seen(*id).map(|seen| now.duration_since(seen).as_millis() as u64);
        Worker {
            leases: leases.len() as u64,
            scans: scans.len() as u64,
            seen_ms: seen,
            serving: leases.iter().filter_map(|rank| lease(state, rank)).collect(),
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

/// What a worker may get, as a message.
fn cordon_to(state: shardfeed_scheduler::Cordon) -> Cordon {
    match state {
        shardfeed_scheduler::Cordon::Open => Cordon::Open,
        shardfeed_scheduler::Cordon::Cordoned => Cordon::Cordoned,
        shardfeed_scheduler::Cordon::Draining => Cordon::Draining,
    }
}

fn worker(
    session: u64,
    join: &JoinSession,
    age_ms: u64,
    state: WorkerState,
    cordon: Cordon,
) -> Worker {
    Worker {
        name: join.worker.clone(),
        host: join.host.clone(),
        session,
        state: state.into(),
        in_process: join.in_process,
        version: join.version.clone(),
        leases: 0,
        scans: 0,
        age_ms,
        seen_ms: None,
        serving: vec![],
        endpoint: join.endpoint.clone(),
        cordon: cordon.into(),
    }
}

fn lease(state: &State, of: &RankRef) -> Option<Lease> {
    let RankRef { job, generation, rank } = of.clone();
    let known = state.job(&job)?.generations.get(&generation)?.ranks.get(&rank)?;
    Some(Lease { fencing: known.lease.as_ref()?.fencing, job, generation, rank })
}
