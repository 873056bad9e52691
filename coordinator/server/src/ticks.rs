//! Ticks of a background loop.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};

#[derive(Debug)]
pub(crate) struct Ticks {
    interval: Interval,
    stop: watch::Receiver<bool>,
}

impl Ticks {
    pub(crate) fn new(every: Duration, stop: watch::Receiver<bool>) -> Self {
        let mut interval = tokio::time::interval(every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { interval, stop }
    }

    /// True once `stop` is set: ends work of many steps that began at a tick.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits for the next tick, the first one of which is now; false once `stop` is set.
    pub(crate) async fn next(&mut self) -> bool {
        if self.is_stopped() {
            return false;
        }
        tokio::select! {
            _ = self.interval.tick() => true,
            _ = self.stop.changed() => false,
        }
    }
}
