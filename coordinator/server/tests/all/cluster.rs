//! Several coordinators in this process, each with its own address, folder and network.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as Polling, Poll};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use shardfeed_coordinator::{Coordinator, CoordinatorOptions, Running, StartError, Starting};
use shardfeed_host::{ByteStream, Disk, Host, Listener, RealHost};
use shardfeed_proto::coordinator::v1::admin_service_client::AdminServiceClient;
use shardfeed_proto::coordinator::v1::worker_service_client::WorkerServiceClient;
use shardfeed_proto::coordinator::v1::*;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::fixture::{clients, context, eventually};

/// Number of clusters in this process; each has its own port on the loopback network of the
/// process.
static CLUSTERS: AtomicU16 = AtomicU16::new(0);

/// Nodes that cannot reach each other, in one cluster.
#[derive(Debug, Default)]
struct Wires {
    nodes: Mutex<BTreeMap<String, u64>>,
    cut: Mutex<BTreeSet<u64>>,
}

impl Wires {
    fn is_cut(&self, one: u64, other: u64) -> bool {
        let cut = self.cut.lock().unwrap();
        cut.contains(&one) || cut.contains(&other)
    }
}

#[derive(Debug)]
struct NodeHost {
    node: u64,
    wires: Arc<Wires>,
}

impl Host for NodeHost {
    fn now(&self) -> Instant {
        RealHost.now()
    }

    fn wall_ms(&self) -> u64 {
        RealHost.wall_ms()
    }

    fn random(&self) -> u64 {
        RealHost.random()
    }

    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let to = self.wires.nodes.lock().unwrap().get(address).copied().unwrap_or(0);
        let (from, wires) = (self.node, Arc::clone(&self.wires));
        let connect = RealHost.connect(address);
        async move {
            if wires.is_cut(from, to) {
                return Err(io::ErrorKind::HostUnreachable.into());
            }
            let stream = connect.await?;
            Ok(Box::new(Wire { stream, from, to, wires }) as Box<dyn ByteStream>)
        }
        .boxed()
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        RealHost.listen(address)
    }

    fn disk(&self, folder: &Path) -> io::Result<Arc<dyn Disk>> {
        RealHost.disk(folder)
    }

    fn has_threads(&self) -> bool {
        true
    }
}

/// A connection between two nodes that fails when one of them is cut off.
#[derive(Debug)]
struct Wire {
    stream: Box<dyn ByteStream>,
    from: u64,
    to: u64,
    wires: Arc<Wires>,
}

