//! Connections, whatever they are made of.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection: bytes both ways, in order.
pub trait ByteStream: AsyncRead + AsyncWrite + Debug + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Unpin + 'static> ByteStream for T {}

/// A socket that takes connections.
pub trait Listener: Debug + Send + Sync + 'static {
    /// The next connection and who made it.
    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn ByteStream>, SocketAddr)>>;

    /// The address that it has.
    ///
    /// # Errors  The system says so.
    fn address(&self) -> io::Result<SocketAddr>;
}
