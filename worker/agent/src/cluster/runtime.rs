//! The threads that wait for the network.

use std::sync::Arc;

use shardfeed_source::PerProcess;
use tokio::runtime::{Builder, Handle, Runtime};

/// Waiting for the network takes little work; with two, a busy thread does not block other calls.
const THREADS: usize = 2;

/// Returns the runtime of this process, created on first use.
pub(crate) fn runtime() -> Handle {
    static RUNTIME: PerProcess<Arc<Runtime>> = PerProcess::new();
    let make = || {
        let made = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("shardfeed-net")
            .enable_all()
            .build();
        Arc::new(made.expect("the system has threads for the network"))
    };
    RUNTIME.get(|_| true, make).handle().clone()
}
