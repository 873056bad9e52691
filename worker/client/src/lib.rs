//! Trainer side of shardfeed: one rank's position in the dataset, and its batches.
//!
//! Batches come from this host's worker or from this process. A worker that dies is replaced:
//! batches that were already received are delivered, and the following ones come from the
//! replacement, strictly in sequence. This crate never depends on Python and never decides an
//! order.
//!
//! Start at [`Loader`].
#![forbid(unsafe_code)]

mod contents;
mod course;
mod head;
mod options;

mod ledger;
mod pace;
mod skipped;
mod timeline;

mod link;

mod reshard;
mod spec_in_state;

mod loader;

pub use contents::{Contents, ShardRow};
pub use link::connect::default_worker_socket;
pub use link::exchange::ControlOf;
pub use loader::{Commit, Loader, LoaderStats, Next, Offer, Offered};
pub use options::{ClusterOptions, LoaderOptions, interleave_default};
pub use shardfeed_pipeline::RecordSpec;
pub use timeline::{worker_answers, worker_timeline};

pub use shardfeed_agent::{OpenProgress, account_from, account_to, default_budget_bytes};
pub use shardfeed_pipeline::{Account, Finding, Limit, Reason, Setup, Spent, finding};
pub use shardfeed_reader::{
    Delivered, DoubtPolicy, EncodedSpec, GrantStats, PrefetchStats, use_threads,
};
pub use shardfeed_source::{
    CacheChoice, CacheOptions, Dataset, LoadError, ScanProgress, ScanStage, trace,
};
pub use skipped::{CorruptBudget, SkippedRecord, What};
