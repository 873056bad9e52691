//! The trainer's side: where one rank stands, and its batches, from this host's worker or from this
//! process.
//!
//! A worker that dies is replaced: batches that were in hand are delivered, the next ones come from
//! wherever reading goes on, strictly in sequence. This crate must never know Python, and never
//! decides an order.
//!
//! Start at [`Loader`].
#![forbid(unsafe_code)]

mod contents;
mod course;
mod options;

mod ledger;
mod skipped;

mod link;

mod redeal;

mod loader;

pub use contents::{Contents, ShardRow};
pub use link::{ControlOf, default_worker_socket};
pub use loader::{Loader, LoaderStats, Next};
pub use options::{ClusterOptions, LoaderOptions};
pub use shardfeed_agent::{
    CacheChoice, CacheOptions, Dataset, Delivered, LoadError, OpenProgress, PrefetchStats,
    ScanProgress, ScanStage, default_budget_bytes,
};
pub use skipped::{CorruptBudget, SkippedRecord, What};
