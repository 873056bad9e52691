//! Tests with other processes: this test binary, started with a role in its environment.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use common::{Note, Notes, PATIENCE, listener, number_in, numbered_file};
use shardfeed_socket::{BindError, ConnectError, ListenOptions, Listener, SocketError, connect};

const PART: &str = "SHARDFEED_SOCKET_TEST_PART";
const SOCKET: &str = "SHARDFEED_SOCKET_TEST_PATH";
/// A user that owns no file here.
const NOBODY: u32 = 65_534;

fn dial(path: &Path) -> Result<Notes, ConnectError> {
    connect(path, PATIENCE)
}

struct Player {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Player {
    fn start(part: &str, socket: &Path, uid: Option<u32>) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), part, socket, uid)
    }

    fn start_by(mut command: Command, part: &str, socket: &Path, uid: Option<u32>) -> Self {
        command.args(["--exact", "plays_its_part", "--nocapture"]);
        command.env(PART, part).env(SOCKET, socket).stdout(Stdio::piped());
        command.stdin(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid).current_dir("/");
        }
        let mut child = command.spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// Returns the rest of the next line that contains `what`.
    fn line(&mut self, what: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.says.read_line(&mut line).unwrap(),
                0,
                "it ended before it said {what}"
            );
            // The test harness writes the test's name without a line end.
            if let Some((_, rest)) = line.split_once(what) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does nothing unless another test starts this binary with a role.
#[test]
fn plays_its_part() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let path = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    match part.as_str() {
        "send for ever" => send_for_ever(&path),
        "connect" => say(format!("RESULT {}\n", dial(&path).unwrap_err()).as_bytes()),
        "listen and print the peer" => {
            let listener = Listener::bind(&path, ListenOptions::default()).unwrap();
            say(b"LISTENS\n");
            let incoming = listener.accept(PATIENCE).unwrap().unwrap();
            say(format!("PEER {:?}\n", incoming.peer().pid).as_bytes());
        }
        "listen" => {
            let _listener = Listener::bind(&path, ListenOptions::default()).unwrap();
            say(b"LISTENS\n");
            // Until the parent ends.
            let _ = std::io::stdin().read(&mut [0]);
        }
        part => panic!("no part {part}"),
    }
}

/// Writes past the buffer of `Stdout`, so that the output survives a kill.
fn say(bytes: &[u8]) {
    assert_eq!(rustix::io::write(std::io::stdout(), bytes).unwrap(), bytes.len());
}

/// Sends numbered frames, every third with its number in a file, and writes each number once it is
/// sent.
fn send_for_ever(path: &Path) {
    let connection = dial(path).unwrap();
    say(b"STARTS\n");
    for number in 0.. {
        let file = (number % 3 == 0).then(|| numbered_file(number));
        let bytes = if number % 50 == 49 { 100_000 } else { 100 };
        connection.send(&Note::new(number, bytes), file.as_ref().map(AsFd::as_fd)).unwrap();
        say(&number.to_le_bytes());
    }
}

#[test]
fn what_a_killed_process_had_sent_is_received() {
    let directory = tempfile::tempdir().unwrap();
    let listener = listener(directory.path());
    for received_before in [1, 40, 333] {
        let mut player = Player::start("send for ever", listener.path(), None);
        let incoming = listener.accept(PATIENCE).unwrap().unwrap();
        assert_eq!(incoming.peer().pid, Some(player.child.id()));
        let mut connection: Notes = incoming.handshake(PATIENCE).unwrap();
        player.line("STARTS");
        let mut received = 0;
        let end = loop {
            match connection.recv(PATIENCE) {
                Ok(Some((note, descriptor))) => {
                    assert_eq!(note.number, received);
                    let number = descriptor.as_ref().map(number_in);
                    assert_eq!(number, (received % 3 == 0).then_some(received));
                    received += 1;
                }
                Ok(None) => panic!("neither a frame nor the end"),
                Err(error) => break error,
            }
            if received == received_before {
                // SIGKILL, at any point of its work.
                player.child.kill().unwrap();
                player.child.wait().unwrap();
            }
        };
        assert!(matches!(end, SocketError::Closed), "{end}");
        let mut said = Vec::new();
        player.says.read_to_end(&mut said).unwrap();
        let sent = (said.len() / 8) as u64;
        // One more frame may have been sent than the process could report.
        assert!((sent..=sent + 1).contains(&received), "{sent} sent, {received} received");
        assert!(received >= received_before);
    }
}

#[test]
fn a_killed_workers_socket_is_dead_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("worker.sock");
    let mut player = Player::start("listen", &path, None);
    player.line("LISTENS");
    let live = Listener::bind(&path, ListenOptions::default()).unwrap_err();
    assert!(live.to_string().contains(&format!("(pid {})", player.child.id())), "{live}");
    player.child.kill().unwrap();
    player.child.wait().unwrap();
    assert!(matches!(dial(&path), Err(ConnectError::Dead { .. })));
    Listener::bind(&path, ListenOptions::default()).unwrap();
}

/// Creates a directory that everyone may use; `None` without root, which is needed for other users.
fn for_everyone() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    Some(directory)
}

#[test]
fn another_user_is_kept_out_by_the_files_mode() {
    let Some(directory) = for_everyone() else {
        return;
    };
    let listener = listener(directory.path());
    let mut player = Player::start("connect", listener.path(), Some(NOBODY));
    assert_eq!(
        player.line("RESULT"),
        format!(
            "this user may not connect to {}: run as the worker's user or add this one to the socket's \
             group",
            listener.path().display()
        )
    );
    assert!(listener.accept(Duration::ZERO).unwrap().is_none());
}

#[test]
fn a_worker_of_another_user_is_trusted_only_at_its_own_file() {
    let Some(directory) = for_everyone() else {
        return;
    };
    let path = directory.path().join("worker.sock");
    let mut player = Player::start("listen", &path, Some(NOBODY));
    player.line("LISTENS");
    let short = Duration::from_millis(50);
    let error = connect::<Note, Note>(&path, short).unwrap_err();
    assert!(matches!(error, ConnectError::Silent { .. }), "{error}");
    chown(&path, Some(NOBODY - 1), None).unwrap();
    let error = connect::<Note, Note>(&path, short).unwrap_err();
    let ConnectError::Foreign { peer, .. } = error else { panic!("{error}") };
    assert_eq!(
        error.to_string(),
        format!(
            "pid {} (uid {NOBODY}, gid {}) listens at {}, but that user neither owns the file nor is this \
             one or root: it may not be the worker",
            player.child.id(),
            peer.gid,
            path.display()
        )
    );
}

#[test]
fn a_peer_whose_processes_are_not_seen_has_no_pid() {
    // Only root can create a namespace, with a program of util-linux.
    let by = Path::new("/usr/bin/unshare");
    let (Some(directory), true) = (for_everyone(), by.exists()) else {
        return;
    };
    let path = directory.path().join("worker.sock");
    let mut command = Command::new(by);
    command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let mut player = Player::start_by(command, "listen and print the peer", &path, None);
    player.line("LISTENS");
    let live = Listener::bind(&path, ListenOptions::default()).unwrap_err();
    let is_seen = matches!(live, BindError::Live { pid: Some(_), .. });
    assert!(is_seen, "the outer namespace sees the inner one: {live:?}");
    // The second bind was a connection.
    assert_eq!(player.line("PEER"), "None");
}
