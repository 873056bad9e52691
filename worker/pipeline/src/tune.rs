//! Chooses the number of prefetched batches and threads from the time spent. This never changes a
//! batch. Source: docs/PERFORMANCE.md, Where time goes.
//!
//! Every number only grows, except that of the computing threads, which never falls to one with
//! which the trainer was kept waiting. The number of changes is therefore bounded while demand is
//! constant.

use serde::{Deserialize, Serialize};

use crate::account::{Reason, Reasons, Spent};
use crate::limit::percent;

/// A trainer that waits at least this fraction of its time, in percent, is kept waiting.
const WAIT_PERCENT: u64 = 5;
/// A trainer that waits less than this, in percent, is not.
const EASE_PERCENT: u64 = 2;

/// Consecutive evaluations without waiting of the trainer before a thread is removed.
const EASY_LOOKS: u64 = 8;

/// Threads that compute for this fraction of their time, in percent, are busy.
const BUSY_PERCENT: u64 = 70;

/// Planning that waits for memory for this percentage of the time has nothing else to do.
const ROOM_PERCENT: u64 = 20;

/// Minimum of the trainer's time for a choice, in microseconds, besides `EVIDENCE_BATCHES`.
const EVIDENCE_US: u64 = 500_000;
/// Minimum number of batches for a choice; applies together with `EVIDENCE_US`.
const EVIDENCE_BATCHES: u64 = 4;
/// Trainer's time that suffices for a choice with any number of batches, in microseconds.
const EVIDENCE_ALONE_US: u64 = 2_000_000;

/// Start value and limits of a number that is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    /// Minimum, 1 or more.
    pub least: u64,
    pub most: u64,
}

impl Range {
    /// Range of a number that the user set and that never changes.
    pub fn fixed(number: u64) -> Self {
        Self { start: number, least: number, most: number }
    }

    fn is_fixed(&self) -> bool {
        self.least == self.most
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Maximum prefetched batches.
    pub prefetch: u64,
    /// Threads that read from storage.
    pub reading: u64,
    /// Threads that compute.
    pub computing: u64,
}

#[derive(Clone, Debug)]
pub struct Tuner {
    prefetch: Range,
    reading: Range,
    computing: Range,
    choice: Choice,
    reasons: Reasons,
    /// Largest number of computing threads with which the trainer was kept waiting.
    too_few: u64,
    easy_looks: u64,
    /// Counters at the last choice.
    seen: Spent,
}

impl Tuner {
    /// Starts with the initial values of the ranges.
    pub fn new(prefetch: Range, reading: Range, computing: Range) -> Self {
        let within = |range: &Range| range.start.clamp(range.least, range.most.max(range.least));
        let reason = |range: &Range| if range.is_fixed() { Reason::Asked } else { Reason::Start };
        Self {
            choice: Choice {
                prefetch: within(&prefetch),
                reading: within(&reading),
                computing: within(&computing),
            },
            reasons: Reasons {
                prefetch: reason(&prefetch),
                reading: reason(&reading),
                computing: reason(&computing),
            },
            too_few: 0,
            // The first evaluation without waiting is enough: no other number was tried.
            easy_looks: EASY_LOOKS - 1,
            seen: Spent::default(),
            prefetch,
            reading,
            computing,
        }
    }

    pub fn choice(&self) -> Choice {
        self.choice
    }

    pub fn reasons(&self) -> Reasons {
        self.reasons
    }

    /// Sets the maximum number of prefetched batches that the memory budget can hold.
    pub fn fit_prefetch(&mut self, most: u64) {
        if !self.prefetch.is_fixed() {
            self.prefetch.most = most.max(1);
            self.prefetch.least = self.prefetch.least.min(self.prefetch.most);
            if self.choice.prefetch > self.prefetch.most {
                (self.choice.prefetch, self.reasons.prefetch) =
                    (self.prefetch.most, Reason::AtMost);
            }
        }
    }

    /// Evaluates the counters since the last choice; changes at most one number.
    ///
    /// Counters that are too small for a choice accumulate until the next call, so that a batch may
    /// take a millisecond or a minute.
    /// - `total`: since reading began; `wait_us` and `work_us` include the batch not taken yet.
    pub fn look(&mut self, total: &Spent) -> Choice {
        let spent = &total.since(&self.seen);
        let trainer_us = spent.wait_us.saturating_add(spent.work_us);
        let is_enough = trainer_us >= EVIDENCE_ALONE_US
            || trainer_us >= EVIDENCE_US && spent.batches >= EVIDENCE_BATCHES;
        if !is_enough || spent.wall_us == 0 {
            return self.choice;
        }
        self.seen = *total;
        let wait = percent(spent.wait_us, spent.wait_us.saturating_add(spent.work_us));
        if wait >= WAIT_PERCENT {
            self.easy_looks = 0;
            self.add(spent);
        // A trainer without a batch may compile for minutes before it waits for the first one.
        } else if wait < EASE_PERCENT && total.batches > 0 {
            self.easy_looks += 1;
            if self.easy_looks >= EASY_LOOKS {
                self.easy_looks = 0;
                self.spare(spent);
            }
        }
        self.choice
    }

