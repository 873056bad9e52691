//! The threads that wait for object stores: others than those for the coordinator, whose heartbeats
//! must not wait behind the decryption of data.

use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};

/// Decrypting takes a core for about a gigabyte per second; two are as much as a host's network gives.
const THREADS: usize = 2;

/// Reads and writes of cached blocks at once: they wait for a disk.
const DISK_THREADS: usize = 8;

/// The runtime of this process, made when first asked for.
pub(super) fn runtime() -> Handle {
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
        .max_blocking_threads(DISK_THREADS)
        .thread_name("shardfeed-store")
        .enable_all()
        .build()
        .expect("the system has threads for the network");
    let handle = made.handle().clone();
    // After a fork the threads of the parent's runtime are not there: it can only be forgotten.
    std::mem::forget(runtime.replace((process, made)));
    handle
}
