//! Until when the batches in hand of a dynamic job may be handed out: the worker says how long its
//! lease is good, counted from when it was asked.

use std::time::{Duration, Instant};

/// An answer that did not come in so long is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// While nothing may be handed out it is asked so often.
const ASK_SOON: Duration = Duration::from_millis(50);

/// What the worker said last.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Until when, and how long that was when it was said.
    good: Option<(Instant, Duration)>,
    /// A question that is open: its number, and since when.
    asked: Option<(u64, Instant)>,
    number: u64,
    /// It was said that nothing may be handed out.
    is_told: bool,
}

impl Standing {
    /// Whether a batch may be handed out now.
    pub(super) fn is_good(&self) -> bool {
        self.good.is_some_and(|(until, _)| Instant::now() < until)
    }

    /// The number of a question that is to be asked now.
    pub(super) fn question(&mut self) -> Option<u64> {
        let is_fresh = self.good.is_some_and(|(until, whole)| {
            until.saturating_duration_since(Instant::now()) > whole / 2
        });
        let patience = if self.is_good() { ASK_AGAIN } else { ASK_SOON };
        let is_asked = self.asked.is_some_and(|(_, since)| since.elapsed() < patience);
        if is_fresh || is_asked {
            return None;
        }
        self.number += 1;
        self.asked = Some((self.number, Instant::now()));
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
    pub(super) fn shall_tell(&mut self) -> bool {
        let has_run_out = self.good.is_some() && !self.is_good();
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
        let mut standing = Standing::default();
        assert!(!standing.is_good());
        let number = standing.question().unwrap();
        assert_eq!(standing.question(), None, "it is asked already");
        standing.answered(number + 1, Some(Duration::from_secs(60)));
        assert!(!standing.is_good(), "the answer to another question");
        standing.answered(number, Some(Duration::from_secs(60)));
        assert!(standing.is_good());
        assert_eq!(standing.question(), None, "it is good for long");
        standing.answered(number, Some(Duration::ZERO));
        assert!(standing.is_good(), "an answer counts once");
        assert!(!standing.shall_tell());
        standing.forget();
        assert!(!standing.is_good());
        let next = standing.question().unwrap();
        standing.answered(next, None);
        assert!(!standing.is_good(), "nothing is served");
        assert!(standing.shall_tell());
        assert!(!standing.shall_tell(), "once is enough");
    }
}
