//! `shardfeed shard`: the state of each shard of an epoch.

mod history;

use std::io::{self, Write};

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use shardfeed_proto::Word;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::get_epoch_map_response::Cell;

use super::job::{JobArgs, explain};
use crate::order::parse_epoch;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{percent, time};
use crate::output::{self, Format, Report};

const EXAMPLES: &str = "\
Examples:
  shardfeed shard list --job resnet
  shardfeed shard list --job resnet --state reading,leased -o wide
  shardfeed shard list --job resnet --rank 3 --file part-0001 --all
  shardfeed shard list --job resnet --epoch 2 -o json | jq '.shards[] | select(.records_done == 0)'";

#[derive(Debug, Subcommand)]
pub(crate) enum ShardCommand {
    List(ShardListArgs),
    History(history::HistoryArgs),
}

/// List the shards of an epoch: state, ranks, worker, progress
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ShardListArgs {
    #[command(flatten)]
    of: JobArgs,
    /// Epoch, from 0 [default: the epoch of the slowest rank]
    #[arg(long, value_parser = parse_epoch)]
    epoch: Option<u64>,
    /// Show only shards in this state; repeatable or with commas
    #[arg(long, value_enum, value_delimiter = ',')]
    state: Vec<State>,
    /// Show only shards that this rank reads; for a dynamic job: shards with records granted to it
    #[arg(long)]
    rank: Option<u64>,
    /// Show only shards of ranks that this worker serves
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Show only shards whose path contains this text
    #[arg(long, value_name = "TEXT")]
    file: Option<String>,
    /// Show all shards, not only the first 20
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// No worker serves its ranks.
    Pending,
    /// A worker will read it.
    Leased,
    /// It is being read, or partly delivered.
    Reading,
    /// All records that this epoch delivers are delivered.
    Done,
    /// It is left out.
    Skipped,
}

#[derive(Debug, Serialize)]
struct ShardsReport {
    job: String,
    epoch: u64,
    generation: u64,
    /// Number of shards of the epoch by state, regardless of the filters.
    counts: Cell,
    /// Shards in manifest order.
    shards: Vec<wire::Shard>,
    #[serde(skip)]
    all: bool,
}

impl ShardCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        let args = match self {
            Self::List(args) => args,
            Self::History(args) => return history::run(args, format),
        };
        let (client, job) = args.of.open()?;
        let answers = client.stream(wire::ListShardsRequest {
            job: job.clone(),
            epoch: args.epoch,
            rank: args.rank,
            worker: args.worker.clone(),
            path_part: args.file.clone(),
            context: None,
        });
        let answers = answers.map_err(|error| explain(&client, &job, error))?;
        Ok(format.print(&args.report(job, answers))?)
    }
}

impl ShardListArgs {
    fn report(&self, job: String, answers: Vec<wire::ListShardsResponse>) -> ShardsReport {
        let first = answers.first();
        let mut report = ShardsReport {
            job,
            epoch: first.map_or(0, |answer| answer.epoch),
            generation: first.map_or(0, |answer| answer.generation),
            counts: Cell::default(),
            shards: vec![],
            all: self.all,
        };
        for answer in answers {
            report.counts = added(report.counts, &answer.counts.unwrap_or_default());
            let wanted = answer.shards.into_iter().filter(|shard| self.wants(shard.state()));
            report.shards.extend(wanted);
        }
        report
    }

    /// True if the state matches; the coordinator applies the other filters.
    fn wants(&self, state: wire::ShardState) -> bool {
        let is_it = |of: PossibleValue| of.get_name() == state.word();
        let mut wanted = self.state.iter().filter_map(State::to_possible_value);
        self.state.is_empty() || wanted.any(is_it)
    }
}

pub(crate) fn added(sum: Cell, more: &Cell) -> Cell {
    Cell {
        pending: sum.pending + more.pending,
        leased: sum.leased + more.leased,
        reading: sum.reading + more.reading,
        done: sum.done + more.done,
        skipped: sum.skipped + more.skipped,
    }
}

/// Formats the ranks that read a shard; those of its two parts, if it has two.
fn ranks(shard: &wire::Shard) -> String {
    let range = |first: u64, last: u64| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let ranks = range(shard.first_rank, shard.last_rank);
    match shard.further_first_rank.zip(shard.further_last_rank) {
        Some((first, last)) => format!("{ranks},{}", range(first, last)),
        None => ranks,
    }
}

fn columns() -> [Column<wire::Shard>; 10] {
    [
        column("SHARD", |shard| shard.path.clone()),
        column("STATE", |shard| shard.state().word()),
        column(">RANKS", ranks),
        column("WORKER", |shard| match shard.workers.as_slice() {
            [] => "-".into(),
            [worker] => worker.clone(),
            [worker, more @ ..] => format!("{worker} and {}", more.len()),
        }),
        column(">DONE", |shard| percent(shard.records_done, shard.records)),
        column(">RECORDS", |shard| output::count(shard.records)),
        column(">PROGRESS", |shard| time(shard.age_ms)),
        wide(">RECORDS DONE", |shard| output::count(shard.records_done)),
        wide(">ORDINAL", |shard| shard.shard.to_string()),
        wide("ALL WORKERS", |shard| shard.workers.join(", ")),
    ]
}

impl Report for ShardsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("shards", "path"));

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let Cell { pending, leased, reading, done, skipped } = self.counts;
        let counts = [
            (done, "done"),
            (reading, "reading"),
            (leased, "leased"),
            (pending, "pending"),
            (skipped, "skipped"),
        ];
        let said = counts.iter().filter(|(count, _)| *count > 0);
        let said: Vec<_> = said.map(|(n, word)| format!("{} {word}", output::count(*n))).collect();
        let job = output::printable(&self.job);
        let (epoch, generation) = (self.epoch, self.generation);
        let total: u64 = counts.iter().map(|(count, _)| count).sum();
        let shards = output::counted(total, "shard");
        let said = said.join(", ");
        writeln!(out, "epoch {epoch} of {job}, generation {generation}: {shards}: {said}\n")?;
        listing::write(out, "shards", &self.shards, &columns(), Shown { is_wide, all: self.all })
    }
}
