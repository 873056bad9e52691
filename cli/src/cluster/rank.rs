//! `shardfeed rank`: the worker and the progress of each rank of a job.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_embedded::{Limit, account_from, finding};
use shardfeed_proto::coordinator::v1 as wire;

use super::ClusterArgs;
use super::job::{JobArgs, explain};
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, text, time, word};
use crate::output::{self, Format, Report};

/// Subcommands of `rank`.
#[derive(Debug, Subcommand)]
pub(crate) enum RankCommand {
    /// List the ranks of a job with their workers and progress
    List(RankListArgs),
    /// Declare the trainer of a dynamic job's rank permanently gone
    #[command(long_about = GONE_ABOUT)]
    Gone(GoneArgs),
}

const GONE_ABOUT: &str = "\
Declare that the trainer of a rank of a dynamic job does not return

Samples that it had begun and may have consumed are in doubt: no other rank gets them while it may \
return and report its progress. Now the job's in_doubt= decides, without waiting for \
in_doubt_grace=: other ranks get them, or no rank does. If the trainer returns after all, it is \
notified, and counts are corrected.";

/// Arguments of `rank gone`.
#[derive(Debug, Args)]
pub(crate) struct GoneArgs {
    /// Name of the job
    #[arg(value_name = "JOB")]
    name: String,
    /// Rank that no worker serves
    #[arg(value_name = "RANK")]
    rank: u64,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Result of `rank gone`.
#[derive(Debug, Serialize)]
struct GoneReport {
    job: String,
    rank: u64,
    /// Number of samples that were in doubt.
    samples: u64,
}

impl Report for GoneReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { job, rank, samples } = self;
        match samples {
            0 => writeln!(out, "rank {rank} of job {job} has no samples in doubt"),
            _ => writeln!(
                out,
                "the policy decided on {} samples that rank {rank} of job {job} left in doubt",
                output::count(*samples)
            ),
        }
    }
}

impl GoneArgs {
    fn run(&self, format: Format) -> anyhow::Result<()> {
        let (client, job, rank) = (self.cluster.client()?, self.name.clone(), self.rank);
        let answer = client.call(|mut admin, context| async move {
            admin.declare_gone(wire::DeclareGoneRequest { context, job, rank }).await
        });
        let samples = answer.map_err(|error| explain(&client, &self.name, error))?.samples;
        Ok(format.print(&GoneReport { job: self.name.clone(), rank, samples })?)
    }
}

/// Arguments of `rank list`.
#[derive(Debug, Args)]
pub(crate) struct RankListArgs {
    #[command(flatten)]
    of: JobArgs,
    /// Show all ranks, not only the first 20
    #[arg(long)]
    all: bool,
}

/// Ranks of a job.
#[derive(Debug, Serialize)]
struct RanksReport {
    job: String,
    ranks: Vec<RankReport>,
    #[serde(skip)]
    all: bool,
}

/// A rank of the current generation.
#[derive(Debug, Serialize)]
struct RankReport {
    rank: u64,
    generation: u64,
    /// `missing`, `served`, `unserved` or `ended`.
    state: String,
    worker: Option<String>,
    host: Option<String>,
    trainer: Option<String>,
    /// Epoch of the first step that it has not consumed.
    epoch: u64,
    step: u64,
    /// Number of steps of that epoch.
    steps: u64,
    /// Batches that are ready and not consumed, including those that were sent.
    ready: u64,
    fencing: u64,
    /// Time since its last progress; `null` if it made none.
    age_ms: Option<u64>,
    /// Bottleneck of the rank; `null` until its worker has reported.
    limit: Option<Limit>,
    /// Percentage of its trainer's time spent waiting for batches.
    wait_percent: Option<u64>,
}

impl RankCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        let args = match self {
            Self::List(args) => args,
            Self::Gone(args) => return args.run(format),
        };
        let (client, job) = args.of.open()?;
        let answer = client.call(|mut admin, context| async move {
            admin.list_ranks(wire::ListRanksRequest { context, job }).await
        });
        let ranks = answer.map_err(|error| args.of.explain(&client, error))?.ranks;
        let ranks = ranks.into_iter().map(RankReport::new).collect();
        let job = args.of.name().to_owned();
        Ok(format.print(&RanksReport { job, ranks, all: args.all })?)
    }
}

impl RankReport {
    fn new(rank: wire::Rank) -> Self {
        let found = rank.account.as_ref().map(|account| finding(&account_from(account)));
        let known = |name: String| Some(name).filter(|name| !name.is_empty());
        Self {
            state: word(rank.state().as_str_name(), "RANK_STATE_"),
            rank: rank.rank,
            generation: rank.generation,
            worker: known(rank.worker),
            host: known(rank.host),
            trainer: known(rank.trainer),
            epoch: rank.epoch,
            step: rank.step,
            steps: rank.steps,
            ready: rank.ready,
            fencing: rank.fencing,
            age_ms: rank.age_ms,
            limit: found.as_ref().map(|found| found.limit),
            wait_percent: found.as_ref().map(|found| found.wait_percent),
        }
    }
}

fn columns() -> Vec<Column<RankReport>> {
    vec![
        column(">RANK", |rank| rank.rank.to_string()),
        column("STATE", |rank| rank.state.clone()),
        column(">WAITS", |rank| rank.wait_percent.map_or(NONE.into(), |part| format!("{part} %"))),
        column("WORKER", |rank| text(rank.worker.as_deref().unwrap_or_default())),
        column(">EPOCH", |rank| rank.epoch.to_string()),
        column(">STEP", |rank| {
            format!("{} of {}", output::count(rank.step), output::count(rank.steps))
        }),
        column(">READY", |rank| rank.ready.to_string()),
        column(">PROGRESS", |rank| time(rank.age_ms)),
        wide("LIMITED BY", |rank| text(rank.limit.map_or("", Limit::name))),
        wide("HOST", |rank| text(rank.host.as_deref().unwrap_or_default())),
        wide("TRAINER", |rank| text(rank.trainer.as_deref().unwrap_or_default())),
        wide(">GENERATION", |rank| rank.generation.to_string()),
        wide(">FENCING", |rank| rank.fencing.to_string()),
    ]
}

impl RanksReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let shown = Shown { is_wide, all: self.all };
        listing::write(out, "ranks", &self.ranks, &columns(), shown)
    }
}

impl Report for RanksReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("ranks", "rank"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}
