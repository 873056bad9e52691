//! `shardfeed epoch`: progress of a job's epochs, and the ranks that they wait for.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use super::job::{self, JobArgs};
use super::{CallError, Client};
use crate::duration;
use crate::error::Problem;
use crate::order::parse_epoch;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, percent, time, word};
use crate::output::{self, Format, Report};

/// Subcommands of `epoch`.
#[derive(Debug, Subcommand)]
pub(crate) enum EpochCommand {
    /// List the epochs of a job that have begun or ended, latest first
    List(EpochListArgs),
    /// Show an epoch: delivered, dropped and lost samples, and awaited ranks
    Show(EpochShowArgs),
}

/// Arguments of `epoch list`.
#[derive(Debug, Args)]
pub(crate) struct EpochListArgs {
    #[command(flatten)]
    of: JobArgs,
    /// Show all epochs, not only the last 20
    #[arg(long)]
    all: bool,
}

/// Arguments of `epoch show`.
#[derive(Debug, Args)]
pub(crate) struct EpochShowArgs {
    #[command(flatten)]
    of: JobArgs,
    /// Epoch, from 0 [default: the epoch of the slowest rank]
    #[arg(long, value_parser = parse_epoch)]
    epoch: Option<u64>,
}

/// Epochs of a job.
#[derive(Debug, Serialize)]
struct EpochsReport {
    job: String,
    epochs: Vec<EpochReport>,
    #[serde(skip)]
    all: bool,
}

/// Result of `epoch show`.
#[derive(Debug, Serialize)]
struct ShowReport {
    job: String,
    #[serde(flatten)]
    epoch: EpochReport,
}

/// An epoch. Counts are samples.
#[derive(Debug, Serialize)]
struct EpochReport {
    epoch: u64,
    generation: u64,
    /// `planned`, `running`, `waiting` or `sealed`.
    state: String,
    total: u64,
    /// Delivered to trainers, as reported by ranks.
    delivered: u64,
    /// Dropped by the tail or the limit, or in a dynamic job by `in_doubt="drop"`.
    dropped: u64,
    /// Corrupt records that a policy skips.
    skipped: u64,
    /// total - delivered - dropped - skipped once it is sealed, 0 before.
    lost: u64,
    /// Delivered twice in one lineage, as reported by ranks.
    duplicated: u64,
    /// Samples that were in doubt and were granted to other ranks: at most this many more were
    /// delivered twice.
    redelivered: u64,
    /// Ranks with samples in doubt: a trainer that is gone may have consumed them.
    in_doubt: Vec<InDoubtReport>,
    /// Time until `in_doubt=` decides; `null`: other samples are left, or the time is not counted.
    decides_in_ms: Option<u64>,
    /// Number of steps; 0 for a dynamic job.
    steps: u64,
    /// Steps consumed by every rank.
    steps_done: u64,
    /// `null`: unknown.
    samples_per_second: Option<f64>,
    /// `null`: unknown, or the epoch is over.
    eta_ms: Option<u64>,
    /// Time since it began; `null` while it is only planned.
    age_ms: Option<u64>,
    /// Duration; `null` until it is sealed.
    took_ms: Option<u64>,
    /// Ranks without a live lease, at most 32.
    waiting_for: Vec<u64>,
    /// Records of `skipped` that are kept; empty if several epochs are listed.
    skipped_records: Vec<SkippedReport>,
}

/// Samples that may have been consumed by a trainer that is gone.
#[derive(Debug, Serialize)]
struct InDoubtReport {
    rank: u64,
    samples: u64,
    /// Time since the session or the trainer's connection ended.
    age_ms: u64,
}

/// A corrupt record that is in no batch.
#[derive(Debug, Serialize)]
struct SkippedReport {
    /// Path of the shard, relative to the dataset.
    path: String,
    shard: u64,
    /// Number of the record in the shard.
    ordinal: u64,
    /// Offset of its header in the uncompressed shard, bytes.
    offset: u64,
    reason: String,
}

impl InDoubtReport {
    fn new(wire::RankInDoubt { rank, samples, age_ms }: wire::RankInDoubt) -> Self {
        Self { rank, samples, age_ms }
    }

    fn text(&self) -> String {
        let Self { rank, samples, age_ms } = self;
        format!("{} of rank {rank} for {}", output::count(*samples), duration::text(*age_ms))
    }
}

impl SkippedReport {
    fn new(record: wire::SkippedRecord) -> Self {
        let wire::SkippedRecord { path, shard, ordinal, offset, reason } = record;
        Self { path, shard, ordinal, offset, reason }
    }
}

