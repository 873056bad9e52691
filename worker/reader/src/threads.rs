//! The computing threads of a process, shared by its loaders.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

use shardfeed_source::{Lock, PerProcess};

/// Requested number of computing threads; 0: none was requested.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Sets the number of computing threads of this process; `None`: chosen while reading, at most one
/// for each core. Call it before the first of them is needed.
pub fn use_threads(threads: Option<usize>) {
    THREADS.store(threads.unwrap_or(0), Ordering::Relaxed);
}

/// Returns the cores available to this process, as of the first call: determining them reads files,
/// which costs as much as a small batch.
pub(crate) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(2, usize::from))
}

/// Computing threads that each loader of a process would use.
#[derive(Debug)]
struct Shares {
    process: u32,
    next: u64,
    threads: BTreeMap<u64, usize>,
}

static SHARES: Lock<Shares> = Lock::new(Shares { process: 0, next: 0, threads: BTreeMap::new() });

/// A loader's part of the computing threads; any free thread works for any loader.
#[derive(Debug)]
pub(crate) struct Share {
    number: u64,
}

impl Share {
    fn lock() -> MutexGuard<'static, Shares> {
        let mut shares = SHARES.lock();
        if shares.process != std::process::id() {
            // After a fork the parent's loaders do not exist.
            (shares.process, shares.threads) = (std::process::id(), BTreeMap::new());
        }
        shares
    }

    pub(crate) fn new(threads: usize) -> Self {
        let mut shares = Self::lock();
        shares.next += 1;
        let number = shares.next;
        shares.threads.insert(number, threads);
        Self { number }
    }

    pub(crate) fn set(&self, threads: usize) {
        if let Some(share) = Self::lock().threads.get_mut(&self.number) {
            *share = threads;
        }
    }

    /// Returns the requested number, for all loaders together.
    pub(crate) fn asked() -> Option<usize> {
        Some(THREADS.load(Ordering::Relaxed)).filter(|asked| *asked > 0)
    }

    /// Returns the number of computing threads.
    pub(crate) fn threads() -> usize {
        Self::asked().unwrap_or_else(|| {
            let shares: usize = Self::lock().threads.values().sum();
            shares.clamp(1, cores())
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        Self::lock().threads.remove(&self.number);
    }
}

/// Returns the computing threads of this process, shared by all its loaders.
pub(crate) fn computing() -> Arc<rayon::ThreadPool> {
    static POOL: PerProcess<Arc<rayon::ThreadPool>> = PerProcess::new();
    let threads = Share::threads();
    let make = || {
        let builder = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("shardfeed-cpu-{index}"))
            .panic_handler(|_| tracing::error!("a computing thread panicked"));
        Arc::new(builder.build().expect("the system has threads for computing"))
    };
    // The threads of a replaced pool end with their current work.
    POOL.get(|pool| pool.current_num_threads() == threads, make)
}
