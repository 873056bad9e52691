//! `shardfeed doctor`: checks whether this host is fit for a coordinator, a worker and a trainer.

mod certificates;
mod host;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use serde::Serialize;
use shardfeed_embedded::{default_worker_socket, worker_answers};
use shardfeed_proto::coordinator::v1 as wire;

use crate::cluster::ClusterArgs;
use crate::duration::unix_ms;
use crate::error::Problem;
use crate::output::{self, Format, Grid, Report};
use crate::process::{Places, places, usual_ports};

const EXAMPLES: &str = "\
Exit codes: 0 nothing fails, 1 something does.

Examples:
  shardfeed doctor
  shardfeed doctor --data /var/lib/shardfeed --coordinator head-1:7070
  shardfeed doctor --config /etc/shardfeed/coordinator.toml
  shardfeed doctor -o json | jq '.checks[] | select(.verdict == \"fail\")'";

/// Time after which a worker on this host that has not answered counts as hanging.
const WORKER_LIMIT: Duration = Duration::from_secs(2);

/// Maximum difference of clocks, ms: beyond it, logs of two hosts are hard to compare. Certificates
/// are valid from one hour before their creation, so that a clock an hour behind accepts new ones.
const CLOCK_MS: u64 = 1_000;

/// Check this host for use by a coordinator, worker and trainer
///
/// Checks coordinators and their clock, certificates, ports, the disk's fsync, memory, the worker's
/// socket, and GPUs. It changes nothing, but writes and removes a file of some kilobytes in DIR and
/// in the cache's folder. A check says ok, note (nothing is wrong, but this host cannot do that),
/// warn or fail, and the remedy.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Options file of a coordinator or worker: check its ports, data folder, socket and
    /// certificates [default: the default ports]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder on the disk for a coordinator's data [default: that of --config, else the temporary
    /// folder]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Path of the worker's socket [default: that of --config, else SHARDFEED_WORKER, else the
    /// default path]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    /// Checks in the order of the table.
    checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
struct Check {
    /// Subject of the check.
    check: &'static str,
    verdict: Verdict,
    /// Description of the result.
    found: String,
    /// Remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

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

pub(crate) fn run(args: &DoctorArgs, format: Format) -> anyhow::Result<()> {
    let usual = || Ok(Places { ports: usual_ports(), ..Places::default() });
    let Places { ports, data, socket, credentials } =
        args.config.as_deref().map_or_else(usual, places)?;
    let mut checks = coordinator(&args.cluster)?;
    let credentials = args.cluster.credentials().or(credentials);
    checks.extend(certificates::checks(credentials, SystemTime::now()));
    checks.extend(ports.into_iter().map(port));
    let folder = args.data.clone().or(data.map(|data| existing(&data)));
    let folder = folder.unwrap_or_else(std::env::temp_dir);
    checks.push(host::fsync(&folder));
    let socket = args.socket.clone().or(socket).unwrap_or_else(default_worker_socket);
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
    let now_ms = || unix_ms(SystemTime::now());
    let (before, status, after) = (now_ms(), client.status(), now_ms());
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            let check = Check::new("coordinator", Verdict::Warn, error.to_string());
            return Ok(vec![check.hint("give --coordinator, unless this host needs none")]);
        }
    };
    // Earlier releases do not report a clock.
    let clock = (status.clock_ms > 0).then(|| clock(status.clock_ms, (before, after)));
    let checks = [leader(&status, &client.address().to_string()), release(&status.version)];
    Ok(checks.into_iter().chain(clock).collect())
}

fn leader(status: &wire::GetStatusResponse, address: &str) -> Check {
    let answers = format!("node {} answers at {address}", status.node);
    match status.leader {
        Some(leader) => {
            Check::new("coordinator", Verdict::Ok, format!("{answers}, node {leader} leads"))
        }
        None => Check::new("coordinator", Verdict::Fail, format!("{answers}, but none leads"))
            .hint("`shardfeed cluster status` says which nodes are gone"),
    }
}

fn release(theirs: &str) -> Check {
    let ours = env!("CARGO_PKG_VERSION");
    match theirs == ours {
        true => Check::new("release", Verdict::Ok, format!("{ours} here and there")),
        false => Check::new("release", Verdict::Warn, format!("{ours} here, {theirs} there"))
            .hint("upgrade the older one: that two releases work together has not been tried"),
    }
}

/// Checks that the coordinator's clock, read between two readings of ours, is close. All Unix ms.
fn clock(theirs_ms: u64, (before_ms, after_ms): (u64, u64)) -> Check {
    let apart = theirs_ms.saturating_sub(after_ms).max(before_ms.saturating_sub(theirs_ms));
    let found = match apart {
        0 => format!("as the coordinator's, within {} ms", after_ms.saturating_sub(before_ms)),
        apart => format!("at least {apart} ms from the coordinator's"),
    };
    match apart <= CLOCK_MS {
        true => Check::new("clock", Verdict::Ok, found),
        false => Check::new("clock", Verdict::Warn, found).hint(
            "certificates and tokens begin and end by each host's clock, and logs are hard to compare: \
             run NTP on both",
        ),
    }
}

