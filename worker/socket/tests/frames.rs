//! Frames and descriptors between two ends that follow the protocol.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Note, Notes, PATIENCE, alone, null, number_in, numbered_file, open_descriptors, until,
};
use shardfeed_socket::{FRAME_BYTES_MAX, SocketError};

fn pair() -> (Notes, Notes) {
    Notes::pair().unwrap()
}

#[test]
fn ten_thousand_interleaved_frames_keep_their_descriptors() {
    let _alone = alone();
    const FRAMES: u64 = 10_000;
    let (one, mut other) = pair();
    let files: Vec<_> = (0..8).map(numbered_file).collect();
    let has_descriptor = |number: u64| number.is_multiple_of(3) || number % 7 == 1;
    let sending = thread::spawn(move || {
        for number in 0..FRAMES {
            // Sizes from 0 to more than the socket accepts at once.
            let bytes = if number % 997 == 0 { 300_000 } else { (number * 37 % 700) as usize };
            let file = files[(number % 8) as usize].as_fd();
            let descriptor = has_descriptor(number).then_some(file);
            one.send(&Note::new(number, bytes), descriptor).unwrap();
        }
        one
    });
    for number in 0..FRAMES {
        let (note, descriptor) = other.recv(PATIENCE).unwrap().unwrap();
        assert_eq!(note.number, number);
        assert!(note.text.iter().all(|byte| *byte == number as u8));
        assert_eq!(descriptor.is_some(), has_descriptor(number), "frame {number}");
        if let Some(descriptor) = descriptor {
            assert_eq!(number_in(&descriptor), number % 8, "frame {number}");
        }
    }
    let one = sending.join().unwrap();
    assert!(other.try_recv().unwrap().is_none());
    drop(one);
    assert!(matches!(other.recv(PATIENCE), Err(SocketError::Closed)));
}

#[test]
fn clones_of_a_sender_send_whole_frames() {
    let _alone = alone();
    let (one, mut other) = pair();
    let (sender, _receiver) = one.split();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let sender = sender.clone();
            thread::spawn(move || {
                for _ in 0..500 {
                    let descriptor = (thread % 2 == 0).then(|| numbered_file(thread));
                    let descriptor = descriptor.as_ref().map(AsFd::as_fd);
                    sender.send(&Note::new(thread, 1000), descriptor).unwrap();
                }
            })
        })
        .collect();
    let mut count = [0; 4];
    for _ in 0..2000 {
        let (note, descriptor) = other.recv(PATIENCE).unwrap().unwrap();
        assert_eq!(note, Note::new(note.number, 1000));
        assert_eq!(
            descriptor.map(|file| number_in(&file)),
            (note.number % 2 == 0).then_some(note.number)
        );
        count[note.number as usize] += 1;
    }
    assert_eq!(count, [500; 4]);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn the_largest_message_passes_and_a_larger_one_is_not_sent() {
    let _alone = alone();
    let (one, mut other) = pair();
    // Overhead of a note: two tags, a number and a length.
    let largest = Note::new(1, FRAME_BYTES_MAX - 7);
    let larger = Note::new(1, FRAME_BYTES_MAX - 6);
    let error = one.send(&larger, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a message of 4194305 bytes was to be sent, more than 4194304: split it"
    );
    let sending = thread::spawn(move || {
        one.send(&largest, Some(null().as_fd())).unwrap();
        one.send(&Note::default(), None).unwrap();
        one
    });
    let (note, descriptor) = other.recv(PATIENCE).unwrap().unwrap();
    assert_eq!((note.text.len(), descriptor.is_some()), (FRAME_BYTES_MAX - 7, true));
    let (note, descriptor) = other.recv(PATIENCE).unwrap().unwrap();
    assert_eq!((note, descriptor.is_some()), (Note::default(), false));
    sending.join().unwrap();
}

#[test]
fn waiting_ends_with_the_timeout_and_a_message_ends_waiting() {
    let _alone = alone();
    let (one, mut other) = pair();
    assert!(other.try_recv().unwrap().is_none());
    let begun = Instant::now();
    assert!(other.recv(Duration::from_millis(30)).unwrap().is_none());
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert!(other.recv(Duration::ZERO).unwrap().is_none());
    let waiting = thread::spawn(move || other.recv(Duration::MAX).unwrap().unwrap().0);
    one.send(&Note::new(5, 5), None).unwrap();
    assert_eq!(waiting.join().unwrap(), Note::new(5, 5));
}

