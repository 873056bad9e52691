//! The process: opens what it keeps, listens, serves, and stops in good order.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shardfeed_host::{Disk, RealDisk};
use shardfeed_plan::Digest;
use shardfeed_proto::coordinator::v1::admin_service_server::AdminServiceServer;
use shardfeed_proto::coordinator::v1::worker_service_server::WorkerServiceServer;
use shardfeed_raft::{Node, NodeOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::Server;

use crate::chunks::{ChunkStore, ChunkStoreError};
use crate::config::CoordinatorOptions;
use crate::core::{Core, referenced};
use crate::error::StartError;
use crate::http::{self, HTTP_CONNECTIONS_MAX};
use crate::keeper::Keeper;
use crate::machine::Scheduler;
use crate::net::Port;
use crate::rpc::{Admin, CALL_TIME_MAX, MESSAGE_BYTES_MAX, Workers};
use crate::timers::Timers;

/// Folder of the log in the data folder.
const LOG_FOLDER: &str = "raft";

/// gRPC connections at most: 10,000 workers, people, and room for reconnects.
const CONNECTIONS_MAX: usize = 16_384;

/// Calls of one connection that are worked on at a time.
const CALLS_PER_CONNECTION: usize = 64;

/// Streams of one connection at most; a client waits to open more.
const STREAMS_MAX: u32 = 256;

/// Bytes of a request's headers at most.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// How often a silent peer is pinged, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_ANSWER_MAX: Duration = Duration::from_secs(15);

/// After a stop was asked for, calls that are worked on may take so long.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A coordinator, before it runs.
#[derive(Debug)]
pub struct Coordinator;

/// A coordinator that runs. Dropping it stops it without good order, as a crash would.
#[derive(Debug)]
pub struct Running {
    core: Arc<Core>,
    grpc: SocketAddr,
    http: SocketAddr,
    stop: watch::Sender<bool>,
    servers: JoinSet<()>,
    timers: JoinSet<()>,
}

impl Coordinator {
    /// Opens the data folder, replays the log and begins to serve; when this returns, it answers.
    ///
    /// # Errors  [`StartError`]: options, the data folder, the log, an address. Nothing runs then.
    pub async fn start(options: CoordinatorOptions) -> Result<Running, StartError> {
        options.validate()?;
        let dir = options.data_dir.join(LOG_FOLDER);
        let failed = |path: &Path, source| {
            let path = path.to_owned();
            StartError::DataDir { path, action: "make the folder", source }
        };
        std::fs::create_dir_all(&dir).map_err(|source| failed(&dir, source))?;
        let disk = RealDisk::new(&dir).map_err(|source| failed(&dir, source))?;
        Self::start_on(Arc::new(disk), options).await
    }

    /// As [`Coordinator::start`], with the log on another disk than the data folder's, such as one
    /// that fails on purpose.
    ///
    /// # Errors  As [`Coordinator::start`].
    pub async fn start_on(
        disk: Arc<dyn Disk>,
        options: CoordinatorOptions,
    ) -> Result<Running, StartError> {
        options.validate()?;
        // Ports first: they cost nothing, and a folder is not touched for a port that is taken.
        let grpc = Port::bind("listen", options.listen, CONNECTIONS_MAX).await?;
        let http = Port::bind("http", options.http, HTTP_CONNECTIONS_MAX).await?;
        let grpc_address = address(&grpc, "listen", options.listen)?;
        let http_address = address(&http, "http", options.http)?;
        let node = open_node(disk, &options).await?;
        let core = match open_core(options, node.clone()).await {
            Ok(core) => Arc::new(core),
            Err(error) => {
                node.shutdown().await;
                return Err(error);
            }
        };
        let (stop, stopped) = watch::channel(false);
        let mut servers = JoinSet::new();
        servers.spawn(serve_grpc(Arc::clone(&core), grpc, stopped.clone()));
        servers.spawn(serve_http(Arc::clone(&core), http, stopped.clone()));
        let mut timers = JoinSet::new();
        timers.spawn(Timers::new(Arc::clone(&core)).run(stopped.clone()));
        timers.spawn(Keeper::new(Arc::clone(&core)).run(stopped));
        let cluster = core.node.cluster_id();
        tracing::info!(%cluster, grpc = %grpc_address, http = %http_address, "coordinator started");
        Ok(Running { core, grpc: grpc_address, http: http_address, stop, servers, timers })
    }
}

impl Running {
    /// Address of the gRPC port.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc
    }

    /// Address of /livez, /readyz and /metrics.
    pub fn http_address(&self) -> SocketAddr {
        self.http
    }

    /// The cluster's id: a UUID made at the first start.
    pub fn cluster_id(&self) -> &str {
        self.core.node.cluster_id()
    }

    /// Stops: takes no more calls, lets those that are worked on end, writes the last cursors down,
    /// closes the log. When this returns, the data folder and the ports are free.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        let ended = tokio::time::timeout(STOP_GRACE, drain(&mut self.servers)).await;
        if ended.is_err() {
            tracing::warn!("some calls did not end in time and are cut off");
            self.servers.shutdown().await;
        }
        drain(&mut self.timers).await;
        self.core.node.clone().shutdown().await;
        tracing::info!("coordinator stopped");
    }
}

