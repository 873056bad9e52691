//! The bounds in docs/OPERATIONS.md hold, and callers that violate them do not affect others.
//! Bounds on times are tested beside their code: `net.rs`, `rpc/mod.rs`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use shardfeed_coordinator::limits::{self, hold_calls, hold_polls};
use shardfeed_proto::coordinator::v1::peer_service_client::PeerServiceClient;
use shardfeed_proto::coordinator::v1::*;
use shardfeed_proto::{ErrorKind, PEER_PROTOCOL};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Endpoint;

use crate::fixture::{DEADLINE, Fixture, context, refused};
use crate::http::page;
use crate::worker::{beat, join};

/// The numbers in the table of docs/OPERATIONS.md equal those of the code.
#[test]
fn the_documented_bounds_are_those_of_the_code() {
    let text = include_str!("../../../../docs/OPERATIONS.md");
    let (_, table) = text.split_once("\n### Limits\n").unwrap();
    let rows: BTreeMap<&str, &str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
        .collect();
    let number = |number: usize| match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", number / 1_000, number % 1_000),
    };
    let (kib, mib) = (
        |bytes: usize| format!("{} KiB", bytes >> 10),
        |bytes: usize| format!("{} MiB", bytes >> 20),
    );
    let seconds = |time: Duration| format!("{} s", time.as_secs());
    assert_eq!(limits::STREAMS_MAX as usize, limits::CALLS_PER_CONNECTION);
    let expected: [(&str, &[String]); 7] = [
        ("connections", &[number(limits::CONNECTIONS_MAX), number(limits::HTTP_CONNECTIONS_MAX)]),
        ("time to prove who one is", &[seconds(limits::HANDSHAKE_MAX)]),
        (
            "a silent connection, or one that does not read its messages",
            &[seconds(limits::SILENCE_MAX)],
        ),
        (
            "streams, and calls at a time, of one connection",
            &[number(limits::CALLS_PER_CONNECTION)],
        ),
        (
            "calls at a time of all workers and people",
            &[number(limits::CALLS_MAX), number(limits::POLLS_MAX)],
        ),
        (
            "a message",
            &[
                mib(limits::MESSAGE_BYTES_MAX),
                mib(limits::PEER_MESSAGE_BYTES_MAX),
                kib(limits::HEADER_BYTES_MAX as usize),
            ],
        ),
        ("a call", &[seconds(limits::CALL_TIME_MAX), seconds(limits::PEER_CALL_TIME_MAX)]),
    ];
    for (what, bounds) in expected {
        let row = rows.get(what).unwrap_or_else(|| panic!("no row `{what}`: {rows:#?}"));
        for bound in bounds {
            assert!(row.contains(bound), "`{what}` does not say {bound}: {row}");
        }
    }
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    content: Vec<u8>,
}

const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// Settings (section 6.5.2).
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
const MAX_HEADER_LIST_SIZE: u16 = 0x6;

/// Error code (section 7).
const REFUSED_STREAM: u32 = 0x7;

/// Bytes that a header field counts in addition to its name and value (section 6.5.2).
const FIELD_BYTES: usize = 32;

/// A connection that respects no bound.
struct Rude {
    stream: TcpStream,
}

