//! Waiting for a thread or a task, which is abandoned when the caller cancels.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

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
