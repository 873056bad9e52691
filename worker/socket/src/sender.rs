//! The sending half of a connection.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::PollFlags;

use crate::error::SocketError;
use crate::frame::{BUFFER_BYTES, FRAME_BYTES_MAX, FrameHeader};
use crate::wire::{self, Deadline};

/// Approximate maximum wait of [`Sender::send`] for a peer that does not read; one that reads slowly
/// may take longer. The socket buffer holds some hundred small frames.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which [`Sender::send_while`] calls `wanted`.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Sends messages; clones send on the same connection, and frames are never interleaved.
#[derive(Debug)]
pub struct Sender<Out> {
    shared: Arc<SharedSender>,
    message: PhantomData<fn(Out)>,
}

#[derive(Debug)]
struct SharedSender {
    socket: Arc<OwnedFd>,
    state: Mutex<SenderState>,
}

#[derive(Debug)]
struct SenderState {
    /// Buffer of the frame, kept so that no frame needs an allocation.
    buffer: Vec<u8>,
    /// A frame was partially sent: no other frame may follow it.
    cut: bool,
}

impl<Out> Clone for Sender<Out> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), message: PhantomData }
    }
}

impl<Out> Sender<Out> {
    pub(crate) fn new(socket: Arc<OwnedFd>) -> Self {
        let state = SenderState { buffer: Vec::new(), cut: false };
        Self {
            shared: Arc::new(SharedSender { socket, state: Mutex::new(state) }),
            message: PhantomData,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SenderState> {
        // `cut` records whether a panic left a frame unfinished.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Out: Message> Sender<Out> {
    /// Sends `message` with `descriptor`, which stays open here.
    ///
    /// Waits if the peer does not read, and for other threads that send.
    ///
    /// # Errors  See [`SocketError`]; after `Closed`, earlier messages can still be received.
    pub fn send(
        &self,
        message: &Out,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), SocketError> {
        let begun = Instant::now();
        self.send_while(message, descriptor, &mut || begun.elapsed() < SEND_TIMEOUT)
    }

    /// As [`send`](Self::send), but waits for a peer that does not read while `wanted` is true.
    ///
    /// `wanted` is called four times per second. For a peer that may be paused for minutes. While
    /// no byte of this frame is sent, waits release the lock, so other threads may send.
    ///
    /// # Errors  See [`SocketError`]: `Stalled` if `wanted` returned false.
    pub fn send_while(
        &self,
        message: &Out,
        descriptor: Option<BorrowedFd<'_>>,
        wanted: &mut dyn FnMut() -> bool,
    ) -> Result<(), SocketError> {
        let body_bytes = message.encoded_len();
        if body_bytes > FRAME_BYTES_MAX {
            return Err(SocketError::TooLarge { bytes: body_bytes });
        }
        let header = FrameHeader { body_bytes, descriptor: descriptor.is_some() };
        let (socket, begun) = (self.shared.socket.as_fd(), Instant::now());
        loop {
            let mut state = self.lock();
            if state.cut {
                return Err(SocketError::Closed);
            }
            state.buffer.clear();
            state.buffer.reserve(header.frame_bytes());
            state.buffer.extend(header.encode());
            message.encode(&mut state.buffer).expect("a vector grows");
            debug_assert_eq!(state.buffer.len(), header.frame_bytes());
            let sent_bytes = wire::send(socket, &state.buffer, descriptor)?;
            if sent_bytes > 0 {
                let sent = state.send_rest(socket, sent_bytes, (begun, wanted));
                if state.buffer.capacity() > BUFFER_BYTES {
                    state.buffer = Vec::new();
                }
                return sent;
            }
            drop(state);
            if !wait_to_send(socket, wanted)? {
                let (waited, frame_bytes) = (begun.elapsed(), header.frame_bytes());
                return Err(SocketError::Stalled { waited, sent_bytes: 0, frame_bytes });
            }
        }
    }
}

/// Waits until the socket accepts more; returns false once `wanted` does.
fn wait_to_send(
    socket: BorrowedFd<'_>,
    wanted: &mut dyn FnMut() -> bool,
) -> Result<bool, SocketError> {
    loop {
        let slice = Deadline::after(LOOK_EVERY);
        let ready = wire::wait(socket, PollFlags::OUT, slice);
        if ready.map_err(|errno| SocketError::io("wait to send", errno))? {
            return Ok(true);
        }
        if !wanted() {
            return Ok(false);
        }
    }
}

impl SenderState {
    /// Sends the rest of a partially sent frame.
    fn send_rest(
        &mut self,
        socket: BorrowedFd<'_>,
        mut sent_bytes: usize,
        (begun, wanted): (Instant, &mut dyn FnMut() -> bool),
    ) -> Result<(), SocketError> {
        self.cut = true;
        while sent_bytes < self.buffer.len() {
            let step = match wait_to_send(socket, wanted) {
                Ok(true) => wire::send(socket, &self.buffer[sent_bytes..], None),
                Ok(false) => {
                    let (waited, frame_bytes) = (begun.elapsed(), self.buffer.len());
                    Err(SocketError::Stalled { waited, sent_bytes, frame_bytes })
                }
                Err(error) => Err(error),
            };
            match step {
                Ok(count) => sent_bytes += count,
                Err(error) => {
                    wire::end(socket);
                    return Err(error);
                }
            }
        }
        self.cut = false;
        Ok(())
    }
}
