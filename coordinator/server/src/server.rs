//! The coordinator process: listens, joins its cluster, opens its data, serves, and stops in order.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use shardfeed_host::{Disk, Host, RealHost};
use shardfeed_plan::Digest;
use shardfeed_proto::Endpoint;
use shardfeed_proto::coordinator::v1::admin_service_server::AdminServiceServer;
use shardfeed_proto::coordinator::v1::peer_service_server::PeerServiceServer;
use shardfeed_proto::coordinator::v1::worker_service_server::WorkerServiceServer;
use shardfeed_raft::{Footing, Node, Role, Start, SyncMeter};
use shardfeed_tls::{ClientTls, Folder, ServerTls};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;

use crate::config::CoordinatorOptions;
use crate::error::StartError;
use crate::leader::claim_queue::{self, ClaimSender};
use crate::leader::claims::ClaimBatcher;
use crate::leader::core::{Core, referenced};
use crate::leader::keeper::Keeper;
use crate::leader::timers::Timers;
use crate::leader::{computing, shard_counter};
use crate::net::bootstrap;
use crate::net::front::{Front, Health};
use crate::net::http::{self, HTTP_CONNECTIONS_MAX, Pages};
use crate::net::links::PEER_MESSAGE_BYTES_MAX;
use crate::net::port::{BindAddress, Patience, Port};
use crate::rpc::admin::Admin;
use crate::rpc::audit::{self, Audit};
use crate::rpc::guard::{Gate, Seen};
use crate::rpc::peer::PeerCalls;
use crate::rpc::serve::{self, MESSAGE_BYTES_MAX};
use crate::rpc::worker::Workers;
use crate::storage::chunks::{ChunkStore, ChunkStoreError};
use crate::storage::copies;
use crate::storage::folders::{CHUNK_FOLDER, LOG_FOLDER, node_options};
use crate::storage::machine::Scheduler;

/// Maximum gRPC connections: 10,000 workers, people, and a margin for reconnects.
pub const CONNECTIONS_MAX: usize = 16_384;

pub const CALLS_PER_CONNECTION: usize = 256;

/// Maximum streams of one connection; a client waits to open more.
pub const STREAMS_MAX: u32 = 256;

pub const HEADER_BYTES_MAX: u32 = 16 << 10;

/// Timeout of a call from another node: the last part of a snapshot is answered after its
/// installation, and the sender waits equally long. Other calls have a timeout of half this time.
pub const PEER_CALL_TIME_MAX: Duration = Duration::from_secs(60);

/// Interval between pings of a silent peer, and timeout of its answer.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_ANSWER_MAX: Duration = Duration::from_secs(15);

/// Maximum time for running calls to end after a stop was requested, and then for other tasks.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Maximum time for a leader that stops to hand over to another node.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);

/// Maximum wait of a single-node cluster for its leadership; other nodes are not waited for.
const OFFICE_WAIT: Duration = Duration::from_secs(10);

/// A coordinator, before it runs.
#[derive(Debug)]
pub struct Coordinator;

/// A coordinator that listens and is not part of a cluster yet. It answers other nodes that request
/// its identity, and /livez; /readyz reports the reason of its wait. Dropping it ends it.
#[derive(Debug)]
pub struct Starting {
    front: Arc<Front>,
    grpc: SocketAddr,
    http: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    alive: watch::Sender<()>,
    servers: JoinSet<()>,
}

/// A running coordinator. Dropping it stops it abruptly, as a crash would.
#[derive(Debug)]
pub struct Running {
    pub(crate) core: Arc<Core>,
    grpc: SocketAddr,
    http: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    servers: JoinSet<()>,
    timers: JoinSet<()>,
    scribes: Scribes,
    /// Connections end when this is dropped.
    alive: watch::Sender<()>,
}

/// The audit's writers. They end last: a call is audited when it ends.
#[derive(Debug, Default)]
struct Scribes {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Coordinator {
    /// Listens, joins its cluster and starts to serve; on return it is a member.
    ///
    /// A node without `peers` and `join` is at once a cluster of one, and answers. Other nodes wait
    /// for each other, without a timeout: drop the future to cancel.
    ///
    /// # Errors  [`StartError`]: options, the data folder, the log, an address. Nothing runs then.
    pub async fn start(options: CoordinatorOptions) -> Result<Running, StartError> {
        Self::start_on(Arc::new(RealHost), options).await
    }

