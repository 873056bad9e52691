//! `shardfeed shard history`: every lease that had a shard, and why it ended.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::Client;
use crate::cluster::job::{JobArgs, ask, explain};
use crate::error::{Exit, Problem};
use crate::order::parse_epoch;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{clock, known, text};
use crate::output::{self, Format, Report};

const EXAMPLES: &str = "\
Examples:
  shardfeed shard history part-00017 --job resnet
  shardfeed shard history 17 --job resnet --epoch 2 -o json";

/// Show every lease of a shard in an epoch, and why it ended
///
/// Of each lease: the rank, its worker, the beginning and the end. Of each rank the last eight
/// leases that ended are kept, of each epoch of a dynamic job the last 256 returns of group ranges;
/// older ones are counted. Times are UTC, by the leader's clock.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HistoryArgs {
    /// Position of the shard in the manifest, or a part of its path that no other shard has
    #[arg(value_name = "SHARD")]
    shard: String,
    #[command(flatten)]
    of: JobArgs,
    /// Epoch, from 0 [default: the epoch of the slowest rank]
    #[arg(long, value_parser = parse_epoch)]
    epoch: Option<u64>,
}

#[derive(Debug, Serialize)]
struct HistoryReport {
    job: String,
    #[serde(flatten)]
    history: wire::GetShardHistoryResponse,
}

/// Returns the shard's position in the manifest.
fn find(client: &Client, job: &str, args: &HistoryArgs) -> anyhow::Result<u64> {
    if let Ok(ordinal) = args.shard.parse() {
        return Ok(ordinal);
    }
    let answers = client.stream(wire::ListShardsRequest {
        job: job.to_owned(),
        epoch: args.epoch,
        path_part: Some(args.shard.clone()),
        ..wire::ListShardsRequest::default()
    });
    let answers = answers.map_err(|error| explain(client, job, error))?;
    let shards = || answers.iter().flat_map(|answer| &answer.shards);
    let mut meant = shards().filter(|shard| shard.path == args.shard);
    let mut like = shards();
    match (meant.next().or_else(|| like.next()), meant.next().or_else(|| like.next())) {
        (Some(shard), None) => Ok(shard.shard),
        (Some(shard), Some(_)) if shard.path == args.shard => Ok(shard.shard),
        (Some(one), Some(other)) => {
            let what = format!("`{}` is in the paths of several shards", args.shard);
            let hint = format!("say more of it: {} or {}", one.path, other.path);
            Err(Problem::usage(what).hint(hint).into())
        }
        (None, _) => {
            let what = format!("no shard's path has `{}` in it", args.shard);
            let problem = Problem::failed(what).hint("`shardfeed shard list --all` shows them");
            Err(problem.exit(Exit::NotFound).into())
        }
    }
}

pub(super) fn run(args: &HistoryArgs, format: Format) -> anyhow::Result<()> {
    let (client, job) = args.of.open()?;
    let request = wire::GetShardHistoryRequest {
        context: None,
        job: job.clone(),
        epoch: args.epoch,
        shard: find(&client, &job, args)?,
    };
    let history = ask(&client, &job, request)?;
    Ok(format.print(&HistoryReport { job, history })?)
}

/// Describes why a lease ended.
fn words(why: &str) -> &str {
    match why {
        "worker_left" => "its worker left",
        "worker_expired" => "no heartbeat of its worker arrived in time",
        "worker_replaced" => "its worker started again",
        "trainer_ended" => "its trainer ended",
        "trainer_moved" => "its trainer moved on",
        "trainer_returned" => "its trainer came back",
        "job_cancelled" => "the job was cancelled",
        "superseded" => "a later generation took over",
        "unserved" => "no worker served the rank",
        "asked_back" => "it was revoked",
        "left" => "the rank continued without it",
        "taken_over" => "others have it",
        other => other,
    }
}

fn leases() -> [Column<wire::Tenure>; 9] {
    [
        column(">GENERATION", |lease| lease.generation.to_string()),
        column(">RANK", |lease| lease.rank.to_string()),
        column("WORKER", |lease| text(&lease.worker)),
        column("FROM", |lease| clock(lease.granted_ms)),
        column("TO", |lease| known(lease.ended_ms, clock)),
        column("WHY", |lease| text(words(&lease.why))),
        column("STOOD AT", |lease| format!("{}:{}", lease.epoch, lease.step)),
        wide(">FENCING", |lease| lease.fencing.to_string()),
        wide(">SESSION", |lease| lease.session.to_string()),
    ]
}

fn returns() -> [Column<wire::ShardReturn>; 6] {
    [
        column(">GENERATION", |one| one.generation.to_string()),
        column(">RANK", |one| one.rank.to_string()),
        column("AT", |one| clock(one.at_ms)),
        column("WHY", |one| words(&one.why).to_owned()),
        column(">RECORDS", |one| output::count(one.samples)),
        wide(">GROUP", |one| one.group.to_string()),
    ]
}

impl Report for HistoryReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("leases", "fencing"));

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let Self { job, history: of } = self;
        let (path, job) = (output::printable(&of.path), output::printable(job));
        let records = output::counted(of.records, "record");
        writeln!(out, "{path}, {records}, in epoch {} of {job}\n", of.epoch)?;
        let shown = Shown { is_wide, all: true };
        listing::write(out, "leases", &of.tenures, &leases(), shown)?;
        if !of.returns.is_empty() {
            writeln!(out, "\nreturned, for others:")?;
            listing::write(out, "returns", &of.returns, &returns(), shown)?;
        }
        if of.forgotten > 0 {
            let forgotten = output::counted(of.forgotten, "earlier one");
            writeln!(out, "{forgotten} not kept any more")?;
        }
        Ok(())
    }
}