impl Wire {
    fn check(&self) -> io::Result<()> {
        match self.wires.is_cut(self.from, self.to) {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false => Ok(()),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Polling<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Polling<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Polling<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Polling<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Coordinators that know each other.
pub(crate) struct Cluster {
    pub(crate) folder: TempDir,
    network: [u8; 2],
    port: u16,
    wires: Arc<Wires>,
    pub(crate) options: BTreeMap<u64, CoordinatorOptions>,
    pub(crate) running: BTreeMap<u64, Running>,
}

impl Cluster {
    /// Creates a cluster without running nodes.
    pub(crate) fn new() -> Self {
        let process = std::process::id();
        let network = [process / 250 % 250 + 1, process % 250 + 1].map(|byte| byte as u8);
        Self {
            folder: tempfile::tempdir().unwrap(),
            network,
            port: 7070 + CLUSTERS.fetch_add(1, Ordering::Relaxed),
            wires: Arc::default(),
            options: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }

    /// Starts nodes 1 to `nodes`; on return they have founded a cluster together.
    pub(crate) async fn start(nodes: u64) -> Self {
        Self::start_with(nodes, |_| {}).await
    }

    pub(crate) async fn start_with(nodes: u64, change: impl Fn(&mut CoordinatorOptions)) -> Self {
        let mut cluster = Self::new();
        cluster.founders(nodes);
        cluster.options.values_mut().for_each(change);
        let numbers: Vec<u64> = (1..=nodes).collect();
        let started = join_all(numbers.iter().map(|node| cluster.start_node(*node))).await;
        for (node, running) in numbers.into_iter().zip(started) {
            cluster.running.insert(node, running.unwrap());
        }
        cluster
    }

    /// Adds the options of nodes 1 to `nodes`, which are to found a cluster.
    pub(crate) fn founders(&mut self, nodes: u64) {
        let peers: Vec<_> =
            (1..=nodes).map(|node| format!("{node}={}", self.address(node))).collect();
        for node in 1..=nodes {
            self.add_options(node, |options| options.peers = peers.clone());
        }
    }

    /// Adds the options of one more node.
    pub(crate) fn add_options(&mut self, node: u64, change: impl FnOnce(&mut CoordinatorOptions)) {
        let address = self.address(node);
        self.wires.nodes.lock().unwrap().insert(address.to_string(), node);
        let mut options = CoordinatorOptions {
            node_id: node,
            listen: address,
            http: Some(SocketAddr::new(address.ip(), 0)),
            // The test machine may stop a thread for longer than the default.
            peer_heartbeat_ms: 100,
            election_min_ms: 500,
            election_max_ms: 1_000,
            ..CoordinatorOptions::new(self.folder.path().join(node.to_string()))
        };
        change(&mut options);
        self.options.insert(node, options);
    }

    pub(crate) fn address(&self, node: u64) -> SocketAddr {
        let [high, low] = self.network;
        ([127, high, low, node as u8], self.port).into()
    }

    fn host(&self, node: u64) -> Arc<dyn Host> {
        Arc::new(NodeHost { node, wires: Arc::clone(&self.wires) })
    }

    pub(crate) async fn start_node(&self, node: u64) -> Result<Running, StartError> {
        Coordinator::start_on(self.host(node), self.options[&node].clone()).await
    }

    pub(crate) async fn listen_node(&self, node: u64) -> Starting {
        Coordinator::listen_on(self.host(node), self.options[&node].clone()).await.unwrap()
    }

    /// Restarts a node that was killed: its folder is free shortly afterwards.
    pub(crate) async fn restart(&mut self, node: u64) {
        let running = eventually("the folder is free", || async {
            match self.start_node(node).await {
                Ok(running) => Some(running),
                Err(StartError::Node(_) | StartError::Listen { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        })
        .await;
        self.running.insert(node, running);
    }

    /// Stops a node as a crash would; its folder stays as it was.
    pub(crate) fn kill(&mut self, node: u64) {
        drop(self.running.remove(&node).unwrap());
    }

    /// Cuts a node off from the other nodes, but not from workers and people.
    pub(crate) fn cut(&self, node: u64) {
        self.wires.cut.lock().unwrap().insert(node);
    }

    pub(crate) fn heal(&self) {
        self.wires.cut.lock().unwrap().clear();
    }

    pub(crate) async fn clients(
        &self,
        node: u64,
    ) -> (WorkerServiceClient<Channel>, AdminServiceClient<Channel>) {
        clients(self.address(node)).await
    }

    /// Returns the leader, as soon as a running node answers as the leader.
    pub(crate) async fn leader(&self) -> u64 {
        self.leader_but(0).await
    }

    /// Like [`Cluster::leader`], but never returns this node.
    pub(crate) async fn leader_but(&self, not: u64) -> u64 {
        let nodes: Vec<u64> = self.running.keys().copied().filter(|node| *node != not).collect();
        eventually("a node leads", || async {
            for node in &nodes {
                let (_, mut admin) = self.clients(*node).await;
                let list = ListJobsRequest { context: context() };
                if admin.list_jobs(list).await.is_ok() {
                    return Some(*node);
                }
            }
            None
        })
        .await
    }

    /// Returns a running node that does not lead.
    pub(crate) async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        *self.running.keys().find(|node| **node != leader).unwrap()
    }

    pub(crate) async fn stop(self) {
        let Self { folder, running, .. } = self;
        join_all(running.into_values().map(Running::stop)).await;
        drop(folder);
    }
}

/// Returns a node's view of the cluster.
pub(crate) async fn members(admin: &mut AdminServiceClient<Channel>) -> GetClusterResponse {
    let request = GetClusterRequest { context: context() };
    admin.get_cluster(request).await.unwrap().into_inner()
}
