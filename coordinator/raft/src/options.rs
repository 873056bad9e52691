//! Options of a node.

use crate::error::OpenError;
use crate::start::Start;

/// Options of a node; the defaults fit a dedicated disk and a local network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOptions {
    /// Name of the cluster. It is written to the log at bootstrap and must not change.
    pub cluster_name: String,
    /// This node's number in the cluster. It is written to the log at bootstrap and must not
    /// change: a node that lost its directory returns under a new number. Default 1.
    pub node_id: u64,
    /// Initial role of `dir` if it is pristine. Default [`Start::Alone`].
    pub start: Start,
    /// Address at which other nodes reach this one, as [`Peers`](crate::Peers) interprets it. If a
    /// member returns with another address, the others use the new one. Default empty: a cluster of
    /// one needs none.
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

impl NodeOptions {
    /// Checks the options and the relations between them.
    pub(crate) fn validate(&self) -> Result<(), OpenError> {
        let refuse = |reason: String| Err(OpenError::Options { reason });
        if self.cluster_name.is_empty() || self.cluster_name.len() > CLUSTER_NAME_BYTES_MAX {
            return refuse(format!("`cluster_name` must have 1..={CLUSTER_NAME_BYTES_MAX} bytes"));
        }
        if self.node_id == 0 {
            return refuse("`node_id` is 0; number the nodes from 1".to_owned());
        }
        self.validate_start()?;
        if self.heartbeat_ms == 0 || self.heartbeat_ms * 2 > self.election_min_ms {
            return refuse(format!(
                "`heartbeat_ms` is {} and `election_min_ms` is {}; a heartbeat must fit twice",
                self.heartbeat_ms, self.election_min_ms
            ));
        }
        if self.election_min_ms >= self.election_max_ms {
            return refuse(format!(
                "`election_min_ms` is {} and `election_max_ms` is {}; leave room between them",
                self.election_min_ms, self.election_max_ms
            ));
        }
        if self.snapshot_every == 0 {
            return refuse(
                "`snapshot_every` is 0; a log without snapshots grows for ever".to_owned(),
            );
        }
        if self.propose_timeout_ms == 0 {
            return refuse("`propose_timeout_ms` is 0; nothing is durable in no time".to_owned());
        }
        Ok(())
    }
}

impl NodeOptions {
    fn validate_start(&self) -> Result<(), OpenError> {
        let refuse = |reason: String| Err(OpenError::Options { reason });
        if self.address.len() > ADDRESS_BYTES_MAX {
            return refuse(format!("`address` has more than {ADDRESS_BYTES_MAX} bytes"));
        }
        let members = match &self.start {
            Start::Alone => return Ok(()),
            Start::Join { cluster } if cluster.is_nil() => {
                return refuse("`start` joins no cluster; name the id of one".to_owned());
            }
            Start::Join { .. } if self.address.is_empty() => {
                return refuse("`address` is empty; the cluster must find this node".to_owned());
            }
            Start::Join { .. } => return Ok(()),
            Start::Found { members } => members,
        };
        if members.len() > FOUNDERS_MAX {
            return refuse(format!(
                "`start` names more than {FOUNDERS_MAX} members; found with fewer"
            ));
        }
        if members.get(&self.node_id) != Some(&self.address) {
            return refuse(format!(
                "`start` does not name node {} at `{}`; list every founder with the address it advertises",
                self.node_id, self.address
            ));
        }
        let bad = |(node, address): (&u64, &String)| {
            *node == 0 || address.is_empty() || address.len() > ADDRESS_BYTES_MAX
        };
        match members.iter().find(|&(node, address)| bad((node, address))) {
            Some((node, address)) => refuse(format!(
                "`start` has node {node} at `{address}`; number the nodes from 1, and give each an address"
            )),
            None => Ok(()),
        }
    }
}

/// Maximum founders: a larger majority costs every proposal more than it gains in safety.
const FOUNDERS_MAX: usize = 9;
/// Maximum length of an address: enough for a host name and a port.
const ADDRESS_BYTES_MAX: usize = 512;
/// Maximum length of a cluster name: enough for a host name; the header stays within one page.
const CLUSTER_NAME_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        NodeOptions::default().validate().unwrap();
    }

    #[test]
    fn contradictions_are_named() {
        let base = NodeOptions::default();
        for (options, field) in [
            (NodeOptions { cluster_name: String::new(), ..base.clone() }, "cluster_name"),
            (NodeOptions { node_id: 0, ..base.clone() }, "node_id"),
            (NodeOptions { heartbeat_ms: 200, ..base.clone() }, "heartbeat_ms"),
            (NodeOptions { election_max_ms: 300, ..base.clone() }, "election_max_ms"),
            (NodeOptions { snapshot_every: 0, ..base.clone() }, "snapshot_every"),
            (NodeOptions { propose_timeout_ms: 0, ..base }, "propose_timeout_ms"),
        ] {
            let message = options.validate().unwrap_err().to_string();
            assert!(message.contains(field), "{message}");
        }
    }

    #[test]
    fn every_refusal_says_which_option_and_what_to_do() {
        let named = |node: u64, address: &str| {
            let members = std::collections::BTreeMap::from([
                (1, "a:1".to_owned()),
                (node, address.to_owned()),
            ]);
            Start::Found { members }
        };
        let crowd = (1..=10).map(|node| (node, format!("n{node}:1"))).collect();
        let base = || NodeOptions { address: "a:1".into(), ..NodeOptions::default() };
        let said = [
            NodeOptions { cluster_name: String::new(), ..base() },
            NodeOptions { node_id: 0, ..base() },
            NodeOptions { address: "x".repeat(513), ..base() },
            NodeOptions { start: Start::Join { cluster: uuid::Uuid::nil() }, ..base() },
            NodeOptions {
                start: Start::Join { cluster: uuid::Uuid::max() },
                address: String::new(),
                ..base()
            },
            NodeOptions { start: Start::Found { members: crowd }, ..base() },
            NodeOptions { start: named(2, "b:1"), node_id: 3, ..base() },
            NodeOptions { start: named(0, "b:1"), ..base() },
            NodeOptions { heartbeat_ms: 200, ..base() },
            NodeOptions { election_max_ms: 300, ..base() },
            NodeOptions { snapshot_every: 0, ..base() },
            NodeOptions { propose_timeout_ms: 0, ..base() },
        ]
        .map(|options| options.validate().unwrap_err().to_string());
        assert_eq!(
            said,
            [
                "bad options: `cluster_name` must have 1..=255 bytes",
                "bad options: `node_id` is 0; number the nodes from 1",
                "bad options: `address` has more than 512 bytes",
                "bad options: `start` joins no cluster; name the id of one",
                "bad options: `address` is empty; the cluster must find this node",
                "bad options: `start` names more than 9 members; found with fewer",
                "bad options: `start` does not name node 3 at `a:1`; list every founder with the address \
                 it advertises",
                "bad options: `start` has node 0 at `b:1`; number the nodes from 1, and give each an address",
                "bad options: `heartbeat_ms` is 200 and `election_min_ms` is 300; a heartbeat must fit \
                 twice",
                "bad options: `election_min_ms` is 300 and `election_max_ms` is 300; leave room between \
                 them",
                "bad options: `snapshot_every` is 0; a log without snapshots grows for ever",
                "bad options: `propose_timeout_ms` is 0; nothing is durable in no time",
            ]
        );
    }
}
