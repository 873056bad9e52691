//! Listening: bounded connections, none of them silent for long, and no accept error that ends it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::Stream;
use futures::future::BoxFuture;
use shardfeed_host::{ByteStream, Host, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;

use crate::error::StartError;

/// A connection from which nothing comes for so long is closed. HTTP/2 pings are answered thrice in
/// that time by whoever is there.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(60);

/// After an error of the listener (too many open files) it rests so long.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Port {
    listener: Box<dyn Listener>,
    address: SocketAddr,
    permits: Arc<Semaphore>,
    /// Its sender goes with whoever serves; connections must not outlive that.
    alive: watch::Receiver<()>,
}

/// Where to listen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The option that says it, for people.
    pub(crate) option: &'static str,
    pub(crate) address: SocketAddr,
    /// Connections at a time, at most.
    pub(crate) connections: usize,
}

impl Port {
    /// Listens.
    /// - `alive`: connections end when its sender is gone.
    pub(crate) async fn bind(
        host: &dyn Host,
        place: Place,
        alive: watch::Receiver<()>,
    ) -> Result<Self, StartError> {
        let Place { option, address, connections } = place;
        let refused = |source: io::Error| {
            let hint = match source.kind() {
                io::ErrorKind::AddrInUse => "stop what uses the port, or choose another one",
                io::ErrorKind::PermissionDenied => "choose a port above 1023",
                _ => "use an address of this host",
            };
            StartError::Listen { option, address, source, hint }
        };
        let listener = host.listen(address).await.map_err(refused)?;
        let address = listener.address().map_err(refused)?;
        Ok(Self { listener, address, permits: Arc::new(Semaphore::new(connections)), alive })
    }

    /// The address that it has.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection; waits while there are too many.
    pub(crate) async fn accept(&self) -> (Connection, SocketAddr) {
        let permits = Arc::clone(&self.permits);
        let permit = permits.acquire_owned().await.ok();
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let silence = Box::pin(sleep(SILENCE_MAX));
                    let mut alive = self.alive.clone();
                    let over = async move { while alive.changed().await.is_ok() {} }.boxed();
                    return (Connection { stream, peer, silence, over, _permit: permit }, peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Connections without end.
    pub(crate) fn incoming(self) -> impl Stream<Item = io::Result<Connection>> {
        futures::stream::unfold(self, |port| async move {
            let (connection, _) = port.accept().await;
            Some((Ok(connection), port))
        })
    }
}

impl axum::serve::Listener for Port {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        Self::accept(self).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// A connection that counts while it is open, and ends in an error after [`SILENCE_MAX`] or when nobody
/// serves any more.
pub(crate) struct Connection {
    stream: Box<dyn ByteStream>,
    peer: SocketAddr,
    silence: Pin<Box<Sleep>>,
    over: BoxFuture<'static, ()>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.over.as_mut().poll(cx).is_ready() {
            // Polled again after this, a future that has ended would panic.
            this.over = std::future::ready(()).boxed();
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if read.is_ready() {
            this.silence.as_mut().reset(Instant::now() + SILENCE_MAX);
            return read;
        }
        this.silence.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = SocketAddr;

    fn connect_info(&self) -> SocketAddr {
        self.peer
    }
}
