//! `shardfeed job`: jobs, their identities, their generations and their holds.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use shardfeed_plan::mixture_digest;
use shardfeed_proto::common::v1::job_mixture::Version;
use shardfeed_proto::common::v1::{JobMixture, RecordSpec};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError, Word};

use super::answer::naming;
use super::{CallError, Client, ClusterArgs, Confirm, Request};
use crate::duration;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, ago, digest, known, number, text};
use crate::output::{self, Format, Report, list_report};

/// Maximum length of a record spec in a table, bytes; `-o json` shows all of it.
const OPERATORS_BYTES_SHOWN: usize = 2_000;

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// List the jobs
    List {
        /// Show all jobs, not only the first 20
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Show a job: its identity and its generations
    Show(NamedJob),
    /// Pause a job: its trainers wait until it is resumed
    ///
    /// Its ranks keep their leases, and workers read ahead up to their limits. Batches that were
    /// sent to a trainer are still consumed: it stops after at most a heartbeat and the batches
    /// that it already has. Ranks may start meanwhile, and wait, too.
    Pause(PauseArgs),
    /// Resume a paused job, or let a cancelled one start again
    Resume(NamedJob),
    /// Cancel a job: loaders fail, no rank starts until it is resumed
    ///
    /// Loaders fail with JobCancelledError. States that were saved stay good: after `shardfeed job
    /// resume` ranks start again from one.
    Cancel {
        #[command(flatten)]
        of: PauseArgs,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Remove a job and the records of its generations
    ///
    /// Its ranks are notified that it is gone. States that its loaders made stay valid, those of a
    /// dynamic job only at the beginning of an epoch: a new job of the same name may start from
    /// one.
    Remove {
        #[command(flatten)]
        of: NamedJob,
        #[command(flatten)]
        confirm: Confirm,
    },
}

/// A job as an argument.
#[derive(Debug, Args)]
pub(crate) struct NamedJob {
    /// Name of the job
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A job, and why it is to be held.
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

/// Options of commands about one job.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Name of the job
    #[arg(long)]
    job: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

list_report!(JobsReport { jobs: wire::Job }, "name", "jobs");

#[derive(Debug, Serialize)]
struct JobReport {
    #[serde(flatten)]
    job: wire::Job,
    /// Generations that are kept, oldest first; only for `job show`.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<wire::Generation>>,
}

pub(crate) fn list(client: &Client) -> Result<Vec<wire::Job>, CallError> {
    client.call(wire::ListJobsRequest::default()).map(|answer| answer.jobs)
}

pub(crate) fn get(client: &Client, job: &str) -> anyhow::Result<wire::GetJobResponse> {
    ask(client, job, wire::GetJobRequest { context: None, job: job.to_owned() })
}

/// Makes a request about a job. If the job does not exist, the error has the names of all jobs.
pub(crate) fn ask<R: Request>(
    client: &Client,
    job: &str,
    request: R,
) -> anyhow::Result<R::Response> {
    client.call(request).map_err(|error| explain(client, job, error))
}

/// Adds the names of all jobs to an error if the job does not exist.
pub(crate) fn explain(client: &Client, job: &str, error: CallError) -> anyhow::Error {
    let known = list(client).map(|jobs| jobs.into_iter().map(|job| job.name).collect());
    naming(error, "jobs", job, known)
}

/// Returns the error for a missing job, with the names of all jobs.
pub(crate) fn missing(client: &Client, job: &str) -> anyhow::Error {
    let refusal = WireError::new(ErrorKind::NotFound, format!("there is no job `{job}`"));
    explain(client, job, CallError::Refused(refusal))
}

impl JobArgs {
    pub(super) fn open(&self) -> anyhow::Result<(Client, String)> {
        Ok((self.cluster.client()?, self.job.clone()))
    }
}

impl JobCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::List { all, cluster } => {
                let jobs = list(&cluster.client()?)?;
                Ok(format.print(&JobsReport { jobs, all: *all })?)
            }
            Self::Show(NamedJob { name, cluster }) => {
                Ok(format.print(&JobReport::shown(get(&cluster.client()?, name)?))?)
            }
            Self::Pause(args) => args.hold(wire::Hold::Paused, format),
            Self::Resume(NamedJob { name, cluster }) => {
                hold(&cluster.client()?, name, (wire::Hold::None, ""), format)
            }
            Self::Cancel { of, confirm } => {
                confirm.check(&format!("the trainers of job `{}` would fail", of.name))?;
                of.hold(wire::Hold::Cancelled, format)
            }
            Self::Remove { of: NamedJob { name, cluster }, confirm } => {
                confirm.check(&format!("job `{name}` would be removed"))?;
                let request = wire::RemoveJobRequest { context: None, name: name.clone() };
                ask(&cluster.client()?, name, request)?;
                let text = output::facts(&[("removed job", name.clone())]);
                Ok(format.print_brief(json!({ "job": name }), text)?)
            }
        }
    }
}