    /// Like [`Coordinator::start`], on another host, such as one that fails on purpose.
    pub async fn start_on(
        host: Arc<dyn Host>,
        options: CoordinatorOptions,
    ) -> Result<Running, StartError> {
        Self::listen_on(host, options).await?.open().await
    }

    /// First half of [`Coordinator::start`]: listens, and accesses no folder.
    ///
    /// # Errors  [`StartError`]: options, an address.
    pub async fn listen(options: CoordinatorOptions) -> Result<Starting, StartError> {
        Self::listen_on(Arc::new(RealHost), options).await
    }

    pub async fn listen_on(
        host: Arc<dyn Host>,
        options: CoordinatorOptions,
    ) -> Result<Starting, StartError> {
        options.validate()?;
        let tls = options.tls.as_ref().map(Folder::new);
        let tls =
            tls.map(|folder| Ok((ServerTls::open(folder.clone())?, ClientTls::open(folder)?)));
        let tls = tls.transpose().map_err(StartError::Tls)?;
        warn_of_openness(&options);
        let (stop, stopped) = watch::channel(false);
        let (alive, living) = watch::channel(());
        let patience = Patience::default();
        let place =
            |option, address, connections| BindAddress { option, address, connections, patience };
        let grpc = place("listen", options.listen, CONNECTIONS_MAX);
        let grpc = Port::bind(host.as_ref(), grpc, living.clone()).await?;
        let http = match options.http {
            Some(address) => {
                let place = place("http", address, HTTP_CONNECTIONS_MAX);
                Some(Port::bind(host.as_ref(), place, living).await?)
            }
            None => None,
        };
        let (grpc_address, http_address) = (grpc.address(), http.as_ref().map(Port::address));
        let advertise = advertised(&options, grpc_address)?;
        let front = Arc::new(Front::new(host, options, advertise, tls));
        let mut servers = JoinSet::new();
        servers.spawn(serve_grpc(Arc::clone(&front), grpc, stopped.clone()));
        if let Some(http) = http {
            servers.spawn(serve_http(Arc::clone(&front), http, stopped));
        }
        Ok(Starting { front, grpc: grpc_address, http: http_address, stop, alive, servers })
    }
}

impl Starting {
    pub fn health(&self) -> Health {
        Health(Arc::clone(&self.front))
    }

    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc
    }

    /// Returns the address of /livez, /readyz and /metrics, if they are served.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Second half of [`Coordinator::start_on`]: joins the cluster.
    ///
    /// # Errors  [`StartError`]: the data folder, the log, other nodes. The ports are free then.
    pub async fn open(self) -> Result<Running, StartError> {
        let Self { front, grpc, http, stop, alive, mut servers } = self;
        let (mut timers, mut scribes) = (JoinSet::new(), Scribes::default());
        let entered = come_in(&front, &stop, (&mut timers, &mut scribes)).await;
        if entered.is_err() {
            timers.shutdown().await;
            servers.shutdown().await;
            scribes.tasks.shutdown().await;
        }
        let core = entered?;
        let running = Running { core, grpc, http, stop, servers, timers, scribes, alive };
        running.settle().await;
        let cluster = running.cluster_id();
        let node = running.core.options.node_id;
        tracing::info!(%cluster, node, %grpc, ?http, "coordinator started");
        Ok(running)
    }
}

/// Opens the log and the chunks, and waits until the node is a member.
async fn come_in(
    front: &Arc<Front>,
    stop: &watch::Sender<bool>,
    (timers, scribes): (&mut JoinSet<()>, &mut Scribes),
) -> Result<Arc<Core>, StartError> {
    let disk = disk_of(front, LOG_FOLDER)?;
    let start = bootstrap::decide(front, &disk).await?;
    let node = open_node(front, disk, start.clone()).await?;
    front.links.of_cluster(node.cluster_id());
    let (asks, batcher) = claim_queue::channel();
    let log = disk_of(front, audit::AUDIT_FOLDER)?;
    let (log, writers) = audit::channel(log, front.host.now());
    let core = match open_core(front, node.clone(), asks, log).await {
        Ok(core) => Arc::new(core),
        Err(error) => {
            node.shutdown().await;
            return Err(error);
        }
    };
    front.open(Arc::clone(&core));
    let stopped = || stop.subscribe();
    timers.spawn(Arc::clone(&core).follow_terms(stopped()));
    timers.spawn(Timers::new(Arc::clone(&core)).run(stopped()));
    timers.spawn(Keeper::new(Arc::clone(&core)).run(stopped()));
    timers.spawn(ClaimBatcher::new(Arc::clone(&core), batcher).run(stopped()));
    for writer in writers {
        scribes.tasks.spawn(writer.run(Arc::clone(&front.host), scribes.stop.subscribe()));
    }
    timers.spawn(copies::keep(Arc::clone(&core), stopped()));
    timers.spawn(computing::keep_groups_ready(Arc::clone(&core), stopped()));
    timers.spawn(shard_counter::keep(Arc::clone(&core), stopped()));
    bootstrap::arrive(front, &core, &start).await?;
    Ok(core)
}

