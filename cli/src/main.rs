//! `shardfeed`, the command line: what a dataset holds, whether it is whole, how to make one, and
//! which record is delivered where.
//!
//! It must never decide an order itself: it asks `shardfeed-plan`, as trainers do. Data goes to
//! stdout, everything else to stderr; it exits with 0, with 1 if it failed or found damage, with 2
//! if it was asked for something that has no meaning.
#![forbid(unsafe_code)]

mod error;
mod output;
mod progress;
mod telemetry;

mod files;
mod size;

mod dataset;

mod order;
mod shard_ref;

mod batch;
mod plan;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::output::Format;

const AFTER_HELP: &str = "\
Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed or damage found, 2 wrong usage.
SHARDFEED_CACHE_DIR is where indexes are kept (`off`: nowhere), SHARDFEED_LOG what is logged (for example `debug`).";

/// Look at, check and write TFRecord datasets, and ask what an epoch is made of
#[derive(Debug, Parser)]
#[command(name = "shardfeed", version, max_term_width = 100, after_help = AFTER_HELP)]
struct Cli {
    /// How results are printed: for people, or for programs, complete and with lasting names
    #[arg(short, long, global = true, value_enum, default_value_t)]
    #[arg(value_name = "FORMAT", display_order = 900)]
    output: Format,
    #[command(subcommand)]
    noun: Noun,
}

#[derive(Debug, Subcommand)]
enum Noun {
    /// What a dataset holds, whether it is whole, and how to make one
    #[command(subcommand)]
    Dataset(dataset::DatasetCommand),
    /// What an epoch looks like
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    /// Which records a batch is made of, and which batch a record is in
    #[command(subcommand)]
    Batch(batch::BatchCommand),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return error::refuse(&error),
    };
    match telemetry::start().and_then(|()| run(&cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error::report(&error),
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    match &cli.noun {
        Noun::Dataset(command) => command.run(cli.output),
        Noun::Plan(command) => command.run(cli.output),
        Noun::Batch(command) => command.run(cli.output),
    }
}
