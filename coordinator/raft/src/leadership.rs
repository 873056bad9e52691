//! Who leads, as one node sees it, for those who must know at once when it changes.

use crate::peers::Peer;

/// Who leads, as one node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The term this node is in. What a leader keeps in memory ends with its term.
    pub term: u64,
    /// Who leads in it, if this node knows already.
    pub leader: Option<Peer>,
    /// Whether that is this node. Another one may have taken over without its knowledge: only
    /// `linearize` and `propose` prove that nobody has.
    pub is_leader: bool,
}

/// What a member does in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It votes, and leads.
    Leader,
    /// It votes.
    Voter,
    /// It only learns: it is being added, and no majority counts it.
    Learner,
}

/// A member of the cluster, as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub node: u64,
    /// Where it can be found.
    pub address: String,
    /// What it does.
    pub role: Role,
    /// The last index it is known to have on disk. Only a leader knows of others.
    pub matched: Option<u64>,
    /// How long ago it answered, milliseconds. Only a leader knows of others.
    pub heard_ms: Option<u64>,
}
