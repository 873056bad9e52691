//! A coordinator, one of 1, 3 or 5: gRPC for workers, people and the other coordinators, HTTP for
//! monitoring, and the timers, around the replicated state of `shardfeed-scheduler`.
//!
//! Calls are checked, then read from the applied state or proposed as commands; stored data changes
//! in no other way. Renewals of sessions and progress are in the leader's memory only, for its
//! term. This crate must never decide the effect of a command, never write the content of a log,
//! and use nothing but its [`Host`](shardfeed_host::Host) for time, connections, files or threads.
//!
//! Start at [`Coordinator::start`], then `net` (connections, joining a cluster), `rpc` (calls and
//! permissions), `leader` (shared parts, background work, claims of dynamic jobs' groups),
//! `storage` (chunks and their replication) and `views` (data shown to users).
#![forbid(unsafe_code)]

mod config;
mod error;
mod inspect;
mod leader;
mod metrics;
mod net;
mod recent;
mod rpc;
mod server;
mod storage;
mod ticks;
mod views;

#[doc(hidden)]
pub mod limits;
pub mod page;

pub use config::{CoordinatorOptions, InvalidOption};
pub use error::StartError;
pub use inspect::Inspector;
pub use net::front::Health;
pub use net::http::{Pages, serve_pages};
pub use server::{Coordinator, Running, Starting};
pub use storage::archive::{RestoreError, Restored, restore_snapshot};

/// Returns the page /metrics with a line for every metric, for docs/METRICS.md.
#[doc(hidden)]
pub fn metrics_example() -> String {
    let host: &dyn shardfeed_host::Host = &shardfeed_host::RealHost;
    let (metrics, jobs) = (metrics::Metrics::example(), leader::measures::example());
    leader::measures::page(&metrics, &jobs, &host.process_page())
}
