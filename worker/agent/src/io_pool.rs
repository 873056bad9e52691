//! Threads that wait for storage, so that the ones that compute never do.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::{Sender, bounded};

/// Reads waiting for a thread at most; whoever asks for more waits.
const QUEUE_MAX: usize = 1024;

type Task = Box<dyn FnOnce() + Send>;

/// A fixed number of threads for blocking reads. They end with the last task after the pool is
/// dropped, and are not waited for: storage that hangs must not hang who closes a loader.
#[derive(Debug)]
pub(crate) struct IoPool {
    tasks: Sender<Task>,
}

impl IoPool {
    /// Starts `threads` threads.
    ///
    /// # Errors  The system has none.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let (tasks, queue) = bounded::<Task>(QUEUE_MAX);
        for index in 0..threads {
            let queue = queue.clone();
            // A task that panics leaves its place to its ticket; the thread goes on.
            let work = move || {
                for task in queue {
                    let _ = catch_unwind(AssertUnwindSafe(task));
                }
            };
            std::thread::Builder::new().name(format!("shardfeed-io-{index}")).spawn(work)?;
        }
        Ok(Self { tasks })
    }

    /// Runs `task` on one of the threads.
    pub(crate) fn spawn(&self, task: impl FnOnce() + Send + 'static) {
        self.tasks.send(Box::new(task)).expect("the threads live while the pool does");
    }
}
