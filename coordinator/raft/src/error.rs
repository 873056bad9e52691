//! What can go wrong, for those outside.

use std::io;

use crate::peers::{Peer, PeerError};

/// Why a node cannot be opened. Nothing on disk was changed, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option contradicts another or is out of range.
    #[error("bad options: {reason}")]
    Options {
        /// Which option, and what to do.
        reason: String,
    },
    /// Another process, or another node in this one, has the directory.
    #[error(
        "{dir} is in use by another node; stop that one first, or give this one a directory of its own"
    )]
    Locked {
        /// The directory.
        dir: String,
    },
    /// There is something there that no node of ours wrote.
    #[error(
        "{path} is not ours: {reason}; give the node an empty directory or the one it had before"
    )]
    Foreign {
        /// The file or directory.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A newer release wrote this.
    #[error(
        "{path} has format version {found}, this release knows up to {known}; run the release that wrote it, or a newer one"
    )]
    NewerFormat {
        /// The file.
        path: String,
        /// The version in it.
        found: u16,
        /// The newest version this release reads.
        known: u16,
    },
    /// The bytes are not those that were written.
    #[error(
        "{path} is damaged: {reason}; keep a copy of the directory and restore it from a backup, or let the node rejoin empty under a new node id"
    )]
    Corrupt {
        /// The file.
        path: String,
        /// Where and how.
        reason: String,
    },
    /// The machine cannot read a snapshot that is itself undamaged.
    #[error("the state in {path} cannot be restored: {reason}; run the release that wrote it")]
    Restore {
        /// The snapshot.
        path: String,
        /// The machine's reason.
        reason: String,
    },
    /// The disk refused. A half-made new log never counts.
    #[error(
        "{path}: {source}; check the disk, its free space and the permissions, then start again"
    )]
    Io {
        /// The file or directory.
        path: String,
        /// The refusal.
        source: io::Error,
    },
    /// The log is readable, but the node did not come up.
    #[error(
        "the node did not start: {reason}; start it again and look at the disk if this repeats"
    )]
    Start {
        /// What consensus says.
        reason: String,
    },
}

/// Why a proposal, or a linearizable read, has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This node does not lead, or cannot prove that it does; nothing was appended here.
    #[error("this node is not the leader; ask {}", leader_text(.leader))]
    NotLeader {
        /// Who leads, as far as this node knows.
        leader: Option<Peer>,
    },
    /// The entry was appended, then leadership was lost: it may yet be committed by the new leader.
    #[error("leadership was lost before the command was committed; repeat it with the same request id at {}", leader_text(.leader))]
    Unknown {
        /// Who leads now, as far as this node knows.
        leader: Option<Peer>,
    },
    /// The node stopped because it could not write, read or apply. It refuses everything until the
    /// process is restarted; the command may or may not be in the log.
    #[error("the node has stopped: {message}; repair the cause and restart the process")]
    Stopped {
        /// The first failure.
        message: String,
    },
    /// The node is shutting down.
    #[error("the node is shutting down; ask another one, or this one after its restart")]
    ShuttingDown,
    /// No answer in time; the command may yet be committed.
    #[error(
        "no answer within {waited_ms} ms; the command may yet be committed, repeat it with the same request id"
    )]
    Timeout {
        /// How long was waited.
        waited_ms: u64,
    },
}

/// Why the members, or the leader among them, were not changed as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// What was asked for would break the cluster. Nothing was changed.
    #[error("{reason}")]
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// The node to be added gave no answer, or one that does not fit. Nothing was changed.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The new node learns, but too slowly or no longer. It stays a learner, which votes on nothing.
    #[error(
        "node {node} has {matched} of {last} entries and does not catch up; look at it, then repeat the command, or remove the node"
    )]
    Behind {
        /// The node.
        node: u64,
        /// How many entries it has.
        matched: u64,
        /// How many there are.
        last: u64,
    },
    /// Another change is under way.
    #[error(
        "the members are being changed already; wait until that is done, then look at them and repeat"
    )]
    Busy,
    /// The successor did not take over in time. An election has begun or will.
    #[error("node {to} did not take over within {waited_ms} ms; see who leads, then repeat")]
    NotTaken {
        /// Who was to lead.
        to: u64,
        /// How long was waited.
        waited_ms: u64,
    },
    /// A leader that was to be removed handed over, and its successor did not remove it.
    #[error(
        "node {to} took over, but did not remove node {node}: {reason}; see who leads, then repeat"
    )]
    NotRemoved {
        /// Who was to be removed.
        node: u64,
        /// Who took over.
        to: u64,
        /// What it said.
        reason: String,
    },
    /// As for any entry of the log. Look at the members before repeating.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

fn leader_text(leader: &Option<Peer>) -> String {
    match leader {
        Some(leader) => leader.to_string(),
        None => "again when an election is over".to_owned(),
    }
}
