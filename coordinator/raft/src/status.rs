//! Status that a node reports.

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
    /// Reason why the node stopped, if it did. It never restarts in this process.
    pub fatal: Option<String>,
}
