//! Shared test helpers: a message, misbehaving peers, and deadlines.
#![allow(dead_code, unreachable_pub)] // Each test binary uses a part of it.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use shardfeed_socket::{Connection, ListenOptions, Listener};

/// Longer than any working operation takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Preamble of one side.
pub const PREAMBLE: &[u8; 16] = b"shardfeed\x01\x01\0\0\0\0\0";

#[derive(Clone, PartialEq, prost::Message)]
pub struct Note {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub text: Vec<u8>,
}

impl Note {
    pub fn new(number: u64, bytes: usize) -> Self {
        Self { number, text: vec![number as u8; bytes] }
    }
}

/// Connection on which both ends send notes.
pub type Notes = Connection<Note, Note>;

pub fn listener(directory: &Path) -> Listener {
    Listener::bind(&directory.join("worker.sock"), ListenOptions::default()).unwrap()
}

/// Creates a connection whose other end is a plain socket that has sent the right preamble.
pub fn with_bare_peer(directory: &Path) -> (Notes, UnixStream) {
    let listener = listener(directory);
    let mut peer = UnixStream::connect(listener.path()).unwrap();
    peer.write_all(PREAMBLE).unwrap();
    let incoming = listener.accept(PATIENCE).unwrap().unwrap();
    let connection = incoming.handshake(PATIENCE).unwrap();
    let mut preamble = [0; 16];
    peer.read_exact(&mut preamble).unwrap();
    assert_eq!(&preamble, PREAMBLE);
    (connection, peer)
}

/// Sends bytes and descriptors in one call.
pub fn send_with(peer: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let sent = sendmsg(peer, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, bytes.len());
}

/// Creates a file that contains `number`.
pub fn numbered_file(number: u64) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&number.to_le_bytes()).unwrap();
    file.into()
}

/// Reads the number in a received file.
pub fn number_in(descriptor: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::pread(descriptor.as_fd(), &mut bytes, 0).unwrap();
    u64::from_le_bytes(bytes)
}

pub fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Serializes the tests of a binary in which some count this process's descriptors or change their
/// limit.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `done`, or fails.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::yield_now();
    }
}
