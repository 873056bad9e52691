//! The batches of one rank: planned, read ahead, assembled and kept in sequence.
//!
//! It must never decide an order or an assignment: the order comes from `shardfeed-plan`, and
//! assignments come through the [`Control`] port, from a coordinator or, without a cluster, from
//! `shardfeed-client`.
//!
//! Start at [`Prefetch`].
#![forbid(unsafe_code)]

mod control;
pub mod traced;

mod record_spec;
mod skipped;

mod budget;
mod io_pool;
mod meter;
mod threads;
mod tuning;

mod records;

mod mend;
mod sequence;
mod work;

mod plans;

mod epoch_samples;

mod assignment;
mod dynamic;
mod planner;
mod prefetch;

pub use assignment::{Assignment, PrefetchOptions};
pub use budget::default_budget_bytes;
pub use control::{
    Claim, Control, ControlError, DoubtPolicy, Grant, IN_DOUBT_GRACE, JobSpec, Lease, LeaseRequest,
    LeaseTime, LeaseUpdate, Notifier, StartPosition, Waiting, account_from, account_to,
};
pub use dynamic::{GrantStats, lapsed};
pub use epoch_samples::{CostOf, EpochSamples, SampleCosts};
pub use meter::Demand;
pub use planner::slot_row_bytes;
pub use plans::Plans;
pub use prefetch::{Consumer, LeaseGuard, Prefetch, PrefetchStats, RankLease, RankReader};
pub use record_spec::{EncodedSpec, SourceSchemas};
pub use sequence::{Delivered, Delivery};
pub use skipped::Skipped;
pub use threads::use_threads;
pub use tuning::PREFETCH_START;
