//! `shardfeed dataset`: datasets as files and in a cluster.

use clap::Subcommand;
use shardfeed_dataset_tools::{index, inspect, stats, verify, write};

use crate::cluster::dataset::{self, NamedDataset, ShowArgs, add};
use crate::cluster::{ClusterArgs, Confirm};
use crate::output::Format;

#[derive(Debug, Subcommand)]
pub(crate) enum DatasetCommand {
    Inspect(inspect::InspectArgs),
    Index(index::IndexArgs),
    Stats(stats::StatsArgs),
    Verify(verify::VerifyArgs),
    Write(write::WriteArgs),
    Add(add::DatasetAddArgs),
    /// List the cluster's datasets
    List {
        /// Show all datasets, not only the first 20
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    Show(ShowArgs),
    /// Remove a dataset from the cluster; its files are not changed
    ///
    /// One that a job reads is refused: remove the job first. The name may then be used for other
    /// files.
    Remove {
        #[command(flatten)]
        of: NamedDataset,
        #[command(flatten)]
        confirm: Confirm,
    },
}

impl DatasetCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Inspect(args) => inspect::run(args, format),
            Self::Index(args) => index::run(args, format),
            Self::Stats(args) => stats::run(args, format),
            Self::Verify(args) => verify::run(args, format),
            Self::Write(args) => write::run(args, format),
            Self::Add(args) => add::run(args, format),
            Self::List { all, cluster } => dataset::print_list(&cluster.client()?, *all, format),
            Self::Show(of) => of.show(format),
            Self::Remove { of, confirm } => of.remove(confirm, format),
        }
    }
}
