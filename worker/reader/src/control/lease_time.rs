//! The clock for leases of dynamic jobs. It also counts while the host is suspended, as the
//! coordinator's clock does; `std::time::Instant` stops then.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment on CLOCK_BOOTTIME.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseTime(Duration);

impl LeaseTime {
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        // The clock starts at 0 and never goes back, and a part of a second is below 1e9.
        Self(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for LeaseTime {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}
