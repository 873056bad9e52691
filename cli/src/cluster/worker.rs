//! `shardfeed worker list` and `show`; `cordon` has a separate module.

pub(crate) mod cordon;

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use shardfeed_embedded::{Account, Finding, Reason, Setup, Spent, account_from, finding};
use shardfeed_proto::Word;
use shardfeed_proto::coordinator::v1 as wire;

use super::answer::there_are;
use super::{CallError, Client, ClusterArgs};
use crate::duration;
use crate::error::{Exit, Problem};
use crate::output::listing::{self, Column, Shown, column, wide};
use crate::output::words::{ago, known, text, time, yes};
use crate::output::{self, Format, Report};

/// A worker as an argument.
#[derive(Debug, Args)]
pub(crate) struct NamedWorker {
    /// Name of the worker
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Serialize)]
struct WorkersReport {
    /// Workers, live ones first.
    workers: Vec<WorkerReport>,
    #[serde(skip)]
    all: bool,
}

#[derive(Debug, Serialize)]
struct WorkerReport {
    #[serde(flatten)]
    worker: wire::Worker,
    /// Ranks that it serves.
    serving: Vec<WorkerLeaseReport>,
}

#[derive(Debug, Serialize)]
struct WorkerLeaseReport {
    #[serde(flatten)]
    lease: wire::Lease,
    /// Time breakdown; `null` until the worker has reported.
    account: Option<Account>,
    finding: Option<Finding>,
}

/// Lists the workers.
/// - `all`: include workers that are gone.
pub(crate) fn list(client: &Client, all: bool) -> Result<Vec<wire::Worker>, CallError> {
    let request = wire::ListWorkersRequest { context: None, all };
    client.call(request).map(|answer| answer.workers)
}

pub(crate) fn print_list(client: &Client, all: bool, format: Format) -> anyhow::Result<()> {
    let workers = list(client, all)?.into_iter().map(WorkerReport::new).collect();
    Ok(format.print(&WorkersReport { workers, all })?)
}

pub(crate) fn print(worker: wire::Worker, format: Format) -> anyhow::Result<()> {
    Ok(format.print(&WorkerReport::new(worker))?)
}

impl NamedWorker {
    pub(crate) fn find(&self) -> anyhow::Result<(Client, wire::Worker)> {
        let client = self.cluster.client()?;
        let worker = find(&client, &self.name)?;
        Ok((client, worker))
    }
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
        // Coordinators of earlier releases send no time breakdowns.
        let mut accounts = std::mem::take(&mut worker.accounts).into_iter();
        let lease = |lease: wire::Lease| {
            let account = accounts.next().filter(|told| told.setup.is_some());
            let account = account.as_ref().map(account_from);
            WorkerLeaseReport { lease, finding: account.as_ref().map(finding), account }
        };
        let serving = std::mem::take(&mut worker.serving).into_iter().map(lease).collect();
        Self { worker, serving }
    }

    /// The state, and the cordon state if it is not open.
    fn standing(&self) -> String {
        let state = self.worker.state().word();
        match self.worker.cordon() {
            wire::Cordon::Open | wire::Cordon::Unspecified => state,
            cordon => format!("{state}, {}", cordon.word()),
        }
    }
}

fn told(lease: &WorkerLeaseReport, said: impl Fn(&Account) -> String) -> String {
    known(lease.account.as_ref(), said)
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
    let (requests, bytes) = (output::count(store_requests), output::size(store_bytes));
    format!("{requests} requests{again}, {bytes}{kept}")
}

fn columns() -> [Column<WorkerReport>; 12] {
    [
        column("WORKER", |of| of.worker.name.clone()),
        column("STATE", WorkerReport::standing),
        column("HOST", |of| of.worker.host.clone()),
        column(">RANKS", |of| output::count(of.worker.leases)),
        column(">SCANS", |of| output::count(of.worker.scans)),
        column(">SEEN", |of| time(of.worker.seen_ms)),
        column(">AGE", |of| duration::text(of.worker.age_ms)),
        wide(">SESSION", |of| of.worker.session.to_string()),
        wide("IN PROCESS", |of| yes(of.worker.in_process)),
        wide("VERSION", |of| of.worker.version.clone()),
        wide("DECODERS", |of| text(&of.worker.decoders.join(", "))),
        wide("SOCKET", |of| text(&of.worker.endpoint)),
    ]
}

fn lease_columns() -> [Column<WorkerLeaseReport>; 10] {
    [
        column("JOB", |of| of.lease.job.clone()),
        column(">GENERATION", |of| of.lease.generation.to_string()),
        column(">RANK", |of| of.lease.rank.to_string()),
        column(">FENCING", |of| of.lease.fencing.to_string()),
        column("AHEAD", |of| {
            told(of, |account| why(account.setup.prefetch, account.setup.reasons.prefetch))
        }),
        column("READERS", |of| {
            told(of, |account| why(account.setup.reading_threads, account.setup.reasons.reading))
        }),
        column("COMPUTING", |of| told(of, computing)),
        column("READING", |of| told(of, reading)),
        column("STORE", |of| told(of, store)),
        column("LIMITED BY", |of| text(of.finding.as_ref().map_or("", |found| found.limit.name()))),
    ]
}

impl Report for WorkersReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("workers", "name"));

    fn write(&self, out: &mut dyn Write, is_wide: bool) -> io::Result<()> {
        let things = if self.all { "workers" } else { "live workers" };
        listing::write(out, things, &self.workers, &columns(), Shown { is_wide, all: self.all })
    }
}

impl Report for WorkerReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let of = &self.worker;
        let facts = [
            ("worker", of.name.clone()),
            ("state", self.standing()),
            ("host", of.host.clone()),
            ("session", of.session.to_string()),
            ("in process", yes(of.in_process)),
            ("version", of.version.clone()),
            ("decoders", text(&of.decoders.join(", "))),
            ("socket", text(&of.endpoint)),
            ("scans", output::count(of.scans)),
            ("last heartbeat", time(of.seen_ms)),
            ("joined", ago(of.age_ms)),
            ("ranks served", output::count(of.leases)),
        ];
        output::write_facts(out, &facts)?;
        if self.serving.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let shown = Shown { is_wide: true, all: true };
        listing::write(out, "leases", &self.serving, &lease_columns(), shown)
    }
}
