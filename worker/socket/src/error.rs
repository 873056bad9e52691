//! What can go wrong on a connection.

use std::io;
use std::time::Duration;

use crate::frame::FRAME_BYTES_MAX;

/// Why a message was not sent or received. After any of these but [`TooLarge`](Self::TooLarge) and a
/// [`Stalled`](Self::Stalled) with nothing sent, the connection is of no further use.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The peer is gone, or this side has shut the connection down. Everything that the peer had
    /// sent whole has been received.
    #[error("the other side closed the connection")]
    Closed,
    /// The peer did not read.
    #[error(
        "the other side took {sent_bytes} of {frame_bytes} bytes in {} ms: is its process stopped?",
        .waited.as_millis()
    )]
    Stalled {
        /// How long the frame waited.
        waited: Duration,
        /// Bytes of it that were sent. If none, the same message may be sent again; otherwise the
        /// connection is shut down.
        sent_bytes: usize,
        /// Its bytes.
        frame_bytes: usize,
    },
    /// The message does not fit a frame; nothing was sent.
    #[error("a message of {bytes} bytes was to be sent, more than {FRAME_BYTES_MAX}: split it")]
    TooLarge {
        /// Bytes of the message.
        bytes: usize,
    },
    /// The peer announced a frame that is too large.
    #[error(
        "the other side announced a frame of {bytes} bytes, more than {FRAME_BYTES_MAX}: \
         it is broken or of another version"
    )]
    Oversize {
        /// Bytes that it announced.
        bytes: usize,
    },
    /// A frame said that a descriptor comes with it, and none came.
    #[error("the other side announced a descriptor and sent none: it is broken")]
    NoDescriptor,
    /// A descriptor came that no frame announced; it is closed.
    #[error("the other side sent a descriptor that it did not announce: it is broken")]
    SurplusDescriptor,
    /// A descriptor came and this process can have no more of them.
    #[error("a descriptor was lost as this process has too many open: raise its limit (ulimit -n)")]
    NoRoomForDescriptor,
    /// A frame is no message of the expected type.
    #[error("a frame of {frame_bytes} bytes is no valid message: {source}")]
    Undecodable {
        /// Its bytes.
        frame_bytes: usize,
        /// What is wrong with it.
        source: prost::DecodeError,
    },
    /// The system refused.
    #[error("{operation} on the trainer socket: {source}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl SocketError {
    pub(crate) fn io(operation: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { operation, source: source.into() }
    }
}
