//! `shardfeed dataset`: datasets as files and in a cluster.

use clap::Subcommand;
use shardfeed_dataset_tools::{inspect, stats, verify, write};

use crate::cluster::dataset as cluster;
use crate::cluster::dataset::add;
use crate::output::Format;

/// Subcommands of `dataset`.
#[derive(Debug, Subcommand)]
pub(crate) enum DatasetCommand {
    /// Show a dataset's shards, records, sizes, digest and features
    Inspect(inspect::InspectArgs),
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
    List(cluster::DatasetListArgs),
    /// Show a dataset of the cluster
    Show(cluster::DatasetShowArgs),
    /// Remove a dataset from the cluster; its files are not changed
    #[command(long_about = cluster::REMOVE_ABOUT)]
    Remove(cluster::DatasetRemoveArgs),
}

impl DatasetCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Inspect(args) => inspect::run(args, format),
            Self::Stats(args) => stats::run(args, format),
            Self::Verify(args) => verify::run(args, format),
            Self::Write(args) => write::run(args, format),
            Self::Add(args) => add::run(args, format),
            Self::List(args) => cluster::run_list(args, format),
            Self::Show(args) => cluster::run_show(args, format),
            Self::Remove(args) => cluster::run_remove(args, format),
        }
    }
}
