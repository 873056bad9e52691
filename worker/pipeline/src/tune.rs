//! How many batches ahead and how many threads, from what was spent. Nothing of it changes a batch.
//! Source: docs/RUNNING.md, Where time goes.
//!
//! Every number only grows but that of the computing threads, and that never falls to one with which
//! the trainer was kept waiting. So after a bounded number of changes there are no more, as long as
//! demand stays what it is.

use serde::{Deserialize, Serialize};

use crate::account::Spent;

/// A trainer that waits at least this part of its time, in percent, is kept waiting;
const WAIT_PERCENT: u64 = 5;
/// one that waits less than this is not.
const EASE_PERCENT: u64 = 2;

/// Looks in a row at which a trainer was not kept waiting, before a thread is spared.
const EASY_LOOKS: u64 = 8;

/// Threads that compute for so much of their time, in percent, are busy.
const BUSY_PERCENT: u64 = 70;

/// Room for batches was waited for so much of the time, in percent: planning had nothing else to do.
const ROOM_PERCENT: u64 = 20;

/// Batches that a look must have seen, to say something.
const BATCHES_MIN: u64 = 4;

/// A number that is chosen: as it is now, and how far it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// To begin with.
    pub start: u64,
    /// At least, 1 or more.
    pub least: u64,
    /// At most.
    pub most: u64,
}

impl Range {
    /// A number that somebody asked for, and nobody changes.
    pub fn fixed(number: u64) -> Self {
        Self { start: number, least: number, most: number }
    }

    fn is_fixed(&self) -> bool {
        self.least == self.most
    }
}

/// What is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Batches ahead at most.
    pub prefetch: u64,
    /// Threads that wait for storage.
    pub reading: u64,
    /// Threads that compute.
    pub computing: u64,
}

/// Why a number is what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Nothing was seen yet that would change it.
    #[default]
    Start,
    /// Somebody asked for it.
    Asked,
    /// The trainer was kept waiting with fewer.
    KeptWaiting,
    /// The trainer was not kept waiting, and fewer are enough: the cores are its own.
    LeftToTrainer,
    /// More do not fit: into the memory budget, or on the cores.
    AtMost,
}

impl Reason {
    /// In words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Start => "to begin with",
            Self::Asked => "as asked",
            Self::KeptWaiting => "the trainer was kept waiting with fewer",
            Self::LeftToTrainer => "fewer are enough, the other cores are the trainer's",
            Self::AtMost => "more do not fit",
        }
    }
}

/// Why each number is what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasons {
    /// Of the batches ahead.
    pub prefetch: Reason,
    /// Of the reading threads.
    pub reading: Reason,
    /// Of the computing threads.
    pub computing: Reason,
}

/// Chooses as time goes by.
#[derive(Clone, Debug)]
pub struct Tuner {
    prefetch: Range,
    reading: Range,
    computing: Range,
    choice: Choice,
    reasons: Reasons,
    /// The most computing threads with which the trainer was kept waiting.
    too_few: u64,
    easy_looks: u64,
}

impl Tuner {
    /// Begins with the ranges' starts.
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
            easy_looks: 0,
            prefetch,
            reading,
            computing,
        }
    }

    /// What is chosen.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Why.
    pub fn reasons(&self) -> Reasons {
        self.reasons
    }

    /// The memory budget holds so many batches ahead at most.
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

    /// Looks at what was spent since the last look; at most one number changes.
    pub fn look(&mut self, spent: &Spent) -> Choice {
        if spent.batches < BATCHES_MIN || spent.wall_us == 0 {
            return self.choice;
        }
        let wait = percent(spent.wait_us, spent.wait_us.saturating_add(spent.work_us));
        if wait >= WAIT_PERCENT {
            self.easy_looks = 0;
            self.add(spent);
        } else if wait < EASE_PERCENT {
            self.easy_looks += 1;
            if self.easy_looks >= EASY_LOOKS {
                self.easy_looks = 0;
                self.spare(spent);
            }
        }
        self.choice
    }

    /// The trainer is kept waiting: more of what is short.
    fn add(&mut self, spent: &Spent) {
        let Choice { reading, computing, .. } = self.choice;
        let of = |sum: u64, threads: u64| percent(sum, spent.wall_us.saturating_mul(threads));
        let waits_for_room = percent(spent.room_us, spent.wall_us) >= ROOM_PERCENT;
        let waits_for_shards = percent(spent.read_wait_us, spent.wall_us) >= ROOM_PERCENT;
        if waits_for_room && of(spent.compute_us, computing) >= BUSY_PERCENT {
            self.too_few = self.too_few.max(computing);
            let more = raised(&mut self.choice.computing, &self.computing);
            told(&mut self.reasons.computing, &self.computing, more);
        } else if waits_for_shards
            && of(spent.storage_us.saturating_add(spent.inflate_us), reading) >= BUSY_PERCENT
        {
            let more = raised(&mut self.choice.reading, &self.reading);
            told(&mut self.reasons.reading, &self.reading, more);
        } else if waits_for_room {
            let more = raised(&mut self.choice.prefetch, &self.prefetch);
            told(&mut self.reasons.prefetch, &self.prefetch, more);
        }
    }

    /// The trainer is not kept waiting: it gets a core if what is computed fits on the others.
    fn spare(&mut self, spent: &Spent) {
        let fewer = self.choice.computing.saturating_sub(1);
        let fits = percent(spent.compute_us, spent.wall_us.saturating_mul(fewer)) < BUSY_PERCENT;
        if fewer >= self.computing.least.max(1) && fewer > self.too_few && fits {
            (self.choice.computing, self.reasons.computing) = (fewer, Reason::LeftToTrainer);
        }
    }
}

