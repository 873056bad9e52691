//! Leadership as one node sees it, for observers that need each change at once.

use crate::network::peers::Peer;

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
