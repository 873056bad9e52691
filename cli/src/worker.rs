//! `shardfeed worker`: the processes that read for trainers.

use clap::Subcommand;

use crate::cluster::worker as cluster;
use crate::output::Format;
use crate::process::{WORKER_ABOUT, WorkerStartArgs, start_worker};

/// What can be done with workers.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Run a worker until SIGTERM or SIGINT
    #[command(long_about = WORKER_ABOUT)]
    Start(WorkerStartArgs),
    /// List the cluster's workers
    List(cluster::ListArgs),
    /// Show a worker, and the ranks that it serves
    Show(cluster::ShowArgs),
}

impl WorkerCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Start(args) => start_worker(args),
            Self::List(args) => cluster::run_list(args, format),
            Self::Show(args) => cluster::run_show(args, format),
        }
    }
}
