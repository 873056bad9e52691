//! Waiting for a thread or a task, which is abandoned when the caller cancels.

use std::future::Future;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::LoadError;

/// Interval at which a waiting caller is asked whether to continue.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Waits for a result.
/// - `go_on`: called now and then; `false` cancels.
///
/// # Errors  The received one; `Interrupted`; `ReaderLost` if the sender ended without a result.
pub(crate) fn receive<T>(
    receiver: &Receiver<Result<T, LoadError>>,
    mut go_on: impl FnMut() -> bool,
) -> Result<T, LoadError> {
    loop {
        match receiver.recv_timeout(ASK_EVERY) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if go_on() => {}
            Err(RecvTimeoutError::Timeout) => return Err(LoadError::Interrupted),
            Err(RecvTimeoutError::Disconnected) => return Err(LoadError::ReaderLost),
        }
    }
}

/// Work of a runtime; cancelled when dropped.
#[derive(Debug)]
pub struct Task<T> {
    result: Receiver<Result<T, LoadError>>,
    handle: JoinHandle<()>,
}

impl<T: Send + 'static> Task<T> {
    pub fn spawn(
        runtime: &Handle,
        work: impl Future<Output = Result<T, LoadError>> + Send + 'static,
    ) -> Self {
        let (sender, result) = bounded(1);
        let handle = runtime.spawn(async move {
            // The receiver is gone if the work was cancelled.
            let _ = sender.send(work.await);
        });
        Self { result, handle }
    }

    /// Waits for the result.
    /// - `go_on`: called now and then; `false` cancels.
    ///
    /// # Errors  That of the work; `Interrupted`; `ReaderLost` if the work panicked.
    pub fn wait(&self, go_on: impl FnMut() -> bool) -> Result<T, LoadError> {
        receive(&self.result, go_on)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}
