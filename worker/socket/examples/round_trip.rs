//! Measures the cost of a frame: `cargo run --release -p shardfeed-socket --example round_trip`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::thread;
use std::time::{Duration, Instant};

use shardfeed_socket::{Connection, SocketError};

const BODY_BYTES: usize = 500;
const ROUNDS: usize = 100_000;
/// Frames in the socket buffer at a time; it holds about 270 small ones.
const BURST: usize = 64;
const FOR_EVER: Duration = Duration::MAX;

#[derive(Clone, PartialEq, prost::Message)]
struct Note {
    #[prost(bytes = "vec", tag = "1")]
    text: Vec<u8>,
}

fn main() {
    round_trip();
    received_already();
}

fn round_trip() {
    let (one, mut other) = Connection::<Note, Note>::pair().unwrap();
    let echo = thread::spawn(move || {
        loop {
            match other.recv(FOR_EVER) {
                Ok(Some((note, _))) => other.send(&note, None).unwrap(),
                Ok(None) => {}
                Err(SocketError::Closed) => return,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let mut one = one;
    let note = Note { text: vec![7; BODY_BYTES] };
    let mut took: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            one.send(&note, None).unwrap();
            one.recv(FOR_EVER).unwrap().unwrap();
            begun.elapsed()
        })
        .collect();
    drop(one);
    echo.join().unwrap();
    took.sort();
    let [p50, p99] = [ROUNDS / 2, ROUNDS * 99 / 100].map(|rank| took[rank]);
    println!("round trip of {BODY_BYTES} bytes between two threads: p50 {p50:?}, p99 {p99:?}");
}

fn received_already() {
    let (one, mut other) = Connection::<Note, Note>::pair().unwrap();
    let note = Note { text: vec![7; BODY_BYTES] };
    for burst in [1, BURST] {
        let (mut sending, mut receiving) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..ROUNDS / burst {
            let begun = Instant::now();
            (0..burst).for_each(|_| one.send(&note, None).unwrap());
            let sent = Instant::now();
            (0..burst).for_each(|_| drop(other.recv(FOR_EVER).unwrap().unwrap()));
            sending += sent - begun;
            receiving += sent.elapsed();
        }
        let each = |total: Duration| total / (ROUNDS / burst * burst) as u32;
        println!("{burst} at a time: send {:?}, recv {:?} each", each(sending), each(receiving));
    }
}
