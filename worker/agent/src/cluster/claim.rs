//! Grants over gRPC, and their validity without a confirmation from the coordinator.

use std::time::Duration;

use shardfeed_plan::dynamic::GroupRange;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError};

use crate::cluster::control::GrpcControl;
use crate::cluster::lease_clock::LeaseTime;
use crate::control::{Claim, ControlError, Grant, Lease, Waiting};

/// Divisor of a session's lifetime that gives the margin for a slower clock and for messages in
/// transit. The margin is at least [`MARGIN_LEAST`], and at most half of the lifetime.
const MARGIN_PART: u32 = 5;
const MARGIN_LEAST: Duration = Duration::from_secs(1);

/// Returns the remaining validity of a session with lifetime `ttl`, if its last answered message
/// was sent `age` ago.
pub(crate) fn good_for(ttl: Duration, age: Duration) -> Duration {
    let margin = (ttl / MARGIN_PART).max(MARGIN_LEAST.min(ttl / 2));
    (ttl - margin).saturating_sub(age)
}

/// Time when the session was last known to be alive, and its lifetime without a confirmation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmed {
    pub(crate) sent: LeaseTime,
    pub(crate) ttl: Duration,
}

impl Confirmed {
    pub(crate) fn age(&self) -> Duration {
        LeaseTime::now().since(self.sent)
    }

    pub(crate) fn good_for(&self, now: LeaseTime) -> Duration {
        good_for(self.ttl, now.since(self.sent))
    }
}

impl GrpcControl {
    /// See [`crate::Control::take`].
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
        let Some(session) = self.session().shared().current_id() else {
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
            wait_ms: u64::try_from(take.wait.as_millis()).unwrap_or(u64::MAX),
        };
        let answer: wire::ClaimGroupsResponse = self.session().coordinator().call_longer(
            take.wait,
            waiting,
            move |mut clients, context| {
                let request = wire::ClaimGroupsRequest { context, ..request.clone() };
                Box::pin(async move { clients.worker.claim_groups(request).await })
            },
        )?;
        Ok(grant_from(answer))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_or_a_second_is_left_and_at_most_half() {
        let seconds = Duration::from_secs;
        assert_eq!(good_for(seconds(30), Duration::ZERO), seconds(24));
        assert_eq!(good_for(seconds(3), Duration::ZERO), seconds(2));
        assert_eq!(good_for(seconds(1), Duration::ZERO), Duration::from_millis(500));
        assert_eq!(good_for(seconds(30), seconds(20)), seconds(4));
        assert_eq!(good_for(seconds(30), seconds(25)), Duration::ZERO);
    }

    #[test]
    fn time_in_suspension_counts() {
        let (sent, ttl) = (LeaseTime::now(), Duration::from_secs(30));
        let confirmed = Confirmed { sent, ttl };
        assert_eq!(confirmed.good_for(sent + Duration::from_secs(4)), Duration::from_secs(20));
        // The clock jumps over a suspension.
        assert_eq!(confirmed.good_for(sent + Duration::from_secs(3_600)), Duration::ZERO);
    }
}
