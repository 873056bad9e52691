//! Signs of life of a thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time of a thread's last sign of life.
#[derive(Debug)]
pub(crate) struct Pulse {
    begun: Instant,
    seen_ms: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), seen_ms: AtomicU64::new(0) }
    }

    #[cfg(test)]
    pub(crate) fn silent_since(begun: Instant) -> Self {
        Self { begun, seen_ms: AtomicU64::new(0) }
    }

    pub(crate) fn beat(&self) {
        self.seen_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    pub(crate) fn silent(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.seen_ms.load(Ordering::Relaxed)))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
