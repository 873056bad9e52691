//! `shardfeed epoch`: progress of a job's epochs, and the ranks that they wait for.

use std::io::{self, Write};

use clap::Subcommand;
use serde::Serialize;
use shardfeed_proto::Word;
use shardfeed_proto::coordinator::v1 as wire;

use super::job::{self, JobArgs};
use super::{CallError, Client};
use crate::duration;
use crate::error::Problem;
use crate::order::parse_epoch;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, ago, known, percent, time};
use crate::output::{self, Format, Report};

#[derive(Debug, Subcommand)]
pub(crate) enum EpochCommand {
    /// List the epochs of a job that have begun or ended, latest first
    List {
        #[command(flatten)]
        of: JobArgs,
        /// Show all epochs, not only the last 20
        #[arg(long)]
        all: bool,
    },
    /// Show an epoch: delivered, dropped and lost samples, and awaited ranks
    Show {
        #[command(flatten)]
        of: JobArgs,
        /// Epoch, from 0 [default: the epoch of the slowest rank]
        #[arg(long, value_parser = parse_epoch)]
        epoch: Option<u64>,
    },
}

#[derive(Debug, Serialize)]
struct EpochsReport {
    job: String,
    /// Sealed epochs of the current lineage, then those that ranks are in.
    epochs: Vec<EpochReport>,
    #[serde(skip)]
    all: bool,
}

#[derive(Debug, Serialize)]
struct ShowReport {
    job: String,
    #[serde(flatten)]
    epoch: EpochReport,
}

#[derive(Debug, Serialize)]
struct EpochReport {
    #[serde(flatten)]
    epoch: wire::Epoch,
    /// Time since it began; `null` while it is only planned.
    age_ms: Option<u64>,
}

/// Lists the epochs of a job.
/// - `epoch`: only this one.
pub(crate) fn list(
    client: &Client,
    job: &str,
    epoch: Option<u64>,
) -> Result<Vec<wire::Epoch>, CallError> {
    let request = wire::ListEpochsRequest { context: None, job: job.to_owned(), epoch };
    client.call(request).map(|answer| answer.epochs)
}

/// Returns the epoch of a job's slowest rank.
pub(super) fn current(client: &Client, job: &str) -> anyhow::Result<wire::Epoch> {
    let epochs = list(client, job, None);
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
            Self::List { of, all } => {
                let (client, job) = of.open()?;
                let epochs = list(&client, &job, None);
                let epochs = epochs.map_err(|error| job::explain(&client, &job, error))?;
                let epochs = epochs.into_iter().map(EpochReport::new).collect();
                Ok(format.print(&EpochsReport { job, epochs, all: *all })?)
            }
            Self::Show { of, epoch } => {
                let (client, job) = of.open()?;
                let epoch = EpochReport::new(find(&client, &job, *epoch)?);
                Ok(format.print(&ShowReport { job, epoch })?)
            }
        }
    }
}

