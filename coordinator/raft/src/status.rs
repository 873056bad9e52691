//! What a node reports of itself, of the leadership and of the members.

use crate::network::peers::Peer;

/// Position of a node in the log and in the cluster, at one moment.
/// The indexes are `None` before the first entry of their kind.
/// `purged <= snapshot <= applied <= committed <= last` wherever both are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub node_id: u64,
    /// The current term, 0 before the first election.
    pub term: u64,
    /// Leader that this node follows or is, if it knows one.
    pub leader: Option<u64>,
    /// True if this node leads. Only a leader accepts proposals.
    pub is_leader: bool,
    /// Last index in the log, durable or not yet.
    pub last: Option<u64>,
    /// Last index that can never change.
    pub committed: Option<u64>,
    /// Last index that the machine has applied.
    pub applied: Option<u64>,
    /// Last index covered by the newest snapshot.
    pub snapshot: Option<u64>,
    /// Last index removed from the log; a snapshot covers it.
    pub purged: Option<u64>,
    /// Size of the log's file.
    pub log_bytes: u64,
    /// Size of the newest snapshot; 0: there is none.
    pub snapshot_bytes: u64,
    /// Reason why the node stopped, if it did. It never restarts in this process.
    pub fatal: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Term of this node. State in a leader's memory is valid only in its term.
    pub term: u64,
    /// Leader of the term, if this node already knows it.
    pub leader: Option<Peer>,
    /// True if this node leads. Another node may have taken over without its knowledge: only
    /// `linearize` and `propose` prove that none has.
    pub is_leader: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Leader,
    Voter,
    /// Only learns: it is being added, and no majority counts it.
    Learner,
}

/// A member of the cluster, as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub node: u64,
    pub address: String,
    pub role: Role,
    /// Last index that it is known to have on disk. Only a leader knows this of other nodes.
    pub matched: Option<u64>,
    /// Time since its last answer, milliseconds. Only a leader knows this of other nodes.
    pub heard_ms: Option<u64>,
}
