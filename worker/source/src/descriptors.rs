//! The file descriptors of this process: one budget for the open shards of all its loaders.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Once, Weak};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::shared::Lock;

/// Value to which the soft limit is raised, or to the hard limit if that is lower. The soft limit
/// exists for programs that use `select`, which this one does not.
const LIMIT_RAISED: u64 = 65_536;

/// Divisor of the process's descriptor limit that gives the budget for open shards.
const SHARDS_PART: usize = 4;
/// Maximum of that budget.
const SHARDS_MAX: usize = 2048;

/// Minimum number of open shards of each loader.
const EACH_MIN: usize = 4;

/// Number of shards that each loader may hold open now.
static EACH: AtomicUsize = AtomicUsize::new(EACH_MIN);

static LOADERS: Lock<Loaders> = Lock::new(Loaders { process: 0, all: Vec::new() });

struct Loaders {
    process: u32,
    all: Vec<Weak<dyn Closing>>,
}

/// Open files that can be closed and opened again when they are needed.
pub(crate) trait Closing: Send + Sync {
    /// Closes the least recently used ones, at least half of them; returns their number.
    fn close_some(&self) -> usize;
}

/// Returns the number of descriptors that this process may have open, after raising the soft limit.
pub fn limit() -> usize {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let wanted = maximum.map_or(LIMIT_RAISED, |most| most.min(LIMIT_RAISED));
        if current.is_some_and(|now| now < wanted) {
            // If raising is refused, the limit is unchanged.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
        }
    });
    let current = getrlimit(Resource::Nofile).current;
    usize::try_from(current.unwrap_or(LIMIT_RAISED)).unwrap_or(usize::MAX)
}

fn lock() -> MutexGuard<'static, Loaders> {
    let mut loaders = LOADERS.lock();
    if loaders.process != std::process::id() {
        // After a fork the parent's loaders do not exist.
        (loaders.process, loaders.all) = (std::process::id(), Vec::new());
    }
    loaders.all.retain(|loader| loader.strong_count() > 0);
    loaders
}

fn divide(loaders: &Loaders) {
    let shards = (limit() / SHARDS_PART).min(SHARDS_MAX);
    EACH.store((shards / loaders.all.len().max(1)).max(EACH_MIN), Ordering::Relaxed);
}

/// Counts a loader that opens shards, until it is dropped.
pub(crate) fn add(loader: &Arc<impl Closing + 'static>) {
    let mut loaders = lock();
    let loader = Arc::downgrade(loader);
    loaders.all.push(loader);
    divide(&loaders);
}

/// Divides the budget again after a loader was dropped.
pub(crate) fn removed() {
    divide(&lock());
}

/// Returns the number of shards that each loader may hold open now.
pub(crate) fn each() -> usize {
    EACH.load(Ordering::Relaxed)
}

/// Runs `open`; if no descriptor is left, closes shards of all loaders and retries.
///
/// # Errors  As `open`.
pub fn with<T, E>(
    mut open: impl FnMut() -> Result<T, E>,
    is_short: impl Fn(&E) -> bool,
) -> Result<T, E> {
    loop {
        match open() {
            Err(error) if is_short(&error) && close_some() > 0 => {}
            other => return other,
        }
    }
}

/// True if the process or the system has no descriptor left.
pub fn is_short(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].into_iter().any(|short| errno == Some(short.raw_os_error()))
}

fn close_some() -> usize {
    // Closes without the lock: a file that a loader is using stays open.
    let all: Vec<_> = lock().all.iter().filter_map(Weak::upgrade).collect();
    all.iter().map(|loader| loader.close_some()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Loader(Lock<usize>);

    impl Closing for Loader {
        fn close_some(&self) -> usize {
            let mut open = self.0.lock();
            let closed = open.div_ceil(2);
            *open -= closed;
            closed
        }
    }

    #[test]
    fn what_finds_no_descriptor_is_tried_again_while_there_is_something_to_close() {
        let loader = Arc::new(Loader(Lock::new(5)));
        add(&loader);
        let short = || io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        let mut tries = 0;
        let opened = with(
            || {
                tries += 1;
                let is_closed = *loader.0.lock() == 0;
                is_closed.then_some(()).ok_or_else(short)
            },
            is_short,
        );
        // 5, 2, 1 and none.
        assert!(opened.is_ok() && tries == 4, "{tries}");
        let refused = with(|| Err::<(), _>(short()), is_short);
        assert!(is_short(&refused.unwrap_err()));
        let other = with(|| Err::<(), _>(io::Error::from_raw_os_error(2)), is_short);
        assert_eq!(other.unwrap_err().raw_os_error(), Some(2));
    }
}
