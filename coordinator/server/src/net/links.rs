//! Connections to the other coordinators, and the calls over them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use shardfeed_host::{ByteStream, Host};
use shardfeed_proto::coordinator::v1::peer_service_client::PeerServiceClient;
use shardfeed_proto::coordinator::v1::{
    ExchangeRequest, IntroduceRequest, IntroduceResponse, PullChunkRequest, PushChunkRequest,
};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_raft::{Peer, PeerError, Peers};
use shardfeed_tls::ClientTls;
use tokio::time::{Instant, timeout};
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Response, Status};

use crate::config::CoordinatorOptions;
use crate::error::Result;
use crate::metrics::Metrics;

/// Maximum bytes of a message between coordinators: entries of the log, each at most a call's
/// message, or a part of a snapshot or a chunk, which have 1 MiB.
pub const PEER_MESSAGE_BYTES_MAX: usize = 16 << 20;

const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Interval between pings of a silent peer, and timeout of its answer.
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_ANSWER_MAX: Duration = Duration::from_secs(2);

/// Minimum age at which a connection is replaced after a call without an answer: a cut network
/// drops messages in transit, but a slow peer must not be flooded with connections.
const RENEW_AGE_MIN: Duration = Duration::from_secs(1);

/// Maximum connections: two to each member, and some to earlier addresses of members.
const CHANNELS_MAX: usize = 64;

/// Consecutive slow connections that indicate a long distance rather than a lost packet.
const FAR_CONNECTIONS: u32 = 3;

/// Purpose of a connection. Chunks must not delay heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    Consensus,
    Chunks,
}

#[derive(Clone, Debug)]
pub(crate) struct Channels {
    inner: Arc<ChannelsInner>,
}

#[derive(Debug)]
struct ChannelsInner {
    host: Arc<dyn Host>,
    metrics: Arc<Metrics>,
    me: u64,
    tls: Option<ClientTls>,
    distance: Arc<Distance>,
    /// Known once the log is open.
    cluster: OnceLock<String>,
    channels: Mutex<BTreeMap<(String, Purpose), CachedChannel>>,
}

#[derive(Clone, Debug)]
struct CachedChannel {
    channel: Channel,
    made: Instant,
}

impl Channels {
    /// Creates the links, without any connection.
    /// - `options`: of this node.
    pub(crate) fn new(
        host: Arc<dyn Host>,
        metrics: Arc<Metrics>,
        options: &CoordinatorOptions,
        tls: Option<ClientTls>,
    ) -> Self {
        let (cluster, channels) = (OnceLock::new(), Mutex::default());
        let heartbeat = Duration::from_millis(options.peer_heartbeat_ms);
        let distance = Arc::new(Distance { heartbeat, far: AtomicU32::new(0) });
        let me = options.node_id;
        Self {
            inner: Arc::new(ChannelsInner { host, metrics, me, tls, distance, cluster, channels }),
        }
    }

    /// Sets the cluster, once the log is open.
    pub(crate) fn of_cluster(&self, cluster: &str) {
        // A log belongs to one cluster for ever; the first value stays.
        let _ = self.inner.cluster.set(cluster.to_owned());
    }

    pub(crate) async fn introduce(
        &self,
        address: &str,
        request: IntroduceRequest,
        deadline: Duration,
    ) -> Result<IntroduceResponse> {
        self.call(address, Purpose::Consensus, deadline, |mut client| async move {
            client.introduce(request).await
        })
        .await
    }

    pub(crate) async fn push_chunk(
        &self,
        address: &str,
        content: Vec<u8>,
        deadline: Duration,
    ) -> Result<()> {
        let request = PushChunkRequest { cluster_id: self.cluster(), content };
        self.call(address, Purpose::Chunks, deadline, |mut client| async move {
            client.push_chunk(request).await
        })
        .await
        .map(|_| ())
    }

    /// Requests a chunk from a node; `None` if it has no such chunk.
    pub(crate) async fn pull_chunk(
        &self,
        address: &str,
        digest: Vec<u8>,
        deadline: Duration,
    ) -> Result<Option<Vec<u8>>> {
        let request = PullChunkRequest { cluster_id: self.cluster(), digest };
        self.call(address, Purpose::Chunks, deadline, |mut client| async move {
            client.pull_chunk(request).await
        })
        .await
        .map(|answer| answer.content)
    }

    fn cluster(&self) -> String {
        self.inner.cluster.get().cloned().unwrap_or_default()
    }

