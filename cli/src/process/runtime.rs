//! The runtime of a process, and of commands that call one.

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

/// Creates the runtime that serves calls.
/// - `threads`: number of threads; `None`: one for each core.
pub(crate) fn runtime(threads: Option<usize>) -> anyhow::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().context("start the process's threads")
}
