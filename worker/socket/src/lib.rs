//! The trainer socket, both sides: frames, the descriptors sent with them, and the handshake.
//!
//! A worker [binds](Listener::bind) a unix socket, a trainer [connects](connect) to it. Both send a
//! preamble with their versions, then frames: one message each, with at most one descriptor. All
//! calls block their thread, for at most a time set by the caller. This crate never depends on the
//! types of messages, or on the purpose of a descriptor.
//!
//! Start at [`Connection`].
#![forbid(unsafe_code)]

mod connect;
mod connection;
mod error;
mod frame;
mod inbox;
mod listener;
mod peer;
mod preamble;
mod receiver;
mod sender;
mod socket_path;
mod wire;

pub use connect::{ConnectError, connect};
pub use connection::Connection;
pub use error::SocketError;
pub use frame::FRAME_BYTES_MAX;
pub use listener::{AcceptError, BindError, Incoming, ListenOptions, Listener};
pub use peer::{Allow, Peer};
pub use preamble::{HandshakeError, Versions};
pub use receiver::Receiver;
pub use sender::{SEND_TIMEOUT, Sender};
pub use socket_path::SOCKET_PATH_BYTES_MAX;
