//! Threads that wait for storage, so that the ones that compute never do.

use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};

/// Reads waiting for a thread at most; whoever asks for more waits.
const QUEUE_MAX: usize = 1024;

type Task = Box<dyn FnOnce() + Send>;

/// A fixed number of threads for blocking reads.
#[derive(Debug)]
pub(crate) struct IoPool {
    tasks: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
}

impl IoPool {
    /// Starts `threads` threads.
    ///
    /// # Errors  The system has none.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let (tasks, queue) = bounded::<Task>(QUEUE_MAX);
        let start = |index| {
            let queue = queue.clone();
            let work = move || queue.iter().for_each(|task| task());
            std::thread::Builder::new().name(format!("shardfeed-io-{index}")).spawn(work)
        };
        let threads = (0..threads).map(start).collect::<Result<_, _>>()?;
        Ok(Self { tasks: Some(tasks), threads })
    }

    /// Runs `task` on one of the threads.
    pub(crate) fn spawn(&self, task: impl FnOnce() + Send + 'static) {
        let tasks = self.tasks.as_ref().expect("taken only by drop");
        tasks.send(Box::new(task)).expect("the threads live until drop");
    }
}

impl Drop for IoPool {
    fn drop(&mut self) {
        drop(self.tasks.take());
        let here = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last owner may be a task itself.
            if thread.thread().id() != here && thread.join().is_err() {
                tracing::error!("a reading thread panicked");
            }
        }
    }
}
