//! A connection between worker and trainer.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::error::SocketError;
use crate::receiver::Receiver;
use crate::sender::Sender;

/// Sends messages `Out` and receives messages `In`, over a unix socket after the handshake.
///
/// The connection ends when it is dropped or, after a split, with the last half.
#[derive(Debug)]
pub struct Connection<Out, In> {
    sender: Sender<Out>,
    receiver: Receiver<In>,
}

impl<Out, In> Connection<Out, In> {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let socket = Arc::new(socket);
        let sender = Sender::new(Arc::clone(&socket));
        Self { sender, receiver: Receiver::new(socket) }
    }

    /// Creates two connected ends in this process, for tests and measurements.
    ///
    /// # Errors  This process cannot open more descriptors.
    pub fn pair() -> io::Result<(Self, Connection<In, Out>)> {
        let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
        let (one, other) = socketpair(unix, stream, SocketFlags::CLOEXEC, None)?;
        Ok((Self::new(one), Connection::new(other)))
    }

    /// Splits the connection into its halves, for two threads.
    pub fn split(self) -> (Sender<Out>, Receiver<In>) {
        (self.sender, self.receiver)
    }
}

impl<Out: Message, In: Message + Default> Connection<Out, In> {
    /// Sends a message: see [`Sender::send`].
    pub fn send(
        &self,
        message: &Out,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), SocketError> {
        self.sender.send(message, descriptor)
    }

    /// Receives a message: see [`Receiver::recv`].
    pub fn recv(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<(In, Option<OwnedFd>)>, SocketError> {
        self.receiver.recv(timeout)
    }

    /// Receives a message that has arrived: see [`Receiver::try_recv`].
    pub fn try_recv(&mut self) -> Result<Option<(In, Option<OwnedFd>)>, SocketError> {
        self.receiver.try_recv()
    }
}
