//! `shardfeed job`: jobs, their identities and their generations.

mod hold;

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_plan::Digest;
use shardfeed_proto::common::v1::{JobIdentity, Mode, RecordSpec};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError};

use super::answer::{digest, naming};
use super::confirm::Confirm;
use super::{CallError, Client, ClusterArgs};
use crate::duration;
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, number, text, word};
use crate::output::{self, Format, Report};

/// Maximum length of a record spec in a table, bytes; `-o json` shows all of it.
const OPERATORS_BYTES_SHOWN: usize = 2_000;

/// Subcommands of `job`.
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// List the jobs
    List(JobListArgs),
    /// Show a job: its identity and its generations
    Show(JobShowArgs),
    /// Pause a job: its trainers wait until it is resumed
    #[command(long_about = hold::PAUSE_ABOUT)]
    Pause(hold::PauseArgs),
    /// Resume a paused job, or let a cancelled one start again
    #[command(long_about = hold::RESUME_ABOUT)]
    Resume(hold::ResumeArgs),
    /// Cancel a job: loaders fail, no rank starts until it is resumed
    #[command(long_about = hold::CANCEL_ABOUT)]
    Cancel(hold::CancelArgs),
    /// Remove a job and the records of its generations
    #[command(long_about = REMOVE_ABOUT)]
    Remove(JobRemoveArgs),
}

const REMOVE_ABOUT: &str = "\
Remove a job and the records of its generations

Its ranks are notified that it is gone. States that its loaders made stay valid, those of a \
dynamic job only at the beginning of an epoch: a new job of the same name may start from one.";

/// Arguments of `job list`.
#[derive(Debug, Args)]
pub(crate) struct JobListArgs {
    /// Show all jobs, not only the first 20
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `job show`.
#[derive(Debug, Args)]
pub(crate) struct JobShowArgs {
    /// Name of the job
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `job remove`.
#[derive(Debug, Args)]
pub(crate) struct JobRemoveArgs {
    /// Name of the job
    name: String,
    #[command(flatten)]
    confirm: Confirm,
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

/// Result of `job list`.
#[derive(Debug, Serialize)]
struct JobsReport {
    jobs: Vec<JobReport>,
    #[serde(skip)]
    all: bool,
}

/// A job.
#[derive(Debug, Serialize)]
struct JobReport {
    name: String,
    dataset: String,
    identity: IdentityReport,
    /// Digest of the identity.
    digest: Option<Digest>,
    /// Current generation; `null` before the first rank started.
    generation: Option<GenerationReport>,
    /// Number of generations opened so far.
    generations: u64,
    /// Time since it was registered.
    age_ms: u64,
    /// `waiting`, `running`, `paused`, `cancelled`, `finished` or `failed`.
    phase: String,
    /// Error with which a rank of the current generation ended; `null`: none is known.
    failure: Option<FailureReport>,
    /// The hold, if it is paused or cancelled; `null`: it is not.
    held: Option<hold::HeldReport>,
    /// Generations that are kept, oldest first; only for `job show`.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<GenerationReport>>,
}

/// Failure of a rank.
#[derive(Debug, Serialize)]
struct FailureReport {
    rank: u64,
    message: String,
}

/// Values that determine a job's order.
#[derive(Debug, Default, Serialize)]
struct IdentityReport {
    content_digest: Option<Digest>,
    seed: u64,
    shuffle: bool,
    shuffle_window: u64,
    interleave: u64,
    block_length: u64,
    lanes: u64,
    tail: String,
    mode: String,
    /// Digest of its record spec; `null` for a job of an earlier release.
    record_spec: Option<Digest>,
    /// Record spec as one line; only for `job show`.
    operators: String,
    decoder: String,
}

/// A period of a job with one run, world size and global batch.
#[derive(Debug, Serialize)]
struct GenerationReport {
    generation: u64,
    parent: Option<u64>,
    run: String,
    world_size: u64,
    global_batch: u64,
    lanes: u64,
    /// Maximum number of entries in an epoch; `null`: unlimited.
    limit: Option<u64>,
    /// Position at which it began.
    epoch: u64,
    step: u64,
    ranks_started: u64,
    /// Number of ranks with a live lease.
    ranks_served: u64,
    /// Lowest cursor of its ranks.
    cursor_epoch: Option<u64>,
    cursor_step: Option<u64>,
    superseded_by: Option<u64>,
    age_ms: u64,
}

/// Result of `job remove`.
#[derive(Debug, Serialize)]
struct RemovedJob {
    job: String,
}

impl Report for RemovedJob {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        output::write_facts(out, &[("removed job", self.job.clone())])
    }
}

/// Lists the jobs.
pub(crate) fn list(client: &Client) -> Result<Vec<wire::Job>, CallError> {
    let answer = client.call(|mut admin, context| async move {
        admin.list_jobs(wire::ListJobsRequest { context }).await
    });
    answer.map(|answer| answer.jobs)
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
    /// Returns the client and the job's name.
    pub(super) fn open(&self) -> anyhow::Result<(Client, String)> {
        Ok((self.cluster.client()?, self.job.clone()))
    }

    pub(super) fn name(&self) -> &str {
        &self.job
    }

    pub(super) fn explain(&self, client: &Client, error: CallError) -> anyhow::Error {
        explain(client, &self.job, error)
    }
}

impl JobCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        match self {
            Self::List(args) => {
                let jobs = list(&args.cluster.client()?)?;
                let jobs = jobs.into_iter().map(|job| JobReport::new(job, None)).collect();
                Ok(format.print(&JobsReport { jobs, all: args.all })?)
            }
            Self::Show(args) => {
                let client = args.cluster.client()?;
                let job = args.name.clone();
                let answer = client.call(|mut admin, context| async move {
                    admin.get_job(wire::GetJobRequest { context, job }).await
                });
                let answer = answer.map_err(|error| explain(&client, &args.name, error))?;
                let job = answer.job.unwrap_or_default();
                Ok(format.print(&JobReport::new(job, Some(&answer.record_spec)))?)
            }
            Self::Pause(args) => hold::pause(args, format),
            Self::Resume(args) => hold::resume(args, format),
            Self::Cancel(args) => hold::cancel(args, format),
            Self::Remove(args) => {
                let name = args.name.clone();
                args.confirm.check(&format!("job `{name}` would be removed"))?;
                let client = args.cluster.client()?;
                let removed = client.call(|mut admin, context| async move {
                    admin.remove_job(wire::RemoveJobRequest { context, name }).await
                });
                removed.map_err(|error| explain(&client, &args.name, error))?;
                Ok(format.print(&RemovedJob { job: args.name.clone() })?)
            }
        }
    }
}

