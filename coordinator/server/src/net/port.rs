//! Listening: bounded connections, a limit on their silence, no accept error that ends the port.

use std::fmt;
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
use shardfeed_tls::{Identity, ServerTls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tonic::transport::server::Connected;

use crate::error::StartError;
use crate::metrics::{Denial, Metrics};
use crate::net::strangers::{Mark, Strangers};

/// A connection without incoming bytes for this time is closed; a live peer answers three pings.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);

pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Timeouts of a port for the other side; tests use shorter ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    silence: Duration,
    handshake: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { silence: SILENCE_MAX, handshake: HANDSHAKE_MAX }
    }
}

/// Interval between evictions of unauthenticated peers while a port is full.
const DISMISS_EVERY: Duration = Duration::from_millis(100);

/// Pause after an error of the listener, such as too many open files.
const ACCEPT_REST: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Port {
    listener: Box<dyn Listener>,
    address: SocketAddr,
    permits: Arc<Semaphore>,
    strangers: Strangers,
    patience: Patience,
    /// Its sender is dropped with the server; connections must not outlive that.
    alive: watch::Receiver<()>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BindAddress {
    /// Name of the option with the address, for messages.
    pub(crate) option: &'static str,
    pub(crate) address: SocketAddr,
    /// Maximum concurrent connections; fewer if the process may not open as many files.
    pub(crate) connections: usize,
    pub(crate) patience: Patience,
}

/// Maximum fraction of the process's open files for connections; the rest is for its own files.
const SHARE_OF_FILES: (u64, u64) = (3, 4);

impl Port {
    /// Listens on the address.
    /// - `alive`: connections end when its sender is dropped.
    pub(crate) async fn bind(
        host: &dyn Host,
        place: BindAddress,
        alive: watch::Receiver<()>,
    ) -> Result<Self, StartError> {
        let BindAddress { option, address, connections, patience } = place;
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
        let files = host.open_files_max() / SHARE_OF_FILES.1 * SHARE_OF_FILES.0;
        let connections = connections.min(usize::try_from(files).unwrap_or(usize::MAX)).max(1);
        let (permits, strangers) = (Arc::new(Semaphore::new(connections)), Strangers::default());
        Ok(Self { listener, address, permits, strangers, patience, alive })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the next connection. If there are too many, evicts the connection that has been open
    /// for longest without a valid request; if there is none, waits.
    pub(crate) async fn accept(&self) -> (Connection, SocketAddr) {
        let permits = Arc::clone(&self.permits);
        let permit = match Arc::clone(&permits).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => loop {
                self.strangers.dismiss_oldest();
                // A connection that cannot be evicted must not block all others.
                let freed = Arc::clone(&permits).acquire_owned();
                if let Ok(permit) = timeout(DISMISS_EVERY, freed).await {
                    break permit.ok();
                }
            },
        };
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let mut alive = self.alive.clone();
                    let mark = self.strangers.meet();
                    let dismissed = Arc::clone(&mark);
                    let over = async move {
                        tokio::select! {
                            () = async { while alive.changed().await.is_ok() {} } => {}
                            () = dismissed.dismissed() => {}
                        }
                    };
                    let caller = Remote { address: peer, identity: None, mark };
                    let silence = Silence::new(self.patience.silence);
                    let over = over.boxed();
                    return (Connection { stream, caller, silence, over, _permit: permit }, peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Returns an endless stream of connections.
    /// - `tls`: if set, the handshake is done, and the peer is authenticated or has no certificate.
    pub(crate) fn incoming(
        self,
        tls: Option<ServerTls>,
        metrics: Arc<Metrics>,
    ) -> impl Stream<Item = io::Result<Connection>> {
        let begun = (self, tls, metrics, JoinSet::<Option<Connection>>::new());
        futures::stream::unfold(begun, |(port, tls, metrics, mut handshakes)| async move {
            loop {
                tokio::select! {
                    (connection, _) = port.accept() => match &tls {
                        None => {
                            return Some((Ok(connection), (port, tls, metrics, handshakes)));
                        }
                        Some(tls) => {
                            handshakes.spawn(proved(tls.clone(), connection, port.patience));
                        }
                    },
                    Some(ended) = handshakes.join_next() => match ended {
                        Ok(Some(connection)) => {
                            return Some((Ok(connection), (port, tls, metrics, handshakes)));
                        }
                        _ => metrics.denied(Denial::Handshake),
                    }
                }
            }
        })
    }
}

/// Returns the connection inside TLS; `None` if the handshake failed.
async fn proved(tls: ServerTls, connection: Connection, patience: Patience) -> Option<Connection> {
    let caller = connection.caller.clone();
    let remote = caller.address;
    // The outer connection keeps its permit, its silence limit and its end.
    match timeout(patience.handshake, tls.accept(connection)).await {
        Ok(Ok((stream, identity))) => {
            let silence = Silence::new(patience.silence);
            let over = std::future::pending().boxed();
            let (stream, caller) = (Box::new(stream), Remote { identity, ..caller });
            Some(Connection { stream, caller, silence, over, _permit: None })
        }
        Ok(Err(error)) => {
            tracing::debug!(%remote, %error, "a connection did not come to TLS");
            None
        }
        Err(_) => {
            tracing::debug!(%remote, "a connection did not come to TLS in time");
            None
        }
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

/// A connection that is counted while it is open. It ends with an error after a long [`Silence`],
/// or when the server has ended.
pub(crate) struct Connection {
    stream: Box<dyn ByteStream>,
    caller: Remote,
    silence: Silence,
    over: BoxFuture<'static, ()>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Limits on the inactivity of the other side.
struct Silence {
    most: Duration,
    /// Deadline for the next bytes from it.
    unsaid: Pin<Box<Sleep>>,
    /// Deadline for it to read written bytes; `None`: no write is pending.
    unread: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    fn new(most: Duration) -> Self {
        Self { most, unsaid: Box::pin(sleep(most)), unread: None }
    }
}

impl Connection {
    /// Fails if the server has ended, or if the connection is evicted.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.over.as_mut().poll(cx).is_ready() {
            // Polling the completed future again would panic.
            self.over = std::future::ready(()).boxed();
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    /// Returns the result of a write. A peer that does not read within the maximum silence is gone.
    /// The connection also ends here, if it must, while nothing is read from it.
    fn moved<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.silence.unread = None;
            return done;
        }
        self.check(cx)?;
        let Silence { most, unread, .. } = &mut self.silence;
        let unread = unread.get_or_insert_with(|| Box::pin(sleep(*most)));
        unread.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        let Silence { most, unsaid, .. } = &mut this.silence;
        if read.is_ready() {
            unsaid.as_mut().reset(Instant::now() + *most);
            return read;
        }
        unsaid.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.moved(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, parts);
        this.moved(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.moved(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let closed = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.moved(cx, closed)
    }
}

impl Connected for Connection {
    type ConnectInfo = Remote;

    fn connect_info(&self) -> Remote {
        self.caller.clone()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("caller", &self.caller).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) address: SocketAddr,
    pub(crate) identity: Option<Identity>,
    pub(crate) mark: Arc<Mark>,
}

#[cfg(test)]
mod tests {
    use shardfeed_host::RealHost;
    use shardfeed_tls::{Authority, Folder, Role, Subject};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    /// Long enough to measure the wait on any machine.
    const SHORT: Duration = Duration::from_millis(200);

    /// Longer than any step here takes, unless it never completes.
    const DEADLINE: Duration = Duration::from_secs(20);

    #[test]
    fn outside_tests_it_is_as_docs_security_says() {
        let Patience { silence, handshake } = Patience::default();
        assert_eq!((silence, handshake), (SILENCE_MAX, HANDSHAKE_MAX));
    }

    /// Returns a port that serves as long as the sender lives.
    async fn port(patience: Patience) -> (Port, watch::Sender<()>) {
        let (alive, living) = watch::channel(());
        let address = ([127, 0, 0, 1], 0).into();
        let place = BindAddress { option: "listen", address, connections: 4, patience };
        (Port::bind(&RealHost, place, living).await.unwrap(), alive)
    }

    /// Returns both ends of a connection to it.
    async fn connected(port: &Port) -> (Connection, TcpStream) {
        let (accepted, stream) = tokio::join!(port.accept(), TcpStream::connect(port.address()));
        (accepted.0, stream.unwrap())
    }

    #[tokio::test]
    async fn who_says_nothing_is_sent_away_and_a_byte_gains_the_whole_time() {
        let (port, _alive) = port(Patience { silence: SHORT, ..Patience::default() }).await;
        for said in [b"".as_slice(), b"x"] {
            let mut began = Instant::now();
            let (mut connection, mut other) = connected(&port).await;
            other.write_all(said).await.unwrap();
            for byte in said {
                began = Instant::now();
                assert_eq!(connection.read_u8().await.unwrap(), *byte);
            }
            let silent = timeout(DEADLINE, connection.read_u8()).await.unwrap();
            assert_eq!(silent.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
        }
    }

    #[tokio::test]
    async fn who_does_not_read_what_is_sent_is_sent_away() {
        let (port, _alive) = port(Patience { silence: SHORT, ..Patience::default() }).await;
        let (mut connection, _other) = connected(&port).await;
        let much = vec![0; 1 << 20];
        // Until all buffers between the two are full.
        let write = async {
            loop {
                if let Err(error) = connection.write_all(&much).await {
                    return error;
                }
            }
        };
        let error = timeout(DEADLINE, write).await.unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_does_not_come_to_tls_in_time_is_sent_away() {
        let home = tempfile::tempdir().unwrap();
        let authority = Authority::create(home.path().join("pki"), "test").unwrap();
        let identity = Identity { role: Role::Coordinator, name: "c".into() };
        let subject = Subject { identity, hosts: vec!["127.0.0.1".into()] };
        let folder = home.path().join("c");
        authority.issue(&subject, 1, &folder).unwrap();
        let tls = ServerTls::open(Folder::new(&folder)).unwrap();
        let patience = Patience { handshake: SHORT, ..Patience::default() };
        let (port, _alive) = port(patience).await;
        for said in [b"".as_slice(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
            let (connection, mut other) = connected(&port).await;
            other.write_all(said).await.unwrap();
            let began = Instant::now();
            let came = timeout(DEADLINE, proved(tls.clone(), connection, patience)).await.unwrap();
            assert!(came.is_none());
            assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
            // The peer sees the end of the connection; unread bytes make that a reset.
            let mut rest = Vec::new();
            let ended = timeout(DEADLINE, other.read_to_end(&mut rest)).await.unwrap();
            let is_reset = |error: io::Error| error.kind() == io::ErrorKind::ConnectionReset;
            assert!(rest.is_empty() && ended.err().is_none_or(is_reset));
        }
    }
}
