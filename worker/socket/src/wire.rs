//! System calls on a connected socket. Only [`wait`] blocks.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg, shutdown,
};

use crate::error::SocketError;

/// End of a wait; `None` if it is too distant to be represented.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|instant| instant.saturating_duration_since(Instant::now()))
    }
}

/// Result of one receive call.
#[derive(Debug)]
pub(crate) enum Received {
    /// No data has arrived.
    Nothing,
    /// At least one byte.
    Bytes { count: usize, descriptor: Option<OwnedFd> },
    /// The stream has ended.
    End,
}

/// Receives available data, at most the size of `room`.
pub(crate) fn receive(fd: BorrowedFd<'_>, room: &mut [u8]) -> Result<Received, SocketError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match recvmsg(fd, &mut [IoSliceMut::new(room)], &mut control, flags) {
            Ok(message) => break message,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(errno) if is_closed(errno) => return Ok(Received::End),
            Err(errno) => return Err(SocketError::io("receive", errno)),
        }
    };
    // The buffer may hold more than one descriptor; surplus ones are closed here.
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors = descriptors.by_ref().flatten();
    let descriptor = descriptors.next();
    let more = descriptors.count() > 0;
    let cut = message.flags.contains(ReturnFlags::CTRUNC);
    match descriptor {
        Some(_) if more || cut => Err(SocketError::SurplusDescriptor),
        None if cut => Err(SocketError::NoRoomForDescriptor),
        _ if message.bytes == 0 => Ok(Received::End),
        descriptor => Ok(Received::Bytes { count: message.bytes, descriptor }),
    }
}

/// Sends as many of `bytes` as the socket accepts, with `descriptor` attached to the first byte.
///
/// Returns the number of bytes sent; if 0, the descriptor was not sent either.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<usize, SocketError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptors) = &descriptors {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the space is for one descriptor");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match retry_on_intr(|| sendmsg(fd, &[IoSlice::new(bytes)], &mut control, flags)) {
        Ok(count) => Ok(count),
        Err(Errno::AGAIN) => Ok(0),
        Err(errno) if is_closed(errno) => Err(SocketError::Closed),
        Err(errno) => Err(SocketError::io("send", errno)),
    }
}

fn is_closed(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
}

/// Waits until `fd` is ready for `what` or is closed; returns false after the deadline.
pub(crate) fn wait(fd: BorrowedFd<'_>, what: PollFlags, deadline: Deadline) -> Result<bool, Errno> {
    loop {
        // A duration that poll cannot represent means no limit.
        let left = deadline.left().and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::from_borrowed_fd(fd, what)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Shuts the connection down in both directions; data that has arrived can still be received.
pub(crate) fn end(fd: BorrowedFd<'_>) {
    // This fails only if the peer closed the connection first.
    let _ = shutdown(fd, Shutdown::Both);
}
