//! How a node reaches the others, as a port: the server speaks gRPC, tests speak through channels.

use std::fmt;
use std::fmt::Debug;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

/// Carries messages between nodes. They are bytes here: what they say is this crate's business.
pub trait Peers: Debug + Send + Sync + 'static {
    /// Hands `message` to [`Node::handle`](crate::Node::handle) of the node `to`, and brings back what
    /// that returned. A message that arrives twice, late or never does no harm.
    /// - `deadline`: an answer after it is of no use to anyone.
    /// # Errors  [`PeerError`]; what the other node's `handle` refused comes back as it was.
    fn call(
        &self,
        to: &Peer,
        message: Vec<u8>,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, PeerError>>;
}

/// A node and where to find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its number in the cluster.
    pub node: u64,
    /// The address that it advertises; empty, if it never said one.
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

/// Why a peer gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No connection, or no answer in time. It passes, or the peer is dead.
    #[error("node {node} cannot be reached: {reason}")]
    Unreachable {
        /// Who was called.
        node: u64,
        /// What the network says.
        reason: String,
    },
    /// The two do not belong together: another cluster, a node that lost its directory, a release that
    /// cannot read the message. It does not pass by itself: a person must look.
    #[error("node {node} refuses: {reason}")]
    Refused {
        /// Who refuses.
        node: u64,
        /// Why, and what to do.
        reason: String,
    },
}

/// The network of a cluster of one: nobody can be reached.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPeers;

impl Peers for NoPeers {
    fn call(
        &self,
        to: &Peer,
        _message: Vec<u8>,
        _deadline: Duration,
    ) -> BoxFuture<'static, Result<Vec<u8>, PeerError>> {
        let reason = "this node was started without a way to reach others".to_owned();
        std::future::ready(Err(PeerError::Unreachable { node: to.node, reason })).boxed()
    }
}
