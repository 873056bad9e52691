//! `shardfeed worker`: processes that read for trainers.

use clap::Subcommand;
use shardfeed_proto::coordinator::v1::Cordon;

use crate::cluster::worker as cluster;
use crate::cluster::worker::cordon;
use crate::output::Format;
use crate::process::{WORKER_ABOUT, WorkerStartArgs, start_worker};

/// Subcommands of `worker`.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Run a worker until SIGTERM or SIGINT
    #[command(long_about = WORKER_ABOUT)]
    Start(WorkerStartArgs),
    /// List the cluster's workers
    List(cluster::WorkerListArgs),
    /// Show a worker and the ranks that it serves
    Show(cluster::WorkerShowArgs),
    /// Give a worker no new work; new trainers read in-process
    Cordon(cordon::CordonArgs),
    /// Give a cordoned or drained worker work again
    #[command(long_about = cordon::UNCORDON_ABOUT)]
    Uncordon(cordon::CordonArgs),
    /// Drain a worker without delaying trainers; wait until it is idle
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
