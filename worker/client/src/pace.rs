//! Measures how long a trainer works on a batch, and how long it waits for the next.

use std::time::{Duration, Instant};

use shardfeed_reader::Demand;
use shardfeed_source::trace;

use crate::head::Head;

/// A wait for a batch is reported to the reader after this time, and again at this interval.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Timing of a trainer between calls.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
    since_ns: u64,
    is_waiting: bool,
    /// Waiting time that was reported last.
    told: Duration,
    /// Work time before the wait in progress.
    worked: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let (told, worked) = (Duration::ZERO, Duration::ZERO);
        Self { since: Instant::now(), since_ns: trace::now_ns(), is_waiting: false, told, worked }
    }
}

impl Pace {
    /// The trainer requests a batch.
    pub(crate) fn asks(&mut self) {
        if !self.is_waiting {
            trace::since("trainer works", self.since_ns);
            self.worked = self.since.elapsed();
            self.turn(true);
        }
    }

    /// The trainer receives a batch.
    pub(crate) fn gets(&mut self, head: &Head) -> Demand {
        trace::since("trainer waits", self.since_ns);
        let demand = Demand {
            epoch: head.epoch,
            samples: head.rows,
            bytes: head.bytes,
            wait: self.since.elapsed(),
            work: self.worked,
            copy: Duration::ZERO,
            tells_waits: true,
        };
        self.worked = Duration::ZERO;
        self.turn(false);
        demand
    }

    /// The epoch has no further batch; time until the next request counts as the trainer's work.
    pub(crate) fn rests(&mut self) {
        self.turn(false);
    }

    /// Returns how long the trainer has waited for its next batch, if a report is due.
    pub(crate) fn tells(&mut self) -> Option<Duration> {
        let waited = self.since.elapsed();
        if !self.is_waiting || waited < self.told + TELL_EVERY {
            return None;
        }
        self.told = waited;
        Some(waited)
    }

    /// Returns the time waited so far for the next batch, and the time since the last one arrived.
    pub(crate) fn stands(&self) -> (Duration, Duration) {
        let since = self.since.elapsed();
        match self.is_waiting {
            true => (since, since + self.worked),
            false => (Duration::ZERO, since),
        }
    }

    fn turn(&mut self, is_waiting: bool) {
        (self.since, self.since_ns, self.is_waiting) =
            (Instant::now(), trace::now_ns(), is_waiting);
        self.told = Duration::ZERO;
    }
}

/// Converts a time to microseconds, as reported.
pub(crate) fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
