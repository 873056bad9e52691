//! Several nodes, each with its own disk, and clients that record acknowledgements.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shardfeed_host::{Host, RealHost};
use shardfeed_raft::{
    ChangeError, Footing, Node, NodeOptions, OpenError, PeerError, ProposeError, Start,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::net::Net;
use super::{Ledger, PATIENCE, eventually, propose_all};

/// Acknowledged commands by index.
pub(crate) type Acknowledged = BTreeMap<u64, Vec<u8>>;

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) net: Net,
    pub(crate) nodes: BTreeMap<u64, Node<Ledger>>,
    dirs: BTreeMap<u64, TempDir>,
    pub(crate) base: NodeOptions,
    pub(crate) host: Arc<dyn Host>,
}

pub(crate) fn address(node: u64) -> String {
    format!("node-{node}")
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let base = NodeOptions {
            // Nodes of many tests share few cores: a slow node is not dead.
            election_min_ms: 1_000,
            election_max_ms: 2_000,
            propose_timeout_ms: 2_000,
            ..NodeOptions::default()
        };
        let (net, nodes, dirs) = (Net::default(), BTreeMap::new(), BTreeMap::new());
        Self { net, nodes, dirs, base, host: Arc::new(RealHost) }
    }

    /// Founds a cluster of nodes 1 to `count`.
    pub(crate) async fn found(&mut self, count: u64) {
        for node in 1..=count {
            self.start(node, found(count)).await.unwrap();
        }
        self.leader().await;
    }

    pub(crate) async fn start(&mut self, node: u64, start: Start) -> Result<(), OpenError> {
        self.start_at(node, start, &address(node)).await
    }

    pub(crate) async fn start_at(
        &mut self,
        node: u64,
        start: Start,
        address: &str,
    ) -> Result<(), OpenError> {
        let dir = self.dirs.entry(node).or_insert_with(|| tempfile::tempdir().unwrap());
        let options =
            NodeOptions { node_id: node, start, address: address.to_owned(), ..self.base.clone() };
        let disk = self.host.disk(dir.path()).unwrap();
        let (host, peers) = (self.host.clone(), self.net.peers(node));
        let footing = Footing { host, disk, peers, syncs: None };
        let opened = Node::open(footing, options, Ledger::default()).await?;
        self.net.plug(address, node, &opened);
        self.nodes.insert(node, opened);
        Ok(())
    }

    /// Starts a node that was started before, with the data on its disk.
    pub(crate) async fn restart(&mut self, node: u64) {
        self.start(node, Start::Alone).await.unwrap();
    }

    /// Cuts a node off and stops it: the others see a crash.
    pub(crate) async fn kill(&mut self, node: u64) {
        self.net.unplug(&address(node));
        let everyone: Vec<u64> = self.dirs.keys().copied().collect();
        self.net.isolate(node, &everyone);
        self.nodes.remove(&node).unwrap().shutdown().await;
        self.net.heal();
    }

    pub(crate) fn wipe(&mut self, node: u64) {
        assert!(!self.nodes.contains_key(&node));
        self.dirs.remove(&node).unwrap();
    }

    /// Returns the files of a node that does not run.
    pub(crate) fn files(&self, node: u64) -> BTreeMap<OsString, Vec<u8>> {
        assert!(!self.nodes.contains_key(&node));
        let files = std::fs::read_dir(self.dirs[&node].path()).unwrap();
        let file = |entry: DirEntry| (entry.file_name(), std::fs::read(entry.path()).unwrap());
        files.map(|entry| file(entry.unwrap())).collect()
    }

    /// Replaces the files of a node by earlier ones.
    pub(crate) fn set_files(&mut self, node: u64, files: BTreeMap<OsString, Vec<u8>>) {
        self.wipe(node);
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        self.dirs.insert(node, dir);
    }

    /// Returns a node that has proved that it leads.
    pub(crate) async fn leader(&self) -> u64 {
        self.leader_but(0).await
    }

    /// Like [`Cluster::leader`], but ignores node `but`.
    async fn leader_but(&self, but: u64) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // An isolated node still considers itself the leader, in an older term, and each call
            // to it times out.
            let mut newest_first: Vec<_> =
                self.nodes.iter().filter(|(number, _)| **number != but).collect();
            newest_first.sort_by_key(|(_, node)| Reverse(node.status().term));
            for (&number, node) in newest_first {
                if node.status().is_leader && node.linearize().await.is_ok() {
                    return number;
                }
            }
            assert!(Instant::now() < deadline, "no node leads: {}", self.statuses());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Requests a change from the leader until it is made or rejected. A node that gets no
    /// processor for long loses the lead: this is not an error of the caller.
    pub(crate) async fn change<T>(
        &self,
        ask: impl AsyncFn(Node<Ledger>) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        self.change_but(0, ask).await
    }

    /// Like [`Cluster::change`], but ignores node `but`, which leads no node or another cluster.
    pub(crate) async fn change_but<T>(
        &self,
        but: u64,
        ask: impl AsyncFn(Node<Ledger>) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader_but(but).await;
            let answer = ask(self.nodes[&leader].clone()).await;
            let is_final = matches!(
                answer,
                Ok(_)
                    | Err(
                        ChangeError::Refused { .. } | ChangeError::Peer(PeerError::Refused { .. })
                    )
            );
            if is_final || Instant::now() > deadline {
                return answer;
            }
        }
    }

    /// Adds a node that was started to join, through the current leader.
    pub(crate) async fn add(&self, number: u64) -> Result<(), ChangeError> {
        self.change(async |node| node.add_member(number, &address(number)).await).await
    }

    /// Removes a node, through the current leader.
    pub(crate) async fn remove(&self, number: u64) -> Result<(), ChangeError> {
        self.change(async |node| node.remove_member(number).await).await
    }

    /// Proposes until a leader acknowledges; returns the index. Tries without an answer may be in
    /// the log, too.
    pub(crate) async fn propose(&self, command: &[u8]) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let leader = self.leader().await;
            match self.nodes[&leader].propose(command.to_vec()).await {
                Ok(applied) => return applied.index,
                Err(error) => assert!(Instant::now() < deadline, "never acknowledged: {error}"),
            }
        }
    }

    /// Proposes all of them at once, and repeats those without an answer.
    pub(crate) async fn propose_all(&self, commands: &[Vec<u8>]) -> Acknowledged {
        let leader = self.leader().await;
        let answers = propose_all(&self.nodes[&leader], commands.to_vec()).await;
        let mut acknowledged = Acknowledged::new();
        for (answer, command) in answers.into_iter().zip(commands) {
            let index = match answer {
                Ok(index) => index,
                Err(_) => self.propose(command).await,
            };
            acknowledged.insert(index, command.clone());
        }
        acknowledged
    }

    pub(crate) fn statuses(&self) -> String {
        let text =
            |(number, node): (&u64, &Node<Ledger>)| format!("\n{number}: {:?}", node.status());
        self.nodes.iter().map(text).collect()
    }

    pub(crate) fn cluster_id(&self) -> uuid::Uuid {
        self.nodes.values().next().unwrap().cluster_id().parse().unwrap()
    }

    /// Starts clients that propose continuously, at the current leader.
    pub(crate) fn load(&self, clients: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let nodes = Arc::new(std::sync::Mutex::new(self.nodes.clone()));
        let clients = (0..clients).map(|client| {
            let (stop, nodes) = (stop.clone(), nodes.clone());
            tokio::spawn(async move { propose_for_ever(client, &nodes, &stop).await })
        });
        let clients = clients.collect();
        Load { stop, nodes, clients }
    }

    /// Waits until all nodes have applied everything, and compares them with each other and with
    /// `acknowledged`.
    pub(crate) async fn agree(&self, acknowledged: &Acknowledged) {
        let last = Some(self.propose(b"the end").await);
        let behind = || self.nodes.values().any(|node| node.status().applied < last);
        eventually("all nodes have applied everything", || !behind()).await;
        let mut hashes = BTreeMap::new();
        for (number, node) in &self.nodes {
            let (applied, hash) = node.state_hash();
            let first = *hashes.entry(applied).or_insert(hash);
            assert_eq!(first, hash, "node {number} differs at {applied}");
            let found: Acknowledged = node.read(|ledger| ledger.applied.iter().cloned().collect());
            for (index, command) in acknowledged {
                let text = String::from_utf8_lossy(command);
                assert_eq!(found.get(index), Some(command), "node {number} lost {index}: {text}");
            }
        }
    }

    pub(crate) async fn shutdown(self) {
        for (number, node) in self.nodes {
            self.net.unplug(&address(number));
            node.shutdown().await;
        }
    }
}

