//! Until when the batches in hand of a dynamic job may be handed out: the worker says how long its
//! lease is good, counted from when it was asked.

use std::time::Duration;

use shardfeed_agent::LeaseTime;

/// An answer that did not come in so long is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// While nothing may be handed out it is asked so often.
const ASK_SOON: Duration = Duration::from_millis(50);

/// What the worker said last.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Until when, and how long that was when it was said.
    good: Option<(LeaseTime, Duration)>,
    /// A question that is open: its number, and since when.
    asked: Option<(u64, LeaseTime)>,
    number: u64,
    /// It was said that nothing may be handed out.
    is_told: bool,
}

impl Standing {
    /// Whether a batch may be handed out now.
    pub(super) fn is_good(&self, now: LeaseTime) -> bool {
        self.good.is_some_and(|(until, _)| now < until)
    }

    /// The number of a question that is to be asked now.
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

    /// The answer to a question came.
    pub(super) fn answered(&mut self, number: u64, good_for: Option<Duration>) {
        let Some((_, asked)) = self.asked.take_if(|(open, _)| *open == number) else {
            return;
        };
        let good_for = good_for.unwrap_or(Duration::ZERO);
        self.is_told &= good_for.is_zero();
        self.good = Some((asked + good_for, good_for));
    }

    /// Whether to say, once, that what was good no longer is.
    pub(super) fn shall_tell(&mut self, now: LeaseTime) -> bool {
        let has_run_out = self.good.is_some() && !self.is_good(now);
        has_run_out && !std::mem::replace(&mut self.is_told, true)
    }

    /// What was said was of another lease.
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
