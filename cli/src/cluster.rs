//! Commands that ask a coordinator: the client, and one module for each noun.
//!
//! All of them call its `AdminService`; none reads a data folder.

mod answer;
mod client;
mod confirm;

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod batch;
pub(crate) mod context;
pub(crate) mod dataset;
pub(crate) mod epoch;
pub(crate) mod events;
pub(crate) mod job;
pub(crate) mod member;
pub(crate) mod rank;
pub(crate) mod secret;
pub(crate) mod shard;
pub(crate) mod status;
pub(crate) mod wait;
pub(crate) mod why;
pub(crate) mod worker;

pub(crate) use client::{CallError, Client, ClusterArgs};
pub(crate) use confirm::Confirm;
pub(crate) use shardfeed_agent::Request;
