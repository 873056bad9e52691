//! A replicated, durable command log behind our own traits.
//!
//! A [`Node`] keeps a log of commands, which are bytes to it, and drives one [`Machine`] with them:
//! in log order, each index once. `propose` answers when the command is on disk on a majority and applied
//! here. A node that cannot write stops for good and says so; what it acknowledged before is there after
//! a restart, whatever happened to a minority of the others.
//!
//! A cluster begins with one node ([`Start::Alone`]) or with several at once ([`Start::Found`]), and
//! grows by `add_member`. Nodes talk through [`Peers`], which carries bytes: what they say is in frames
//! with the cluster's id, and each message names the *incarnation* of both ends, made with their
//! directories. A node of another cluster, one that lost its directory and one that was removed are thus
//! refused, by both sides and in words; the members' list in the log remembers which incarnation it let
//! in. A number that was a node's once is never given again. What cannot be seen for sure is a disk that
//! goes back in time: the leader that had its acknowledgements refuses it, a later leader does not know.
//!
//! This crate is the wall in front of openraft and redb: no type of theirs is public, and what lies on
//! disk or goes between nodes is in our own encoding, so that neither's next version migrates anything.
//! It must never know what a command means. It asks the machine it runs on for nothing but through
//! [`Host`](shardfeed_host::Host) and tokio's time; without threads the same code runs inline, and
//! [`seed_randomness`] decides all else.
//!
//! Start at [`Node`]; then `log` (what a store must do), `committer` (who writes, and when), `snapshot`,
//! `message` and `links` (what nodes say, and how calls go wrong), `membership`, `tending` (what a node
//! does of its own accord) and `consensus` (how openraft's traits stand on all that).
#![forbid(unsafe_code)]

mod committer;
mod consensus;
mod directory;
mod error;
mod framing;
mod identity;
mod incoming;
mod leadership;
mod links;
mod log;
mod machine;
mod membership;
mod message;
mod node;
mod opening;
mod options;
mod peers;
mod record;
mod redb_log;
mod snapshot;
mod start;
mod status;
mod tending;
mod witness;

pub use consensus::seed_randomness;
pub use error::{ChangeError, OpenError, ProposeError};
pub use identity::{Identity, identity, restore};
pub use leadership::{Leadership, Member, Role};
pub use machine::{Machine, MachineError};
pub use node::{Applied, Footing, Node};
pub use options::NodeOptions;
pub use peers::{NoPeers, Peer, PeerError, Peers};
pub use start::Start;
pub use status::Status;
