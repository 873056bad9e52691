//! `shardfeed worker list` and `show`; `cordon` has a separate module.

pub(crate) mod cordon;

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use shardfeed_embedded::{Account, Finding, Reason, Setup, Spent, account_from, finding};
use shardfeed_proto::coordinator::v1 as wire;

use super::answer::there_are;
use super::{CallError, Client, ClusterArgs};
use crate::duration;
use crate::error::{Exit, Problem};
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{NONE, text, time, word};
use crate::output::{self, Format, Report};

/// Arguments of `worker list`.
#[derive(Debug, Args)]
pub(crate) struct WorkerListArgs {
    /// Also show workers that are gone, as far as they are kept, and more than 20
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `worker show`.
#[derive(Debug, Args)]
pub(crate) struct WorkerShowArgs {
    /// Name of the worker
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Workers, live ones first.
#[derive(Debug, Serialize)]
struct WorkersReport {
    workers: Vec<WorkerReport>,
    #[serde(skip)]
    all: bool,
}

/// A session of a worker.
#[derive(Debug, Serialize)]
struct WorkerReport {
    name: String,
    /// `live`, `left`, `expired` or `replaced`.
    state: String,
    /// `open`, `cordoned` or `draining`.
    cordon: String,
    host: String,
    session: u64,
    /// True if it runs inside a trainer's process.
    in_process: bool,
    version: String,
    /// Path of its trainer socket.
    socket: Option<String>,
    /// Ids of its image decoders; empty if it has reported none.
    decoders: Vec<String>,
    /// Number of ranks that it serves.
    leases: u64,
    /// Number of scans that it works on.
    scans: u64,
    /// Time since it joined.
    age_ms: u64,
    /// Time since its last heartbeat; `null` if it is gone.
    seen_ms: Option<u64>,
    serving: Vec<WorkerLeaseReport>,
}

/// The right to serve a rank.
#[derive(Debug, Serialize)]
struct WorkerLeaseReport {
    job: String,
    generation: u64,
    rank: u64,
    fencing: u64,
    /// Time breakdown; `null` until the worker has reported.
    account: Option<Account>,
    /// Diagnosis of the time breakdown.
    finding: Option<Finding>,
}

/// Lists the workers.
/// - `all`: include workers that are gone.
pub(crate) fn list(client: &Client, all: bool) -> Result<Vec<wire::Worker>, CallError> {
    let answer = client.call(|mut admin, context| async move {
        admin.list_workers(wire::ListWorkersRequest { context, all }).await
    });
    answer.map(|answer| answer.workers)
}

/// Runs `worker list`.
pub(crate) fn run_list(args: &WorkerListArgs, format: Format) -> anyhow::Result<()> {
    let workers = list(&args.cluster.client()?, args.all)?;
    let workers = workers.into_iter().map(WorkerReport::new).collect();
    Ok(format.print(&WorkersReport { workers, all: args.all })?)
}

/// Runs `worker show`.
pub(crate) fn run_show(args: &WorkerShowArgs, format: Format) -> anyhow::Result<()> {
    let worker = find(&args.cluster.client()?, &args.name)?;
    Ok(format.print(&WorkerReport::new(worker))?)
}

/// Finds a worker by name: its live session, else the last one.
fn find(client: &Client, name: &str) -> anyhow::Result<wire::Worker> {
    let mut workers = list(client, true)?;
    workers.sort_by_key(|worker| {
        (worker.state() != wire::WorkerState::Live, u64::MAX - worker.session)
    });
    match workers.iter().position(|worker| worker.name == name) {
        Some(found) => Ok(workers.swap_remove(found)),
        None => {
            let mut known: Vec<_> = workers.into_iter().map(|worker| worker.name).collect();
            known.sort();
            known.dedup();
            let what = format!("there is no worker `{name}`");
            let problem = Problem::failed(what).hint(there_are("workers", &known));
            Err(problem.exit(Exit::NotFound).into())
        }
    }
}

impl WorkerReport {
    fn new(mut worker: wire::Worker) -> Self {
        let state = word(worker.state().as_str_name(), "WORKER_STATE_");
        // Coordinators of earlier releases send no time breakdowns.
        let mut accounts = std::mem::take(&mut worker.accounts).into_iter();
        let lease = |lease: wire::Lease| {
            let wire::Lease { job, generation, rank, fencing } = lease;
            let account = accounts.next().filter(|told| told.setup.is_some());
            let account = account.as_ref().map(account_from);
            let finding = account.as_ref().map(finding);
            WorkerLeaseReport { job, generation, rank, fencing, account, finding }
        };
        let cordon = match worker.cordon() {
            // A coordinator of an earlier release knows no cordons.
            wire::Cordon::Unspecified => "open".into(),
            cordon => word(cordon.as_str_name(), "CORDON_"),
        };
        Self {
            state,
            cordon,
            socket: Some(worker.endpoint).filter(|path| !path.is_empty()),
            serving: worker.serving.into_iter().map(lease).collect(),
            decoders: worker.decoders,
            name: worker.name,
            host: worker.host,
            session: worker.session,
            in_process: worker.in_process,
            version: worker.version,
            leases: worker.leases,
            scans: worker.scans,
            age_ms: worker.age_ms,
            seen_ms: worker.seen_ms,
        }
    }

