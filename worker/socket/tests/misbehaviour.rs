//! Peers that violate the protocol. Each violation causes its own error, once.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;

use common::{
    Note, Notes, PATIENCE, alone, null, open_descriptors, send_with, until, with_bare_peer,
};
use prost::Message;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shardfeed_socket::{FRAME_BYTES_MAX, SocketError};

const DESCRIPTOR_FLAG: u32 = 1 << 31;

fn frame(note: &Note, flag: u32) -> Vec<u8> {
    let body = note.encode_to_vec();
    [(body.len() as u32 | flag).to_le_bytes().as_slice(), &body].concat()
}

/// Returns the error, which ends the connection for both sides.
fn only_error(connection: &mut Notes) -> SocketError {
    let error = connection.recv(PATIENCE).unwrap_err();
    assert!(matches!(connection.recv(PATIENCE), Err(SocketError::Closed)));
    assert!(matches!(connection.send(&Note::default(), None), Err(SocketError::Closed)));
    error
}

#[test]
fn half_a_frame_and_then_nothing_is_a_closed_connection() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    for cut in [1, 3, 4, 10] {
        let (mut connection, mut peer) = with_bare_peer(directory.path());
        peer.write_all(&frame(&Note::new(1, 5), 0)).unwrap();
        peer.write_all(&frame(&Note::new(2, 50), 0)[..cut]).unwrap();
        drop(peer);
        assert_eq!(connection.recv(PATIENCE).unwrap().unwrap().0, Note::new(1, 5));
        let error = only_error(&mut connection).to_string();
        assert_eq!(error, "the other side closed the connection");
    }
}

#[test]
fn a_frame_that_comes_byte_by_byte_is_a_frame() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (mut connection, mut peer) = with_bare_peer(directory.path());
    let bytes = frame(&Note::new(1, 20), DESCRIPTOR_FLAG);
    send_with(&peer, &bytes[..1], &[null().as_fd()]);
    for byte in &bytes[1..] {
        assert!(connection.try_recv().unwrap().is_none());
        peer.write_all(&[*byte]).unwrap();
    }
    let (note, descriptor) = connection.try_recv().unwrap().unwrap();
    assert_eq!((note, descriptor.is_some()), (Note::new(1, 20), true));
}

#[test]
fn a_length_over_the_bound_is_refused() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    for (length, flag) in [(FRAME_BYTES_MAX as u32 + 1, 0), ((1 << 31) - 1, DESCRIPTOR_FLAG)] {
        let (mut connection, mut peer) = with_bare_peer(directory.path());
        peer.write_all(&(length | flag).to_le_bytes()).unwrap();
        let error = only_error(&mut connection);
        assert_eq!(
            error.to_string(),
            format!(
                "the other side announced a frame of {length} bytes, more than 4194304: it is broken \
                 or of another version"
            )
        );
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the peer sees the end");
    }
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (mut connection, mut peer) = with_bare_peer(directory.path());
    peer.write_all(&3_u32.to_le_bytes()).unwrap();
    peer.write_all(b"\xff\xff\xff").unwrap();
    let error = only_error(&mut connection);
    assert_eq!(
        error.to_string(),
        "a frame of 3 bytes is no valid message: failed to decode Protobuf message: invalid varint"
    );
}

#[test]
fn a_descriptor_that_does_not_come_is_missed() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (mut connection, mut peer) = with_bare_peer(directory.path());
    peer.write_all(&frame(&Note::new(1, 5), DESCRIPTOR_FLAG)).unwrap();
    let error = only_error(&mut connection).to_string();
    assert_eq!(error, "the other side announced a descriptor and sent none: it is broken");
}

#[test]
fn surplus_descriptors_are_refused_and_closed() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let before = open_descriptors();
    let note = Note::new(1, 5);
    for (flag, count) in [(0, 1), (DESCRIPTOR_FLAG, 2), (DESCRIPTOR_FLAG, 3), (0, 16)] {
        let (mut connection, peer) = with_bare_peer(directory.path());
        let nulls: Vec<_> = (0..count).map(|_| null()).collect();
        let nulls: Vec<_> = nulls.iter().map(AsFd::as_fd).collect();
        send_with(&peer, &frame(&note, flag), &nulls);
        let error = only_error(&mut connection);
        assert_eq!(
            error.to_string(),
            "the other side sent a descriptor that it did not announce: it is broken",
            "{count}"
        );
    }
    until("they are closed", || open_descriptors() == before);
}

#[test]
fn descriptors_behind_the_first_byte_are_refused_before_they_add_up() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (mut connection, peer) = with_bare_peer(directory.path());
    let before = open_descriptors();
    let null = null();
    let bytes = frame(&Note::new(1, 200), DESCRIPTOR_FLAG);
    for byte in &bytes[..100] {
        send_with(&peer, &[*byte], &[null.as_fd()]);
    }
    assert!(matches!(only_error(&mut connection), SocketError::SurplusDescriptor));
    assert!(open_descriptors() <= before + 3);
}

#[test]
fn a_process_without_room_for_a_descriptor_says_so() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (mut connection, peer) = with_bare_peer(directory.path());
    send_with(&peer, &frame(&Note::new(1, 5), DESCRIPTOR_FLAG), &[null().as_fd()]);
    let limit = getrlimit(Resource::Nofile);
    let lowered = Rlimit { current: Some(3), ..limit };
    setrlimit(Resource::Nofile, lowered).unwrap();
    let error = connection.recv(PATIENCE).unwrap_err();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(
        error.to_string(),
        "a descriptor was lost as this process has too many open: raise its limit (ulimit -n)"
    );
}

#[test]
fn a_peer_that_only_stops_sending_can_still_be_sent_to() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (connection, mut peer) = with_bare_peer(directory.path());
    peer.shutdown(Shutdown::Write).unwrap();
    connection.send(&Note::new(1, 5), None).unwrap();
    drop(connection);
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, frame(&Note::new(1, 5), 0));
}
