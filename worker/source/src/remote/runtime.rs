//! The threads that wait for object stores. They are separate from those for the coordinator, whose
//! heartbeats must not wait for the decryption of data.

use std::future::Future;
use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use crate::error::LoadError;
use crate::shared::PerProcess;
use crate::wait::receive;

/// Decryption takes one core for about 1 GB/s; two threads saturate a host's network.
const THREADS: usize = 2;

/// Maximum number of concurrent reads and writes of cached blocks: they wait for a disk.
const DISK_THREADS: usize = 8;

/// Returns the runtime of this process, created on first use.
fn runtime() -> Handle {
    static RUNTIME: PerProcess<Arc<Runtime>> = PerProcess::new();
    let make = || {
        let made = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(DISK_THREADS)
            .thread_name("shardfeed-store")
            .enable_all()
            .build();
        Arc::new(made.expect("the system has threads for the network"))
    };
    RUNTIME.get(|_| true, make).handle().clone()
}

/// Work for a store; cancelled when dropped.
#[derive(Debug)]
pub(super) struct Task<T> {
    result: Receiver<Result<T, LoadError>>,
    handle: JoinHandle<()>,
}

impl<T: Send + 'static> Task<T> {
    pub(super) fn spawn(work: impl Future<Output = Result<T, LoadError>> + Send + 'static) -> Self {
        let (sender, result) = bounded(1);
        let handle = runtime().spawn(async move {
            // The receiver is gone if the work was cancelled.
            let _ = sender.send(work.await);
        });
        Self { result, handle }
    }

    /// Waits for the result: see [`receive`].
    pub(super) fn wait(&self, go_on: impl FnMut() -> bool) -> Result<T, LoadError> {
        receive(&self.result, go_on)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}
