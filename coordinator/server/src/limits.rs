//! Bounds that docs/OPERATIONS.md names, and a way to use up those of many callers: for tests.

use tokio::sync::{Semaphore, SemaphorePermit};

pub use crate::leader::claim_queue::POLLS_MAX;
pub use crate::leader::core::CALLS_MAX;
pub use crate::net::http::HTTP_CONNECTIONS_MAX;
pub use crate::net::links::PEER_MESSAGE_BYTES_MAX;
pub use crate::net::port::{HANDSHAKE_MAX, SILENCE_MAX};
pub use crate::rpc::serve::{CALL_TIME_MAX, MESSAGE_BYTES_MAX};
use crate::server::Running;
pub use crate::server::{
    CALLS_PER_CONNECTION, CONNECTIONS_MAX, HEADER_BYTES_MAX, PEER_CALL_TIME_MAX, STREAMS_MAX,
};

/// Takes the permits of `count` calls. `None` if fewer are left.
pub fn hold_calls(running: &Running, count: usize) -> Option<SemaphorePermit<'_>> {
    hold(&running.core.calls, count)
}

/// Takes the permits of `count` ranks that wait for groups. `None` if fewer are left.
pub fn hold_polls(running: &Running, count: usize) -> Option<SemaphorePermit<'_>> {
    hold(&running.core.polls, count)
}

fn hold(turns: &Semaphore, count: usize) -> Option<SemaphorePermit<'_>> {
    turns.try_acquire_many(u32::try_from(count).ok()?).ok()
}
