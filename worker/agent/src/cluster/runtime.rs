//! The threads that wait for the network.

use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};

/// Waiting for the network takes little work; with two threads, a busy one does not block other
/// calls.
const THREADS: usize = 2;

/// Returns the runtime of this process, created on first use.
pub(crate) fn runtime() -> Handle {
    static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((of, runtime)) = &*runtime
        && *of == process
    {
        return runtime.handle().clone();
    }
    let made = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("shardfeed-net")
        .enable_all()
        .build()
        .expect("the system has threads for the network");
    let handle = made.handle().clone();
    // After a fork the threads of the parent's runtime do not exist, so it must not be dropped.
    std::mem::forget(runtime.replace((process, made)));
    handle
}
