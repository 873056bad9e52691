//! Connections and listeners, independent of the transport.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

/// Connection: bytes in both directions, in order.
pub trait ByteStream: AsyncRead + AsyncWrite + Debug + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Unpin + 'static> ByteStream for T {}

pub trait Listener: Debug + Send + Sync + 'static {
    /// Returns the next connection and the address of its peer.
    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn ByteStream>, SocketAddr)>>;

    /// Returns the address that the socket is bound to.
    ///
    /// # Errors  The operating system reports an error.
    fn address(&self) -> io::Result<SocketAddr>;
}
