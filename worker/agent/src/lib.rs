//! The worker's shell: it finds and indexes a dataset's files, reads ahead of the plan, and keeps
//! finished batches ready.
//!
//! It must never decide an order or an assignment: the order comes from `shardfeed-plan`, and
//! assignments come through the [`Control`] port, from a coordinator or, within one process, from
//! `shardfeed-embedded`.
//!
//! Start at [`Dataset`] and [`Prefetch`].
#![forbid(unsafe_code)]

mod backoff;
mod error;

mod control;
mod record_spec;

mod cluster;

mod descriptors;
mod looks;

mod discover;

mod blocks;
mod cache;
mod index;

mod dataset;
mod files;
mod sidecar;

mod io_pool;

mod remote;
mod storage_meter;
mod stored;

mod account;
mod meter;
mod threads;
pub mod trace;
pub mod traced;
mod tuning;

mod gather;
mod place;
mod stream;
mod trails;

mod reader;

mod mend;
mod sequence;
mod skipped;
mod work;

mod assignment;
mod dynamic;
mod planner;
mod prefetch;

mod plans;

mod listing;
mod rights;
mod rules;

mod catalog;
mod chunks;
mod entries;
mod opening;
mod scan;

mod pulse;
mod serve;
mod view;
mod worker;

mod budget;

pub use account::{account_from, account_to};
pub use assignment::{Assignment, PlanOf, PrefetchOptions};
pub use budget::default_budget_bytes;
#[doc(hidden)]
pub use cache::fuzzing;
pub use cache::{CacheChoice, CacheOptions};
pub use catalog::Catalog;
pub use cluster::{
    Address, Addresses, Answer, COORDINATOR_TIMEOUT, CallError, Clients, Coordinator,
    CredentialOptions, Credentials, GrpcControl, LeaseTime, Patience, RankReport, Session, Silence,
    Whereabouts, Wire, WorkerInfo, WorkerReport,
};
pub use control::{
    Claim, Control, ControlError, DoubtPolicy, Grant, IN_DOUBT_GRACE, JobSpec, Lease, LeaseRequest,
    LeaseUpdate, Notifier, Waiting,
};
pub use dataset::{Dataset, DatasetFile, LeftOut};
pub use discover::{Found, absolute_pattern, discover};
pub use dynamic::{DynamicRank, GrantStats, GroupsOf};
pub use error::{ChangedLook, LoadError};
pub use index::{ScanProgress, ScanStage};
pub use meter::Demand;
pub use opening::{OpenProgress, Opened, Source};
pub use plans::Plans;
pub use prefetch::{ClaimResult, Polled, Prefetch, PrefetchStats};
pub use record_spec::EncodedSpec;
pub use remote::RemoteStats;
pub use rights::DataRoots;
pub use rules::FileRules;
pub use scan::Scanner;
pub use sequence::Delivered;
pub use shardfeed_pipeline::{Account, Finding, Limit, Reason, Setup, Spent, finding};
pub use sidecar::{Count, Fault, Sidecars};
pub use skipped::Skipped;
pub use stored::StoredFile;
pub use threads::use_threads;
pub use tuning::PREFETCH_START;
pub use view::WorkerView;
pub use worker::{Worker, WorkerError, WorkerOptions};