fn find(client: &Client, job: &str, epoch: Option<u64>) -> anyhow::Result<wire::Epoch> {
    let number = match epoch {
        Some(number) => number,
        None => current(client, job)?.epoch,
    };
    let epochs = list(client, job, Some(number));
    let epochs = epochs.map_err(|error| job::explain(client, job, error))?;
    epochs.into_iter().next().ok_or_else(|| {
        let what = format!("nothing is known of epoch {number} of job `{job}`");
        Problem::failed(what).hint("`shardfeed epoch list` shows which epochs are known").into()
    })
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

/// Lists the ranks with samples in doubt; `None`: there are none.
fn doubtful(epoch: &wire::Epoch) -> Option<String> {
    let rank = |wire::RankInDoubt { rank, samples, age_ms }: &wire::RankInDoubt| {
        format!("{} of rank {rank} for {}", output::count(*samples), duration::text(*age_ms))
    };
    let ranks: Vec<_> = epoch.in_doubt.iter().map(rank).collect();
    (!ranks.is_empty()).then(|| ranks.join(", "))
}

/// Describes the samples in doubt of an epoch: their ranks, their age, and the time until the
/// decision; `None`: there are none.
pub(super) fn doubt(epoch: &wire::Epoch) -> Option<String> {
    let ranks = doubtful(epoch)?;
    let policy = match epoch.policy() {
        wire::InDoubt::Drop => "drop",
        _ => "redeliver",
    };
    let until = match epoch.decides_in_ms {
        Some(left) => format!("in {}", duration::text(left)),
        None => "some time after all other samples are consumed".into(),
    };
    Some(format!("samples in doubt: {ranks}; in_doubt=\"{policy}\" decides {until}"))
}

/// Returns how many samples of an epoch are delivered in the end.
pub(crate) fn deliverable(epoch: &wire::Epoch) -> u64 {
    let gone = epoch.dropped.saturating_add(epoch.skipped).saturating_add(epoch.left_out);
    epoch.total.saturating_sub(gone)
}

fn done(epoch: &wire::Epoch) -> String {
    percent(epoch.delivered, deliverable(epoch))
}

/// Formats the steps that are done; a dynamic job has no total, which is 0.
pub(super) fn steps(done: u64, total: u64) -> String {
    match total {
        0 => output::count(done),
        total => format!("{} of {}", output::count(done), output::count(total)),
    }
}

fn rate(epoch: &wire::Epoch) -> String {
    match epoch.samples_per_second {
        rate if rate >= 10.0 => format!("{}/s", output::count(rate as u64)),
        rate if rate > 0.0 => format!("{rate:.1}/s"),
        _ => NONE.into(),
    }
}

fn waiting(epoch: &wire::Epoch) -> String {
    awaited(&epoch.waiting_for).unwrap_or_else(|| NONE.into())
}

/// Samples in doubt, and the time until the decision.
fn in_doubt(epoch: &wire::Epoch) -> String {
    match (doubtful(epoch), epoch.decides_in_ms) {
        (None, _) => "0".into(),
        (Some(ranks), None) => ranks,
        (Some(ranks), Some(left)) => format!("{ranks}; decided in {}", duration::text(left)),
    }
}

impl EpochReport {
    fn new(epoch: wire::Epoch) -> Self {
        let has_begun = epoch.state() != wire::EpochState::Planned;
        Self { age_ms: has_begun.then_some(epoch.age_ms), epoch }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let Self { epoch, age_ms } = self;
        let delivered = output::count(epoch.delivered);
        vec![
            ("epoch", epoch.epoch.to_string()),
            ("generation", epoch.generation.to_string()),
            ("state", epoch.state().word()),
            ("delivered", format!("{delivered} of {} samples", output::count(epoch.total))),
            ("done", done(epoch)),
            ("steps", steps(epoch.steps_done, epoch.steps)),
            ("dropped", output::count(epoch.dropped)),
            ("left out", output::count(epoch.left_out)),
            ("skipped", output::count(epoch.skipped)),
            ("lost", output::count(epoch.lost)),
            ("duplicated", output::count(epoch.duplicated)),
            ("redelivered", output::count(epoch.redelivered)),
            ("in doubt", in_doubt(epoch)),
            ("speed", rate(epoch)),
            ("time left", time(epoch.eta_ms)),
            ("waiting for", waiting(epoch)),
            ("began", known(*age_ms, ago)),
            ("took", time(epoch.took_ms)),
        ]
    }
}

fn columns() -> [Column<wire::Epoch>; 18] {
    [
        column(">EPOCH", |epoch| epoch.epoch.to_string()),
        column("STATE", |epoch| epoch.state().word()),
        column(">DONE", done),
        column(">DELIVERED", |epoch| output::count(epoch.delivered)),
        column(">TOTAL", |epoch| output::count(epoch.total)),
        column(">STEPS", |epoch| steps(epoch.steps_done, epoch.steps)),
        column(">SPEED", rate),
        column(">TIME LEFT", |epoch| time(epoch.eta_ms)),
        column("WAITING FOR", waiting),
        wide(">GENERATION", |epoch| epoch.generation.to_string()),
        wide(">DROPPED", |epoch| output::count(epoch.dropped)),
        wide(">LEFT OUT", |epoch| output::count(epoch.left_out)),
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

fn source_columns() -> [Column<wire::EpochSource>; 7] {
    [
        column("SOURCE", |source| source.name.clone()),
        column(">DONE", |source| {
            let never = source.dropped.saturating_add(source.left_out);
            percent(source.delivered, source.total.saturating_sub(never))
        }),
        column(">DELIVERED", |source| output::count(source.delivered)),
        column(">TOTAL", |source| output::count(source.total)),
        column(">DROPPED", |source| output::count(source.dropped)),
        column(">REST DROPPED", |source| output::count(source.rest_dropped)),
        column(">LEFT OUT", |source| output::count(source.left_out)),
    ]
}

impl Report for EpochsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("epochs", "epoch"));

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let shown = Shown { is_wide, all: self.all };
        // The latest epochs come first.
        let latest: Vec<_> = self.epochs.iter().rev().map(|of| &of.epoch).collect();
        listing::write(out, "epochs", &latest, &columns(), shown)
    }
}

impl Report for ShowReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let mut facts = vec![("job", self.job.clone())];
        facts.extend(self.epoch.facts());
        output::write_facts(out, &facts)?;
        let wire::Epoch { skipped_records: skipped, sources, .. } = &self.epoch.epoch;
        let shown = Shown { is_wide: false, all: true };
        if !sources.is_empty() {
            writeln!(out)?;
            listing::write(out, "sources", sources, &source_columns(), shown)?;
        }
        if skipped.is_empty() {
            return Ok(());
        }
        let columns = [
            column("SKIPPED IN", |record: &wire::SkippedRecord| record.path.clone()),
            column(">RECORD", |record| record.ordinal.to_string()),
            column(">OFFSET", |record| record.offset.to_string()),
            column("REASON", |record| record.reason.clone()),
        ];
        writeln!(out)?;
        listing::write(out, "records", skipped, &columns, shown)
    }
}
