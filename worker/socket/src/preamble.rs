//! Preamble that each side sends before any frame, so that foreign data is never parsed.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::error::SocketError;
use crate::wire::{self, Deadline};

/// Magic, lowest and highest version, and five bytes that are sent as zero and ignored.
const PREAMBLE_BYTES: usize = 16;
const MAGIC: &[u8; 9] = b"shardfeed";

/// Range of protocol versions that one side supports, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub min: u8,
    pub max: u8,
}

impl Versions {
    /// Versions of this build.
    pub const OURS: Self = Self { min: 1, max: 1 };

    /// True if both have a version in common.
    fn meets(self, other: Self) -> bool {
        self.min.max(other.min) <= self.max.min(other.max)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(f, "version {}", self.max),
            false => write!(f, "versions {} to {}", self.min, self.max),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer sent nothing, or too little.
    #[error("the other side did not identify itself in {} ms", .waited.as_millis())]
    Silent { waited: Duration },
    #[error("the other side closed the connection before it identified itself")]
    Closed,
    #[error("the other side is not shardfeed: it began with {began_with}")]
    NotShardfeed {
        /// First bytes received, escaped and quoted.
        began_with: String,
    },
    #[error(
        "the other side speaks {theirs} of the trainer protocol, this side {ours}: \
         upgrade the older one"
    )]
    Version { ours: Versions, theirs: Versions },
    #[error("shake hands on the trainer socket: {source}")]
    Io { source: io::Error },
}

/// Sends the preamble, and reads and checks the peer's.
pub(crate) fn exchange(socket: BorrowedFd<'_>, timeout: Duration) -> Result<(), HandshakeError> {
    let ours = Versions::OURS;
    let sent = wire::send(socket, &encode(ours), None).map_err(|error| match error {
        SocketError::Io { source, .. } => HandshakeError::Io { source },
        _ => HandshakeError::Closed,
    });
    match sent {
        Ok(PREAMBLE_BYTES) => {}
        Ok(_) => return Err(HandshakeError::Io { source: Errno::AGAIN.into() }),
        // A peer that sent its preamble and then closed the connection is still read.
        Err(HandshakeError::Closed) => {}
        Err(error) => return Err(error),
    }
    let theirs = decode(&read(socket, timeout)?);
    if ours.meets(theirs) { Ok(()) } else { Err(HandshakeError::Version { ours, theirs }) }
}

fn encode(versions: Versions) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[MAGIC.len()] = versions.min;
    bytes[MAGIC.len() + 1] = versions.max;
    bytes
}

fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Versions {
    Versions { min: bytes[MAGIC.len()], max: bytes[MAGIC.len() + 1] }
}

/// Reads exactly the peer's preamble, and stops at the first wrong byte.
fn read(socket: BorrowedFd<'_>, timeout: Duration) -> Result<[u8; PREAMBLE_BYTES], HandshakeError> {
    let deadline = Deadline::after(timeout);
    let mut bytes = [0; PREAMBLE_BYTES];
    let mut have = 0;
    while have < PREAMBLE_BYTES {
        match recv(socket, &mut bytes[have..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Err(HandshakeError::Closed),
            Ok((_, count)) => have += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let ready = wire::wait(socket, PollFlags::IN, deadline);
                if !ready.map_err(|errno| HandshakeError::Io { source: errno.into() })? {
                    return Err(HandshakeError::Silent { waited: timeout });
                }
            }
            Err(errno) => return Err(HandshakeError::Io { source: errno.into() }),
        }
        let magic = have.min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            let began_with = format!("\"{}\"", bytes[..have].escape_ascii());
            return Err(HandshakeError::NotShardfeed { began_with });
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_need_a_version_in_common() {
        let versions = |min, max| Versions { min, max };
        assert!(versions(1, 3).meets(versions(2, 5)));
        assert!(versions(2, 5).meets(versions(1, 3)));
        assert!(versions(1, 1).meets(versions(1, 1)));
        assert!(!versions(1, 2).meets(versions(3, 4)));
        // An invalid range.
        assert!(!versions(1, 5).meets(versions(4, 2)));
    }

    #[test]
    fn the_preamble_is_what_the_protocol_says() {
        let bytes = encode(Versions { min: 2, max: 7 });
        assert_eq!(&bytes, b"shardfeed\x02\x07\0\0\0\0\0");
        assert_eq!(decode(&bytes), Versions { min: 2, max: 7 });
    }
}
