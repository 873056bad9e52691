//! The receiving half of a connection.

use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use rustix::event::PollFlags;

use crate::error::SocketError;
use crate::inbox::Inbox;
use crate::wire::{self, Deadline, Received};

/// Receives messages, in the order they were sent.
#[derive(Debug)]
pub struct Receiver<In> {
    socket: Arc<OwnedFd>,
    inbox: Inbox,
    /// The stream has ended, or an error occurred.
    ended: bool,
    message: PhantomData<fn() -> In>,
}

impl<In> Receiver<In> {
    pub(crate) fn new(socket: Arc<OwnedFd>) -> Self {
        Self { socket, inbox: Inbox::new(), ended: false, message: PhantomData }
    }
}

impl<In: Message + Default> Receiver<In> {
    /// Returns the next message, and the descriptor sent with it.
    ///
    /// `None` if `timeout` passes without a complete one. `Duration::MAX` waits forever.
    ///
    /// # Errors  See [`SocketError`]: later messages are lost, and the next call returns `Closed`.
    pub fn recv(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<(In, Option<OwnedFd>)>, SocketError> {
        // The clock is read only if there is nothing to receive.
        let mut deadline = None;
        loop {
            if let Some(message) = self.try_recv()? {
                return Ok(Some(message));
            }
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(timeout));
            let ready = wire::wait(self.socket.as_fd(), PollFlags::IN, deadline);
            if !ready.map_err(|errno| SocketError::io("wait to receive", errno))? {
                return Ok(None);
            }
        }
    }

    /// Returns the next message if it is complete; never waits.
    ///
    /// # Errors  As [`recv`](Self::recv).
    pub fn try_recv(&mut self) -> Result<Option<(In, Option<OwnedFd>)>, SocketError> {
        if self.ended {
            return Err(SocketError::Closed);
        }
        let next = self.next_message();
        if next.is_err() {
            self.ended = true;
            wire::end(self.socket.as_fd());
        }
        next
    }

    fn next_message(&mut self) -> Result<Option<(In, Option<OwnedFd>)>, SocketError> {
        loop {
            if let Some(frame) = self.inbox.take() {
                let frame_bytes = frame.body.len();
                let message = In::decode(frame.body)
                    .map_err(|source| SocketError::Undecodable { frame_bytes, source })?;
                return Ok(Some((message, frame.descriptor)));
            }
            match wire::receive(self.socket.as_fd(), self.inbox.room())? {
                Received::Nothing => return Ok(None),
                Received::Bytes { count, descriptor } => self.inbox.received(count, descriptor)?,
                Received::End => return Err(SocketError::Closed),
            }
        }
    }
}
