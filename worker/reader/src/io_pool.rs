//! Threads that wait for storage, so that computing threads never do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};

/// Maximum number of queued reads; further callers wait.
const QUEUE_MAX: usize = 1024;

type ReadTask = Box<dyn FnOnce() + Send>;

/// Threads for blocking reads. They end with the last task after the pool is dropped, and are not
/// joined: hung storage must not block the caller that closes a loader.
#[derive(Debug)]
pub(crate) struct IoPool {
    tasks: Sender<ReadTask>,
    queue: Receiver<ReadTask>,
    threads: AtomicUsize,
}

impl IoPool {
    /// Starts `threads` threads.
    ///
    /// # Errors  The system cannot start them.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let (tasks, queue) = bounded::<ReadTask>(QUEUE_MAX);
        let pool = Self { tasks, queue, threads: AtomicUsize::new(0) };
        for index in 0..threads {
            pool.add(index)?;
        }
        pool.threads.store(threads, Ordering::Relaxed);
        Ok(pool)
    }

    fn add(&self, index: usize) -> std::io::Result<()> {
        let queue = self.queue.clone();
        // The ticket of a task that panics reports the failure; the thread continues.
        let work = move || {
            for task in queue {
                let _ = catch_unwind(AssertUnwindSafe(task));
            }
        };
        std::thread::Builder::new().name(format!("shardfeed-io-{index}")).spawn(work).map(drop)
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.load(Ordering::Relaxed)
    }

    /// Starts threads until there are `threads`, or the system refuses. One caller at a time.
    pub(crate) fn grow_to(&self, threads: usize) {
        for index in self.threads()..threads {
            if let Err(error) = self.add(index) {
                tracing::warn!(%error, "no further reading thread");
                return;
            }
            self.threads.store(index + 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn spawn(&self, task: impl FnOnce() + Send + 'static) {
        self.tasks.send(Box::new(task)).expect("the threads live while the pool does");
    }
}
