//! Validity of grants without a confirmation from the coordinator.

use std::time::Duration;

use shardfeed_reader::LeaseTime;

/// Divisor of a session's lifetime that gives the margin for a slower clock and for messages in
/// transit. The margin is at least [`MARGIN_LEAST`], and at most half of the lifetime.
const MARGIN_PART: u32 = 5;
const MARGIN_LEAST: Duration = Duration::from_secs(1);

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

    /// Returns the rest of the lifetime, less the margin.
    pub(crate) fn good_for(&self, now: LeaseTime) -> Duration {
        let margin = (self.ttl / MARGIN_PART).max(MARGIN_LEAST.min(self.ttl / 2));
        (self.ttl - margin).saturating_sub(now.since(self.sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_or_a_second_is_left_and_at_most_half() {
        let (seconds, sent) = (Duration::from_secs, LeaseTime::now());
        let good_for = |ttl, age| Confirmed { sent, ttl }.good_for(sent + age);
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
