//! Shards of each running epoch by state, and samples by source, for monitoring: the last count.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shardfeed_proto::coordinator::v1::get_epoch_map_response::Cell;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct ShardCounts {
    pub(super) asked: Notify,
    counted: Mutex<Counted>,
}

/// Counts of jobs, of the first epoch that some rank has not left.
pub(crate) type Counted = BTreeMap<String, EpochCounts>;

#[derive(Clone, Debug, Default)]
pub(crate) struct EpochCounts {
    pub(crate) shards: Cell,
    /// Delivered samples of each source of a mixture.
    pub(crate) sources: Vec<(String, u64)>,
}

impl ShardCounts {
    /// Returns the last count; the next one starts soon.
    pub(crate) fn ask(&self) -> Counted {
        self.asked.notify_one();
        self.lock().clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Counted> {
        // No code that can panic runs under this lock.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
