//! `shardfeed dataset`: datasets as files and in a cluster.

use clap::Subcommand;
use shardfeed_dataset_tools::{index, inspect, stats, verify, write};

use crate::cluster::dataset::{self, NamedDataset, ShowArgs, add};
use crate::cluster::{ClusterArgs, Confirm};
use crate::output::Format;

#[derive(Debug, Subcommand)]
pub(crate) enum DatasetCommand {
    /// Show a dataset's shards, records, sizes, digest and features
    Inspect(inspect::InspectArgs),
    /// Count the records and samples of a source once for all hosts
    #[command(long_about = index::ABOUT)]
    Index(index::IndexArgs),
    /// Read every record; report features and possible improvements
    #[command(long_about = stats::ABOUT)]
    Stats(stats::StatsArgs),
    /// Read every byte and report every damaged record
    #[command(long_about = verify::ABOUT)]
    Verify(verify::VerifyArgs),
    /// Write a folder, a file list or a CSV file as TFRecord shards
    #[command(long_about = write::ABOUT)]
    Write(write::WriteArgs),
    /// Add a dataset to the cluster and wait until it is scanned
    #[command(long_about = add::ABOUT)]
    Add(add::DatasetAddArgs),
    /// List the cluster's datasets
    List {
        /// Show all datasets, not only the first 20
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Show a dataset of the cluster
    Show(ShowArgs),
    /// Remove a dataset from the cluster; its files are not changed
    #[command(long_about = dataset::REMOVE_ABOUT)]
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