impl JobReport {
    /// Creates a report.
    /// - `record_spec`: encoded record spec from `GetJob`; `None`: the job is part of a list.
    fn new(job: wire::Job, record_spec: Option<&[u8]>) -> Self {
        let phase = word(job.phase().as_str_name(), "JOB_PHASE_");
        let history = job.history.into_iter().map(GenerationReport::new).collect();
        let spec = record_spec.filter(|encoded| !encoded.is_empty());
        let spec = spec.map(|encoded| match RecordSpec::decode_canonical(encoded) {
            Ok(spec) => spec.to_string(),
            Err(error) => format!("unknown: {error}"),
        });
        let mut identity = job.identity.map(IdentityReport::new).unwrap_or_default();
        identity.operators = spec.unwrap_or(identity.operators);
        let failure =
            job.failure.map(|wire::job::Failure { rank, message }| FailureReport { rank, message });
        Self {
            name: job.name,
            dataset: job.dataset,
            identity,
            digest: digest(&job.digest),
            generation: job.generation.map(GenerationReport::new),
            generations: job.generations,
            age_ms: job.age_ms,
            held: job.held.map(hold::HeldReport::new),
            phase,
            failure,
            history: record_spec.is_some().then_some(history),
        }
    }
}

impl IdentityReport {
    fn new(identity: JobIdentity) -> Self {
        Self {
            tail: word(identity.tail().as_str_name(), "TAIL_"),
            mode: match identity.mode() {
                Mode::Dynamic => "dynamic".into(),
                Mode::Deterministic | Mode::Unspecified => "deterministic".into(),
            },
            content_digest: digest(&identity.content),
            seed: identity.seed,
            shuffle: identity.shuffle,
            shuffle_window: identity.window,
            interleave: identity.interleave,
            block_length: identity.block_length,
            lanes: identity.lanes,
            record_spec: digest(&identity.record_spec),
            operators: identity.operators,
            decoder: identity.decoder,
        }
    }
}

impl GenerationReport {
    fn new(generation: wire::Generation) -> Self {
        Self {
            generation: generation.number,
            parent: generation.parent,
            run: generation.run,
            world_size: generation.world_size,
            global_batch: generation.global_batch,
            lanes: generation.lanes,
            limit: generation.limit,
            epoch: generation.epoch,
            step: generation.step,
            ranks_started: generation.ranks_started,
            ranks_served: generation.ranks_served,
            cursor_epoch: generation.cursor_epoch,
            cursor_step: generation.cursor_step,
            superseded_by: generation.superseded_by,
            age_ms: generation.age_ms,
        }
    }

