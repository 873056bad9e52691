//! A coordinator, one of 1, 3 or 5: gRPC for workers, people and the other coordinators, HTTP for
//! monitoring, and the timers, around the replicated state of `shardfeed-scheduler`.
//!
//! Calls are checked, then read from the applied state or proposed as commands; stored data changes
//! in no other way. Renewals of sessions and progress are in the leader's memory only, for its
//! term. This crate must never decide the effect of a command, never write the content of a log,
//! and use nothing but its [`Host`](shardfeed_host::Host) for time, connections, files or threads.
//!
//! Start at [`Coordinator::start`], then `bootstrap` (joining a cluster), `rpc` (each call),
//! `timers` and `keeper` (background work), `takes` (claims of dynamic jobs' groups), `copies`
//! (replication of chunks), `rights` (permissions), `core` (shared parts), `views` (data shown to
//! users) and `measures` (data for monitoring).
#![forbid(unsafe_code)]

mod config;
mod error;

mod front;

mod bootstrap;
mod links;

mod core;
mod keeper;
mod machine;
mod server;
mod timers;

mod claims;
mod progress;
mod rpc;
mod sessions;
mod standing;

mod archive;
mod chunks;
mod copies;
mod manifests;
mod plans;
mod views;

mod inspect;

mod http;
mod measures;
mod metered;
mod metrics;
mod net;
mod shard_counts;
mod strangers;

mod audit;
mod rights;

#[doc(hidden)]
pub mod limits;

pub use archive::{RestoreError, Restored, restore_snapshot};
pub use config::{CoordinatorOptions, InvalidOption};
pub use error::StartError;
pub use front::Health;
pub use inspect::Inspector;
pub use server::{Coordinator, Running, Starting, run};

/// Returns the page /metrics with a line for every metric, for docs/METRICS.md.
#[doc(hidden)]
pub fn metrics_example() -> String {
    let host: &dyn shardfeed_host::Host = &shardfeed_host::RealHost;
    measures::page(&metrics::Metrics::example(), &measures::example(), &host.process_page())
}
