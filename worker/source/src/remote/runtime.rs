//! The threads that wait for object stores. They are separate from those for the coordinator, whose
//! heartbeats must not wait for the decryption of data.

use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::shared::PerProcess;

/// Decryption takes one core for about 1 GB/s; two threads saturate a host's network.
const THREADS: usize = 2;

/// Maximum number of concurrent reads and writes of cached blocks: they wait for a disk.
const DISK_THREADS: usize = 8;

/// Returns the runtime of this process, created on first use.
pub(super) fn runtime() -> Handle {
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