/// Lists the epochs of a job.
/// - `epoch`: only this one.
pub(super) fn list(
    client: &Client,
    job: String,
    epoch: Option<u64>,
) -> Result<Vec<wire::Epoch>, CallError> {
    let answer = client.call(|mut admin, context| async move {
        admin.list_epochs(wire::ListEpochsRequest { context, job, epoch }).await
    });
    answer.map(|answer| answer.epochs)
}

/// Returns the epoch of a job's slowest rank.
pub(super) fn current(client: &Client, job: &str) -> anyhow::Result<wire::Epoch> {
    let epochs = list(client, job.to_owned(), None);
    let epochs = epochs.map_err(|error| job::explain(client, job, error))?;
    let open = epochs.iter().position(|epoch| epoch.state() != wire::EpochState::Sealed);
    let current = open.or(epochs.len().checked_sub(1));
    let epoch = current.and_then(|at| epochs.into_iter().nth(at));
    epoch.ok_or_else(|| {
        let what = format!("job `{job}` has not started yet");
        Problem::failed(what).hint("start its ranks first").into()
    })
}

impl EpochCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::List(args) => {
                let (client, job) = args.of.open()?;
                let epochs = list(&client, job.clone(), None);
                let epochs = epochs.map_err(|error| args.of.explain(&client, error))?;
                let epochs = epochs.into_iter().map(EpochReport::new).collect();
                Ok(format.print(&EpochsReport { job, epochs, all: args.all })?)
            }
            Self::Show(args) => {
                let epoch = EpochReport::new(args.find()?);
                let job = args.of.name().to_owned();
                Ok(format.print(&ShowReport { job, epoch })?)
            }
        }
    }
}

impl EpochShowArgs {
    fn find(&self) -> anyhow::Result<wire::Epoch> {
        let (client, job) = self.of.open()?;
        let number = match self.epoch {
            Some(number) => number,
            None => current(&client, &job)?.epoch,
        };
        let epochs = list(&client, job, Some(number));
        let epochs = epochs.map_err(|error| self.of.explain(&client, error))?;
        epochs.into_iter().next().ok_or_else(|| {
            let what = format!("nothing is known of epoch {number} of job `{}`", self.of.name());
            Problem::failed(what).hint("`shardfeed epoch list` shows which epochs are known").into()
        })
    }
}

/// Formats `rank 3` or `ranks 3, 5`; `None`: no rank.
pub(super) fn awaited(ranks: &[u64]) -> Option<String> {
    let names: Vec<_> = ranks.iter().map(u64::to_string).collect();
    match names.as_slice() {
        [] => None,
        [rank] => Some(format!("rank {rank}")),
        ranks => Some(format!("ranks {}", ranks.join(", "))),
    }
}

/// Describes the samples in doubt of an epoch: their ranks, their age, and the time until the
/// decision; `None`: there are none.
pub(super) fn doubt(epoch: &wire::Epoch) -> Option<String> {
    let ranks = epoch.in_doubt.iter().map(|&of| InDoubtReport::new(of).text());
    let ranks: Vec<_> = ranks.collect();
    if ranks.is_empty() {
        return None;
    }
    let policy = match epoch.policy() {
        wire::InDoubt::Drop => "drop",
        _ => "redeliver",
    };
    let until = match epoch.decides_in_ms {
        Some(left) => format!("in {}", duration::text(left)),
        None => "some time after all other samples are consumed".into(),
    };
    let ranks = ranks.join(", ");
    Some(format!("samples in doubt: {ranks}; in_doubt=\"{policy}\" decides {until}"))
}

impl EpochReport {
    fn new(epoch: wire::Epoch) -> Self {
        let has_begun = epoch.state() != wire::EpochState::Planned;
        let rate = Some(epoch.samples_per_second).filter(|rate| *rate > 0.0);
        Self {
            epoch: epoch.epoch,
            generation: epoch.generation,
            state: word(epoch.state().as_str_name(), "EPOCH_STATE_"),
            total: epoch.total,
            delivered: epoch.delivered,
            dropped: epoch.dropped,
            skipped: epoch.skipped,
            lost: epoch.lost,
            duplicated: epoch.duplicated,
            redelivered: epoch.redelivered,
            in_doubt: epoch.in_doubt.into_iter().map(InDoubtReport::new).collect(),
            decides_in_ms: epoch.decides_in_ms,
            steps: epoch.steps,
            steps_done: epoch.steps_done,
            samples_per_second: rate,
            eta_ms: epoch.eta_ms,
            age_ms: has_begun.then_some(epoch.age_ms),
            took_ms: epoch.took_ms,
            waiting_for: epoch.waiting_for,
            skipped_records: epoch.skipped_records.into_iter().map(SkippedReport::new).collect(),
        }
    }