impl Running {
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc
    }

    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Returns the address at which other nodes, workers and people reach it.
    pub fn advertised(&self) -> &str {
        &self.core.advertise
    }

    /// Returns the addresses of its cluster, for the endpoint file.
    pub fn endpoint(&self) -> Endpoint {
        let me = self.core.options.node_id;
        let members = self.core.node.members().into_iter();
        let mut addresses: BTreeMap<u64, String> =
            members.map(|member| (member.node, member.address)).collect();
        // A node alone in its cluster may have moved without reporting its new address.
        addresses.insert(me, self.advertised().to_owned());
        let addresses = addresses.into_values().filter(|address| !address.is_empty()).collect();
        Endpoint::new(self.cluster_id(), me, addresses)
    }

    pub fn cluster_id(&self) -> &str {
        self.core.node.cluster_id()
    }

    /// Stops the coordinator in order. When this returns, the data folder and the ports are free.
    ///
    /// A leader hands over to another node; then the coordinator accepts no more calls, lets
    /// running calls end, writes the last cursors, closes the log and writes the last audit entries.
    pub async fn stop(mut self) {
        self.hand_over().await;
        let _ = self.stop.send(true);
        drain(&mut self.servers, "calls", STOP_GRACE).await;
        // Ends the calls that are left, so that their audit entries are written, too.
        drop(self.alive);
        drain(&mut self.timers, "tasks", STOP_GRACE).await;
        self.core.node.clone().shutdown().await;
        let _ = self.scribes.stop.send(true);
        drain(&mut self.scribes.tasks, "writers of the audit", STOP_GRACE).await;
        tracing::info!("coordinator stopped");
    }

    /// Hands over the leadership, so that the other nodes need no election.
    async fn hand_over(&self) {
        let others = self.core.node.members().into_iter();
        let heard = |member: &shardfeed_raft::Member| {
            member.node != self.core.options.node_id
                && member.role != Role::Learner
                && member.heard_ms.is_some_and(|ms| ms <= self.core.options.election_max_ms)
        };
        if self.core.available().is_err() || others.filter(heard).count() == 0 {
            return;
        }
        let transfer = async {
            self.core.write_cursors().await;
            self.core.node.transfer_leader(None).await
        };
        match tokio::time::timeout(HAND_OVER_MAX, transfer).await {
            Ok(Ok(leader)) => tracing::info!(leader, "another node leads"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot hand over; an election will do it"),
            Err(_) => tracing::warn!("no node took over in time; an election will do it"),
        }
    }

    /// Waits until a node that forms a majority alone answers calls.
    async fn settle(&self) {
        let core = &self.core;
        let alone = core
            .node
            .members()
            .iter()
            .all(|member| member.node == core.options.node_id || member.role == Role::Learner);
        let ready = async {
            while alone && core.available().is_err() && core.node.status().fatal.is_none() {
                core.take_office(core.leadership().term).await;
                tokio::task::yield_now().await;
            }
        };
        // If this takes longer, callers get the reason as an error.
        let _ = tokio::time::timeout(OFFICE_WAIT, ready).await;
    }
}

/// Waits for tasks to end, and cuts off those that do not end in time.
async fn drain(tasks: &mut JoinSet<()>, what: &str, grace: Duration) {
    let ended = async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a task of the coordinator died");
            }
        }
    };
    if tokio::time::timeout(grace, ended).await.is_err() {
        tracing::warn!("some {what} did not end in time and are cut off");
        tasks.shutdown().await;
    }
}

/// Warns that every caller who reaches a port has full access.
fn warn_of_openness(options: &CoordinatorOptions) {
    if options.insecure && options.tls.is_none() {
        let listen = options.listen;
        tracing::warn!(
            %listen,
            "insecure: any host that reaches this address may read, change and remove everything"
        );
    }
}

/// Returns the address at which others reach a node that listens on `grpc`.
fn advertised(options: &CoordinatorOptions, grpc: SocketAddr) -> Result<String, StartError> {
    let founders = options.founders()?;
    let said = options.advertise.clone().or_else(|| founders.get(&options.node_id).cloned());
    Ok(said.unwrap_or_else(|| grpc.to_string()))
}

