//! Bounds that docs/SECURITY.md names, and a way to use up those of thousands of callers: for
//! tests.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::leader::{claim_queue, core};
use crate::net::{http, links, port};
use crate::rpc::serve;
use crate::server;
use crate::server::Running;

/// Maximum connections of the gRPC port.
pub const CONNECTIONS_MAX: usize = server::CONNECTIONS_MAX;
/// Maximum connections of the HTTP port.
pub const HTTP_CONNECTIONS_MAX: usize = http::HTTP_CONNECTIONS_MAX;
/// Timeout of the TLS handshake.
pub const HANDSHAKE_MAX: Duration = port::HANDSHAKE_MAX;
/// Maximum time without a byte, or with unread bytes.
pub const SILENCE_MAX: Duration = port::SILENCE_MAX;
/// Maximum streams of one connection.
pub const STREAMS_MAX: u32 = server::STREAMS_MAX;
/// Maximum concurrent calls of one connection.
pub const CALLS_PER_CONNECTION: usize = server::CALLS_PER_CONNECTION;
/// Maximum bytes of a request's headers.
pub const HEADER_BYTES_MAX: u32 = server::HEADER_BYTES_MAX;
/// Maximum concurrent calls of workers and people.
pub const CALLS_MAX: usize = core::CALLS_MAX;
/// Maximum ranks that wait for groups.
pub const POLLS_MAX: usize = claim_queue::POLLS_MAX;
/// Timeout of a call of workers and people.
pub const CALL_TIME_MAX: Duration = serve::CALL_TIME_MAX;
/// Timeout of a call of other nodes.
pub const PEER_CALL_TIME_MAX: Duration = server::PEER_CALL_TIME_MAX;
/// Maximum bytes of a message of workers and people.
pub const MESSAGE_BYTES_MAX: usize = serve::MESSAGE_BYTES_MAX;
/// Maximum bytes of a message of other nodes.
pub const PEER_MESSAGE_BYTES_MAX: usize = links::PEER_MESSAGE_BYTES_MAX;

/// Permits of a number of running calls; released when dropped.
#[derive(Debug)]
pub struct HeldPermits<'a> {
    _permits: SemaphorePermit<'a>,
}

/// Takes the permits of `count` calls. `None` if fewer are left.
pub fn hold_calls(running: &Running, count: usize) -> Option<HeldPermits<'_>> {
    hold(&running.core.calls, count)
}

/// Takes the permits of `count` ranks that wait for groups. `None` if fewer are left.
pub fn hold_polls(running: &Running, count: usize) -> Option<HeldPermits<'_>> {
    hold(&running.core.polls, count)
}

fn hold(turns: &Semaphore, count: usize) -> Option<HeldPermits<'_>> {
    let permits = turns.try_acquire_many(u32::try_from(count).ok()?);
    Some(HeldPermits { _permits: permits.ok()? })
}
