//! The sending half of a connection.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::PollFlags;

use crate::error::SocketError;
use crate::frame::{FRAME_BYTES_MAX, HEADER_BYTES, Header};
use crate::inbox::BUFFER_BYTES;
use crate::wire::{self, Deadline};

/// How long a frame may wait for a peer that does not read, unless
/// [`set_timeout`](Sender::set_timeout) says otherwise. The socket holds some hundred small frames,
/// so a peer that is merely busy never gets there.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends messages; clones send on the same connection, each frame whole.
#[derive(Debug)]
pub struct Sender<Out> {
    shared: Arc<Shared>,
    message: PhantomData<fn(Out)>,
}

#[derive(Debug)]
struct Shared {
    socket: Arc<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The frame, kept so that no frame needs an allocation.
    buffer: Vec<u8>,
    timeout: Duration,
    /// A frame was begun and not ended: nothing may follow it.
    cut: bool,
}

impl<Out> Clone for Sender<Out> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), message: PhantomData }
    }
}

impl<Out> Sender<Out> {
    pub(crate) fn new(socket: Arc<OwnedFd>) -> Self {
        let state = State { buffer: Vec::new(), timeout: SEND_TIMEOUT, cut: false };
        Self { shared: Arc::new(Shared { socket, state: Mutex::new(state) }), message: PhantomData }
    }

    /// How long a frame may wait, for all clones.
    pub fn set_timeout(&self, timeout: Duration) {
        self.lock().timeout = timeout;
    }

    /// Ends the connection in both directions: the peer reads what was sent, then an end; a thread
    /// that waits in [`Receiver::recv`](crate::Receiver::recv) returns.
    pub fn shutdown(&self) {
        wire::end(self.shared.socket.as_fd());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // `cut` tells whether a panic left a frame unfinished.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Out: Message> Sender<Out> {
    /// Sends `message`, and `descriptor` with it, which stays open here. Waits if the peer does not
    /// read, and for other threads that send.
    ///
    /// # Errors  See [`SocketError`]; after `Closed` what the peer had sent can still be received.
    pub fn send(
        &self,
        message: &Out,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), SocketError> {
        let body_bytes = message.encoded_len();
        if body_bytes > FRAME_BYTES_MAX {
            return Err(SocketError::TooLarge { bytes: body_bytes });
        }
        let header = Header { body_bytes, descriptor: descriptor.is_some() };
        let mut state = self.lock();
        if state.cut {
            return Err(SocketError::Closed);
        }
        state.buffer.clear();
        state.buffer.reserve(HEADER_BYTES + body_bytes);
        state.buffer.extend(header.encode());
        message.encode(&mut state.buffer).expect("a vector grows");
        debug_assert_eq!(state.buffer.len(), header.frame_bytes());
        let sent = state.send(self.shared.socket.as_fd(), descriptor);
        if state.buffer.capacity() > BUFFER_BYTES {
            state.buffer = Vec::new();
        }
        sent
    }
}

impl State {
    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        mut descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), SocketError> {
        let mut sent_bytes = wire::send(socket, &self.buffer, descriptor)?;
        if sent_bytes == self.buffer.len() {
            return Ok(());
        }
        let begun = Instant::now();
        let deadline = Deadline::after(self.timeout);
        loop {
            if sent_bytes > 0 {
                self.cut = true;
                descriptor = None;
            }
            let step = match wire::wait(socket, PollFlags::OUT, deadline) {
                Ok(true) => wire::send(socket, &self.buffer[sent_bytes..], descriptor),
                Ok(false) => {
                    let (waited, frame_bytes) = (begun.elapsed(), self.buffer.len());
                    Err(SocketError::Stalled { waited, sent_bytes, frame_bytes })
                }
                Err(errno) => Err(SocketError::io("wait to send", errno)),
            };
            match step {
                Ok(count) => sent_bytes += count,
                Err(error) => {
                    if self.cut {
                        wire::end(socket);
                    }
                    return Err(error);
                }
            }
            if sent_bytes == self.buffer.len() {
                self.cut = false;
                return Ok(());
            }
        }
    }
}
