//! Kept answers, so that a repeated request changes nothing.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::log::answer::Answer;
use crate::log::bound::{ANSWERS_BYTES_MAX, REQUEST_AGE_MS, REQUESTS_KEPT, REQUESTS_KEPT_LEAST};
use crate::log::refusal::Result;

/// The last answers, oldest first; bounded by age, number and bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Dedupe {
    answers: VecDeque<Remembered>,
    /// Number of answers dropped so far: the number of the oldest kept one.
    forgotten: u64,
    /// Number of the answer by its request id.
    #[serde(skip)]
    by_id: BTreeMap<String, u64>,
    #[serde(skip)]
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Remembered {
    request_id: String,
    at_ms: u64,
    answer: Result<Answer>,
}

impl Remembered {
    fn bytes(&self) -> u64 {
        serde_json::to_vec(self).expect("an answer is plain data").len() as u64
    }
}

impl Dedupe {
    pub(crate) fn answer(&self, request_id: &str) -> Option<&Result<Answer>> {
        let number = self.by_id.get(request_id)?;
        let place = usize::try_from(number - self.forgotten).ok()?;
        self.answers.get(place).map(|remembered| &remembered.answer)
    }

    /// Keeps an answer, unless the request has no id.
    pub(crate) fn remember(&mut self, request_id: &str, at_ms: u64, answer: &Result<Answer>) {
        if request_id.is_empty() {
            return;
        }
        let (request_id, answer) = (request_id.to_owned(), answer.clone());
        let remembered = Remembered { request_id, at_ms, answer };
        self.file(&remembered, self.forgotten + self.answers.len() as u64);
        self.answers.push_back(remembered);
        while self.answers.len() > REQUESTS_KEPT || self.bytes > ANSWERS_BYTES_MAX {
            self.forget_oldest();
        }
    }

    /// Drops answers older than [`REQUEST_AGE_MS`], except the last [`REQUESTS_KEPT_LEAST`].
    pub(crate) fn expire(&mut self, now_ms: u64) {
        let old = |at_ms: u64| now_ms.saturating_sub(at_ms) >= REQUEST_AGE_MS;
        while self.answers.len() > REQUESTS_KEPT_LEAST
            && self.answers.front().is_some_and(|oldest| old(oldest.at_ms))
        {
            self.forget_oldest();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.answers.len()
    }

    pub(crate) fn index(&mut self) {
        self.by_id.clear();
        self.bytes = 0;
        let answers = std::mem::take(&mut self.answers);
        for (remembered, number) in answers.iter().zip(self.forgotten..) {
            self.file(remembered, number);
        }
        self.answers = answers;
    }

    fn file(&mut self, remembered: &Remembered, number: u64) {
        self.by_id.insert(remembered.request_id.clone(), number);
        self.bytes += remembered.bytes();
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.answers.pop_front() {
            self.by_id.remove(&oldest.request_id);
            self.bytes -= oldest.bytes();
            self.forgotten += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::fixture::{Fixture, add, first_of_two, join};
    use crate::log::refusal::Refusal;
    use crate::{Applied, Change, NAME_BYTES_MAX};
    use shardfeed_plan::Tail;

    #[test]
    fn the_same_request_gets_the_first_answer_and_changes_nothing() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        let start = Change::StartRank(first_of_two(session));
        let first = fixture.request("a", start.clone());
        assert!(!first.repeated);
        let before = fixture.contents();
        let again = fixture.request("a", start.clone());
        assert_eq!(again, Applied { repeated: true, ..first.clone() });
        // Only the id counts: another change under the same id returns the same answer.
        assert_eq!(fixture.request("a", add()), again);
        assert_eq!(fixture.contents(), before);
        assert_ne!(fixture.request("b", start).answer, first.answer);
    }

    #[test]
    fn a_refusal_is_remembered_too() {
        let mut fixture = Fixture::default();
        let leave = Change::LeaveSession { session: 2 };
        let first = fixture.request("a", leave.clone());
        fixture.join("w");
        let again = fixture.request("a", leave);
        assert_eq!(again, Applied { repeated: true, ..first });
        assert_eq!(fixture.state.sessions().count(), 1);
    }

    #[test]
    fn answers_are_forgotten_by_age_of_the_clock() {
        let mut dedupe = Dedupe::default();
        for request in 0..=REQUESTS_KEPT_LEAST {
            dedupe.remember(&request.to_string(), 1_000, &Ok(Answer::Done));
        }
        dedupe.expire(999 + REQUEST_AGE_MS);
        assert_eq!(dedupe.answer("0"), Some(&Ok(Answer::Done)));
        dedupe.expire(1_000 + REQUEST_AGE_MS);
        assert_eq!((dedupe.answer("0"), dedupe.len()), (None, REQUESTS_KEPT_LEAST));
    }

    #[test]
    fn a_clock_that_jumps_forgets_no_request_that_may_be_repeated() {
        let mut fixture = Fixture { now_ms: 1_000, ..Fixture::default() };
        let mut joined = |now_ms, incarnation| {
            fixture.now_ms = now_ms;
            fixture.request("a", Change::JoinSession(join("w", incarnation)))
        };
        let first = joined(1_000, "i1");
        assert_eq!(joined(1_000 + 9 * REQUEST_AGE_MS, "i2"), Applied { repeated: true, ..first });
        // A proposer whose clock is behind does not turn the state's clock back.
        assert!(joined(0, "i2").repeated);
    }

    #[test]
    fn answers_are_forgotten_by_number_and_by_bytes() {
        let mut dedupe = Dedupe::default();
        for request in 0..REQUESTS_KEPT + 2 {
            dedupe.remember(&request.to_string(), 0, &Ok(Answer::Done));
        }
        assert_eq!(dedupe.len(), REQUESTS_KEPT);
        assert_eq!((dedupe.answer("1"), dedupe.answer("2")), (None, Some(&Ok(Answer::Done))));
        let large = Err(Refusal::Invalid("x".repeat(ANSWERS_BYTES_MAX as usize / 3)));
        for request in ["a", "b", "c"] {
            dedupe.remember(request, 0, &large);
        }
        assert_eq!(dedupe.len(), 2);
        let mut anew = dedupe.clone();
        anew.index();
        assert!(anew == dedupe);
    }

    #[test]
    fn a_request_without_an_id_is_not_remembered_and_an_odd_id_is_refused() {
        let mut fixture = Fixture::default();
        fixture.join("w");
        assert_eq!(fixture.state.dedupe.len(), 0);
        let applied = fixture.request(&"x".repeat(NAME_BYTES_MAX + 1), add());
        expect!["the request id has 201 bytes; at most 200 are allowed"]
            .assert_eq(&applied.answer.unwrap_err().to_string());
        assert_eq!(fixture.state.datasets().count(), 0);
    }
}