impl Rude {
    async fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut this = Self { stream };
        this.say(&Frame { kind: SETTINGS, flags: 0, stream: 0, content: vec![] }).await;
        this
    }

    async fn say(&mut self, frame: &Frame) {
        let length = u32::try_from(frame.content.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([frame.kind, frame.flags]);
        bytes.extend(frame.stream.to_be_bytes());
        bytes.extend(&frame.content);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Starts a call without its message.
    /// - `more`: number of additional fields, each of 33 bytes of headers.
    async fn call(&mut self, stream: u32, more: usize) {
        let mut content = vec![0x83, 0x86]; // :method POST, :scheme http
        let path = "/shardfeed.coordinator.v1.WorkerService/PutChunk";
        for (name, value) in [(0x04, path), (0x01, "x")] {
            content.push(name); // :path, :authority
            content.extend(text(value));
        }
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
            content.push(0);
            content.extend([text(name), text(value)].concat());
        }
        for _ in 0..more {
            content.push(0);
            content.extend([text("a"), text("")].concat());
        }
        assert!(content.len() <= 1 << 14, "one frame");
        self.say(&Frame { kind: HEADERS, flags: END_HEADERS, stream, content }).await;
    }

    async fn hear(&mut self) -> Frame {
        let mut head = [0; 9];
        timeout(DEADLINE, self.stream.read_exact(&mut head)).await.unwrap().unwrap();
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut content = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        timeout(DEADLINE, self.stream.read_exact(&mut content)).await.unwrap().unwrap();
        Frame { kind, flags, stream: u32::from_be_bytes(stream), content }
    }

    /// Returns the next frame of this kind; skips others.
    async fn hear_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.hear().await;
            if frame.kind == kind {
                return frame;
            }
        }
    }
}

/// Encodes a text for HPACK, without compression (RFC 7541, section 5.2).
fn text(text: &str) -> Vec<u8> {
    assert!(text.len() < 0x7f);
    [&[text.len() as u8], text.as_bytes()].concat()
}

