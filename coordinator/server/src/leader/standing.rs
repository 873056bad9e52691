//! Checks whether the sessions, leases and scans that a worker refers to are still its own.

use std::time::Duration;

use shardfeed_scheduler::{
    Generation, LeaseRef, LeasedScan, Rank, RankCursor, Refusal, ScanLease, SessionId, State,
};

use crate::error::{self, Result};

/// Progress of the holder of a valid lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Its cursor in the state.
    pub(crate) cursor: RankCursor,
    /// Samples of one of its steps.
    pub(crate) rows: u64,
}

/// Returns the progress of the holder of a lease.
///
/// # Errors  `Superseded`, `Fenced`: the lease is no longer valid.
pub(crate) fn standing(state: &State, lease: &LeaseRef) -> Result<Standing, Refusal> {
    find(state, lease).map(|(generation, rank)| {
        let rows = generation.origin.global_batch() / generation.world_size.max(1);
        Standing { cursor: rank.cursor, rows }
    })
}

/// Like [`standing`], for a lease that must belong to `session`.
pub(crate) fn served(
    state: &State,
    session: SessionId,
    lease: &LeaseRef,
) -> Result<Standing, Refusal> {
    let (_, rank) = find(state, lease)?;
    match rank.lease.as_ref().is_some_and(|known| known.session == session) {
        true => standing(state, lease),
        false => {
            let (what, reason) = ("lease".to_owned(), "another session has it".to_owned());
            Err(Refusal::Fenced { what, fencing: lease.fencing, reason })
        }
    }
}

fn find<'a>(state: &'a State, lease: &LeaseRef) -> Result<(&'a Generation, &'a Rank), Refusal> {
    state.verdict(lease)?;
    let generation = state.generation(&lease.job, lease.generation);
    let found = generation.and_then(|known| Some((known, known.ranks.get(&lease.rank)?)));
    Ok(found.expect("only of a rank that is there a lease is good"))
}

pub(crate) fn scan_lease<'a>(state: &'a State, scan: &LeasedScan) -> Option<&'a ScanLease> {
    let lease = state.dataset(&scan.dataset)?.lease_of(scan.part);
    lease.filter(|lease| lease.fencing == scan.fencing)
}

/// Returns the time for which a session lives without a heartbeat.
///
/// # Errors  `Fenced` if it ended, with the reason as far as it is kept.
pub(crate) fn session_ttl(state: &State, session: SessionId) -> Result<Duration> {
    let session = state.live_session(session).map_err(|refusal| error::refusal(&refusal))?;
    Ok(Duration::from_millis(session.join.ttl_ms))
}
