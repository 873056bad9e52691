//! Connection to the other nodes, as a port: the server uses gRPC, tests use channels.

use std::fmt;
use std::fmt::Debug;
use std::time::Duration;

use futures::future::BoxFuture;

/// Carries messages between nodes, as bytes that only this crate interprets.
pub trait Peers: Debug + Send + Sync + 'static {
    /// Passes `message` to [`Node::handle`](crate::Node::handle) of the node `to`, and returns the
    /// result of that. A message that arrives twice, late or never does no harm.
    /// - `deadline`: a later answer is ignored.
    /// # Errors  [`PeerError`]; an error of the other node's `handle` is returned unchanged.
    fn call(
        &self,
        to: &Peer,
        message: Vec<u8>,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, PeerError>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub node: u64,
    /// Address that it advertises; empty if it never reported one.
    pub address: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address.as_str() {
            "" => write!(f, "node {}", self.node),
            address => write!(f, "node {} at {address}", self.node),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No connection, or no answer in time. This is temporary, or the peer is dead.
    #[error("node {node} cannot be reached: {reason}")]
    Unreachable { node: u64, reason: String },
    /// The two do not belong together: another cluster, a node that lost its directory, a release
    /// that cannot read the message. An operator must resolve this.
    #[error("node {node} refuses: {reason}")]
    Refused { node: u64, reason: String },
}
