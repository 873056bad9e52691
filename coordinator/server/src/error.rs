//! Errors: of starting a coordinator, and of rejected calls on the wire.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_raft::{ChangeError, OpenError, Peer, PeerError, ProposeError};
use shardfeed_scheduler::{Failure, Refusal};
use shardfeed_tls::TlsError;

use crate::config::InvalidOption;
use crate::storage::chunks::ChunkStoreError;

pub(crate) type Result<T, E = WireError> = std::result::Result<T, E>;
pub(crate) type StartResult<T> = std::result::Result<T, StartError>;

/// Error of starting a coordinator: the cause, the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Option(#[from] InvalidOption),
    #[error(
        "{}: cannot {action}: {source}; data-dir must be a writable folder on a disk with free space",
        .path.display()
    )]
    DataDir { path: PathBuf, action: &'static str, source: io::Error },
    #[error(transparent)]
    Node(#[from] OpenError),
    #[error("option `tls`: {0}")]
    Tls(TlsError),
    /// `option`: `listen` or `http`.
    #[error("option `{option}`: cannot listen on {address}: {source}; {hint}")]
    Listen { option: &'static str, address: SocketAddr, source: io::Error, hint: &'static str },
    #[error(
        "node {node} of cluster {cluster} lost its disk: its data folder is empty, but the cluster knows \
         it; remove it from the cluster and add it under a number that was never used"
    )]
    LostDisk { node: u64, cluster: String },
    #[error(
        "option `peers`: {address} is part of cluster {cluster} already, which does not know node {node}; \
         give this node `join`, too, and add it to the cluster"
    )]
    NotAFounder { node: u64, address: String, cluster: String },
    #[error(
        "{address} is of cluster `{theirs}`, this node is to be of `{ours}`; check the address and the \
         option `cluster-name`"
    )]
    OtherCluster { address: String, theirs: String, ours: String },
}

impl StartError {
    /// True if the next start with the same options and folder fails, too, unless an operator acts.
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

/// Converts a rejection; the error kind determines the receiver's reaction.
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
        Refusal::Forgotten { .. } => ErrorKind::State,
        Refusal::Cordoned { .. } => ErrorKind::Cordoned,
        Refusal::Invalid(_) | Refusal::Full { .. } => ErrorKind::Invalid,
    };
    WireError::new(kind, refusal.to_string())
}

pub(crate) fn proposal(error: &ProposeError) -> WireError {
    let kind = match error {
        ProposeError::NotLeader { .. } => ErrorKind::NotLeader,
        ProposeError::Stopped { .. } => ErrorKind::Storage,
        // The outcome is not known yet; a retry with the same request id determines it.
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

/// Returns a node's address, if it ever reported one.
pub(crate) fn address_of(peer: &Peer) -> Option<String> {
    (!peer.address.is_empty()).then(|| peer.address.clone())
}

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

impl From<ChunkStoreError> for WireError {
    fn from(error: ChunkStoreError) -> Self {
        let kind = match &error {
            ChunkStoreError::NotFound { .. } => ErrorKind::NotFound,
            ChunkStoreError::Corrupt { .. } => ErrorKind::Corrupt,
            ChunkStoreError::Size { .. } => ErrorKind::Invalid,
            ChunkStoreError::Full { .. } | ChunkStoreError::OwnerFull { .. } => ErrorKind::Retry,
            ChunkStoreError::Io { .. } => ErrorKind::Storage,
        };
        let message = error.to_string();
        let file = match error {
            ChunkStoreError::Corrupt { path, .. } => Some(path),
            _ => None,
        };
        Self { file, ..Self::new(kind, message) }
    }
}

pub(crate) fn invalid(message: impl Into<String>) -> WireError {
    WireError::new(ErrorKind::Invalid, message)
}

pub(crate) fn not_found(message: impl Into<String>) -> WireError {
    WireError::new(ErrorKind::NotFound, message)
}

pub(crate) fn retry(message: impl Into<String>) -> WireError {
    WireError::new(ErrorKind::Retry, message)
}

/// Returns the error for a task of ours that died: a bug.
pub(crate) fn lost(what: &str) -> WireError {
    WireError::new(
        ErrorKind::Unspecified,
        format!("{what} stopped unexpectedly; please report this with the coordinator's log"),
    )
}

/// Converts an error to the form that the state keeps.
pub(crate) fn failure_from(error: &WireError) -> Failure {
    let WireError { kind, message, file, offset, ordinal, .. } = error.clone();
    let kind = kind.as_str_name().into();
    Failure { kind, message, file, offset, ordinal, ..Failure::default() }
}

/// Converts an error from the form that the state keeps.
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
