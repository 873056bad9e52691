//! `shardfeed shard`: the state of each shard of an epoch.

mod history;

use std::io::{self, Write};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use super::job::JobArgs;
use crate::order::parse_epoch;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{percent, time, word};
use crate::output::{self, Format, Report};

const EXAMPLES: &str = "\
Examples:
  shardfeed shard list --job resnet
  shardfeed shard list --job resnet --state reading,leased -o wide
  shardfeed shard list --job resnet --rank 3 --file part-0001 --all
  shardfeed shard list --job resnet --epoch 2 -o json | jq '.shards[] | select(.records_done == 0)'";

/// Subcommands of `shard`.
#[derive(Debug, Subcommand)]
pub(crate) enum ShardCommand {
    /// List the shards of an epoch: state, ranks, worker, progress
    List(ShardListArgs),
    /// Show every lease of a shard in an epoch, and why it ended
    #[command(long_about = history::ABOUT)]
    History(history::HistoryArgs),
}

/// Arguments of `shard list`.
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

/// State of a shard in an epoch.
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

/// Shards of an epoch.
#[derive(Debug, Serialize)]
struct ShardsReport {
    job: String,
    epoch: u64,
    generation: u64,
    /// Number of shards of the epoch by state, regardless of the filters.
    counts: ShardCounts,
    /// Shards in manifest order.
    shards: Vec<ShardReport>,
    #[serde(skip)]
    all: bool,
}

/// Number of shards in each state.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct ShardCounts {
    pending: u64,
    leased: u64,
    reading: u64,
    done: u64,
    skipped: u64,
}

/// A shard in an epoch.
#[derive(Debug, Serialize)]
struct ShardReport {
    /// Position in the manifest.
    ordinal: u64,
    path: String,
    state: String,
    records: u64,
    /// Records delivered to trainers, as reported by ranks.
    records_done: u64,
    /// First and last rank that reads it.
    first_rank: u64,
    last_rank: u64,
    /// Workers that serve these ranks, at most 8.
    workers: Vec<String>,
    /// Time since the last progress of its ranks; `null` if they made none.
    age_ms: Option<u64>,
}

impl ShardCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        let args = match self {
            Self::List(args) => args,
            Self::History(args) => return history::run(args, format),
        };
        let (client, job) = args.of.open()?;
        let request = wire::ListShardsRequest {
            job,
            epoch: args.epoch,
            rank: args.rank,
            worker: args.worker.clone(),
            path_part: args.file.clone(),
            context: None,
        };
        let answers = client.stream(|mut admin, context| async move {
            admin.list_shards(wire::ListShardsRequest { context, ..request }).await
        });
        let answers = answers.map_err(|error| args.of.explain(&client, error))?;
        Ok(format.print(&args.report(answers))?)
    }
}

impl ShardListArgs {
    fn report(&self, answers: Vec<wire::ListShardsResponse>) -> ShardsReport {
        let first = answers.first();
        let mut report = ShardsReport {
            job: self.of.name().to_owned(),
            epoch: first.map_or(0, |answer| answer.epoch),
            generation: first.map_or(0, |answer| answer.generation),
            counts: ShardCounts::default(),
            shards: vec![],
            all: self.all,
        };
        for answer in answers {
            report.counts.add(answer.counts.unwrap_or_default());
            let wanted = answer.shards.into_iter().filter(|shard| self.wants(shard.state()));
            report.shards.extend(wanted.map(ShardReport::new));
        }
        report
    }

    /// True if the state matches; the coordinator applies the other filters.
    fn wants(&self, state: wire::ShardState) -> bool {
        self.state.is_empty() || State::of(state).is_some_and(|state| self.state.contains(&state))
    }
}

impl State {
    /// Converts a state; `None`: this release does not know it.
    fn of(state: wire::ShardState) -> Option<Self> {
        match state {
            wire::ShardState::Pending => Some(Self::Pending),
            wire::ShardState::Leased => Some(Self::Leased),
            wire::ShardState::Reading => Some(Self::Reading),
            wire::ShardState::Done => Some(Self::Done),
            wire::ShardState::Skipped => Some(Self::Skipped),
            wire::ShardState::Unspecified => None,
        }
    }
}

impl ShardCounts {
    fn add(&mut self, counts: wire::get_epoch_map_response::Cell) {
        self.pending += counts.pending;
        self.leased += counts.leased;
        self.reading += counts.reading;
        self.done += counts.done;
        self.skipped += counts.skipped;
    }
}

impl ShardReport {
    fn new(shard: wire::Shard) -> Self {
        Self {
            state: word(shard.state().as_str_name(), "SHARD_STATE_"),
            ordinal: shard.shard,
            path: shard.path,
            records: shard.records,
            records_done: shard.records_done,
            first_rank: shard.first_rank,
            last_rank: shard.last_rank,
            workers: shard.workers,
            age_ms: shard.age_ms,
        }
    }

    fn ranks(&self) -> String {
        match self.first_rank == self.last_rank {
            true => self.first_rank.to_string(),
            false => format!("{}-{}", self.first_rank, self.last_rank),
        }
    }
}

fn columns() -> Vec<Column<ShardReport>> {
    vec![
        column("SHARD", |shard| shard.path.clone()),
        column("STATE", |shard| shard.state.clone()),
        column(">RANKS", ShardReport::ranks),
        column("WORKER", |shard| match shard.workers.as_slice() {
            [] => "-".into(),
            [worker] => worker.clone(),
            [worker, more @ ..] => format!("{worker} and {}", more.len()),
        }),
        column(">DONE", |shard| percent(shard.records_done, shard.records)),
        column(">RECORDS", |shard| output::count(shard.records)),
        column(">PROGRESS", |shard| time(shard.age_ms)),
        wide(">RECORDS DONE", |shard| output::count(shard.records_done)),
        wide(">ORDINAL", |shard| shard.ordinal.to_string()),
        wide("ALL WORKERS", |shard| shard.workers.join(", ")),
    ]
}

impl ShardsReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let ShardCounts { pending, leased, reading, done, skipped } = self.counts;
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
        let shown = Shown { is_wide, all: self.all };
        listing::write(out, "shards", &self.shards, &columns(), shown)
    }
}

impl Report for ShardsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("shards", "path"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}
