//! `shardfeed worker`: processes that read for trainers.

use clap::Subcommand;

use crate::cluster::ClusterArgs;
use crate::cluster::worker::{self, NamedWorker, cordon};
use crate::output::Format;
use crate::process::{WorkerStartArgs, start_worker};

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
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
    ///
    /// A drained worker has left the cluster: restart its process. Trainers return to it with the
    /// next epoch, those that were refused when they are restarted.
    Uncordon(NamedWorker),
    /// Drain a worker without delaying trainers; wait until it is idle
    ///
    /// Its trainers continue in their own processes from the batch that it sent last. Then it
    /// leaves the cluster, and runs until it is stopped; once uncordoned, it gets work again when
    /// its process is restarted.
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
