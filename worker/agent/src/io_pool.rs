//! Threads that wait for storage, so that the ones that compute never do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};

/// Reads waiting for a thread at most; whoever asks for more waits.
const QUEUE_MAX: usize = 1024;

type Task = Box<dyn FnOnce() + Send>;

/// A fixed number of threads for blocking reads. They end with the last task after the pool is
/// dropped, and are not waited for: storage that hangs must not hang who closes a loader.
#[derive(Debug)]
pub(crate) struct IoPool {
    tasks: Sender<Task>,
    queue: Receiver<Task>,
    threads: AtomicUsize,
}

impl IoPool {
    /// Starts `threads` threads.
    ///
    /// # Errors  The system has none.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let (tasks, queue) = bounded::<Task>(QUEUE_MAX);
        let pool = Self { tasks, queue, threads: AtomicUsize::new(0) };
        for index in 0..threads {
            pool.add(index)?;
        }
        pool.threads.store(threads, Ordering::Relaxed);
        Ok(pool)
    }

    fn add(&self, index: usize) -> std::io::Result<()> {
        let queue = self.queue.clone();
        // A task that panics leaves its place to its ticket; the thread goes on.
        let work = move || {
            for task in queue {
                let _ = catch_unwind(AssertUnwindSafe(task));
            }
        };
        std::thread::Builder::new().name(format!("shardfeed-io-{index}")).spawn(work).map(drop)
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.threads.load(Ordering::Relaxed)
    }

    /// Starts threads until there are `threads`, as far as the system has some. One caller at a time.
    pub(crate) fn grow_to(&self, threads: usize) {
        for index in self.threads()..threads {
            if let Err(error) = self.add(index) {
                tracing::warn!(%error, "no further reading thread");
                return;
            }
            self.threads.store(index + 1, Ordering::Relaxed);
        }
    }

    /// Runs `task` on one of the threads.
    pub(crate) fn spawn(&self, task: impl FnOnce() + Send + 'static) {
        self.tasks.send(Box::new(task)).expect("the threads live while the pool does");
    }
}
