//! Validity of a dynamic job's received batches: the worker reports how long its lease is valid,
//! counted from the request.

use std::time::Duration;

use shardfeed_reader::LeaseTime;

/// A request without an answer is repeated after this time.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Interval between requests while no batch may be handed out.
const ASK_SOON: Duration = Duration::from_millis(50);

/// Last report of the worker.
#[derive(Debug, Default)]
pub(super) struct LeaseValidity {
    /// End of the validity, and its duration when it was reported.
    good: Option<(LeaseTime, Duration)>,
    /// Open request: its number and the time it was sent.
    asked: Option<(u64, LeaseTime)>,
    number: u64,
    /// A warning that no batch may be handed out was issued.
    is_warned: bool,
}

impl LeaseValidity {
    /// True if a batch may be handed out now.
    pub(super) fn is_valid(&self, now: LeaseTime) -> bool {
        self.good.is_some_and(|(until, _)| now < until)
    }

    /// Returns the number of a request that is due now.
    pub(super) fn due_request(&mut self, now: LeaseTime) -> Option<u64> {
        let is_fresh = self.good.is_some_and(|(until, whole)| until.since(now) > whole / 2);
        let patience = if self.is_valid(now) { ASK_AGAIN } else { ASK_SOON };
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
        self.is_warned &= good_for.is_zero();
        self.good = Some((asked + good_for, good_for));
    }

    /// Returns true once when the validity has expired, so that a warning is logged.
    pub(super) fn take_warning(&mut self, now: LeaseTime) -> bool {
        let has_run_out = self.good.is_some() && !self.is_valid(now);
        has_run_out && !std::mem::replace(&mut self.is_warned, true)
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
        let (mut validity, now) = (LeaseValidity::default(), LeaseTime::now());
        assert!(!validity.is_valid(now));
        let number = validity.due_request(now).unwrap();
        assert_eq!(validity.due_request(now), None, "it is asked already");
        validity.answered(number + 1, Some(Duration::from_secs(60)));
        assert!(!validity.is_valid(now), "the answer to another request");
        validity.answered(number, Some(Duration::from_secs(60)));
        assert!(validity.is_valid(now));
        assert_eq!(validity.due_request(now), None, "it is good for long");
        validity.answered(number, Some(Duration::ZERO));
        assert!(validity.is_valid(now), "an answer counts once");
        assert!(!validity.take_warning(now));
        validity.forget();
        assert!(!validity.is_valid(now));
        let next = validity.due_request(now).unwrap();
        validity.answered(next, None);
        assert!(!validity.is_valid(now), "nothing is served");
        assert!(validity.take_warning(now));
        assert!(!validity.take_warning(now), "once is enough");
    }

    #[test]
    fn what_was_good_is_not_after_the_host_was_suspended() {
        let (mut validity, asked) = (LeaseValidity::default(), LeaseTime::now());
        let number = validity.due_request(asked).unwrap();
        validity.answered(number, Some(Duration::from_secs(24)));
        assert!(validity.is_valid(asked + Duration::from_secs(23)));
        // The clock jumps: the process did not run in between.
        let resumed = asked + Duration::from_secs(3_600);
        assert!(!validity.is_valid(resumed));
        assert!(validity.due_request(resumed).is_some(), "the worker is asked at once");
    }
}
