//! shardfeed in one process, without daemons: a dataset's files to one rank's batches.
//!
//! The plan is pure, so embedded ranks need no coordinator to agree: each computes its own part.
//! This crate must never know Python, sockets or a network.
//!
//! Start at [`Loader`].
#![forbid(unsafe_code)]

mod control;
mod ledger;

mod options;

mod loader;

pub use control::LocalControl;
pub use loader::{Loader, LoaderStats, Next};
pub use options::LoaderOptions;
pub use shardfeed_agent::{
    CacheChoice, Dataset, Delivered, LoadError, PrefetchStats, ScanProgress, ScanStage,
    default_budget_bytes,
};