impl PauseArgs {
    fn hold(&self, kind: wire::Hold, format: Format) -> anyhow::Result<()> {
        hold(&self.cluster.client()?, &self.name, (kind, &self.reason), format)
    }
}

fn hold(
    client: &Client,
    name: &str,
    (hold, reason): (wire::Hold, &str),
    format: Format,
) -> anyhow::Result<()> {
    let (job, reason, hold) = (name.to_owned(), reason.to_owned(), hold.into());
    ask(client, name, wire::HoldJobRequest { context: None, job, hold, reason })?;
    let job = get(client, name)?.job.unwrap_or_default();
    Ok(format.print(&JobReport { job, history: None })?)
}

impl JobReport {
    fn shown(answer: wire::GetJobResponse) -> Self {
        let mut job = answer.job.unwrap_or_default();
        if let Some(identity) = job.identity.as_mut().filter(|_| !answer.record_spec.is_empty()) {
            identity.operators = match RecordSpec::decode_canonical(&answer.record_spec[..]) {
                Ok(spec) => spec.to_string(),
                Err(error) => format!("unknown: {error}"),
            };
        }
        Self { history: Some(std::mem::take(&mut job.history)), job }
    }
}

fn generation_columns() -> [Column<wire::Generation>; 12] {
    [
        column(">GENERATION", |of| of.number.to_string()),
        column(">PARENT", |of| number(of.parent)),
        column("RUN", |of| text(&of.run)),
        column(">WORLD SIZE", |of| of.world_size.to_string()),
        column(">GLOBAL BATCH", |of| output::count(of.global_batch)),
        column("BEGAN AT", |of| format!("{}:{}", of.epoch, of.step)),
        column("STANDS AT", |of| match (of.cursor_epoch, of.cursor_step) {
            (Some(epoch), Some(step)) => format!("{epoch}:{step}"),
            _ => NONE.into(),
        }),
        column(">SERVED", |of| of.ranks_served.to_string()),
        column(">AGE", |of| duration::text(of.age_ms)),
        wide(">LANES", |of| of.lanes.to_string()),
        wide(">STARTED", |of| of.ranks_started.to_string()),
        wide(">SUPERSEDED BY", |of| number(of.superseded_by)),
    ]
}

fn dataset(job: &wire::Job) -> String {
    let content = job.identity.as_ref().map(|identity| &identity.content_digest[..]);
    match content == Some(&mixture_digest().as_bytes()[..]) {
        true => "(a mixture)".into(),
        false => job.dataset.clone(),
    }
}

struct SourceInStage {
    first_epoch: u64,
    version: Version,
    count: u64,
}

fn sources(mixture: &JobMixture) -> Vec<SourceInStage> {
    let source = |first_epoch, (version, count): (&u32, &u64)| {
        let version = mixture.versions.get(*version as usize).cloned().unwrap_or_default();
        SourceInStage { first_epoch, version, count: *count }
    };
    let stages = mixture.stages.iter().flat_map(|stage| {
        let counts = stage.versions.iter().zip(&stage.counts);
        counts.map(|of| source(stage.first_epoch, of)).collect::<Vec<_>>()
    });
    stages.collect()
}

