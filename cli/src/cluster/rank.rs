//! `shardfeed rank`: the worker and the progress of each rank of a job.

use std::io::{self, Write};

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;
use shardfeed_embedded::{Limit, account_from, finding};
use shardfeed_proto::Word;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::rank::Source;

use super::ClusterArgs;
use super::epoch::steps;
use super::job::{JobArgs, ask};
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{known, text, time};
use crate::output::{self, Format, Report, list_report};

#[derive(Debug, Subcommand)]
pub(crate) enum RankCommand {
    /// List the ranks of a job with their workers and progress
    List {
        #[command(flatten)]
        of: JobArgs,
        /// Show all ranks, not only the first 20
        #[arg(long)]
        all: bool,
    },
    /// Declare the trainer of a dynamic job's rank permanently gone
    ///
    /// Samples that it had begun and may have consumed are in doubt: no other rank gets them while
    /// it may return and report its progress. Now the job's in_doubt= decides, without waiting for
    /// in_doubt_grace=: other ranks get them, or no rank does. If the trainer returns after all, it
    /// is notified, and counts are corrected.
    Gone {
        /// Name of the job
        #[arg(value_name = "JOB")]
        name: String,
        /// Rank that no worker serves
        #[arg(value_name = "RANK")]
        rank: u64,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
}

list_report!(RanksReport { ranks: RankReport } of job: String, "rank", "ranks");

#[derive(Debug, Serialize)]
struct RankReport {
    #[serde(flatten)]
    rank: wire::Rank,
    /// Bottleneck of the rank; `null` until its worker has reported.
    limit: Option<Limit>,
    /// Fraction of the trainer's time spent waiting for batches, in percent.
    wait_percent: Option<u64>,
}

impl RankCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::List { of, all } => {
                let (client, job) = of.open()?;
                let request = wire::ListRanksRequest { context: None, job: job.clone() };
                let ranks = ask(&client, &job, request)?.ranks;
                let ranks = ranks.into_iter().map(RankReport::new).collect();
                Ok(format.print(&RanksReport { job, ranks, all: *all })?)
            }
            Self::Gone { name, rank, cluster } => {
                let request =
                    wire::DeclareGoneRequest { context: None, job: name.clone(), rank: *rank };
                let samples = ask(&cluster.client()?, name, request)?.samples;
                let text = match samples {
                    0 => format!("rank {rank} of job {name} has no samples in doubt\n"),
                    _ => format!(
                        "the policy decided on {} samples that rank {rank} of job {name} left in doubt\n",
                        output::count(samples)
                    ),
                };
                let fields = json!({ "job": name, "rank": rank, "samples": samples });
                Ok(format.print_brief(fields, text)?)
            }
        }
    }
}

impl RankReport {
    fn new(rank: wire::Rank) -> Self {
        let found = rank.account.as_ref().map(|account| finding(&account_from(account)));
        Self {
            limit: found.as_ref().map(|found| found.limit),
            wait_percent: found.as_ref().map(|found| found.wait_percent),
            rank,
        }
    }
}

/// Formats the samples that a rank has of each source, as `code 20, web 60`.
fn sources(sources: &[Source]) -> String {
    let source = |of: &Source| format!("{} {}", of.name, output::count(of.delivered));
    text(&sources.iter().map(source).collect::<Vec<_>>().join(", "))
}

fn columns() -> [Column<RankReport>; 14] {
    [
        column(">RANK", |of| of.rank.rank.to_string()),
        column("STATE", |of| of.rank.state().word()),
        column(">WAITS", |of| known(of.wait_percent, |part| format!("{part} %"))),
        column("WORKER", |of| text(&of.rank.worker)),
        column(">EPOCH", |of| of.rank.epoch.to_string()),
        column(">STEP", |of| steps(of.rank.step, of.rank.steps)),
        column(">READY", |of| of.rank.ready.to_string()),
        column(">PROGRESS", |of| time(of.rank.age_ms)),
        wide("LIMITED BY", |of| text(of.limit.map_or("", Limit::name))),
        wide("HOST", |of| text(&of.rank.host)),
        wide("TRAINER", |of| text(&of.rank.trainer)),
        wide(">GENERATION", |of| of.rank.generation.to_string()),
        wide(">FENCING", |of| of.rank.fencing.to_string()),
        wide("SOURCES", |of| sources(&of.rank.sources)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_of_a_dynamic_job_have_no_total() {
        let row = |step, steps| {
            let rank = wire::Rank { step, steps, ..wire::Rank::default() };
            let ranks = vec![RankReport::new(rank)];
            let mut out = Vec::new();
            let report = RanksReport { job: "j".into(), ranks, all: true };
            report.write(&mut out, false).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(row(500, 1_200).contains(" 500 of 1,200 "));
        let dynamic = row(500, 0);
        assert!(dynamic.contains(" 500 ") && !dynamic.contains("500 of"), "{dynamic}");
    }
}
