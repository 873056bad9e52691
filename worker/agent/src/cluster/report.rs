//! State of a worker and its ranks, for monitoring.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use shardfeed_pipeline::Account;

#[derive(Clone, Debug, PartialEq)]
pub struct WorkerReport {
    /// Session id, while the coordinator knows it.
    pub session: Option<u64>,
    /// True if the coordinator has ever accepted this process.
    pub has_joined: bool,
    pub refused: Option<String>,
    /// Time since the session was last known to be alive.
    pub confirmed: Option<Duration>,
    /// Response time of the last answered heartbeat.
    pub heartbeat_took: Option<Duration>,
    /// Corrupt records left out, by job; for each at most as many as the coordinator remembers.
    pub corrupt_records: BTreeMap<String, u64>,
    /// Expiry of the certificate that it presents to coordinators, if any.
    pub certificate_not_after: Option<SystemTime>,
    pub is_draining: bool,
    pub trainers: u64,
    /// Bytes of its memory budget; `budget_left_bytes` are those not assigned to a rank.
    pub budget_bytes: u64,
    /// See `budget_bytes`.
    pub budget_left_bytes: u64,
    pub ranks: Vec<RankReport>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RankReport {
    pub job: String,
    pub rank: u64,
    pub generation: u64,
    /// First step that was not consumed.
    pub epoch: u64,
    /// See `epoch`.
    pub step: u64,
    /// Batches that are ready for the trainer.
    pub ready: u64,
    /// Time breakdown; `None` before its first batch.
    pub account: Option<Account>,
}
