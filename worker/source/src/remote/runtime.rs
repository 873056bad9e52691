//! The threads that wait for object stores. They are separate from those for the coordinator, whose
//! heartbeats must not wait for the decryption of data.

use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};

/// Decryption takes one core for about 1 GB/s; two threads saturate a host's network.
const THREADS: usize = 2;

/// Maximum number of concurrent reads and writes of cached blocks: they wait for a disk.
const DISK_THREADS: usize = 8;

/// Returns the runtime of this process, created on first use.
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
    // After a fork the threads of the parent's runtime do not exist, so it must not be dropped.
    std::mem::forget(runtime.replace((process, made)));
    handle
}
