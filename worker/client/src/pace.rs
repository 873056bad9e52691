//! How long a trainer works on a batch, and how long it waits for the next.

use std::time::{Duration, Instant};

use shardfeed_agent::{Demand, trace};

use crate::loader::Head;

/// A wait for a batch is told to whoever reads when it takes so long, and again so often.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What a trainer does, from one call to the next.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
    since_ns: u64,
    is_waiting: bool,
    /// It told last that it had waited so long.
    told: Duration,
    /// It worked so long before the wait that is under way.
    worked: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let (told, worked) = (Duration::ZERO, Duration::ZERO);
        Self { since: Instant::now(), since_ns: trace::now_ns(), is_waiting: false, told, worked }
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

    /// There is none in this epoch: what it does until it asks again is its own.
    pub(crate) fn rests(&mut self) {
        self.turn(false);
    }

    /// How long it has waited for its next batch, if that is to be told now.
    pub(crate) fn tells(&mut self) -> Option<Duration> {
        let waited = self.since.elapsed();
        if !self.is_waiting || waited < self.told + TELL_EVERY {
            return None;
        }
        self.told = waited;
        Some(waited)
    }

    /// How long it has waited for its next batch by now, and how long it is since it got the last one.
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

/// Microseconds of a time, as it is told.
pub(crate) fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