/// Runs a coordinator until `stop` ends, then stops it in good order. Its addresses are in the log;
/// who needs them takes [`Coordinator::start`].
///
/// # Errors  As [`Coordinator::start`].
pub async fn run(
    options: CoordinatorOptions,
    stop: impl Future<Output = ()>,
) -> Result<(), StartError> {
    let running = Coordinator::start(options).await?;
    stop.await;
    running.stop().await;
    Ok(())
}

async fn drain(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a task of the coordinator died");
        }
    }
}

fn address(
    port: &Port,
    option: &'static str,
    address: SocketAddr,
) -> Result<SocketAddr, StartError> {
    let hint = "try again";
    port.address().map_err(|source| StartError::Listen { option, address, source, hint })
}

async fn open_node(
    disk: Arc<dyn Disk>,
    options: &CoordinatorOptions,
) -> Result<Node<Scheduler>, StartError> {
    let node = NodeOptions {
        dir: options.data_dir.join(LOG_FOLDER),
        cluster_name: options.cluster_name.clone(),
        ..NodeOptions::default()
    };
    Ok(Node::open_on(disk, node, Scheduler::default()).await?)
}

async fn open_core(options: CoordinatorOptions, node: Node<Scheduler>) -> Result<Core, StartError> {
    let known: BTreeSet<Digest> =
        node.read(|machine| referenced(&machine.state)).into_iter().collect();
    let (folder, most) = (options.data_dir.join("chunks"), options.unreferenced_bytes_max);
    let failed = |path, source| StartError::DataDir { path, action: "open the chunks", source };
    let path = folder.clone();
    let open = move || ChunkStore::open(folder, most, |chunk| known.contains(chunk));
    let chunks = match tokio::task::spawn_blocking(open).await {
        Ok(Ok(chunks)) => chunks,
        Ok(Err(ChunkStoreError::Io { path, source })) => return Err(failed(path, source)),
        Ok(Err(error)) => return Err(failed(path, io::Error::other(error.to_string()))),
        Err(error) => return Err(failed(path, error.into())),
    };
    Ok(Core::new(options, node, chunks))
}

async fn serve_grpc(core: Arc<Core>, port: Port, stop: watch::Receiver<bool>) {
    let workers = WorkerServiceServer::new(Workers { core: Arc::clone(&core) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let admin =
        AdminServiceServer::new(Admin { core }).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let served = Server::builder()
        .timeout(2 * CALL_TIME_MAX)
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_ANSWER_MAX))
        .add_service(workers)
        .add_service(admin)
        .serve_with_incoming_shutdown(port.incoming(), told(stop));
    if let Err(error) = served.await {
        tracing::error!(%error, "the gRPC port ended");
    }
}

async fn serve_http(core: Arc<Core>, port: Port, stop: watch::Receiver<bool>) {
    let served = axum::serve(port, http::router(core)).with_graceful_shutdown(told(stop));
    if let Err(error) = served.await {
        tracing::error!(%error, "the HTTP port ended");
    }
}

async fn told(mut stop: watch::Receiver<bool>) {
    // A sender that is gone is a stop, too.
    let _ = stop.wait_for(|stop| *stop).await;
}
