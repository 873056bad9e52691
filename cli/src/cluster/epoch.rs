//! `shardfeed epoch`: how much of a job's epochs was delivered, and what is waited for.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use super::job::{self, JobArgs};
use super::listing::{self, Column, Shown, column, wide};
use super::words::{NONE, percent, time, word};
use super::{CallError, Client};
use crate::duration;
use crate::error::Problem;
use crate::output::{self, Format, Report};

/// What can be asked of epochs.
#[derive(Debug, Subcommand)]
pub(crate) enum EpochCommand {
    /// List the epochs of a job that are over or under way, the last one first
    List(ListArgs),
    /// Show an epoch: what was delivered, dropped, lost, and what it waits for
    Show(ShowArgs),
}

/// Arguments of `epoch list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    of: JobArgs,
    /// Show all epochs, not only the last 20
    #[arg(long)]
    all: bool,
}

/// Arguments of `epoch show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    of: JobArgs,
    /// Epoch, from 0 [default: the one that the slowest rank is in]
    #[arg(long)]
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

/// An epoch that was asked for.
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
    /// To trainers, as reported by ranks.
    delivered: u64,
    /// By tail or limit.
    dropped: u64,
    /// Corrupt records that a policy skips.
    skipped: u64,
    /// total - delivered - dropped - skipped once it is sealed, 0 before.
    lost: u64,
    /// Delivered twice in one lineage, as reported by ranks.
    duplicated: u64,
    steps: u64,
    /// Consumed by every rank.
    steps_done: u64,
    /// `null`: not known.
    samples_per_second: Option<f64>,
    /// `null`: not known, or over.
    eta_ms: Option<u64>,
    /// Since it began; `null` while it is only planned.
    age_ms: Option<u64>,
    /// `null` until it is sealed.
    took_ms: Option<u64>,
    /// Ranks without a live lease, at most 32.
    waiting_for: Vec<u64>,
    /// Those of `skipped` that are remembered; empty where several epochs are listed.
    skipped_records: Vec<SkippedReport>,
}

/// A corrupt record that stands in no batch.
#[derive(Debug, Serialize)]
struct SkippedReport {
    /// Path of the shard, relative to the dataset.
    path: String,
    shard: u64,
    /// The record's number in the shard.
    ordinal: u64,
    /// Of its header, in bytes of the uncompressed shard.
    offset: u64,
    reason: String,
}

impl SkippedReport {
    fn new(record: wire::SkippedRecord) -> Self {
        let wire::SkippedRecord { path, shard, ordinal, offset, reason } = record;
        Self { path, shard, ordinal, offset, reason }
    }
}

/// Epochs of a job.
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

/// The epoch that a job's slowest rank is in.
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

impl ShowArgs {
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

impl EpochReport {
    fn new(epoch: wire::Epoch) -> Self {
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
            steps: epoch.steps,
            steps_done: epoch.steps_done,
            samples_per_second: rate,
            eta_ms: epoch.eta_ms,
            age_ms: (epoch.state() != wire::EpochState::Planned).then_some(epoch.age_ms),
            took_ms: epoch.took_ms,
            waiting_for: epoch.waiting_for,
            skipped_records: epoch.skipped_records.into_iter().map(SkippedReport::new).collect(),
        }
    }

    /// Of what this epoch delivers.
    fn done(&self) -> String {
        let left_out = self.dropped.saturating_add(self.skipped);
        percent(self.delivered, self.total.saturating_sub(left_out))
    }

    fn steps(&self) -> String {
        format!("{} of {}", output::count(self.steps_done), output::count(self.steps))
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
        let ranks: Vec<_> = self.waiting_for.iter().map(u64::to_string).collect();
        match ranks.as_slice() {
            [] => NONE.into(),
            [rank] => format!("rank {rank}"),
            ranks => format!("ranks {}", ranks.join(", ")),
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

fn columns() -> [Column<EpochReport>; 15] {
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
        wide(">TOOK", |epoch| time(epoch.took_ms)),
    ]
}

impl EpochsReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let shown = Shown { is_wide, all: self.all };
        // People look for the last ones.
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
