//! Errors of this crate's public functions.

use std::io;

use crate::network::peers::{Peer, PeerError};

/// Error of opening a node. Nothing on disk was changed, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("bad options: {reason}")]
    Options { reason: String },
    #[error(
        "{dir} is in use by another node; stop that one first, or give this one its own directory"
    )]
    Locked { dir: String },
    #[error(
        "{path} is not ours: {reason}; give the node an empty directory or the one it had before"
    )]
    Foreign { path: String, reason: String },
    #[error(
        "{path} has format version {found}, this release knows up to {known}; run the release that wrote it, or a newer one"
    )]
    NewerFormat { path: String, found: u16, known: u16 },
    #[error(
        "{path} is damaged: {reason}; keep a copy of the directory and restore it from a backup, or let the node rejoin empty under a new node id"
    )]
    Corrupt { path: String, reason: String },
    #[error("the state in {path} cannot be restored: {reason}; run the release that wrote it")]
    Restore { path: String, reason: String },
    /// The disk reported an error. An incomplete new log is never used.
    #[error(
        "{path}: {source}; check the disk, its free space and the permissions, then start again"
    )]
    Io { path: String, source: io::Error },
    /// The log is readable, but the node did not start.
    #[error(
        "the node did not start: {reason}; start it again and look at the disk if this repeats"
    )]
    Start { reason: String },
}

/// Error of a proposal or of a linearizable read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This node does not lead, or cannot prove that it does; nothing was appended here.
    #[error("this node is not the leader; ask {}", leader_text(.leader))]
    NotLeader { leader: Option<Peer> },
    /// The entry was appended, then leadership was lost: the new leader may yet commit it.
    #[error("leadership was lost before the command was committed; repeat it with the same request id at {}", leader_text(.leader))]
    Unknown { leader: Option<Peer> },
    /// The node stopped because it could not write, read or apply. It rejects every request until
    /// the process is restarted; the command may or may not be in the log.
    #[error("the node has stopped: {message}; repair the cause and restart the process")]
    Stopped { message: String },
    #[error("the node is shutting down; ask another one, or this one after its restart")]
    ShuttingDown,
    #[error(
        "no answer within {waited_ms} ms; the command may yet be committed, repeat it with the same request id"
    )]
    Timeout { waited_ms: u64 },
}

/// Error of changing the members, or the leader among them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The change would break the cluster. Nothing was changed.
    #[error("{reason}")]
    Refused { reason: String },
    /// The node to be added gave no answer, or a wrong one. Nothing was changed.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The new node learns too slowly, or has stopped. It stays a learner, without a vote.
    #[error(
        "node {node} has {matched} of {last} entries and does not catch up; look at it, then repeat the command, or remove the node"
    )]
    Behind { node: u64, matched: u64, last: u64 },
    #[error(
        "the members are being changed already; wait until that is done, then look at them and repeat"
    )]
    Busy,
    /// The successor did not take over in time. An election has started or will start.
    #[error("node {to} did not take over within {waited_ms} ms; see who leads, then repeat")]
    NotTaken { to: u64, waited_ms: u64 },
    /// A leader that was to be removed handed over, but its successor did not remove it.
    #[error(
        "node {to} took over, but did not remove node {node}: {reason}; see who leads, then repeat"
    )]
    NotRemoved { node: u64, to: u64, reason: String },
    /// Error of proposing the change. Check the members before repeating it.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

fn leader_text(leader: &Option<Peer>) -> String {
    match leader {
        Some(leader) => leader.to_string(),
        None => "again when an election is over".to_owned(),
    }
}
