//! Errors: why a coordinator cannot start, and what a refused call says on the wire.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use shardfeed_plan::PlanError;
use shardfeed_proto::{ErrorKind, InvalidMessage, WireError};
use shardfeed_raft::{ChangeError, OpenError, Peer, PeerError, ProposeError};
use shardfeed_scheduler::{Failure, Refusal};
use shardfeed_tls::TlsError;

use crate::chunks::ChunkStoreError;
use crate::config::InvalidOption;

/// Why a coordinator cannot start. What, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option makes no sense.
    #[error(transparent)]
    Option(#[from] InvalidOption),
    /// The data folder cannot be used.
    #[error(
        "{}: cannot {action}: {source}; data-dir must be a writable folder on a disk with free space",
        .path.display()
    )]
    DataDir {
        /// The file or folder.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The log cannot be opened: in use, newer, damaged, or the disk refuses.
    #[error(transparent)]
    Node(#[from] OpenError),
    /// The certificates cannot be used.
    #[error("option `tls`: {0}")]
    Tls(TlsError),
    /// An address cannot be listened on.
    #[error("option `{option}`: cannot listen on {address}: {source}; {hint}")]
    Listen {
        /// `listen` or `http`.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The folder is empty, but the cluster knows a node of this number.
    #[error(
        "node {node} of cluster {cluster} lost its disk: its data folder is empty, but the cluster knows \
         it; remove it from the cluster and add it under a number that was never used"
    )]
    LostDisk {
        /// Its number.
        node: u64,
        /// The cluster's id.
        cluster: String,
    },
    /// The folder is empty, `peers` names this node, and there is a cluster without it.
    #[error(
        "option `peers`: {address} is part of cluster {cluster} already, which does not know node {node}; \
         give this node `join`, too, and add it to the cluster"
    )]
    NotAFounder {
        /// This node.
        node: u64,
        /// Who said so.
        address: String,
        /// The cluster's id.
        cluster: String,
    },
    /// A node that was named in `peers` or `join` belongs to a cluster of another name.
    #[error(
        "{address} is of cluster `{theirs}`, this node is to be of `{ours}`; check the address and the \
         option `cluster-name`"
    )]
    OtherCluster {
        /// Who said so.
        address: String,
        /// What it said.
        theirs: String,
        /// The option.
        ours: String,
    },
}

impl StartError {
    /// Whether the next start with the same options over the same folder is refused, too, unless somebody does
    /// something about it.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Option(_)
            | Self::LostDisk { .. }
            | Self::NotAFounder { .. }
            | Self::OtherCluster { .. } => true,
            Self::Node(error) => {
                matches!(error, OpenError::Foreign { .. } | OpenError::NewerFormat { .. })
            }
            Self::DataDir { .. } | Self::Listen { .. } | Self::Tls(_) => false,
        }
    }
}

/// The table from refusals to what the receiver should do.
pub(crate) fn refusal(refusal: &Refusal) -> WireError {
    let kind = match refusal {
        Refusal::NotFound { .. } => ErrorKind::NotFound,
        Refusal::OtherIdentity { .. } | Refusal::OtherDataset { .. } => ErrorKind::Identity,
        Refusal::Conflict { .. } | Refusal::Disagree { .. } => ErrorKind::Conflict,
        Refusal::Superseded { .. } => ErrorKind::Superseded,
        Refusal::Fenced { .. } => ErrorKind::Fenced,
        Refusal::Replaced { .. } => ErrorKind::Replaced,
        Refusal::Cancelled { .. } => ErrorKind::Cancelled,
        Refusal::Denied(_) => ErrorKind::Denied,
        Refusal::Forgotten { .. } => ErrorKind::Token,
        Refusal::Cordoned { .. } => ErrorKind::Cordoned,
        Refusal::Invalid(_) | Refusal::Full { .. } => ErrorKind::Invalid,
    };
    WireError::new(kind, refusal.to_string())
}

