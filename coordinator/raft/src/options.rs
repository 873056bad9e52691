//! Options of a node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

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

/// Initial role of a pristine directory. One with data keeps its role and ignores this option.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Start {
    /// A cluster of one, which leads at once and grows by `add_member`.
    #[default]
    Alone,
    /// One of several nodes that found a cluster together, once each has reported that it is
    /// pristine. All are started with the same members (number and address of every founder, this
    /// node included) and the same cluster name, from which the cluster's id is derived.
    Found { members: BTreeMap<u64, String> },
    /// A node that waits to be added to an existing cluster, by `add_member` there.
    Join { cluster: Uuid },
}

/// Role that a directory was started with, as recorded in its header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StartRole {
    #[default]
    Alone,
    Found,
    Join,
}

impl Start {
    pub(crate) fn origin(&self) -> StartRole {
        match self {
            Self::Alone => StartRole::Alone,
            Self::Found { .. } => StartRole::Found,
            Self::Join { .. } => StartRole::Join,
        }
    }

    /// Returns the id of a pristine directory's future cluster, if it is already determined.
    pub(crate) fn cluster(&self, cluster_name: &str) -> Option<Uuid> {
        match self {
            Self::Alone => None,
            Self::Found { members } => Some(founded_cluster(cluster_name, members)),
            Self::Join { cluster } => Some(*cluster),
        }
    }
}

/// The founders need an id for messages before they can agree on one, so it is a hash of their
/// common options. The incarnations of their nodes distinguish two foundings with the same options.
fn founded_cluster(cluster_name: &str, members: &BTreeMap<u64, String>) -> Uuid {
    let mut hash = Sha256::new();
    let mut put = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    put(b"shardfeed cluster, founded together");
    put(cluster_name.as_bytes());
    for (node, address) in members {
        put(&node.to_le_bytes());
        put(address.as_bytes());
    }
    let digest = hash.finalize();
    let half = digest[..16].try_into().expect("a SHA-256 has 32 bytes");
    uuid::Builder::from_custom_bytes(half).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn founders_agree_on_the_cluster_only_if_they_were_told_the_same() {
        let members = BTreeMap::from([(1, "a:1".to_owned()), (2, "b:1".to_owned())]);
        let found = Start::Found { members: members.clone() };
        assert_eq!(found.cluster("x"), Some(founded_cluster("x", &members)));
        assert_ne!(found.cluster("x"), found.cluster("y"));
        let moved = BTreeMap::from([(1, "a:1".to_owned()), (2, "b:2".to_owned())]);
        assert_ne!(founded_cluster("x", &members), founded_cluster("x", &moved));
        assert_eq!(Start::Alone.cluster("x"), None);
    }
}
