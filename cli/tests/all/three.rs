//! Three coordinators as processes in their own folder, and ranks that train.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use serde_json::Value;
use shardfeed_cluster::GrpcCluster;
use shardfeed_embedded::{ClusterOptions, Delivery, Loader, LoaderOptions};
use shardfeed_plan::{Mode, Tail};

use crate::cluster::{PATIENCE, Process};
use crate::fixture::{Place, rows_of};

/// Samples of one rank's batch.
pub(crate) const BATCH: u64 = 8;
pub(crate) const RANKS: u64 = 2;

/// Port of each node, at its own address.
const PORT: u16 = 7170;

/// Longer timeouts than the defaults: the test machine may pause a process for longer.
const OPTIONS: &str = "\
cluster-name = \"prod\"
session-ttl-ms = 10000
heartbeat-ms = 100
election-min-ms = 500
election-max-ms = 1000
";

/// Rows of one rank's batch: shard, ordinal, validity.
pub(crate) type Rows = Vec<(u32, u64, bool)>;

/// The coordinators.
pub(crate) struct Three {
    pub(crate) place: Place,
    /// Addresses of nodes 1 to 3, in order.
    pub(crate) addresses: Vec<String>,
    /// Running nodes by number.
    pub(crate) nodes: BTreeMap<u64, Process>,
    _network: UdpSocket,
}

/// Reserves a loopback network, as nodes come back to their ports; no other test uses it while the
/// socket exists.
fn network() -> (UdpSocket, [u8; 3]) {
    let first = std::process::id() % 60_000;
    let networks = (first..60_000).chain(0..first);
    let mut free = networks.filter_map(|number| {
        let network = [127, (number / 250 + 1) as u8, (number % 250 + 1) as u8];
        let address = |node| SocketAddr::from(([network[0], network[1], network[2], node], PORT));
        let held = UdpSocket::bind(address(1)).ok()?;
        let is_free = (1..=3).all(|node| TcpListener::bind(address(node)).is_ok());
        is_free.then_some((held, network))
    });
    free.next().unwrap()
}

impl Three {
    /// Starts nodes that found a cluster, with folders `data-1` to `data-3`.
    pub(crate) fn start(place: Place) -> Self {
        place.file("coordinator.toml", OPTIONS);
        let (network, [a, b, c]) = network();
        let addresses = (1..=3).map(|node| format!("{a}.{b}.{c}.{node}:{PORT}")).collect();
        let mut this = Self { place, addresses, nodes: BTreeMap::new(), _network: network };
        // The nodes wait for each other.
        let started: Vec<_> = (1..=3).map(|node| (node, this.spawn(node, "data", &[]))).collect();
        for (node, (process, first)) in started {
            first().unwrap_or_else(|| panic!("node {node} ended: {}", process.log()));
            this.nodes.insert(node, process);
        }
        this
    }

    /// Arguments of a node with its folder, whose name begins with `data`.
    pub(crate) fn args(&self, node: u64, data: &str, more: &[&str]) -> Vec<String> {
        let peers = (1..).zip(&self.addresses).map(|(node, address)| format!("{node}={address}"));
        let peers = peers.collect::<Vec<_>>().join(",");
        let (number, data) = (node.to_string(), format!("{data}-{node}"));
        let start = ["coordinator", "start", "--config", "coordinator.toml", "--node-id", &number];
        let address = ["--listen", self.address(node), "--http", "127.0.0.1:0", "--peers", &peers];
        let args = [&start[..], &address, &["--data", &data], more].concat();
        args.into_iter().map(str::to_owned).collect()
    }

    /// Starts a node; also returns a function that waits for the first line on its stdout.
    pub(crate) fn spawn(
        &self,
        node: u64,
        data: &str,
        more: &[&str],
    ) -> (Process, impl FnOnce() -> Option<String> + use<>) {
        let args = self.args(node, data, more);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        Process::spawn(&self.place, &format!("node-{node}.log"), &args)
    }

    pub(crate) fn address(&self, node: u64) -> &str {
        &self.addresses[node as usize - 1]
    }

    /// All addresses, as a `--coordinator` value.
    pub(crate) fn list(&self) -> String {
        self.addresses.join(",")
    }

    /// Runs a command that must succeed, with these coordinators.
    pub(crate) fn ok(&self, coordinators: &str, args: &[&str]) -> String {
        let ran = self.place.run(&[args, &["--coordinator", coordinators]].concat());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
        ran.stdout
    }

    pub(crate) fn json(&self, coordinators: &str, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(coordinators, &[args, &["-o", "json"]].concat())).unwrap()
    }

    /// Starts the worker `w`.
    pub(crate) fn worker(&self) -> Process {
        let (start, list) = (["worker", "start", "--name", "w", "--socket", "w.sock"], self.list());
        let more = ["--memory-budget", "64MiB", "--coordinator", &list];
        Process::ready(&self.place, "w.log", &[&start[..], &more].concat()).0
    }

    /// Opens a rank of job `j` over the dataset `train`, served by the worker.
    pub(crate) fn loader(&self, mode: Mode, rank: u64, run: &str) -> Loader {
        let options = LoaderOptions {
            dataset: Some("train".into()),
            batch_size: BATCH,
            rank,
            world_size: RANKS,
            mode,
            tail: if mode == Mode::Dynamic { Tail::Uneven } else { Tail::Drop },
            // A group of a dynamic job is one shard, so that each rank gets several.
            interleave: Some(1),
            job: Some("j".into()),
            cluster: Some(ClusterOptions {
                worker: Some(self.place.path("w.sock")),
                fallback: false,
                timeout: PATIENCE,
                run: Some(run.into()),
                ..ClusterOptions::new(self.list(), &GrpcCluster)
            }),
            ..LoaderOptions::default()
        };
        shardfeed_embedded::open(options, &mut |_| true).unwrap()
    }
}

/// Returns the epoch and the rows of a rank's next batch, if it arrives within 10 ms.
pub(crate) fn look(loader: &mut Loader) -> Option<(u64, Rows)> {
    let epoch = loader.cursor().epoch();
    match loader.next(Duration::from_millis(10)).unwrap() {
        Delivery::Batch(mut delivered) => Some((epoch, rows_of(&mut delivered))),
        Delivery::EpochEnd { .. } | Delivery::Pending => None,
    }
}
