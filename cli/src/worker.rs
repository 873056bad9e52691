//! `shardfeed worker`: processes that read for trainers.

use clap::Subcommand;

use crate::cluster::ClusterArgs;
use crate::cluster::worker::{self, NamedWorker, cordon};
use crate::output::Format;
use crate::process::{WORKER_ABOUT, WorkerStartArgs, start_worker};

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Run a worker until SIGTERM or SIGINT
    #[command(long_about = WORKER_ABOUT)]
    Start(WorkerStartArgs),
    /// List the cluster's workers
    List {
        /// Also show workers that are gone, as far as they are kept, and more than 20
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Show a worker and the ranks that it serves
    Show(NamedWorker),
    /// Give a worker no new work; new trainers read in-process
    Cordon(NamedWorker),
    /// Give a cordoned or drained worker work again
    #[command(long_about = cordon::UNCORDON_ABOUT)]
    Uncordon(NamedWorker),
    /// Drain a worker without delaying trainers; wait until it is idle
    #[command(long_about = cordon::DRAIN_ABOUT)]
    Drain {
        #[command(flatten)]
        of: NamedWorker,
        /// Do not wait until it serves nothing
        #[arg(long)]
        no_wait: bool,
    },
}

impl WorkerCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Start(args) => start_worker(args),
            Self::List { all, cluster } => worker::print_list(&cluster.client()?, *all, format),
            Self::Show(of) => worker::print(of.find()?.1, format),
            Self::Cordon(of) => cordon::cordon(of, format),
            Self::Uncordon(of) => cordon::uncordon(of, format),
            Self::Drain { of, no_wait } => cordon::drain(of, *no_wait, format),
        }
    }
}
