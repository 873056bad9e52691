//! Connection setup: the socket's file, peers, and preambles.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use common::{Note, Notes, PATIENCE, PREAMBLE, listener, until};
use shardfeed_socket::{
    AcceptError, BindError, ConnectError, HandshakeError, Incoming, ListenOptions, Listener,
    SocketError, connect,
};

const SHORT: Duration = Duration::from_millis(50);

fn dial(path: &Path) -> Result<Notes, ConnectError> {
    connect(path, PATIENCE)
}

fn bind(path: &Path) -> Result<Listener, BindError> {
    Listener::bind(path, ListenOptions::default())
}

fn next(listener: &Listener) -> Incoming {
    listener.accept(PATIENCE).unwrap().unwrap()
}

/// Returns the texts of errors, with the folder's name replaced.
fn told(errors: &[&dyn std::fmt::Display], folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    errors.iter().map(|error| error.to_string().replace(folder, "DIR")).collect()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn both_sides_find_each_other_and_talk() {
    let directory = tempfile::tempdir().unwrap();
    let listener = listener(directory.path());
    let path = listener.path().to_path_buf();
    let trainer = thread::spawn(move || {
        let mut trainer = dial(&path).unwrap();
        trainer.send(&Note::new(1, 10), None).unwrap();
        trainer.recv(PATIENCE).unwrap().unwrap().0
    });
    let incoming = next(&listener);
    assert!(incoming.is_allowed());
    assert_eq!(incoming.peer().pid, Some(std::process::id()));
    let mut worker: Notes = incoming.handshake(PATIENCE).unwrap();
    assert_eq!(worker.recv(PATIENCE).unwrap().unwrap().0, Note::new(1, 10));
    worker.send(&Note::new(2, 20), None).unwrap();
    assert_eq!(trainer.join().unwrap(), Note::new(2, 20));
}

#[test]
fn nobody_comes_and_nobody_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let listener = listener(directory.path());
    assert!(listener.accept(SHORT).unwrap().is_none());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| listener.accept(Duration::MAX));
        listener.stop();
        assert!(matches!(waiting.join().unwrap(), Err(AcceptError::Stopped)));
    });
    let stopped = listener.accept(PATIENCE).unwrap_err();
    let dead = dial(listener.path()).unwrap_err();
    assert_eq!(
        told(&[&stopped, &dead], directory.path()),
        [
            "the trainer socket is stopped",
            "no process listens at DIR/worker.sock: its worker has ended; start it again",
        ]
    );
}

#[test]
fn the_directory_is_made_and_the_modes_are_set_whatever_the_umask() {
    let directory = tempfile::tempdir().unwrap();
    for (name, umask) in [("open", 0), ("closed", 0o077)] {
        let path = directory.path().join(name).join("in/worker.sock");
        // The umask is per process, and no other test of this binary checks modes of files that it
        // creates.
        let before = rustix::process::umask(umask.into());
        let bound = bind(&path);
        rustix::process::umask(before);
        let listener = bound.unwrap();
        let modes: Vec<_> = path.ancestors().take(3).map(mode).collect();
        assert_eq!(modes, [0o660, 0o750, 0o750], "{name}");
        drop(listener);
        assert!(!path.exists());
    }
}

#[test]
fn a_directory_that_is_there_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let _listener = listener(directory.path());
    assert_eq!(mode(directory.path()), 0o711);
}

