//! A replicated, durable command log behind our own traits.
//!
//! A [`Node`] keeps a log of commands, which are bytes to it, and drives one [`Machine`] with them:
//! in log order, each index once. `propose` answers when the command is on disk and applied. A node
//! that cannot write stops for good and says so; what it acknowledged before is there after a restart.
//!
//! This crate is the wall in front of openraft and redb: no type of theirs is public, and what lies on
//! disk is in our own encoding, so that neither's next version migrates anything. It must never know
//! what a command means.
//!
//! Start at [`Node`]; then `log` (what a store must do), `committer` (who writes, and when), `snapshot`
//! and `consensus` (the only files that name openraft).
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
