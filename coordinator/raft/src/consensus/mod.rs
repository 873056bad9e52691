//! The only files that name openraft: what it is made of, and how its traits stand on ours.

mod convert;
mod log_adapter;
mod machine_adapter;
mod network;
#[cfg(test)]
mod suite;
mod types;

pub(crate) use convert::members;
pub(crate) use log_adapter::LogAdapter;
pub(crate) use machine_adapter::{MachineAdapter, Shared};
pub(crate) use network::NoPeers;
pub(crate) use types::{Command, Raft, TypeConfig};
