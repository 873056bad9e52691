//! The bounds that docs/SECURITY.md names, and a way to use up what takes thousands of callers: for tests.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::server::Running;
use crate::{http, links, net, rpc, server};

/// Connections of the gRPC port at most.
pub const CONNECTIONS_MAX: usize = server::CONNECTIONS_MAX;
/// Connections of the HTTP port at most.
pub const HTTP_CONNECTIONS_MAX: usize = http::HTTP_CONNECTIONS_MAX;
/// Time to prove who one is.
pub const HANDSHAKE_MAX: Duration = net::HANDSHAKE_MAX;
/// Time without a byte, or with bytes that are not read.
pub const SILENCE_MAX: Duration = net::SILENCE_MAX;
/// Streams of one connection.
pub const STREAMS_MAX: u32 = server::STREAMS_MAX;
/// Calls of one connection that are worked on.
pub const CALLS_PER_CONNECTION: usize = server::CALLS_PER_CONNECTION;
/// Bytes of the headers of a request.
pub const HEADER_BYTES_MAX: u32 = server::HEADER_BYTES_MAX;
/// Calls of workers and people that are worked on.
pub const CALLS_MAX: usize = rpc::CALLS_MAX;
/// Ranks that wait for groups.
pub const POLLS_MAX: usize = rpc::POLLS_MAX;
/// Time of a call of workers and people.
pub const CALL_TIME_MAX: Duration = rpc::CALL_TIME_MAX;
/// Time of a call of other nodes.
pub const PEER_CALL_TIME_MAX: Duration = server::PEER_CALL_TIME_MAX;
/// Bytes of a message of workers and people.
pub const MESSAGE_BYTES_MAX: usize = rpc::MESSAGE_BYTES_MAX;
/// Bytes of a message of other nodes.
pub const PEER_MESSAGE_BYTES_MAX: usize = links::PEER_MESSAGE_BYTES_MAX;

/// What so many calls hold while they are worked on; free again when it is dropped.
#[derive(Debug)]
pub struct Held<'a> {
    _permits: SemaphorePermit<'a>,
}

/// Holds what `count` calls would. `None`: there is not so much left.
pub fn hold_calls(running: &Running, count: usize) -> Option<Held<'_>> {
    hold(&running.core.calls, count)
}

/// Holds what `count` ranks that wait for groups would. `None`: there is not so much left.
pub fn hold_polls(running: &Running, count: usize) -> Option<Held<'_>> {
    hold(&running.core.polls, count)
}

fn hold(turns: &Semaphore, count: usize) -> Option<Held<'_>> {
    let permits = turns.try_acquire_many(u32::try_from(count).ok()?);
    Some(Held { _permits: permits.ok()? })
}
