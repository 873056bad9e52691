//! Counters of reads from storage, shared by all readers of one loader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::remote::RemoteStats;
use crate::shared::Lock;
use crate::trace;

/// Counters of reads from storage.
#[derive(Debug, Default)]
pub struct StorageMeter {
    /// Counters of requests to object stores.
    pub(crate) remote: Arc<Lock<RemoteStats>>,
    wait_ns: AtomicU64,
    bytes: AtomicU64,
}

impl StorageMeter {
    /// Counts a read of stored bytes; its time without computing is the wait for storage.
    pub(crate) fn read<E>(&self, read: impl FnOnce() -> Result<usize, E>) -> Result<usize, E> {
        let _span = trace::span("read");
        let (begun, cpu_ns) = (Instant::now(), trace::thread_ns());
        let result = read();
        let computed_ns = trace::thread_ns().saturating_sub(cpu_ns);
        let took_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.wait_ns.fetch_add(took_ns.saturating_sub(computed_ns), Ordering::Relaxed);
        if let Ok(bytes) = &result {
            self.bytes.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
        result
    }

    /// Returns the time of all threads' waits for storage, us.
    pub fn wait_us(&self) -> u64 {
        self.wait_ns.load(Ordering::Relaxed) / 1000
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the requests to object stores so far.
    pub fn remote(&self) -> RemoteStats {
        *self.remote.lock()
    }
}
