//! `shardfeed doctor`: whether this host is fit for a coordinator, a worker and a trainer.

mod host;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;
use shardfeed_embedded::{default_worker_socket, worker_answers};
use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::ClusterArgs;
use crate::error::Problem;
use crate::output::{self, Format, Grid, Report};

pub(crate) const ABOUT: &str = "\
Check this host: coordinators and their clock, ports, the disk's fsync, memory, the worker's socket, GPUs

It changes nothing, but writes and removes a file of some kilobytes in DIR and in the cache's folder. A check \
says ok, note (nothing is wrong, but this host cannot do that), warn or fail, and what to do.";

const EXAMPLES: &str = "\
Exit codes: 0 nothing fails, 1 something does.

Examples:
  shardfeed doctor
  shardfeed doctor --data /var/lib/shardfeed --coordinator head-1:7070
  shardfeed doctor -o json | jq '.checks[] | select(.verdict == \"fail\")'";

/// A worker on this host has answered by then, or hangs.
const WORKER_LIMIT: Duration = Duration::from_secs(2);

/// Clocks may differ by so much before logs of two hosts are hard to read together.
const CLOCK_MS: u64 = 1_000;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Folder on the disk that a coordinator's data shall be on [default: the temporary folder]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Path of the worker's socket [default: SHARDFEED_WORKER, else the usual place]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// What was found.
#[derive(Debug, Serialize)]
struct DoctorReport {
    checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Note,
    Warn,
    Fail,
}

impl Check {
    fn new(check: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { check, verdict, found: found.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Runs `doctor`.
pub(crate) fn run(args: &DoctorArgs, format: Format) -> anyhow::Result<()> {
    let mut checks = coordinator(&args.cluster)?;
    checks.extend(ports());
    let folder = args.data.clone().unwrap_or_else(std::env::temp_dir);
    checks.push(host::fsync(&folder));
    let socket = args.socket.clone().unwrap_or_else(default_worker_socket);
    checks.push(worker(&socket));
    checks.extend([host::memfd(), host::descriptors(), host::memory(), host::cache(), host::gpu()]);
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Fail).count() as u64;
    format.print(&DoctorReport { checks })?;
    match failed {
        0 => Ok(()),
        failed => {
            Err(Problem::failed(format!("{} failed", output::counted(failed, "check"))).into())
        }
    }
}

fn coordinator(cluster: &ClusterArgs) -> anyhow::Result<Vec<Check>> {
    let client = cluster.client()?;
    let before = unix_ms();
    let status = client.call(|mut admin, context| async move {
        admin.get_status(wire::GetStatusRequest { context }).await
    });
    let after = unix_ms();
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            let check = Check::new("coordinator", Verdict::Warn, error.to_string());
            return Ok(vec![check.hint("give --coordinator, unless this host needs none")]);
        }
    };
    let wire::GetStatusResponse { node, leader, version, clock_ms, .. } = status;
    let address = client.address();
    let leads = match leader {
        Some(leader) => {
            let found = format!("node {node} answers at {address}, node {leader} leads");
            Check::new("coordinator", Verdict::Ok, found)
        }
        None => {
            let found = format!("node {node} answers at {address}, but none leads");
            Check::new("coordinator", Verdict::Fail, found)
                .hint("`shardfeed cluster status` says which nodes are gone")
        }
    };
    let ours = env!("CARGO_PKG_VERSION");
    let release = match version == ours {
        true => Check::new("release", Verdict::Ok, format!("{ours} here and there")),
        false => Check::new("release", Verdict::Warn, format!("{ours} here, {version} there"))
            .hint("releases next to each other work together; upgrade the older one"),
    };
    // A release that does not say has no clock here.
    let clock = (clock_ms > 0).then(|| {
        let apart = clock_ms.saturating_sub(after).max(before.saturating_sub(clock_ms));
        let found = match apart {
            0 => format!("as the coordinator's, within {} ms", after - before),
            apart => format!("at least {apart} ms from the coordinator's"),
        };
        match apart <= CLOCK_MS {
            true => Check::new("clock", Verdict::Ok, found),
            false => Check::new("clock", Verdict::Warn, found)
                .hint("nothing breaks by it, but logs are hard to compare: run NTP on both"),
        }
    });
    Ok([leads, release].into_iter().chain(clock).collect())
}

/// The ports that a coordinator takes if nobody says otherwise.
fn ports() -> Vec<Check> {
    let look = |(check, port): (&'static str, u16)| {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        match TcpListener::bind(address) {
            Ok(_) => Check::new(check, Verdict::Ok, format!("{address} is free")),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Check::new(check, Verdict::Note, format!("{address} is in use"))
                    .hint("by the coordinator of this host, or another one must listen elsewhere")
            }
            Err(error) => Check::new(check, Verdict::Fail, format!("{address}: {error}")),
        }
    };
    [("port of gRPC", 7070), ("port of HTTP", 7071)].into_iter().map(look).collect()
}

fn worker(socket: &Path) -> Check {
    let path = socket.display();
    if !socket.exists() {
        let found = format!("none listens at {path}");
        return Check::new("worker", Verdict::Note, found).hint(
            "trainers read in their own processes, unless `shardfeed worker start` runs here",
        );
    }
    match worker_answers(socket, WORKER_LIMIT) {
        Ok(name) => Check::new("worker", Verdict::Ok, format!("{name} answers at {path}")),
        Err(error) => Check::new("worker", Verdict::Fail, error.to_string())
            .hint("see its log; a socket that nobody listens at is replaced when a worker starts"),
    }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Report for DoctorReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("checks", "check"));

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut grid = Grid::new(&["CHECK", "VERDICT", "FOUND"]);
        for check in &self.checks {
            let verdict = match check.verdict {
                Verdict::Ok => "ok",
                Verdict::Note => "note",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            grid.row([check.check.to_owned(), verdict.to_owned(), check.found.clone()]);
        }
        write!(out, "{grid}")?;
        for check in &self.checks {
            if let Some(hint) = &check.hint {
                writeln!(out, "{}: {}", check.check, output::printable(hint))?;
            }
        }
        Ok(())
    }
}
