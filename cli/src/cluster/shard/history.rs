//! `shardfeed shard history`: every lease that had a shard, and why it ended.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::Client;
use crate::cluster::job::JobArgs;
use crate::error::{Exit, Problem};
use crate::order::parse_epoch;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, clock, text};
use crate::output::{self, Format, Report};

pub(super) const ABOUT: &str = "\
Show every lease of a shard in an epoch: which rank had it, by which worker, from when to when, and why it moved

Of each rank the last eight leases that ended are kept, of each epoch of a dynamic job the last \
256 returns of group ranges; older ones are counted. Times are UTC, by the leader's clock.";

const EXAMPLES: &str = "\
Examples:
  shardfeed shard history part-00017 --job resnet
  shardfeed shard history 17 --job resnet --epoch 2 -o json";

/// Arguments of `shard history`.
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

/// Result of `shard history`.
#[derive(Debug, Serialize)]
struct HistoryReport {
    job: String,
    epoch: u64,
    ordinal: u64,
    path: String,
    records: u64,
    /// Leases by generation and rank, then oldest first.
    leases: Vec<ShardLeaseReport>,
    /// Returns of samples of its group, for a dynamic job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    returns: Vec<ReturnReport>,
    /// Number of leases and returns that are no longer kept.
    forgotten: u64,
}

/// A lease.
#[derive(Debug, Serialize)]
struct ShardLeaseReport {
    generation: u64,
    rank: u64,
    fencing: u64,
    session: u64,
    worker: String,
    /// Time of the grant, Unix ms.
    granted_ms: u64,
    /// Time of the end, Unix ms; `null`: the lease is current.
    ended_ms: Option<u64>,
    /// Reason for the end.
    why: Option<String>,
    /// First step not known to be consumed, at the lease's end or now.
    stood_epoch: u64,
    stood_step: u64,
}

/// A return of samples.
#[derive(Debug, Serialize)]
struct ReturnReport {
    generation: u64,
    rank: u64,
    at_ms: u64,
    why: String,
    group: u64,
    samples: u64,
}

impl HistoryReport {
    fn new(job: &str, answer: wire::GetShardHistoryResponse) -> Self {
        let known = |why: String| Some(why).filter(|why| !why.is_empty());
        let lease = |tenure: wire::Tenure| ShardLeaseReport {
            generation: tenure.generation,
            rank: tenure.rank,
            fencing: tenure.fencing,
            session: tenure.session,
            worker: tenure.worker,
            granted_ms: tenure.granted_ms,
            ended_ms: tenure.ended_ms,
            why: known(tenure.why),
            stood_epoch: tenure.epoch,
            stood_step: tenure.step,
        };
        let returned = |one: wire::ShardReturn| ReturnReport {
            generation: one.generation,
            rank: one.rank,
            at_ms: one.at_ms,
            why: one.why,
            group: one.group,
            samples: one.samples,
        };
        Self {
            job: job.to_owned(),
            epoch: answer.epoch,
            ordinal: answer.shard,
            path: answer.path,
            records: answer.records,
            leases: answer.tenures.into_iter().map(lease).collect(),
            returns: answer.returns.into_iter().map(returned).collect(),
            forgotten: answer.forgotten,
        }
    }
}

/// Returns the shard's position in the manifest.
fn find(client: &Client, args: &HistoryArgs) -> anyhow::Result<u64> {
    if let Ok(ordinal) = args.shard.parse() {
        return Ok(ordinal);
    }
    let request = wire::ListShardsRequest {
        job: args.of.name().to_owned(),
        epoch: args.epoch,
        path_part: Some(args.shard.clone()),
        ..wire::ListShardsRequest::default()
    };
    let answers = client.stream(|mut admin, context| async move {
        admin.list_shards(wire::ListShardsRequest { context, ..request }).await
    });
    let answers = answers.map_err(|error| args.of.explain(client, error))?;
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

/// Runs `shard history`.
pub(super) fn run(args: &HistoryArgs, format: Format) -> anyhow::Result<()> {
    let (client, job) = args.of.open()?;
    let (shard, epoch) = (find(&client, args)?, args.epoch);
    let answer = client.call(|mut admin, context| async move {
        admin.get_shard_history(wire::GetShardHistoryRequest { context, job, epoch, shard }).await
    });
    let answer = answer.map_err(|error| args.of.explain(&client, error))?;
    Ok(format.print(&HistoryReport::new(args.of.name(), answer))?)
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

fn leases() -> Vec<Column<ShardLeaseReport>> {
    vec![
        column(">GENERATION", |lease| lease.generation.to_string()),
        column(">RANK", |lease| lease.rank.to_string()),
        column("WORKER", |lease| text(&lease.worker)),
        column("FROM", |lease| clock(lease.granted_ms)),
        column("TO", |lease| lease.ended_ms.map_or(NONE.into(), clock)),
        column("WHY", |lease| text(words(lease.why.as_deref().unwrap_or_default()))),
        column("STOOD AT", |lease| format!("{}:{}", lease.stood_epoch, lease.stood_step)),
        wide(">FENCING", |lease| lease.fencing.to_string()),
        wide(">SESSION", |lease| lease.session.to_string()),
    ]
}

fn returns() -> Vec<Column<ReturnReport>> {
    vec![
        column(">GENERATION", |one| one.generation.to_string()),
        column(">RANK", |one| one.rank.to_string()),
        column("AT", |one| clock(one.at_ms)),
        column("WHY", |one| words(&one.why).to_owned()),
        column(">RECORDS", |one| output::count(one.samples)),
        wide(">GROUP", |one| one.group.to_string()),
    ]
}

impl HistoryReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let (epoch, job) = (self.epoch, output::printable(&self.job));
        let (path, records) = (output::printable(&self.path), self.records);
        let records = output::counted(records, "record");
        writeln!(out, "{path}, {records}, in epoch {epoch} of {job}\n")?;
        let shown = Shown { is_wide, all: true };
        listing::write(out, "leases", &self.leases, &leases(), shown)?;
        if !self.returns.is_empty() {
            writeln!(out, "\nreturned, for others:")?;
            listing::write(out, "returns", &self.returns, &returns(), shown)?;
        }
        if self.forgotten > 0 {
            let forgotten = output::counted(self.forgotten, "earlier one");
            writeln!(out, "{forgotten} not kept any more")?;
        }
        Ok(())
    }
}

impl Report for HistoryReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("leases", "fencing"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}