    /// The state, and the cordon state if it is not open.
    fn standing(&self) -> String {
        match self.cordon.as_str() {
            "open" => self.state.clone(),
            cordon => format!("{}, {cordon}", self.state),
        }
    }
}

fn told(lease: &WorkerLeaseReport, said: impl Fn(&Account) -> String) -> String {
    lease.account.as_ref().map_or_else(|| NONE.into(), said)
}

/// Formats an automatically chosen number with its reason.
fn why(number: u64, reason: Reason) -> String {
    format!("{number} ({})", reason.words())
}

/// Number of computing threads, and of cores.
fn computing(account: &Account) -> String {
    let Setup { computing_threads, cores, reasons, .. } = account.setup;
    format!("{computing_threads} of {cores} ({})", reasons.computing.words())
}

/// Access method of files, and the memory budget.
fn reading(account: &Account) -> String {
    let way = if account.setup.by_place { "by place" } else { "front to back" };
    format!("{way} within {}", output::size(account.setup.budget_bytes))
}

/// Requests and bytes that reading from a store has taken so far.
fn store(account: &Account) -> String {
    let Spent { store_requests, store_retries, store_bytes, cached_bytes, .. } =
        account.since_start;
    if !account.setup.remote {
        return "-".into();
    }
    let again = match store_retries {
        0 => String::new(),
        retries => format!(" ({} again)", output::count(retries)),
    };
    let kept = match account.setup.cached {
        true => format!(", {} cached", output::size(cached_bytes)),
        false => String::new(),
    };
    format!(
        "{} requests{again}, {}{kept}",
        output::count(store_requests),
        output::size(store_bytes)
    )
}

fn columns() -> Vec<Column<WorkerReport>> {
    vec![
        column("WORKER", |worker| worker.name.clone()),
        column("STATE", WorkerReport::standing),
        column("HOST", |worker| worker.host.clone()),
        column(">RANKS", |worker| output::count(worker.leases)),
        column(">SCANS", |worker| output::count(worker.scans)),
        column(">SEEN", |worker| time(worker.seen_ms)),
        column(">AGE", |worker| duration::text(worker.age_ms)),
        wide(">SESSION", |worker| worker.session.to_string()),
        wide("IN PROCESS", |worker| if worker.in_process { "yes" } else { "no" }.into()),
        wide("VERSION", |worker| worker.version.clone()),
        wide("DECODERS", |worker| text(&worker.decoders.join(", "))),
        wide("SOCKET", |worker| text(worker.socket.as_deref().unwrap_or_default())),
    ]
}

impl WorkersReport {
    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let things = if self.all { "workers" } else { "live workers" };
        listing::write(out, things, &self.workers, &columns(), Shown { is_wide, all: self.all })
    }
}

impl Report for WorkersReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("workers", "name"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, false)
    }

    fn write_wide(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out, true)
    }
}

impl Report for WorkerReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let socket = self.socket.as_deref().unwrap_or_default();
        output::write_facts(
            out,
            &[
                ("worker", self.name.clone()),
                ("state", self.standing()),
                ("host", self.host.clone()),
                ("session", self.session.to_string()),
                ("in process", if self.in_process { "yes" } else { "no" }.into()),
                ("version", self.version.clone()),
                ("decoders", text(&self.decoders.join(", "))),
                ("socket", text(socket)),
                ("scans", output::count(self.scans)),
                ("last heartbeat", time(self.seen_ms)),
                ("joined", format!("{} ago", duration::text(self.age_ms))),
                ("ranks served", output::count(self.leases)),
            ],
        )?;
        if self.serving.is_empty() {
            return Ok(());
        }
        let columns = [
            column("JOB", |lease: &WorkerLeaseReport| lease.job.clone()),
            column(">GENERATION", |lease| lease.generation.to_string()),
            column(">RANK", |lease| lease.rank.to_string()),
            column(">FENCING", |lease| lease.fencing.to_string()),
            column("AHEAD", |lease| {
                told(lease, |account| why(account.setup.prefetch, account.setup.reasons.prefetch))
            }),
            column("READERS", |lease| {
                told(lease, |account| {
                    why(account.setup.reading_threads, account.setup.reasons.reading)
                })
            }),
            column("COMPUTING", |lease| told(lease, computing)),
            column("READING", |lease| told(lease, reading)),
            column("STORE", |lease| told(lease, store)),
            column("LIMITED BY", |lease| {
                let found = lease.finding.as_ref();
                text(found.map_or("", |found| found.limit.name()))
            }),
        ];
        writeln!(out)?;
        listing::write(out, "leases", &self.serving, &columns, Shown { is_wide: true, all: true })
    }
}