/// The table from what became of a proposal to what the receiver should do.
pub(crate) fn proposal(error: &ProposeError) -> WireError {
    let kind = match error {
        ProposeError::NotLeader { .. } => ErrorKind::NotLeader,
        ProposeError::Stopped { .. } => ErrorKind::Storage,
        // Nobody knows yet whether it was carried out; the same request id finds out.
        ProposeError::Unknown { .. }
        | ProposeError::Timeout { .. }
        | ProposeError::ShuttingDown => ErrorKind::Retry,
    };
    let leader = match error {
        ProposeError::NotLeader { leader } | ProposeError::Unknown { leader } => leader.as_ref(),
        _ => None,
    };
    WireError {
        leader: leader.and_then(address_of).map(String::into_boxed_str),
        ..WireError::new(kind, error.to_string())
    }
}

/// Where a node is found, if it ever said.
pub(crate) fn address_of(peer: &Peer) -> Option<String> {
    (!peer.address.is_empty()).then(|| peer.address.clone())
}

/// The table from what became of a change of the members to what the receiver should do.
pub(crate) fn change(error: &ChangeError) -> WireError {
    let kind = match error {
        ChangeError::Propose(error) => return proposal(error),
        ChangeError::Refused { .. } | ChangeError::Peer(PeerError::Refused { .. }) => {
            ErrorKind::Invalid
        }
        ChangeError::Peer(PeerError::Unreachable { .. }) => ErrorKind::Unreachable,
        ChangeError::Behind { .. }
        | ChangeError::Busy
        | ChangeError::NotTaken { .. }
        | ChangeError::NotRemoved { .. } => ErrorKind::Retry,
    };
    WireError::new(kind, error.to_string())
}

/// The table from what the chunk store says to what the receiver should do.
pub(crate) fn chunk(error: &ChunkStoreError) -> WireError {
    let kind = match error {
        ChunkStoreError::NotFound { .. } => ErrorKind::NotFound,
        ChunkStoreError::Corrupt { .. } => ErrorKind::Corrupt,
        ChunkStoreError::Size { .. } => ErrorKind::Invalid,
        ChunkStoreError::Full { .. } | ChunkStoreError::OwnerFull { .. } => ErrorKind::Retry,
        ChunkStoreError::Io { .. } => ErrorKind::Storage,
    };
    let file = match error {
        ChunkStoreError::Corrupt { path, .. } => Some(path.clone()),
        _ => None,
    };
    WireError { file, ..WireError::new(kind, error.to_string()) }
}

/// A message that is not believed.
pub(crate) fn invalid(error: &InvalidMessage) -> WireError {
    WireError::new(ErrorKind::Invalid, error.to_string())
}

/// Numbers that make no plan.
pub(crate) fn plan(error: &PlanError) -> WireError {
    let kind = match error {
        PlanError::NoSuchStep { .. } | PlanError::NoSuchSample { .. } => ErrorKind::NotFound,
        _ => ErrorKind::Invalid,
    };
    WireError::new(kind, error.to_string())
}

/// A task of ours that died: our bug.
pub(crate) fn lost(what: &str) -> WireError {
    WireError::new(
        ErrorKind::Unspecified,
        format!("{what} stopped unexpectedly; please report this with the coordinator's log"),
    )
}

/// What is kept of an error in the state.
pub(crate) fn failure_from(error: &WireError) -> Failure {
    let WireError { kind, message, file, offset, ordinal, .. } = error.clone();
    let kind = kind.as_str_name().into();
    Failure { kind, message, file, offset, ordinal, ..Failure::default() }
}

/// An error as it was kept in the state.
pub(crate) fn failure_to(failure: &Failure) -> WireError {
    let Failure { kind, message, file, offset, ordinal, .. } = failure.clone();
    let kind = ErrorKind::from_str_name(&kind).unwrap_or(ErrorKind::Unspecified);
    WireError { kind, message, file, offset, ordinal, leader: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_comes_back_as_it_was() {
        let error = WireError {
            file: Some("a".into()),
            offset: Some(1),
            ordinal: Some(2),
            ..WireError::new(ErrorKind::Corrupt, "a: damaged")
        };
        assert_eq!(failure_to(&failure_from(&error)), error);
    }
}