pub(crate) fn found(count: u64) -> Start {
    Start::Found { members: (1..=count).map(|node| (node, address(node))).collect() }
}

/// Running clients.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    nodes: Arc<std::sync::Mutex<BTreeMap<u64, Node<Ledger>>>>,
    clients: Vec<JoinHandle<Acknowledged>>,
}

impl Load {
    /// Updates the nodes that the clients use.
    pub(crate) fn now(&self, cluster: &Cluster) {
        *self.nodes.lock().unwrap() = cluster.nodes.clone();
    }

    pub(crate) async fn stop(self) -> Acknowledged {
        self.stop.store(true, Ordering::Release);
        let mut all = Acknowledged::new();
        for client in self.clients {
            for (index, command) in client.await.unwrap() {
                assert_eq!(all.insert(index, command), None, "index {index} acknowledged twice");
            }
        }
        all
    }
}

async fn propose_for_ever(
    client: usize,
    nodes: &std::sync::Mutex<BTreeMap<u64, Node<Ledger>>>,
    stop: &AtomicBool,
) -> Acknowledged {
    let (mut acknowledged, mut number, mut ask) = (Acknowledged::new(), 0_u64, 1);
    while !stop.load(Ordering::Acquire) {
        let found = {
            let nodes = nodes.lock().unwrap();
            let found =
                nodes.get(&ask).or_else(|| nodes.values().nth(number as usize % nodes.len()));
            found.cloned()
        };
        // Each try is a separate command: the outcome of those without an answer is not checked.
        number += 1;
        let command = format!("{client}/{number}").into_bytes();
        match found.expect("there is always a node").propose(command.clone()).await {
            Ok(applied) => drop(acknowledged.insert(applied.index, command)),
            Err(ProposeError::NotLeader { leader } | ProposeError::Unknown { leader }) => {
                ask = leader.map_or(number % 5, |leader| leader.node);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(_) => ask = number % 5,
        }
    }
    acknowledged
}
