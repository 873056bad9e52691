//! How long a trainer works on a batch, and how long it waits for the next.

use std::time::{Duration, Instant};

use shardfeed_agent::{Delivered, Demand, trace};

/// What a trainer does, from one call to the next.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
    since_ns: u64,
    is_waiting: bool,
    /// It worked so long before the wait that is under way.
    worked: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { since: Instant::now(), since_ns: 0, is_waiting: true, worked: Duration::ZERO }
    }
}

impl Pace {
    /// It asks for a batch.
    pub(crate) fn asks(&mut self) {
        if !self.is_waiting {
            trace::since("trainer works", self.since_ns);
            self.worked = self.since.elapsed();
            self.turn(true);
        }
    }

    /// It gets one.
    pub(crate) fn gets(&mut self, delivered: &Delivered) -> Demand {
        trace::since("trainer waits", self.since_ns);
        let demand = Demand {
            epoch: delivered.epoch,
            samples: delivered.batch.rows as u64,
            bytes: delivered.batch.slot.size_bytes() as u64,
            wait: self.since.elapsed(),
            work: self.worked,
            copy: Duration::ZERO,
        };
        self.worked = Duration::ZERO;
        self.turn(false);
        demand
    }

    fn turn(&mut self, is_waiting: bool) {
        (self.since, self.since_ns, self.is_waiting) =
            (Instant::now(), trace::now_ns(), is_waiting);
    }
}