    async fn call<T, F>(
        &self,
        address: &str,
        purpose: Purpose,
        deadline: Duration,
        body: impl FnOnce(PeerServiceClient<Channel>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let unreachable = |what: &str| {
            WireError::new(ErrorKind::Unreachable, format!("{address} cannot be reached: {what}"))
        };
        let link = self.link(address, purpose).map_err(|error| unreachable(&error))?;
        let client = PeerServiceClient::new(link.channel)
            .max_decoding_message_size(PEER_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(PEER_MESSAGE_BYTES_MAX);
        match timeout(deadline, body(client)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.refusal(address, &status)),
            Err(_) => {
                self.renew(address, purpose, link.made);
                Err(unreachable(&format!("no answer within {} ms", deadline.as_millis())))
            }
        }
    }

    /// Returns the other node's own error, or that the node was not reached.
    fn refusal(&self, address: &str, status: &Status) -> WireError {
        let error = WireError::from_status(status);
        match status.details().is_empty() && error.kind == ErrorKind::Retry {
            true => WireError {
                message: format!("{address} cannot be reached: {}", status.message()),
                ..WireError::new(ErrorKind::Unreachable, "")
            },
            false => error,
        }
    }

    fn link(&self, address: &str, purpose: Purpose) -> Result<CachedChannel, String> {
        let mut channels = self.channels();
        let key = (address.to_owned(), purpose);
        if let Some(link) = channels.get(&key) {
            return Ok(link.clone());
        }
        if channels.len() >= CHANNELS_MAX {
            // Connections in use are made again at once.
            channels.clear();
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| format!("it is no address: {error}"))?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_MAX)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_ANSWER_MAX)
            .keep_alive_while_idle(true);
        let ChannelsInner { host, tls, distance, .. } = self.inner.as_ref();
        let (host, tls, distance) = (Arc::clone(host), tls.clone(), Arc::clone(distance));
        let connector = Connector { host, tls, distance, address: address.to_owned() };
        let channel = endpoint.connect_with_connector_lazy(connector);
        let link = CachedChannel { channel, made: self.inner.host.now() };
        channels.insert(key, link.clone());
        Ok(link)
    }

    /// Removes a connection that no longer carries answers.
    fn renew(&self, address: &str, purpose: Purpose, made: Instant) {
        let now = self.inner.host.now();
        let mut channels = self.channels();
        let key = (address.to_owned(), purpose);
        let is_it = channels.get(&key).is_some_and(|link| link.made == made);
        if is_it && now.saturating_duration_since(made) >= RENEW_AGE_MIN {
            channels.remove(&key);
        }
    }

    fn channels(&self) -> MutexGuard<'_, BTreeMap<(String, Purpose), CachedChannel>> {
        self.inner.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers for Channels {
    fn call(
        &self,
        to: &Peer,
        message: Vec<u8>,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, PeerError>> {
        let (links, to) = (self.clone(), to.clone());
        async move {
            let cluster_id = links.cluster();
            let ChannelsInner { host, metrics, me, .. } = links.inner.as_ref();
            let request = ExchangeRequest { cluster_id, from: *me, to: to.node, message };
            let began = host.now();
            let answer = links
                .call(&to.address, Purpose::Consensus, deadline, |mut client| async move {
                    client.exchange(request).await
                })
                .await;
            let answer = answer.map_err(|error| peer_error(to.node, error))?;
            metrics.answered(to.node, host.now().saturating_duration_since(began));
            Ok(answer.message)
        }
        .boxed()
    }
}

fn peer_error(node: u64, error: WireError) -> PeerError {
    let reason = error.message;
    match error.kind {
        ErrorKind::Conflict | ErrorKind::WrongCluster | ErrorKind::WrongVersion => {
            PeerError::Refused { node, reason }
        }
        _ => PeerError::Unreachable { node, reason },
    }
}

pub(crate) fn wire_error(error: PeerError) -> WireError {
    match error {
        PeerError::Refused { reason, .. } => WireError::new(ErrorKind::Conflict, reason),
        PeerError::Unreachable { reason, .. } => WireError::new(ErrorKind::Unreachable, reason),
    }
}

/// Detects coordinators too far away for the timers here, by the time that connecting takes.
#[derive(Debug)]
struct Distance {
    /// Heartbeat interval: a heartbeat that is not answered within it has failed.
    heartbeat: Duration,
    /// Consecutive connections that took longer.
    far: AtomicU32,
}

impl Distance {
    /// Warns after `FAR_CONNECTIONS` consecutive slow connections: a cluster whose heartbeats all
    /// time out commits nothing and answers no calls, and no other message gives the reason.
    fn measured(&self, address: &str, took: Duration) {
        if took < self.heartbeat {
            self.far.store(0, Ordering::Relaxed);
        } else if self.far.fetch_add(1, Ordering::Relaxed) + 1 == FAR_CONNECTIONS {
            let took_ms = took.as_millis();
            tracing::warn!(
                address,
                took_ms,
                heartbeat_ms = self.heartbeat.as_millis() as u64,
                "coordinators are too far apart for their timers; on all of them set peer-heartbeat-ms to at \
                 least {}, election-min-ms to {}, election-max-ms to {}",
                3 * took_ms,
                9 * took_ms,
                18 * took_ms
            );
        }
    }
}

#[derive(Clone, Debug)]
struct Connector {
    host: Arc<dyn Host>,
    tls: Option<ClientTls>,
    distance: Arc<Distance>,
    address: String,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn ByteStream>>;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, std::io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { host, tls, distance, address } = self.clone();
        let connected = async move {
            let began = host.now();
            let stream = host.connect(&address).await?;
            distance.measured(&address, host.now().saturating_duration_since(began));
            let stream: Box<dyn ByteStream> = match tls {
                Some(tls) => Box::new(tls.connect(&address, stream).await?),
                None => stream,
            };
            Ok(TokioIo::new(stream))
        };
        connected.boxed()
    }
}
