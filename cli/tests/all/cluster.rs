//! Real processes of a cluster, in their own folder; they end with the test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fixture::Place;

/// Maximum time to wait: nothing here takes this long on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Polling interval of predicates.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until `found` returns a value.
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A serving process; killed when dropped.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `args`; stderr goes to the file `log` of the place.
    ///
    /// Also returns a function that waits for the first line on stdout.
    pub(crate) fn spawn(
        place: &Place,
        log: &str,
        args: &[&str],
    ) -> (Self, impl FnOnce() -> Option<String> + use<>) {
        let log = place.path(log);
        let mut command = place.command(args);
        let stderr = File::create(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let first = move || match lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("never ready"),
        };
        (Self { child, log }, first)
    }

    /// Starts a process and waits for its ready line.
    pub(crate) fn ready(place: &Place, log: &str, args: &[&str]) -> (Self, String) {
        let (process, first) = Self::spawn(place, log, args);
        let line = first().unwrap_or_else(|| panic!("{args:?} ended: {}", process.log()));
        (process, line)
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Sends SIGTERM; returns the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        until("its end", || self.child.try_wait().unwrap()).code()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns the exit code once the process has ended.
    pub(crate) fn exited(&mut self) -> Option<Option<i32>> {
        self.child.try_wait().unwrap().map(|status| status.code())
    }

    /// Waits until the process ends without a signal; returns its exit code.
    pub(crate) fn ended(mut self) -> Option<i32> {
        until("its end", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A coordinator in its own folder.
pub(crate) struct Cluster {
    pub(crate) place: Place,
    pub(crate) coordinator: Process,
    pub(crate) address: String,
    pub(crate) http: String,
    pub(crate) id: String,
}

impl Cluster {
    /// Starts a coordinator with frequent heartbeats and the session time `ttl_ms`.
    pub(crate) fn start(place: Place, ttl_ms: u64) -> Self {
        Self::start_with(place, ttl_ms, (ttl_ms / 10).min(100))
    }

    /// Starts a coordinator with heartbeats every `heartbeat_ms` and the session time `ttl_ms`.
    pub(crate) fn start_with(place: Place, ttl_ms: u64, heartbeat_ms: u64) -> Self {
        let options = format!("session-ttl-ms = {ttl_ms}\nheartbeat-ms = {heartbeat_ms}\n");
        place.file("coordinator.toml", options);
        let (coordinator, line) = Process::ready(&place, "coordinator.log", &Self::ARGS);
        let words: Vec<_> = line.split(' ').collect();
        let ["coordinator", "ready:", "grpc", address, "http", http, "cluster", id] = words[..]
        else {
            panic!("{line}");
        };
        let (address, http, id) = (address.to_owned(), http.to_owned(), id.to_owned());
        Self { place, coordinator, address, http, id }
    }

    /// Arguments of the coordinator.
    pub(crate) const ARGS: [&str; 10] = [
        "coordinator",
        "start",
        "--config",
        "coordinator.toml",
        "--data",
        "coordinator",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ];

    /// Starts the worker `name`, with the socket `name`.sock.
    pub(crate) fn worker(&self, name: &str) -> Process {
        let socket = format!("{name}.sock");
        let args = ["worker", "start", "--name", name, "--socket", &socket, "--coordinator"];
        let args = [&args[..], &[&self.address, "--memory-budget", "64MiB"]].concat();
        let (worker, line) = Process::ready(&self.place, &format!("{name}.log"), &args);
        let ready = format!("worker ready: {name} socket {socket} coordinator {}", self.address);
        assert_eq!(line, ready);
        worker
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [args, &["--coordinator", &self.address]].concat()
    }

    /// Runs a command that must succeed; returns stdout without the parts that vary between runs.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        self.portable(&self.place.ok(&self.args(args)))
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.place.json(&self.args(args))
    }

    /// Runs a command that must fail; returns the exit code and stderr.
    pub(crate) fn fails(&self, args: &[&str]) -> String {
        self.portable(&self.place.fails(&self.args(args)))
    }

    /// Replaces the parts of a text that vary between runs by placeholders.
    pub(crate) fn portable(&self, text: &str) -> String {
        let text = text.replace(&self.address, "$ADDRESS").replace(&self.http, "$HTTP");
        steady(&self.place.portable(&text.replace(&self.id, "$CLUSTER")).replace(&host(), "$HOST"))
    }
}

/// Name of this host.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_str().unwrap().to_owned()
}

/// Replaces times by `$TIME`, and the padding between columns, whose width depends on them, by two
/// spaces.
fn steady(text: &str) -> String {
    let is_number = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
    let cell = |cell: &str| {
        let words: Vec<_> = cell.trim().split(' ').collect();
        match words[..] {
            [number, "ms" | "s" | "min", ref rest @ ..] if is_number(number) => {
                [&["$TIME"], rest].concat().join(" ")
            }
            _ => cell.trim().to_owned(),
        }
    };
    let line = |line: &str| {
        let cells: Vec<_> = line.split("  ").filter(|part| !part.is_empty()).map(cell).collect();
        cells.join("  ")
    };
    text.lines().map(|text| line(text) + "\n").collect()
}
