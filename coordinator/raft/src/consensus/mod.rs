//! openraft's types, and the adapters between its traits and ours.

mod convert;
mod log_adapter;
mod machine_adapter;
mod network;
mod receive;
#[cfg(test)]
mod suite;
mod types;

pub(crate) use convert::members;
pub(crate) use log_adapter::LogAdapter;
pub(crate) use machine_adapter::{MachineAdapter, Shared};
pub(crate) use network::Network;
pub(crate) use receive::Receiver;
pub(crate) use types::{MemberAddress, Raft, RaftCommand, TypeConfig};