/// Returns the disk of a folder in the data folder, which is created if it is missing.
fn disk_of(front: &Front, folder: &str) -> Result<Arc<dyn Disk>, StartError> {
    let path = front.options.data_dir.join(folder);
    let failed = |source| data_dir(path.clone(), "make the folder", source);
    front.host.disk(&path).map_err(failed)
}

fn data_dir(path: PathBuf, action: &'static str, source: io::Error) -> StartError {
    StartError::DataDir { path, action, source }
}

async fn open_node(
    front: &Front,
    disk: Arc<dyn Disk>,
    start: Start,
) -> Result<Node<Scheduler>, StartError> {
    let host = Arc::clone(&front.host);
    let syncs: Arc<dyn SyncMeter> = front.metrics.clone();
    let footing = Footing { host, disk, peers: Arc::new(front.links.clone()), syncs: Some(syncs) };
    let options = node_options(&front.options, &front.advertise, start);
    Ok(Node::open(footing, options, Scheduler::default()).await?)
}

async fn open_core(
    front: &Front,
    node: Node<Scheduler>,
    asks: ClaimSender,
    audit: Audit,
) -> Result<Core, StartError> {
    let known: BTreeSet<Digest> =
        node.read(|machine| referenced(&machine.state)).into_iter().collect();
    let disk = disk_of(front, CHUNK_FOLDER)?;
    let (most, now) = (front.options.unreferenced_bytes_max, front.host.now());
    let path = front.options.data_dir.join(CHUNK_FOLDER);
    let failed = |source| data_dir(path.clone(), "open the chunks", source);
    let open = move || ChunkStore::open(disk, most, &known, now);
    let chunks = match shardfeed_host::blocking(front.host.as_ref(), open).await {
        Ok(Ok(chunks)) => chunks,
        Ok(Err(ChunkStoreError::Io { path, source })) => {
            return Err(data_dir(path.into(), "open the chunks", source));
        }
        Ok(Err(error)) => return Err(failed(io::Error::other(error.to_string()))),
        Err(error) => return Err(failed(error)),
    };
    Ok(Core::new(front, node, chunks, asks, audit))
}

async fn serve_grpc(front: Arc<Front>, port: Port, stop: watch::Receiver<bool>) {
    let tls = front.tls.clone();
    let workers = WorkerServiceServer::new(Workers { front: Arc::clone(&front) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let admin = AdminServiceServer::new(Admin { front: Arc::clone(&front) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let peers = PeerServiceServer::new(PeerCalls { front: Arc::clone(&front) })
        .max_decoding_message_size(PEER_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(PEER_MESSAGE_BYTES_MAX);
    let gate = |of: Gate| {
        let front = Arc::clone(&front);
        move |request: Request<()>| {
            // Checked before a byte of the message is read.
            Seen::of(&request).gate(&front, of).map_err(|error| error.to_status())?;
            Ok(request)
        }
    };
    let incoming = port.incoming(tls, Arc::clone(&front.metrics));
    let workers = InterceptedService::new(workers, gate(Gate::Known));
    let admin = InterceptedService::new(admin, gate(Gate::Known));
    let peers = InterceptedService::new(peers, gate(Gate::Nodes));
    let served = Server::builder()
        .trace_fn(serve::span)
        .timeout(PEER_CALL_TIME_MAX)
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_ANSWER_MAX))
        .add_service(workers)
        .add_service(admin)
        .add_service(peers)
        .serve_with_incoming_shutdown(incoming, told(stop));
    if let Err(error) = served.await {
        tracing::error!(%error, "the gRPC port ended");
    }
}

async fn serve_http(front: Arc<Front>, port: Port, stop: watch::Receiver<bool>) {
    let pages = Pages {
        process: front,
        dead: |front| front.dead(),
        unready: |front| front.unready(),
        metrics: |front| front.measured(),
    };
    let served = axum::serve(port, http::router(pages)).with_graceful_shutdown(told(stop));
    if let Err(error) = served.await {
        tracing::error!(%error, "the HTTP port ended");
    }
}

async fn told(mut stop: watch::Receiver<bool>) {
    // A dropped sender is a stop, too.
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_task_that_never_ends() {
        let mut tasks = JoinSet::new();
        tasks.spawn(std::future::pending());
        drain(&mut tasks, "tasks", Duration::from_millis(1)).await;
        assert!(tasks.is_empty());
    }
}