    /// Delivered samples as a percentage of those that this epoch delivers.
    fn done(&self) -> String {
        let left_out = self.dropped.saturating_add(self.skipped);
        percent(self.delivered, self.total.saturating_sub(left_out))
    }

    fn steps(&self) -> String {
        match self.steps {
            0 => output::count(self.steps_done),
            steps => format!("{} of {}", output::count(self.steps_done), output::count(steps)),
        }
    }

    fn rate(&self) -> String {
        self.samples_per_second.map_or_else(
            || NONE.into(),
            |rate| {
                let rounded =
                    if rate < 10.0 { format!("{rate:.1}") } else { output::count(rate as u64) };
                format!("{rounded}/s")
            },
        )
    }

    fn waiting(&self) -> String {
        awaited(&self.waiting_for).unwrap_or_else(|| NONE.into())
    }

    /// Samples in doubt, and the time until the decision.
    fn in_doubt(&self) -> String {
        let ranks: Vec<_> = self.in_doubt.iter().map(InDoubtReport::text).collect();
        match (ranks.is_empty(), self.decides_in_ms) {
            (true, _) => "0".into(),
            (false, None) => ranks.join(", "),
            (false, Some(left)) => {
                format!("{}; decided in {}", ranks.join(", "), duration::text(left))
            }
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let delivered = output::count(self.delivered);
        vec![
            ("epoch", self.epoch.to_string()),
            ("generation", self.generation.to_string()),
            ("state", self.state.clone()),
            ("delivered", format!("{delivered} of {} samples", output::count(self.total))),
            ("done", self.done()),
            ("steps", self.steps()),
            ("dropped", output::count(self.dropped)),
            ("skipped", output::count(self.skipped)),
            ("lost", output::count(self.lost)),
            ("duplicated", output::count(self.duplicated)),
            ("redelivered", output::count(self.redelivered)),
            ("in doubt", self.in_doubt()),
            ("speed", self.rate()),
            ("time left", time(self.eta_ms)),
            ("waiting for", self.waiting()),
            (
                "began",
                self.age_ms
                    .map_or_else(|| NONE.into(), |age| format!("{} ago", duration::text(age))),
            ),
            ("took", time(self.took_ms)),
        ]
    }
}

fn columns() -> [Column<EpochReport>; 17] {
    [
        column(">EPOCH", |epoch| epoch.epoch.to_string()),
        column("STATE", |epoch| epoch.state.clone()),
        column(">DONE", EpochReport::done),
        column(">DELIVERED", |epoch| output::count(epoch.delivered)),
        column(">TOTAL", |epoch| output::count(epoch.total)),
        column(">STEPS", EpochReport::steps),
        column(">SPEED", EpochReport::rate),
        column(">TIME LEFT", |epoch| time(epoch.eta_ms)),
        column("WAITING FOR", EpochReport::waiting),
        wide(">GENERATION", |epoch| epoch.generation.to_string()),
        wide(">DROPPED", |epoch| output::count(epoch.dropped)),
        wide(">SKIPPED", |epoch| output::count(epoch.skipped)),
        wide(">LOST", |epoch| output::count(epoch.lost)),
        wide(">DUPLICATED", |epoch| output::count(epoch.duplicated)),
        wide(">REDELIVERED", |epoch| output::count(epoch.redelivered)),
        wide(">IN DOUBT", |epoch| {
            output::count(epoch.in_doubt.iter().map(|rank| rank.samples).sum())
        }),
        wide(">TOOK", |epoch| time(epoch.took_ms)),
    ]
}

impl EpochsReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let shown = Shown { is_wide, all: self.all };
        // The latest epochs come first.
        let latest: Vec<_> = self.epochs.iter().rev().collect();
        listing::write(out, "epochs", &latest, &columns(), shown)
    }
}

impl Report for EpochsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("epochs", "epoch"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}

impl Report for ShowReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut facts = vec![("job", self.job.clone())];
        facts.extend(self.epoch.facts());
        output::write_facts(out, &facts)?;
        if self.epoch.skipped_records.is_empty() {
            return Ok(());
        }
        let mut grid = output::Grid::new(&["SKIPPED IN", ">RECORD", ">OFFSET", "REASON"]);
        for SkippedReport { path, ordinal, offset, reason, .. } in &self.epoch.skipped_records {
            grid.row([path.clone(), ordinal.to_string(), offset.to_string(), reason.clone()]);
        }
        write!(out, "\n{grid}")
    }
}
