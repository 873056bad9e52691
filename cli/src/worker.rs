//! `shardfeed worker`: the processes that read for trainers.

use clap::Subcommand;
use shardfeed_proto::coordinator::v1::Cordon;

use crate::cluster::worker as cluster;
use crate::cluster::worker::cordon;
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
    /// Give a worker nothing new: trainers that start beside it read in their own processes
    Cordon(cordon::CordonArgs),
    /// Give a worker that was cordoned or drained work again
    #[command(long_about = cordon::UNCORDON_ABOUT)]
    Uncordon(cordon::CordonArgs),
    /// Take a worker's work from it, without a trainer waiting, and wait until it serves nothing
    #[command(long_about = cordon::DRAIN_ABOUT)]
    Drain(cordon::DrainArgs),
}

impl WorkerCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Start(args) => start_worker(args),
            Self::List(args) => cluster::run_list(args, format),
            Self::Show(args) => cluster::run_show(args, format),
            Self::Cordon(args) => cordon::run(args, Cordon::Cordoned, format),
            Self::Uncordon(args) => cordon::run(args, Cordon::Open, format),
            Self::Drain(args) => cordon::run_drain(args, format),
        }
    }
}
