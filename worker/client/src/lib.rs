//! Trainer side of shardfeed: one rank's position in the dataset, and its batches.
//!
//! Batches come from this host's worker or from this process. A worker that dies is replaced:
//! batches that were already received are delivered, and the following ones come from the
//! replacement, strictly in sequence. This crate never depends on Python, gRPC or TLS and never
//! decides an order: coordinators are behind the [`ClusterPort`].
//!
//! Start at [`Loader`].
#![forbid(unsafe_code)]

mod cluster_port;
mod contents;
mod course;
mod head;
mod identity;
mod options;

mod ledger;
mod pace;
mod parts;
mod skipped;
mod timeline;

mod link;

mod mixture;
mod request;
mod reshard;
mod spec_in_state;

mod loader;

pub use cluster_port::{ClusterPort, InProcessWorker, Joined};
pub use contents::{Contents, ShardRow};
pub use link::connect::default_worker_socket;
pub use loader::{Commit, Loader, LoaderStats, Offered};
pub use mixture::check_stages;
pub use options::{
    ClusterOptions, LoaderOptions, MixtureOptions, MixtureSource, MixtureStage, interleave_default,
};
pub use parts::{BatchParts, RecordParts, RowPart};
pub use request::{DatasetRequest, open_dataset};
pub use shardfeed_pipeline::RecordSpec;
pub use spec_in_state::spec_of;
pub use timeline::{worker_answers, worker_timeline};

pub use shardfeed_pipeline::{Account, Finding, Limit, Reason, Setup, Spent, finding};
pub use shardfeed_reader::{
    Delivered, Delivery, DoubtPolicy, EncodedSpec, EpochSamples, GrantStats, Plans, PrefetchStats,
    SampleCosts, account_from, account_to, default_budget_bytes, use_threads,
};
pub use shardfeed_source::{
    CacheChoice, CacheOptions, Dataset, LoadError, OpenProgress, ScanProgress, ScanStage,
    SharedIndex, SourceVersion, trace,
};
pub use skipped::{CorruptBudget, SkippedRecord, What};
