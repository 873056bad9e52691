//! `shardfeed dataset`: files of records, as files.

mod inspect;
mod verify;
mod write;

use clap::Subcommand;

use crate::output::Format;

/// What can be done with a dataset.
#[derive(Debug, Subcommand)]
pub(crate) enum DatasetCommand {
    /// Show what a dataset holds: shards, records, sizes, digest, and the features of a record
    Inspect(inspect::InspectArgs),
    /// Read every byte and report every damaged record
    #[command(long_about = verify::ABOUT)]
    Verify(verify::VerifyArgs),
    /// Write a folder of files or a CSV file as TFRecord shards
    #[command(long_about = write::ABOUT)]
    Write(write::WriteArgs),
}

impl DatasetCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::Inspect(args) => inspect::run(args, format),
            Self::Verify(args) => verify::run(args, format),
            Self::Write(args) => write::run(args, format),
        }
    }
}
