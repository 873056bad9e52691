//! Core of a coordinator, and its work as the leader.

pub(crate) mod claim_queue;
pub(crate) mod claims;
pub(crate) mod computing;
pub(crate) mod core;
pub(crate) mod keeper;
pub(crate) mod measures;
pub(crate) mod mixtures;
pub(crate) mod plans;
pub(crate) mod progress;
pub(crate) mod sessions;
pub(crate) mod shard_counter;
pub(crate) mod shard_counts;
pub(crate) mod standing;
pub(crate) mod timers;
