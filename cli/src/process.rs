//! Processes of a cluster: `coordinator start`, `worker start`, and both in one for a first try.
//!
//! `shardfeed-coordinator` and `shardfeed-agent` implement them; this module has the options, the
//! signals, and the line on stdout that reports that a process is ready.

mod config;
mod coordinator;
mod endpoint;
mod manager;
mod measures;
mod pages;
mod places;
#[cfg(test)]
mod reference;
mod settings;
mod stop;
mod up;
mod worker;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

pub(crate) use coordinator::CoordinatorCommand;
pub(crate) use places::{Places, places, usual_ports};
pub(crate) use settings::ConfigCommand;
pub(crate) use stop::Stop;
pub(crate) use up::{UpArgs, run as up};
pub(crate) use worker::{
    ABOUT as WORKER_ABOUT, StartArgs as WorkerStartArgs, host_name, start as start_worker,
};

/// Creates the runtime that serves calls.
/// - `threads`: number of threads; `None`: one for each core.
pub(crate) fn runtime(threads: Option<usize>) -> anyhow::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().context("start the process's threads")
}
