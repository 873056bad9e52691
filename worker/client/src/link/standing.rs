//! Validity of a dynamic job's received batches: the worker reports how long its lease is valid,
//! counted from the request.

use std::time::Duration;

use shardfeed_agent::LeaseTime;

/// A request without an answer is repeated after this time.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Interval between requests while no batch may be handed out.
const ASK_SOON: Duration = Duration::from_millis(50);

/// Last report of the worker.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// End of the validity, and its duration when it was reported.
    good: Option<(LeaseTime, Duration)>,
    /// Open request: its number and the time it was sent.
    asked: Option<(u64, LeaseTime)>,
    number: u64,
    /// A warning that no batch may be handed out was issued.
    is_told: bool,
}

impl Standing {
    /// True if a batch may be handed out now.
    pub(super) fn is_good(&self, now: LeaseTime) -> bool {
        self.good.is_some_and(|(until, _)| now < until)
    }

    /// Returns the number of a request that is due now.
    pub(super) fn question(&mut self, now: LeaseTime) -> Option<u64> {
        let is_fresh = self.good.is_some_and(|(until, whole)| until.since(now) > whole / 2);
        let patience = if self.is_good(now) { ASK_AGAIN } else { ASK_SOON };
        let is_asked = self.asked.is_some_and(|(_, asked)| now.since(asked) < patience);
        if is_fresh || is_asked {
            return None;
        }
        self.number += 1;
        self.asked = Some((self.number, now));
        Some(self.number)
    }

    /// Records the answer to a request.
    pub(super) fn answered(&mut self, number: u64, good_for: Option<Duration>) {
        let Some((_, asked)) = self.asked.take_if(|(open, _)| *open == number) else {
            return;
        };
        let good_for = good_for.unwrap_or(Duration::ZERO);
        self.is_told &= good_for.is_zero();
        self.good = Some((asked + good_for, good_for));
    }

    /// Returns true once when the validity has expired, so that a warning is logged.
    pub(super) fn shall_tell(&mut self, now: LeaseTime) -> bool {
        let has_run_out = self.good.is_some() && !self.is_good(now);
        has_run_out && !std::mem::replace(&mut self.is_told, true)
    }

    /// Forgets the validity, which was that of another lease.
    pub(super) fn forget(&mut self) {
        (self.good, self.asked) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_from_its_question_and_only_once() {
        let (mut standing, now) = (Standing::default(), LeaseTime::now());
        assert!(!standing.is_good(now));
        let number = standing.question(now).unwrap();
        assert_eq!(standing.question(now), None, "it is asked already");
        standing.answered(number + 1, Some(Duration::from_secs(60)));
        assert!(!standing.is_good(now), "the answer to another question");
        standing.answered(number, Some(Duration::from_secs(60)));
        assert!(standing.is_good(now));
        assert_eq!(standing.question(now), None, "it is good for long");
        standing.answered(number, Some(Duration::ZERO));
        assert!(standing.is_good(now), "an answer counts once");
        assert!(!standing.shall_tell(now));
        standing.forget();
        assert!(!standing.is_good(now));
        let next = standing.question(now).unwrap();
        standing.answered(next, None);
        assert!(!standing.is_good(now), "nothing is served");
        assert!(standing.shall_tell(now));
        assert!(!standing.shall_tell(now), "once is enough");
    }

    #[test]
    fn what_was_good_is_not_after_the_host_was_suspended() {
        let (mut standing, asked) = (Standing::default(), LeaseTime::now());
        let number = standing.question(asked).unwrap();
        standing.answered(number, Some(Duration::from_secs(24)));
        assert!(standing.is_good(asked + Duration::from_secs(23)));
        // The clock jumps: the process did not run in between.
        let resumed = asked + Duration::from_secs(3_600);
        assert!(!standing.is_good(resumed));
        assert!(standing.question(resumed).is_some(), "the worker is asked at once");
    }
}
