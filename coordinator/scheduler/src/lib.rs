//! The replicated state machine: datasets, jobs, runs, generations, sessions and leases.
//!
//! [`State`] holds everything that the coordinators agree on, and only [`State::apply`] changes it.
//! This crate never reads a clock, a file, the environment or a random number, never waits and
//! never starts a thread: the same commands at the same log indexes produce the same state, byte
//! for byte, on every replica.
//!
//! Start at [`State::apply`] and [`Change`]; `job/place.rs` holds the rules of starts.
#![forbid(unsafe_code)]

mod access;
mod dataset;
mod dynamic;
mod invariant;
mod job;
mod log;
mod session;
mod state;

#[cfg(test)]
mod fixture;

pub use access::{AccessToken, Join, Unusable, covers};
pub use dataset::scan::{PartState, Progress, Scan, ScanLease, ScanPart};
pub use dataset::{Dataset, Phase, Ready};
pub use dynamic::balance::Speeds;
pub use dynamic::history::{Return, Returned, Returns};
pub use dynamic::pool::{Doubt, Pool, RankAssignment, Tally};
pub use invariant::breach::Breach;
pub use job::generation::{Generation, Rank, SealedEpoch, Successor};
pub use job::lease::{LeaseEnded, PastLease, PastLeases, RankLease};
pub use job::origin::Origin;
pub use job::phase::JobPhase;
pub use job::skipped::SampleRuns;
pub use job::{Held, Job};
pub use log::*;
pub use session::{EndedSession, Session, principal_name};
pub use shardfeed_plan::Intent;
pub use state::{Applied, SNAPSHOT_FORMAT, SnapshotError, State};