/// Returns the first existing ancestor of a folder: `start` creates the folder with its parents.
fn existing(folder: &Path) -> PathBuf {
    let there = folder.ancestors().find(|folder| folder.is_dir()).map(Path::to_owned);
    there.unwrap_or_else(|| ".".into())
}

/// Checks whether a process may listen at the address.
fn port((check, address): (&'static str, SocketAddr)) -> Check {
    if address.port() == 0 {
        return Check::new(check, Verdict::Ok, format!("{address}: a free one is taken"));
    }
    match TcpListener::bind(address) {
        Ok(_) => Check::new(check, Verdict::Ok, format!("{address} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Check::new(check, Verdict::Note, format!("{address} is in use"))
                .hint("by the process that it is for, or another port must be chosen")
        }
        Err(error) => Check::new(check, Verdict::Fail, format!("{address}: {error}"))
            .hint("choose an address of this host, and a port that this user may listen at"),
    }
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
            .hint("see its log; a socket without a listener is replaced when a worker starts"),
    }
}

impl Report for DoctorReport {
    const LISTS: Option<(&'static str, &'static str)> = Some(("checks", "check"));

    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn said(check: Check) -> String {
        let hint = check.hint.map(|hint| format!("  {hint}\n")).unwrap_or_default();
        format!("{} {:?}: {}\n{hint}", check.check, check.verdict, check.found)
    }

    #[test]
    fn what_is_wrong_with_a_coordinator_is_told_with_what_to_do() {
        let status = wire::GetStatusResponse { node: 2, leader: Some(1), ..Default::default() };
        expect!["coordinator Ok: node 2 answers at a:1, node 1 leads\n"]
            .assert_eq(&said(leader(&status, "a:1")));
        expect![[r#"
            coordinator Fail: node 2 answers at a:1, but none leads
              `shardfeed cluster status` says which nodes are gone
        "#]]
        .assert_eq(&said(leader(&wire::GetStatusResponse { leader: None, ..status }, "a:1")));
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(release(ours).verdict, Verdict::Ok);
        expect![[r#"
            release Warn: $OURS here, 99.0 there
              upgrade the older one: that two releases work together has not been tried
        "#]]
        .assert_eq(&said(release("99.0")).replace(ours, "$OURS"));
    }

    #[test]
    fn clocks_that_are_apart_are_told_with_what_hangs_on_them() {
        for theirs_ms in [10_000, 10_007, 10_020] {
            expect!["clock Ok: as the coordinator's, within 20 ms\n"]
                .assert_eq(&said(clock(theirs_ms, (10_000, 10_020))));
        }
        expect!["clock Ok: at least 1000 ms from the coordinator's\n"]
            .assert_eq(&said(clock(9_000, (10_000, 10_020))));
        expect![[r#"
            clock Warn: at least 1001 ms from the coordinator's
              certificates and tokens begin and end by each host's clock, and logs are hard to compare: run NTP on both
        "#]]
        .assert_eq(&said(clock(11_021, (10_000, 10_020))));
    }

    #[test]
    fn a_port_is_free_busy_or_not_of_this_host() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let busy = port(("port", address));
        assert_eq!((busy.verdict, busy.found), (Verdict::Note, format!("{address} is in use")));
        assert_eq!(
            busy.hint.as_deref(),
            Some("by the process that it is for, or another port must be chosen")
        );
        drop(listener);
        let free = port(("port", address));
        assert_eq!((free.verdict, free.found), (Verdict::Ok, format!("{address} is free")));
        let any = port(("port", "127.0.0.1:0".parse().unwrap()));
        assert_eq!(
            (any.verdict, any.found.as_str()),
            (Verdict::Ok, "127.0.0.1:0: a free one is taken")
        );
        // An address reserved for documentation: no host has it.
        let elsewhere = port(("port", "192.0.2.1:7070".parse().unwrap()));
        assert_eq!(elsewhere.verdict, Verdict::Fail, "{}", elsewhere.found);
        assert_eq!(
            elsewhere.hint.as_deref(),
            Some("choose an address of this host, and a port that this user may listen at")
        );
    }

    #[test]
    fn a_data_folder_that_is_to_be_made_is_looked_at_where_it_will_be() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        assert_eq!(existing(&path("a/b")), home.path());
        assert_eq!(existing(home.path()), home.path());
        assert_eq!(existing(Path::new("not-there")), Path::new("."));
    }

    #[test]
    fn a_socket_that_nobody_listens_at_fails() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("w.sock");
        let none = worker(&socket);
        assert_eq!(none.verdict, Verdict::Note);
        assert_eq!(
            none.hint.as_deref(),
            Some("trainers read in their own processes, unless `shardfeed worker start` runs here")
        );
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let dead = worker(&socket);
        assert_eq!(dead.verdict, Verdict::Fail, "{}", dead.found);
        assert_eq!(
            dead.hint.as_deref(),
            Some("see its log; a socket without a listener is replaced when a worker starts")
        );
    }
}
