//! Whether sessions, leases and scans that a worker speaks of are still its own.

use std::time::Duration;

use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_scheduler::{
    EndReason, Fencing, Generation, LeaseRef, PartState, Rank, RankCursor, Refusal, SessionId,
    State, Verdict,
};

/// Where the holder of a good lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Its cursor in the state.
    pub(crate) cursor: RankCursor,
    /// Samples of one of its steps.
    pub(crate) rows: u64,
}

/// Where the holder of a lease stands.
///
/// # Errors  `Superseded`, `Fenced`: the lease is no longer good.
pub(crate) fn standing(state: &State, lease: &LeaseRef) -> Result<Standing, Refusal> {
    find(state, lease).map(|(generation, rank)| {
        let rows = generation.origin.global_batch() / generation.world_size.max(1);
        Standing { cursor: rank.cursor, rows }
    })
}

/// As [`standing`], for a lease that `session` speaks of.
pub(crate) fn served(
    state: &State,
    session: SessionId,
    lease: &LeaseRef,
) -> Result<Standing, Refusal> {
    let (_, rank) = find(state, lease)?;
    match rank.lease.as_ref().is_some_and(|known| known.session == session) {
        true => standing(state, lease),
        false => Err(gone(lease, "another session has it")),
    }
}

fn find<'a>(state: &'a State, lease: &LeaseRef) -> Result<(&'a Generation, &'a Rank), Refusal> {
    match state.verdict(lease) {
        Verdict::Superseded { refusal } | Verdict::Fenced { refusal } => Err(refusal),
        Verdict::Live => state
            .job(&lease.job)
            .and_then(|job| job.generations.get(&lease.generation))
            .and_then(|generation| Some((generation, generation.ranks.get(&lease.rank)?)))
            .ok_or_else(|| gone(lease, "its generation is forgotten")),
    }
}

fn gone(lease: &LeaseRef, reason: &str) -> Refusal {
    let (what, reason) = ("lease".to_owned(), reason.to_owned());
    Refusal::Fenced { what, fencing: lease.fencing, reason }
}

/// Whether the scan of a part is still leased under `fencing`.
pub(crate) fn scans(state: &State, dataset: &str, part: u64, fencing: Fencing) -> bool {
    let scan = state.dataset(dataset).and_then(|dataset| dataset.scan());
    let part = scan.and_then(|scan| scan.parts.get(usize::try_from(part).ok()?));
    let leased = part.map(|part| &part.state);
    matches!(leased, Some(PartState::Leased(lease)) if lease.fencing == fencing)
}

/// How long a session lives without a heartbeat.
///
/// # Errors  `Fenced` if it ended, with what is remembered of that.
pub(crate) fn session_ttl(state: &State, session: SessionId) -> Result<Duration, WireError> {
    if let Some(session) = state.session(session) {
        return Ok(Duration::from_millis(session.join.ttl_ms));
    }
    let ended = state.ended_sessions().filter(|ended| ended.id == session).last();
    let reason = match ended.map(|ended| ended.reason) {
        Some(EndReason::Left) => "its worker left",
        Some(EndReason::Expired) => "nothing was heard of it in time",
        Some(EndReason::Replaced) => "another incarnation of its worker joined",
        None => "it ended long ago, or never was",
    };
    let message = format!("session {session} is no longer valid: {reason}; join again");
    Err(WireError::new(ErrorKind::Fenced, message))
}
