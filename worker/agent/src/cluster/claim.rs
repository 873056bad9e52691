//! Grants over gRPC.

use shardfeed_plan::dynamic::GroupRange;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_reader::{Claim, ControlError, Grant, Lease, Waiting};

use crate::cluster::control::GrpcControl;
use crate::cluster::session::ms_of;

impl GrpcControl {
    pub(super) fn claim_groups(
        &self,
        lease: &Lease,
        take: &Claim,
        waiting: Waiting<'_>,
    ) -> Result<Grant, ControlError> {
        let served = self.good(lease)?;
        let (at, named) = {
            let state = served.lock();
            ((state.epoch, state.step), served.lease_of(&state))
        };
        let step = match at.0.cmp(&take.epoch) {
            std::cmp::Ordering::Equal => at.1,
            std::cmp::Ordering::Less => 0,
            // The trainer has passed this epoch.
            std::cmp::Ordering::Greater => {
                return Ok(Grant { first: take.known, ended: true, ..Grant::default() });
            }
        };
        let Some(session) = self.session.shared.current_id() else {
            return Err(WireError::new(ErrorKind::Retry, "the session is being joined again"));
        };
        let request = wire::ClaimGroupsRequest {
            context: None,
            session,
            lease: Some(named),
            epoch: take.epoch,
            step,
            started: take.started,
            known: take.known,
            wants: take.wants,
            ahead: take.ahead,
            released: take.released.map(|release| release.from),
            version: take.released.map_or(0, |release| release.version),
            wait_ms: ms_of(take.wait),
        };
        let coordinator = self.session.coordinator();
        coordinator.call_longer(take.wait, waiting, &request).map(grant_from)
    }
}

fn grant_from(answer: wire::ClaimGroupsResponse) -> Grant {
    let piece =
        |piece: wire::GroupRange| GroupRange { group: piece.group, from: piece.from, to: piece.to };
    let wire::ClaimGroupsResponse {
        pieces,
        first,
        samples,
        horizon,
        version,
        closed,
        revoke_from,
        ended,
        steps_before: first_step,
    } = answer;
    let pieces = pieces.into_iter().map(piece).collect();
    Grant { first, pieces, samples, horizon, version, closed, revoke_from, ended, first_step }
}