/// One more, if there may be.
fn raised(number: &mut u64, range: &Range) -> bool {
    let may = *number < range.most;
    *number += u64::from(may);
    may
}

fn told(reason: &mut Reason, range: &Range, more: bool) {
    *reason = match (range.is_fixed(), more) {
        (true, _) => Reason::Asked,
        (false, true) => Reason::KeptWaiting,
        (false, false) => Reason::AtMost,
    };
}

fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0)
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

    /// A machine on which so much must be computed for each second of training.
    fn machine(cpu_us: u64, choice: Choice) -> Spent {
        let needs_us = cpu_us / choice.computing;
        let late_us = needs_us.saturating_sub(SECOND);
        Spent {
            wall_us: SECOND + late_us,
            batches: 100,
            wait_us: late_us,
            work_us: SECOND,
            room_us: SECOND,
            compute_us: cpu_us,
            ..Spent::default()
        }
    }

    #[test]
    fn what_is_short_is_raised_and_why_is_said() {
        let mut decoding = tuner();
        decoding.look(&Spent { compute_us: 3 * SECOND, ..spent(50) });
        assert_eq!(decoding.choice(), Choice { prefetch: 4, reading: 4, computing: 4 });
        assert_eq!(decoding.reasons().computing, Reason::KeptWaiting);
        decoding.look(&Spent { compute_us: 4 * SECOND, ..spent(50) });
        assert_eq!(decoding.reasons().computing, Reason::AtMost);
        let mut storage = tuner();
        let waits = Spent { room_us: 0, read_wait_us: SECOND, storage_us: 4 * SECOND, ..spent(50) };
        assert_eq!(storage.look(&waits).reading, 5);
        let mut bursts = tuner();
        assert_eq!(bursts.look(&spent(10)).prefetch, 5);
    }

    #[test]
    fn what_was_asked_for_stays() {
        let (four, two) = (Range::fixed(4), Range::fixed(2));
        let mut tuner = Tuner::new(four, four, two);
        for wait in [50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 90] {
            tuner.look(&Spent { compute_us: 2 * SECOND, ..spent(wait) });
        }
        tuner.fit_prefetch(1);
        assert_eq!(tuner.choice(), Choice { prefetch: 4, reading: 4, computing: 2 });
        assert_eq!(tuner.reasons().computing, Reason::Asked);
    }

    #[test]
    fn a_trainer_that_does_not_wait_gets_the_cores() {
        let mut tuner = tuner();
        for _ in 0..100 {
            tuner.look(&machine(SECOND / 10, tuner.choice()));
        }
        assert_eq!(tuner.choice().computing, 1);
        assert_eq!(tuner.reasons().computing, Reason::LeftToTrainer);
    }

    proptest! {
        #[test]
        fn any_figures_leave_every_number_within_its_range(
            looks in prop::collection::vec(prop::array::uniform8(0u64..20 * SECOND), 1..60),
        ) {
            let mut tuner = tuner();
            for [wait_us, work_us, room_us, read_wait_us, storage_us, compute_us, wall_us, batches] in looks {
                let spent = Spent {
                    wait_us, work_us, room_us, read_wait_us, storage_us, compute_us, wall_us, batches,
                    ..Spent::default()
                };
                let before = tuner.choice();
                let Choice { prefetch, reading, computing } = tuner.look(&spent);
                prop_assert!((1..=16).contains(&prefetch) && (4..=16).contains(&reading));
                prop_assert!((1..=4).contains(&computing));
                let moved = prefetch.abs_diff(before.prefetch)
                    + reading.abs_diff(before.reading)
                    + computing.abs_diff(before.computing);
                prop_assert!(moved <= 1);
            }
        }

        #[test]
        fn settles_under_a_steady_load(cpu_us in 0u64..6 * SECOND) {
            let mut tuner = tuner();
            for _ in 0..300 {
                tuner.look(&machine(cpu_us, tuner.choice()));
            }
            let settled = tuner.choice();
            for _ in 0..300 {
                prop_assert_eq!(tuner.look(&machine(cpu_us, tuner.choice())), settled);
            }
            // With one thread fewer the trainer would wait, or it has no thread too many.
            prop_assert!(settled.computing <= 4 && settled.computing * SECOND * 2 >= cpu_us.min(4 * SECOND));
        }
    }
}
