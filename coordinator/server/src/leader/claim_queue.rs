//! Queue of claims, between the calls of workers and the loop that collects the claims.

use std::sync::Arc;

use shardfeed_plan::dynamic::Groups;
use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1::ClaimGroupsResponse;
use shardfeed_scheduler::Claim;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::error::retry;

/// Maximum ranks that wait for groups at the same time.
pub const POLLS_MAX: usize = 16_384;

#[derive(Debug)]
pub(crate) struct ClaimRequest {
    /// Its facts are set when it is proposed.
    pub(crate) take: Claim,
    /// Version of the list that the worker knows.
    pub(crate) known_version: Option<u64>,
    pub(crate) groups: Arc<Groups>,
    /// Empty if the claim is never repeated.
    pub(crate) request_id: String,
    /// Time until which the answer may wait for something new.
    pub(crate) until: Instant,
    pub(crate) reply: oneshot::Sender<Result<ClaimGroupsResponse, WireError>>,
}

pub(crate) type ClaimSender = mpsc::Sender<ClaimRequest>;

pub(crate) fn channel() -> (ClaimSender, mpsc::Receiver<ClaimRequest>) {
    mpsc::channel(POLLS_MAX)
}

pub(crate) fn too_many() -> WireError {
    let message = format!("{POLLS_MAX} ranks ask for groups already; try again in a moment");
    retry(message)
}

pub(crate) fn gone() -> WireError {
    retry("this coordinator stops; try again, at another node if there is one")
}
