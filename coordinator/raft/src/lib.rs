//! A replicated, durable command log behind our own traits.
//!
//! A [`Node`] keeps a log of commands, which are opaque bytes to it, and applies them to one
//! [`Machine`]: in log order, each index once. `propose` returns when the command is on disk on a
//! majority and applied here. A node that cannot write stops permanently and reports the error;
//! everything it acknowledged survives a restart, even if a minority of the other nodes fails.
//!
//! A cluster starts with one node ([`Start::Alone`]) or with several at once ([`Start::Found`]),
//! and grows by `add_member`. Nodes communicate through [`Peers`], which carries bytes: messages
//! are frames with the cluster's id, and each message has the *incarnation* of both ends, an id
//! made with their directories. A node of another cluster, a node that lost its directory and a
//! node that was removed are thus rejected by both sides, with an explanation; the list of members
//! in the log records the admitted incarnation. The number of a node is never used again. A disk
//! that goes back in time cannot be detected with certainty: the leader that had its
//! acknowledgements rejects the node, a later leader does not know of them.
//!
//! This crate isolates openraft and redb: none of their types is public, and the data on disk and
//! between nodes has our own encoding, so that a new version of either needs no migration. It must
//! never interpret a command. It uses the machine it runs on only through
//! [`Host`](shardfeed_host::Host), tokio's time, and the system's randomness for openraft's election
//! timeouts; without threads the same code runs inline.
//!
//! Start at [`Node`]; then `storage` (`log`: contract of a store; `committer`: writes to the log;
//! `snapshot`), `network` (`message` and `links`: messages of nodes, and failures of calls),
//! `membership`, `tending` (maintenance) and `consensus` (adapters for openraft's traits).
#![forbid(unsafe_code)]

mod consensus;
mod error;
mod identity;
mod machine;
mod membership;
mod network;
mod node;
mod opening;
mod options;
mod status;
mod storage;
mod tending;

pub use error::{ChangeError, OpenError, ProposeError};
pub use identity::{Identity, identity, restore};
pub use machine::{Machine, MachineError};
pub use network::peers::{Peer, PeerError, Peers};
pub use node::{AppliedCommand, Footing, Node};
pub use options::{NodeOptions, Start};
pub use status::{Leadership, Member, Role, Status};
pub use storage::redb_log::SyncMeter;