fn source_columns() -> [Column<SourceInStage>; 5] {
    [
        column(">FROM EPOCH", |source| source.first_epoch.to_string()),
        column("SOURCE", |source| source.version.name.clone()),
        column(">IN AN EPOCH", |source| output::count(source.count)),
        column(">SAMPLES", |source| output::count(source.version.samples)),
        column("DATASET", |source| source.version.dataset.clone()),
    ]
}

/// Formats a value of the current generation, if there is one.
fn current(job: &wire::Job, said: impl Fn(&wire::Generation) -> String) -> String {
    known(job.generation.as_ref(), said)
}

fn columns() -> [Column<wire::Job>; 12] {
    [
        column("JOB", |job| job.name.clone()),
        column("DATASET", dataset),
        column("STATE", |job| job.phase().word()),
        column(">GENERATION", |job| current(job, |now| now.number.to_string())),
        column(">RANKS", |job| current(job, |g| format!("{} of {}", g.ranks_served, g.world_size))),
        column(">EPOCH", |job| current(job, |now| number(now.cursor_epoch))),
        column(">STEP", |job| current(job, |now| number(now.cursor_step))),
        column(">AGE", |job| duration::text(job.age_ms)),
        wide("RUN", |job| current(job, |now| text(&now.run))),
        wide(">GLOBAL BATCH", |job| current(job, |now| output::count(now.global_batch))),
        wide("TAIL", |job| known(job.identity.as_ref(), |identity| identity.tail().word())),
        wide("DIGEST", |job| digest(&job.digest)),
    ]
}

/// The phase with its reason: the hold of the job, or the error that ended a rank.
fn phase_in_words(job: &wire::Job) -> String {
    let phase = job.phase().word();
    match (&job.held, &job.failure) {
        (Some(held), _) => {
            let wire::Held { principal, reason, age_ms, .. } = held;
            let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            format!("{} by {principal}, {}{reason}", held.hold().word(), ago(*age_ms))
        }
        (None, Some(wire::job::Failure { rank, message })) => {
            format!("{phase}: rank {rank} ended with {message}")
        }
        (None, None) => phase,
    }
}

impl Report for JobReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let Self { job, history } = self;
        let identity = job.identity.clone().unwrap_or_default();
        let mut facts = vec![
            ("job", job.name.clone()),
            ("dataset", dataset(job)),
            ("state", phase_in_words(job)),
            ("made known", ago(job.age_ms)),
            ("digest", digest(&job.digest)),
            ("order version", identity.order_version.to_string()),
            ("order digest", digest(&identity.order_digest)),
            ("content digest", digest(&identity.content_digest)),
            ("seed", identity.seed.to_string()),
            match identity.shuffle {
                true => ("shuffle window", output::count(identity.window)),
                false => ("shuffle", "no".into()),
            },
            ("interleave", output::count(identity.interleave)),
            ("block length", output::count(identity.block_length)),
            ("lanes", output::count(identity.lanes)),
            ("tail", identity.tail().word()),
            ("mode", identity.mode().word()),
        ];
        if is_wide {
            let end = identity.operators.floor_char_boundary(OPERATORS_BYTES_SHOWN);
            let dots = if end < identity.operators.len() { "..." } else { "" };
            facts.extend([
                ("record spec", digest(&identity.record_spec)),
                ("operators", format!("{}{dots}", text(&identity.operators[..end]))),
                ("decoder", text(&identity.decoder)),
            ]);
        }
        facts.push(("generations", output::count(job.generations)));
        output::write_facts(out, &facts)?;
        if let Some(mixture) = &job.mixture {
            writeln!(out)?;
            let shown = Shown { is_wide, all: true };
            listing::write(out, "sources", &sources(mixture), &source_columns(), shown)?;
        }
        let history = history.as_deref().unwrap_or_default();
        if history.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let shown = Shown { is_wide, all: true };
        listing::write(out, "generations", history, &generation_columns(), shown)
    }
}
