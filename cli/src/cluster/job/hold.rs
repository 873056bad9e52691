//! `shardfeed job pause`, `resume` and `cancel`.

use clap::Args;
use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use super::{JobReport, explain};
use crate::cluster::confirm::Confirm;
use crate::cluster::{Client, ClusterArgs};
use crate::output::Format;
use crate::output::words::word;

pub(super) const PAUSE_ABOUT: &str = "\
Pause a job: its trainers wait for their next batch until it is resumed

Its ranks keep their leases, and workers read ahead up to their limits. Batches that were sent to \
a trainer are still consumed: it stops after at most a heartbeat and the batches that it already \
has. Ranks may start meanwhile, and wait, too.";

pub(super) const CANCEL_ABOUT: &str = "\
End a job: its trainers' loaders fail with JobCancelledError, and no rank may start until it is resumed

States that were saved stay good: after `shardfeed job resume` ranks start again from one.";

pub(super) const RESUME_ABOUT: &str = "\
Resume a paused job, or allow the ranks of a cancelled one to start again";

/// Arguments of `job pause`.
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Name of the job
    name: String,
    /// Reason to show in `job show`, in events and in the trainers' logs
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `job cancel`.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    of: PauseArgs,
    #[command(flatten)]
    confirm: Confirm,
}

/// Arguments of `job resume`.
#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// Name of the job
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A hold of a job.
#[derive(Debug, Serialize)]
pub(super) struct HeldReport {
    /// `paused` or `cancelled`.
    pub(super) hold: String,
    /// Principal that holds the job.
    pub(super) principal: String,
    pub(super) reason: String,
    pub(super) age_ms: u64,
}

impl HeldReport {
    pub(super) fn new(held: wire::Held) -> Self {
        Self {
            hold: word(held.hold().as_str_name(), "HOLD_"),
            principal: held.principal,
            reason: held.reason,
            age_ms: held.age_ms,
        }
    }
}

fn set(
    (client, name, reason): (&Client, &str, &str),
    hold: wire::Hold,
    format: Format,
) -> anyhow::Result<()> {
    let (job, reason, hold) = (name.to_owned(), reason.to_owned(), i32::from(hold));
    let set = client.call(|mut admin, context| async move {
        admin.hold_job(wire::HoldJobRequest { context, job, hold, reason }).await
    });
    set.map_err(|error| explain(client, name, error))?;
    let job = name.to_owned();
    let answer = client.call(|mut admin, context| async move {
        admin.get_job(wire::GetJobRequest { context, job }).await
    });
    let answer = answer.map_err(|error| explain(client, name, error))?;
    Ok(format.print(&JobReport::new(answer.job.unwrap_or_default(), None))?)
}

/// Runs `job pause`.
pub(super) fn pause(args: &PauseArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    set((&client, &args.name, &args.reason), wire::Hold::Paused, format)
}

/// Runs `job cancel`.
pub(super) fn cancel(args: &CancelArgs, format: Format) -> anyhow::Result<()> {
    let CancelArgs { of, confirm } = args;
    confirm.check(&format!("the trainers of job `{}` would fail", of.name))?;
    let client = of.cluster.client()?;
    set((&client, &of.name, &of.reason), wire::Hold::Cancelled, format)
}

/// Runs `job resume`.
pub(super) fn resume(args: &ResumeArgs, format: Format) -> anyhow::Result<()> {
    let client = args.cluster.client()?;
    set((&client, &args.name, ""), wire::Hold::None, format)
}