#[test]
fn a_peer_that_does_not_read_is_told_when_the_sender_gives_up() {
    let _alone = alone();
    let (one, mut other) = pair();
    let (sender, mut receiver) = one.split();
    let mut sent = 0;
    let error = loop {
        match sender.send_while(&Note::new(sent, 100), None, &mut || false) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    let SocketError::Stalled { waited, sent_bytes: 0, frame_bytes } = error else {
        panic!("{error:?}");
    };
    assert!(waited >= Duration::from_millis(200), "{waited:?}");
    let ms = waited.as_millis();
    assert_eq!(
        error.to_string(),
        format!("the other side took 0 of {frame_bytes} bytes in {ms} ms: is its process stopped?")
    );
    // Nothing of the frame was sent: the connection is still usable.
    for number in 0..sent {
        assert_eq!(other.recv(PATIENCE).unwrap().unwrap().0.number, number);
    }
    sender.send(&Note::new(sent, 100), None).unwrap();
    assert_eq!(other.recv(PATIENCE).unwrap().unwrap().0.number, sent);
    // A partially sent frame cannot be followed by another.
    let error = sender.send_while(&Note::new(0, 2 << 20), None, &mut || false).unwrap_err();
    assert!(matches!(error, SocketError::Stalled { sent_bytes: 1.., .. }), "{error:?}");
    assert!(matches!(sender.send(&Note::default(), None), Err(SocketError::Closed)));
    assert!(matches!(receiver.recv(PATIENCE), Err(SocketError::Closed)));
    assert!(matches!(other.recv(PATIENCE), Err(SocketError::Closed)));
}

#[test]
fn a_peer_that_is_paused_is_waited_for_as_long_as_the_sender_wants() {
    let _alone = alone();
    let (one, mut other) = pair();
    let (sender, _receiver) = one.split();
    let mut sent = 0;
    while sender.send_while(&Note::new(sent, 100), None, &mut || false).is_ok() {
        sent += 1;
    }
    let (asked, paused) = std::sync::mpsc::sync_channel(0);
    let patient = sender.clone();
    let sending = thread::spawn(move || {
        // The second frame is larger than the socket buffer: the wait includes its rest.
        for bytes in [100, 2 << 20] {
            let mut wanted = || {
                let _ = asked.send(bytes);
                true
            };
            patient.send_while(&Note::new(bytes as u64, bytes), None, &mut wanted).unwrap();
        }
    });
    // The peer does not read, and while no byte of the first frame is sent, other threads are not
    // blocked.
    (0..3).for_each(|_| assert_eq!(paused.recv_timeout(PATIENCE).unwrap(), 100));
    let error = sender.send_while(&Note::default(), None, &mut || false).unwrap_err();
    assert!(matches!(error, SocketError::Stalled { sent_bytes: 0, .. }), "{error:?}");
    (0..sent)
        .for_each(|number| assert_eq!(other.recv(PATIENCE).unwrap().unwrap().0.number, number));
    for bytes in [100, 2 << 20] {
        let received = thread::scope(|scope| {
            let receiving = scope.spawn(|| other.recv(PATIENCE).unwrap().unwrap().0.text.len());
            // The sender calls `wanted` until the frame is received.
            while !receiving.is_finished() {
                let _ = paused.recv_timeout(Duration::from_millis(5));
            }
            receiving.join().unwrap()
        });
        assert_eq!(received, bytes);
    }
    drop(paused);
    sending.join().unwrap();
    // A frame that is no longer wanted ends, and if it was partially sent, it ends the connection.
    let error = sender.send_while(&Note::new(0, 2 << 20), None, &mut || false).unwrap_err();
    assert!(matches!(error, SocketError::Stalled { sent_bytes: 1.., .. }), "{error:?}");
    assert!(matches!(sender.send(&Note::default(), None), Err(SocketError::Closed)));
}

#[test]
fn what_was_sent_before_the_end_is_still_received() {
    let _alone = alone();
    // With unread bytes in the closing end Linux returns ECONNRESET, without them the end of the
    // stream.
    for unread in [0, 3] {
        let (one, other) = pair();
        let (sender, mut receiver) = other.split();
        for number in 0..unread {
            sender.send(&Note::new(number, 10), None).unwrap();
        }
        for number in 0..100 {
            one.send(&Note::new(number, 10), Some(numbered_file(number).as_fd())).unwrap();
        }
        drop(one);
        assert!(matches!(sender.send(&Note::default(), None), Err(SocketError::Closed)));
        for number in 0..100 {
            let (note, descriptor) = receiver.recv(PATIENCE).unwrap().unwrap();
            assert_eq!((note.number, number_in(&descriptor.unwrap())), (number, number));
        }
        for _ in 0..2 {
            assert!(matches!(receiver.recv(PATIENCE), Err(SocketError::Closed)));
        }
    }
}

#[test]
fn descriptors_do_not_add_up() {
    let _alone = alone();
    let before = open_descriptors();
    for round in 0..100 {
        let (one, mut other) = pair();
        for number in 0..10 {
            one.send(&Note::new(number, 10), Some(null().as_fd())).unwrap();
        }
        // Some are received, some are left in the socket, some in the inbox.
        for _ in 0..round % 10 {
            other.recv(PATIENCE).unwrap().unwrap();
        }
    }
    until("they are closed", || open_descriptors() == before);
}

#[test]
fn received_descriptors_are_not_inherited() {
    let _alone = alone();
    let (one, mut other) = pair();
    one.send(&Note::default(), Some(null().as_fd())).unwrap();
    let (_, descriptor) = other.recv(PATIENCE).unwrap().unwrap();
    let flags = rustix::io::fcntl_getfd(descriptor.unwrap()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}
