//! Options of a node.

use crate::start::Start;

/// Options of a node; the defaults fit a dedicated disk and a local network. The coordinator checks
/// its own options before it makes these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOptions {
    /// Name of the cluster. It is written to the log at bootstrap and must not change.
    pub cluster_name: String,
    /// This node's number in the cluster. It is written to the log at bootstrap and must not
    /// change: a node that lost its directory returns under a new number. Default 1.
    pub node_id: u64,
    /// Initial role of `dir` if it is pristine. Default [`Start::Alone`].
    pub start: Start,
    /// Address at which other nodes reach this one, as [`Peers`](crate::Peers) interprets it. The
    /// others use a member's new address. Default empty: a cluster of one needs none.
    pub address: String,
    /// Interval between heartbeats of a leader, milliseconds. Default 100.
    pub heartbeat_ms: u64,
    /// Shortest silence of a leader after which a follower campaigns, milliseconds. Default 300.
    pub election_min_ms: u64,
    /// Longest such silence, milliseconds. Default 600.
    pub election_max_ms: u64,
    /// Number of entries committed between two snapshots. The log keeps the entries that are not in
    /// the older of the last two snapshots. Default 10,000.
    pub snapshot_every: u64,
    /// Timeout of `propose` and `linearize`, milliseconds. Default 10,000.
    pub propose_timeout_ms: u64,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            cluster_name: "shardfeed".to_owned(),
            node_id: 1,
            start: Start::Alone,
            address: String::new(),
            heartbeat_ms: 100,
            election_min_ms: 300,
            election_max_ms: 600,
            snapshot_every: 10_000,
            propose_timeout_ms: 10_000,
        }
    }
}