    fn columns() -> [Column<Self>; 12] {
        [
            column(">GENERATION", |of| of.generation.to_string()),
            column(">PARENT", |of| number(of.parent)),
            column("RUN", |of| text(&of.run)),
            column(">WORLD SIZE", |of| of.world_size.to_string()),
            column(">GLOBAL BATCH", |of| output::count(of.global_batch)),
            column("BEGAN AT", |of| format!("{}:{}", of.epoch, of.step)),
            column("STANDS AT", Self::stands_at),
            column(">SERVED", |of| of.ranks_served.to_string()),
            column(">AGE", |of| duration::text(of.age_ms)),
            wide(">LANES", |of| of.lanes.to_string()),
            wide(">STARTED", |of| of.ranks_started.to_string()),
            wide(">SUPERSEDED BY", |of| number(of.superseded_by)),
        ]
    }

    /// Epoch and step.
    fn stands_at(&self) -> String {
        match (self.cursor_epoch, self.cursor_step) {
            (Some(epoch), Some(step)) => format!("{epoch}:{step}"),
            _ => NONE.into(),
        }
    }
}

/// Formats a value of the current generation, if there is one.
fn current(job: &JobReport, said: impl Fn(&GenerationReport) -> String) -> String {
    job.generation.as_ref().map_or_else(|| NONE.into(), said)
}

fn columns() -> [Column<JobReport>; 12] {
    [
        column("JOB", |job| job.name.clone()),
        column("DATASET", |job| job.dataset.clone()),
        column("STATE", |job| job.phase.clone()),
        column(">GENERATION", |job| current(job, |now| now.generation.to_string())),
        column(">RANKS", |job| current(job, |g| format!("{} of {}", g.ranks_served, g.world_size))),
        column(">EPOCH", |job| current(job, |now| number(now.cursor_epoch))),
        column(">STEP", |job| current(job, |now| number(now.cursor_step))),
        column(">AGE", |job| duration::text(job.age_ms)),
        wide("RUN", |job| current(job, |now| text(&now.run))),
        wide(">GLOBAL BATCH", |job| current(job, |now| output::count(now.global_batch))),
        wide("TAIL", |job| job.identity.tail.clone()),
        wide("DIGEST", |job| job.digest.map_or_else(|| NONE.into(), |digest| digest.to_string())),
    ]
}

impl JobsReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        listing::write(out, "jobs", &self.jobs, &columns(), Shown { is_wide, all: self.all })
    }
}

impl Report for JobsReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("jobs", "name"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}

impl JobReport {
    /// The phase with its reason: the hold of the job, or the error that ended a rank.
    fn phase_in_words(&self) -> String {
        let Some(held) = &self.held else {
            return match &self.failure {
                Some(FailureReport { rank, message }) => {
                    format!("{}: rank {rank} ended with {message}", self.phase)
                }
                None => self.phase.clone(),
            };
        };
        let hold::HeldReport { hold, principal, reason, age_ms } = held;
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        format!("{hold} by {principal}, {} ago{reason}", duration::text(*age_ms))
    }

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let hex = |digest: Option<Digest>| digest.map_or_else(|| NONE.into(), |d| d.to_string());
        let identity = &self.identity;
        let mut facts = vec![
            ("job", self.name.clone()),
            ("dataset", self.dataset.clone()),
            ("state", self.phase_in_words()),
            ("made known", format!("{} ago", duration::text(self.age_ms))),
            ("digest", hex(self.digest)),
            ("content digest", hex(identity.content_digest)),
            ("seed", identity.seed.to_string()),
        ];
        if identity.shuffle {
            facts.push(("shuffle window", output::count(identity.shuffle_window)));
        } else {
            facts.push(("shuffle", "no".into()));
        }
        facts.push(("interleave", output::count(identity.interleave)));
        facts.push(("block length", output::count(identity.block_length)));
        facts.push(("lanes", output::count(identity.lanes)));
        facts.push(("tail", identity.tail.clone()));
        facts.push(("mode", identity.mode.clone()));
        if is_wide {
            facts.push(("record spec", hex(identity.record_spec)));
            let end = identity.operators.floor_char_boundary(OPERATORS_BYTES_SHOWN);
            let dots = if end < identity.operators.len() { "..." } else { "" };
            facts.push(("operators", format!("{}{dots}", text(&identity.operators[..end]))));
            facts.push(("decoder", text(&identity.decoder)));
        }
        facts.push(("generations", output::count(self.generations)));
        output::write_facts(out, &facts)?;
        let history = self.history.as_deref().unwrap_or_default();
        if history.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let shown = Shown { is_wide, all: true };
        listing::write(out, "generations", history, &GenerationReport::columns(), shown)
    }
}

impl Report for JobReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}