#[test]
fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("worker.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(dial(&path), Err(ConnectError::Dead { .. })));
    let listener = bind(&path).unwrap();
    let error = bind(&path).unwrap_err();
    assert!(matches!(error, BindError::Live { pid: Some(pid), .. } if pid == std::process::id()));
    let pid = format!("(pid {})", std::process::id());
    let said = error.to_string().replace(&pid, "(pid PID)");
    assert_eq!(
        told(&[&said], directory.path()),
        ["another worker listens on DIR/worker.sock (pid PID): stop it, or choose another path",]
    );
    // The second bind's check was a connection that sent nothing and closed.
    let look = next(&listener).handshake::<Note, Note>(PATIENCE);
    assert!(matches!(look, Err(HandshakeError::Closed)));
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_worker_removes_only_its_own_socket() {
    let directory = tempfile::tempdir().unwrap();
    let old = listener(directory.path());
    old.stop();
    let new = listener(directory.path());
    let file = fs::symlink_metadata(new.path()).unwrap().ino();
    drop(old);
    assert_eq!(fs::symlink_metadata(new.path()).unwrap().ino(), file);
    drop(new);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn of_many_workers_that_start_at_once_one_listens() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("worker.sock");
    for _ in 0..500 {
        drop(UnixListener::bind(&path).unwrap());
        let start = Barrier::new(4);
        let start_and_bind = || {
            start.wait();
            bind(&path)
        };
        let started: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(start_and_bind)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert_eq!(started.iter().filter(|result| result.is_ok()).count(), 1, "{started:?}");
        let live = |result: &&Result<_, _>| matches!(result, Err(BindError::Live { .. }));
        assert_eq!(started.iter().filter(live).count(), 3, "{started:?}");
    }
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (file, link) = (directory.path().join("file"), directory.path().join("link"));
    fs::write(&file, "precious").unwrap();
    symlink(&file, &link).unwrap();
    for path in [&file, &link, &directory.path().to_path_buf()] {
        assert!(matches!(bind(path), Err(BindError::NotASocket { .. })), "{}", path.display());
        assert!(matches!(dial(path), Err(ConnectError::NotASocket { .. })), "{}", path.display());
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    let below = file.join("worker.sock");
    let said: [&dyn std::fmt::Display; 4] = [
        &dial(&file).unwrap_err(),
        &bind(&file).unwrap_err(),
        &dial(&below).unwrap_err(),
        &bind(&below).unwrap_err(),
    ];
    assert_eq!(
        told(&said, directory.path()),
        [
            "DIR/file is not a socket: is this the worker's path?",
            "DIR/file is there and is not a socket: choose another path, or remove it yourself",
            "no worker at DIR/file/worker.sock: there is no such file; is the worker started, is \
             this its path?",
            "look at the file for the trainer socket DIR/file/worker.sock: Not a directory (os \
             error 20)",
        ]
    );
}

#[test]
fn missing_paths_and_long_ones_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let missing = dial(&directory.path().join("none/worker.sock")).unwrap_err();
    assert!(matches!(missing, ConnectError::Missing { .. }), "{missing}");
    let room = 107 - directory.path().as_os_str().len() - 1;
    let fits = directory.path().join("x".repeat(room));
    let listener = bind(&fits).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| next(&listener).handshake::<Note, Note>(PATIENCE).unwrap());
        dial(&fits).unwrap();
    });
    let long = directory.path().join("x".repeat(room + 1));
    let error = bind(&long).unwrap_err();
    assert!(matches!(error, BindError::PathTooLong { bytes: 108, .. }), "{error:?}");
    assert!(error.to_string().contains("has 108 bytes, more than 107"), "{error}");
    assert!(matches!(dial(&long), Err(ConnectError::PathTooLong { bytes: 108, .. })));
}

#[test]
fn another_program_at_the_socket_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.sock");
    let other = UnixListener::bind(&path).unwrap();
    let answer = |bytes: &[u8]| {
        thread::scope(|scope| {
            let dialing = scope.spawn(|| dial(&path).unwrap_err());
            let (mut stream, _) = other.accept().unwrap();
            stream.write_all(bytes).unwrap();
            drop(stream);
            dialing.join().unwrap()
        })
    };
    let error = answer(b"220 mail.example ESMTP\r\n");
    let gone = answer(b"");
    assert!(matches!(answer(b"s!"), ConnectError::NotShardfeed { .. }));
    assert!(matches!(gone, ConnectError::Closed { .. }), "{gone:?}");
    assert!(matches!(answer(&PREAMBLE[..15]), ConnectError::Closed { .. }));
    let datagrams = directory.path().join("datagrams.sock");
    let _datagrams = UnixDatagram::bind(&datagrams).unwrap();
    let said: [&dyn std::fmt::Display; 4] =
        [&error, &gone, &dial(&datagrams).unwrap_err(), &bind(&datagrams).unwrap_err()];
    assert_eq!(
        told(&said, directory.path()),
        [
            "DIR/other.sock is the socket of another program: it began with \"220 mail.example\"",
            "the worker at DIR/other.sock closed the connection at once: it is ending, or see its \
             log",
            "connect to the worker at DIR/datagrams.sock: Protocol wrong type for socket (os error \
             91)",
            "connect for the trainer socket DIR/datagrams.sock: Protocol wrong type for socket (os \
             error 91)",
        ]
    );
}