fn error_code(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.content[..].try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_headers_beyond_what_was_announced_are_refused_and_nobody_else_suffers() {
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    let mut rude = Rude::connect(fixture.running.grpc_address()).await;
    let settings = rude.hear_of(SETTINGS).await;
    let settings: BTreeMap<u16, u32> = settings
        .content
        .chunks(6)
        .map(|one| {
            let value = u32::from_be_bytes(one[2..].try_into().unwrap());
            (u16::from_be_bytes([one[0], one[1]]), value)
        })
        .collect();
    assert_eq!(settings[&MAX_CONCURRENT_STREAMS], limits::STREAMS_MAX);
    assert_eq!(settings[&MAX_HEADER_LIST_SIZE], limits::HEADER_BYTES_MAX);

    // Headers that are slightly too large, then some that almost are: the call's others have about
    // 300 bytes.
    let fields = limits::HEADER_BYTES_MAX as usize / (FIELD_BYTES + 1);
    rude.call(1, fields + 1).await;
    assert_eq!(rude.hear_of(HEADERS).await.stream, 1, "it is answered, by status 431");
    assert_eq!(rude.hear_of(RST_STREAM).await.stream, 1, "its message is not waited for");
    rude.call(3, fields - 15).await;
    // All permitted streams, and one more: the first rejected stream is the last one.
    let last = 3 + 2 * limits::STREAMS_MAX;
    for stream in (5..=last).step_by(2) {
        rude.call(stream, 0).await;
    }
    let frame = rude.hear_of(RST_STREAM).await;
    assert_eq!((frame.stream, error_code(&frame)), (last, REFUSED_STREAM), "{frame:?}");
    beat(&mut fixture.worker, session, vec![]).await.unwrap();
    // One of them ends, without a message: it is answered.
    rude.say(&Frame { kind: 0, flags: END_STREAM, stream: 3, content: vec![] }).await;
    assert_eq!(rude.hear_of(HEADERS).await.stream, 3);
    drop(rude);
    beat(&mut fixture.worker, session, vec![]).await.unwrap();
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_those_that_are_worked_on_are_told_to_come_again() {
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    let Fixture { running, worker, admin, .. } = &mut fixture;
    let status = || GetStatusRequest { context: context() };
    let take =
        || ClaimGroupsRequest { context: context(), session, ..ClaimGroupsRequest::default() };
    let said = |(kind, message): (ErrorKind, String), most: usize| {
        assert_eq!(kind, ErrorKind::Retry, "{message}");
        let says = "the coordinator works on MOST such calls already; try again in a moment";
        assert_eq!(message, says.replace("MOST", &most.to_string()));
    };

    assert!(hold_calls(running, limits::CALLS_MAX + 1).is_none());
    let held = hold_calls(running, limits::CALLS_MAX).unwrap();
    said(refused(admin.get_status(status()).await), limits::CALLS_MAX);
    let late = beat(worker, session, vec![]).await.map(tonic::Response::new);
    said(refused(late), limits::CALLS_MAX);
    // Ranks that wait for groups have their own limit, and so have the other nodes.
    let (kind, message) = refused(worker.claim_groups(take()).await);
    assert_ne!(kind, ErrorKind::Retry, "{message}");
    let channel = Endpoint::from_shared(format!("http://{}", running.grpc_address())).unwrap();
    let mut peer = PeerServiceClient::new(channel.connect().await.unwrap());
    let request = IntroduceRequest { protocol: PEER_PROTOCOL, node: 2, ..Default::default() };
    assert_eq!(peer.introduce(request).await.unwrap().into_inner().node, 1);
    drop(held);
    admin.get_status(status()).await.unwrap();
    beat(worker, session, vec![]).await.unwrap();

    assert!(hold_polls(running, limits::POLLS_MAX + 1).is_none());
    let held = hold_polls(running, limits::POLLS_MAX).unwrap();
    said(refused(worker.claim_groups(take()).await), limits::POLLS_MAX);
    beat(worker, session, vec![]).await.unwrap();
    drop(held);
    let (kind, message) = refused(worker.claim_groups(take()).await);
    assert_ne!(kind, ErrorKind::Retry, "{message}");
    fixture.stop().await;
}

/// True if a message was rejected for its length, with a bound of `most` bytes.
fn is_too_long(status: &Status, most: usize) -> bool {
    status.message().contains(&format!("the limit is: {most} bytes"))
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_have_their_bound_and_those_of_nodes_a_larger_one() {
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    let put = |bytes: usize| PutChunkRequest { context: context(), content: vec![1; bytes] };
    let most = limits::MESSAGE_BYTES_MAX;
    let status = fixture.worker.put_chunk(put(most)).await.unwrap_err();
    assert!(is_too_long(&status, most), "{status:?}");
    // A message that fits is read, and rejected because chunks are smaller.
    let status = fixture.worker.put_chunk(put(most - 1_000)).await.unwrap_err();
    assert!(!is_too_long(&status, most), "{status:?}");

    let channel = Endpoint::from_shared(format!("http://{}", fixture.running.grpc_address()));
    let mut peer = PeerServiceClient::new(channel.unwrap().connect().await.unwrap());
    let exchange = |bytes: usize| ExchangeRequest {
        cluster_id: String::new(),
        from: 2,
        to: 1,
        message: vec![1; bytes],
    };
    let most = limits::PEER_MESSAGE_BYTES_MAX;
    let status = peer.exchange(exchange(most)).await.unwrap_err();
    assert!(is_too_long(&status, most), "{status:?}");
    let (kind, message) = refused(peer.exchange(exchange(most - 1_000)).await);
    assert_eq!(kind, ErrorKind::Conflict, "{message}");
    beat(&mut fixture.worker, session, vec![]).await.unwrap();
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_there_under_hundreds_of_silent_connections() {
    const SILENT: usize = 500;
    const { assert!(SILENT > 3 * limits::HTTP_CONNECTIONS_MAX) };
    let mut fixture = Fixture::start().await;
    let session = join(&mut fixture.worker, "w0").await.session;
    let http = fixture.running.http_address().unwrap();
    let mut silent = Vec::with_capacity(SILENT);
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(http).await.unwrap());
    }
    for path in ["/livez", "/readyz"] {
        let said = timeout(DEADLINE, page(http, path)).await.unwrap();
        assert_eq!(said, (200, "ok\n".to_owned()), "{path}");
    }
    beat(&mut fixture.worker, session, vec![]).await.unwrap();
    drop(silent);
    fixture.stop().await;
}
