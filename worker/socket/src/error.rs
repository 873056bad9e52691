use std::io;
use std::time::Duration;

use crate::frame::FRAME_BYTES_MAX;

/// Reason why a message was not sent or received.
///
/// After any of these except [`TooLarge`](Self::TooLarge), and [`Stalled`](Self::Stalled) with
/// nothing sent, the connection is unusable.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The peer is gone, or this side has shut down. All complete frames were received.
    #[error("the other side closed the connection")]
    Closed,
    #[error(
        "the other side took {sent_bytes} of {frame_bytes} bytes in {} ms: is its process stopped?",
        .waited.as_millis()
    )]
    Stalled {
        waited: Duration,
        /// Bytes of the frame that were sent. If 0, the same message may be sent again; otherwise
        /// the connection is shut down.
        sent_bytes: usize,
        frame_bytes: usize,
    },
    /// The message does not fit a frame; nothing was sent.
    #[error("a message of {bytes} bytes was to be sent, more than {FRAME_BYTES_MAX}: split it")]
    TooLarge { bytes: usize },
    #[error(
        "the other side announced a frame of {bytes} bytes, more than {FRAME_BYTES_MAX}: \
         it is broken or of another version"
    )]
    Oversize {
        /// Announced size in bytes.
        bytes: usize,
    },
    #[error("the other side announced a descriptor and sent none: it is broken")]
    NoDescriptor,
    /// A descriptor was received that no frame announced; it is closed.
    #[error("the other side sent a descriptor that it did not announce: it is broken")]
    SurplusDescriptor,
    /// A descriptor was received, and this process cannot open more.
    #[error("a descriptor was lost as this process has too many open: raise its limit (ulimit -n)")]
    NoRoomForDescriptor,
    /// A frame is not a valid message of the expected type.
    #[error("a frame of {frame_bytes} bytes is no valid message: {source}")]
    Undecodable { frame_bytes: usize, source: prost::DecodeError },
    #[error("{operation} on the trainer socket: {source}")]
    Io { operation: &'static str, source: io::Error },
}

impl SocketError {
    pub(crate) fn io(operation: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { operation, source: source.into() }
    }
}