#[test]
fn a_worker_that_says_nothing_is_silent_accepted_or_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("silent.sock");
    let other = UnixListener::bind(&path).unwrap();
    let silent = |result: Result<Notes, ConnectError>| {
        assert!(matches!(result, Err(ConnectError::Silent { waited: SHORT, .. })), "{result:?}");
    };
    silent(connect(&path, SHORT));
    // Until its queue is full.
    rustix::net::listen(&other, 0).unwrap();
    let _queued: Vec<_> = (0..2).map(|_| connect::<Note, Note>(&path, SHORT)).collect();
    let said: [&dyn std::fmt::Display; 2] =
        [&connect::<Note, Note>(&path, SHORT).unwrap_err(), &bind(&path).unwrap_err()];
    assert_eq!(
        told(&said, directory.path()),
        [
            "the worker at DIR/silent.sock did not answer in 50 ms: is it stopped?",
            "another worker listens on DIR/silent.sock: stop it, or choose another path",
        ]
    );
}

#[test]
fn a_stranger_at_the_workers_socket_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let listener = listener(directory.path());
    let mut browser = UnixStream::connect(listener.path()).unwrap();
    browser.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = next(&listener).handshake::<Note, Note>(PATIENCE).unwrap_err();
    assert_eq!(
        told(&[&error], directory.path()),
        ["the other side is not shardfeed: it began with \"GET / HTTP/1.1\\r\\n\"",]
    );
    let mut silent = UnixStream::connect(listener.path()).unwrap();
    let error = next(&listener).handshake::<Note, Note>(SHORT).unwrap_err();
    assert_eq!(
        told(&[&error], directory.path()),
        ["the other side did not identify itself in 50 ms",]
    );
    // It received the preamble nevertheless.
    let mut preamble = [0; 16];
    silent.read_exact(&mut preamble).unwrap();
    assert_eq!(&preamble, PREAMBLE);
    drop(UnixStream::connect(listener.path()).unwrap());
    let error = next(&listener).handshake::<Note, Note>(PATIENCE).unwrap_err();
    let said = "the other side closed the connection before it identified itself";
    assert_eq!(error.to_string(), said);
}

/// Preamble of a side with these versions.
fn preamble(min: u8, max: u8) -> [u8; 16] {
    let mut bytes = *PREAMBLE;
    (bytes[9], bytes[10]) = (min, max);
    bytes
}

#[test]
fn both_sides_have_a_version_in_common_or_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let listener = listener(directory.path());
    let accepted = |min, max| {
        let mut trainer = UnixStream::connect(listener.path()).unwrap();
        trainer.write_all(&preamble(min, max)).unwrap();
        next(&listener).handshake::<Note, Note>(PATIENCE)
    };
    let path = directory.path().join("other.sock");
    let other = UnixListener::bind(&path).unwrap();
    let connected = |min, max| {
        thread::scope(|scope| {
            let dialing = scope.spawn(|| dial(&path));
            let (mut worker, _) = other.accept().unwrap();
            worker.write_all(&preamble(min, max)).unwrap();
            dialing.join().unwrap()
        })
    };
    accepted(1, 4).unwrap();
    connected(0, 3).unwrap();
    assert_eq!(
        told(&[&connected(2, 3).unwrap_err(), &accepted(3, 3).unwrap_err()], directory.path()),
        [
            "the worker at DIR/other.sock speaks versions 2 to 3 of the trainer protocol, this \
             side version 1: upgrade the older one",
            "the other side speaks version 3 of the trainer protocol, this side version 1: \
             upgrade the older one",
        ]
    );
}

#[test]
fn frames_may_follow_the_preamble_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let listener = listener(directory.path());
    let mut early = UnixStream::connect(listener.path()).unwrap();
    early.write_all(&[PREAMBLE.as_slice(), &[2, 0, 0, 0, 8, 7]].concat()).unwrap();
    let mut worker: Notes = next(&listener).handshake(PATIENCE).unwrap();
    assert_eq!(worker.recv(PATIENCE).unwrap().unwrap().0, Note { number: 7, text: vec![] });
    drop(early);
    until("it sees the end", || matches!(worker.try_recv(), Err(SocketError::Closed)));
}
