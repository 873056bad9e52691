//! System calls on a connected socket. None of them blocks but [`wait`].

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

/// A time to give up at; none if it is too far to be told.
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

/// What one receiving call brought.
#[derive(Debug)]
pub(crate) enum Received {
    /// Nothing has come.
    Nothing,
    /// Bytes, at least one.
    Bytes { count: usize, descriptor: Option<OwnedFd> },
    /// Nothing will come any more.
    End,
}

/// Receives what has come, at most `room`.
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
    // The space may hold more than one; those that are not kept are closed here.
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

/// Sends what the socket takes of `bytes`, `descriptor` with the first of them.
/// Returns how many bytes it took; if none, the descriptor was not sent either.
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

/// Waits until `fd` is ready for `what` or is closed; false if that took too long.
pub(crate) fn wait(fd: BorrowedFd<'_>, what: PollFlags, deadline: Deadline) -> Result<bool, Errno> {
    loop {
        // A duration that poll cannot hold is as good as none.
        let left = deadline.left().and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::from_borrowed_fd(fd, what)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Ends the connection in both directions; what has come can still be received.
pub(crate) fn end(fd: BorrowedFd<'_>) {
    // It fails only where the peer was faster.
    let _ = shutdown(fd, Shutdown::Both);
}