    /// The trainer is kept waiting: increases the scarce resource.
    fn add(&mut self, spent: &Spent) {
        let Choice { reading, computing, .. } = self.choice;
        let of = |sum: u64, threads: u64| percent(sum, spent.wall_us.saturating_mul(threads));
        let waits_for_room = percent(spent.room_us, spent.wall_us) >= ROOM_PERCENT;
        let waits_for_shards = percent(spent.read_wait_us, spent.wall_us) >= ROOM_PERCENT;
        if waits_for_room && of(spent.compute_us, computing) >= BUSY_PERCENT {
            self.too_few = self.too_few.max(computing);
            raise(&mut self.choice.computing, &mut self.reasons.computing, &self.computing);
        } else if waits_for_shards
            && of(spent.storage_us.saturating_add(spent.inflate_us), reading) >= BUSY_PERCENT
        {
            raise(&mut self.choice.reading, &mut self.reasons.reading, &self.reading);
        } else if waits_for_room {
            raise(&mut self.choice.prefetch, &mut self.reasons.prefetch, &self.prefetch);
        }
    }

    /// The trainer is not kept waiting: leaves it a core if the other cores can do the computing.
    fn spare(&mut self, spent: &Spent) {
        let fewer = self.choice.computing.saturating_sub(1);
        let fits = percent(spent.compute_us, spent.wall_us.saturating_mul(fewer)) < BUSY_PERCENT;
        if fewer >= self.computing.least.max(1) && fewer > self.too_few && fits {
            (self.choice.computing, self.reasons.computing) = (fewer, Reason::LeftToTrainer);
        }
    }
}

/// Adds one if the maximum allows it, and sets the reason.
fn raise(number: &mut u64, reason: &mut Reason, range: &Range) {
    let may = *number < range.most;
    *number += u64::from(may);
    *reason = match (range.is_fixed(), may) {
        (true, _) => Reason::Asked,
        (false, true) => Reason::KeptWaiting,
        (false, false) => Reason::AtMost,
    };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000;

    fn tuner() -> Tuner {
        Tuner::new(
            Range { start: 4, least: 1, most: 16 },
            Range { start: 4, least: 4, most: 16 },
            Range { start: 3, least: 1, most: 4 },
        )
    }

    /// One second, of which the trainer waited the given percentage.
    fn spent(wait_percent: u64) -> Spent {
        Spent {
            wall_us: SECOND,
            batches: 100,
            wait_us: wait_percent * SECOND / 100,
            work_us: (100 - wait_percent) * SECOND / 100,
            room_us: SECOND / 2,
            ..Spent::default()
        }
    }

    fn add(total: &mut Spent, more: &Spent) {
        let mut sums = serde_json::to_value(*total).unwrap();
        let more = serde_json::to_value(more).unwrap();
        for (name, sum) in sums.as_object_mut().unwrap() {
            *sum = (sum.as_u64().unwrap() + more[name].as_u64().unwrap()).into();
        }
        *total = serde_json::from_value(sums).unwrap();
    }

    /// A tuner, and the counters so far.
    struct Tuned(Tuner, Spent);

    impl Tuned {
        fn look(&mut self, more: &Spent) -> Choice {
            add(&mut self.1, more);
            self.0.look(&self.1)
        }
    }

    fn tuned() -> Tuned {
        Tuned(tuner(), Spent::default())
    }

    /// Counters of `batches` batches that cost `cpu_us` each, for a trainer that works `work_us` on
    /// each.
    fn machine(work_us: u64, cpu_us: u64, batches: u64, choice: Choice) -> Spent {
        let wait_us = (cpu_us / choice.computing).saturating_sub(work_us) * batches;
        Spent {
            wall_us: work_us * batches + wait_us,
            batches,
            wait_us,
            work_us: work_us * batches,
            room_us: work_us * batches + wait_us,
            compute_us: cpu_us * batches,
            ..Spent::default()
        }
    }

    #[test]
    fn no_thread_is_spared_before_the_first_batch() {
        let after_looks = |batches| {
            let mut tuned = tuned();
            let easy = Spent { batches, ..spent(0) };
            (0..4 * EASY_LOOKS).map(|_| tuned.look(&easy).computing).last()
        };
        assert_eq!((after_looks(0), after_looks(4)), (Some(3), Some(1)));
    }

    #[test]
    fn what_is_short_is_raised_and_why_is_said() {
        let mut decoding = tuned();
        decoding.look(&Spent { compute_us: 3 * SECOND, ..spent(50) });
        assert_eq!(decoding.0.choice(), Choice { prefetch: 4, reading: 4, computing: 4 });
        assert_eq!(decoding.0.reasons().computing, Reason::KeptWaiting);
        decoding.look(&Spent { compute_us: 4 * SECOND, ..spent(50) });
        assert_eq!(decoding.0.reasons().computing, Reason::AtMost);
        let waits = Spent { room_us: 0, read_wait_us: SECOND, storage_us: 4 * SECOND, ..spent(50) };
        assert_eq!(tuned().look(&waits).reading, 5);
        assert_eq!(tuned().look(&spent(10)).prefetch, 5);
    }

    #[test]
    fn what_was_asked_for_stays() {
        let (four, two) = (Range::fixed(4), Range::fixed(2));
        let mut tuned = Tuned(Tuner::new(four, four, two), Spent::default());
        for wait in [50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 90] {
            tuned.look(&Spent { compute_us: 2 * SECOND, ..spent(wait) });
        }
        tuned.0.fit_prefetch(1);
        assert_eq!(tuned.0.choice(), Choice { prefetch: 4, reading: 4, computing: 2 });
        assert_eq!(tuned.0.reasons().computing, Reason::Asked);
    }

    #[test]
    fn a_trainer_that_does_not_wait_gets_the_cores() {
        let mut tuned = tuned();
        for look in 0..100 {
            tuned.look(&machine(10_000, 1_000, 100, tuned.0.choice()));
            assert!(look > 0 || tuned.0.choice().computing == 2, "one core at once");
        }
        assert_eq!(tuned.0.choice().computing, 1);
        assert_eq!(tuned.0.reasons().computing, Reason::LeftToTrainer);
    }

    /// In virtual time, for any step time: a job that computing keeps waiting gets every core, and
    /// one that needs none releases them, after ten minutes or 40 batches at the latest.
    #[test]
    fn steps_of_a_millisecond_to_a_minute_are_tuned() {
        for work_us in [1, 10, 100, 167, 300, 600, 5_000, 60_000].map(|ms| ms * 1_000) {
            let range = |start| Range { start, least: 1, most: 4 };
            let after = |start: u64, cpu_us: u64| {
                let tuner = Tuner::new(Range::fixed(4), Range::fixed(4), range(start));
                let mut tuned = Tuned(tuner, Spent::default());
                let mut batches = 0;
                while tuned.1.wall_us < 600 * SECOND || batches < 40 {
                    batches += 1;
                    tuned.look(&machine(work_us, cpu_us, 1, tuned.0.choice()));
                }
                tuned.0.choice().computing
            };
            assert_eq!(after(1, 4 * work_us), 4, "steps of {work_us} us");
            assert_eq!(after(4, work_us / 10), 1, "steps of {work_us} us");
        }
    }

    #[test]
    fn a_batch_that_is_waited_for_is_enough_to_choose_from() {
        let mut tuned = tuned();
        let waits = Spent { batches: 0, compute_us: 3 * SECOND / 2, ..spent(100) };
        let waits = Spent { wall_us: SECOND / 2, wait_us: SECOND / 2, ..waits };
        (0..3).for_each(|_| assert_eq!(tuned.look(&waits).computing, 3, "too short a time"));
        assert_eq!(tuned.look(&waits).computing, 4);
    }

    proptest! {
        #[test]
        fn any_figures_leave_every_number_within_its_range(
            looks in prop::collection::vec(prop::array::uniform8(0u64..20 * SECOND), 1..60),
        ) {
            let mut tuned = tuned();
            for [wait_us, work_us, room_us, read_wait_us, storage_us, compute_us, wall_us, batches] in looks {
                let spent = Spent {
                    wait_us, work_us, room_us, read_wait_us, storage_us, compute_us, wall_us, batches,
                    ..Spent::default()
                };
                let before = tuned.0.choice();
                let Choice { prefetch, reading, computing } = tuned.look(&spent);
                prop_assert!((1..=16).contains(&prefetch) && (4..=16).contains(&reading));
                prop_assert!((1..=4).contains(&computing));
                let moved = prefetch.abs_diff(before.prefetch)
                    + reading.abs_diff(before.reading)
                    + computing.abs_diff(before.computing);
                prop_assert!(moved <= 1);
            }
        }

        #[test]
        fn settles_under_a_steady_load(cpu_us in 0u64..60_000) {
            let mut tuned = tuned();
            for _ in 0..300 {
                tuned.look(&machine(10_000, cpu_us, 100, tuned.0.choice()));
            }
            let settled = tuned.0.choice();
            for _ in 0..300 {
                prop_assert_eq!(tuned.look(&machine(10_000, cpu_us, 100, tuned.0.choice())), settled);
            }
            // With one thread fewer the trainer would wait, or no thread is superfluous.
            prop_assert!(settled.computing <= 4 && settled.computing * 20_000 >= cpu_us.min(40_000));
        }
    }
}
