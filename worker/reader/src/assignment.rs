//! Source of a rank's samples, and the inputs and limits of reading them.

use std::sync::Arc;

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::ShardSchemas;
use shardfeed_plan::{Corrupt, EpochPlan, JobIdentity};
use shardfeed_source::{Dataset, LoadError};

use crate::plans::Plans;
use crate::prefetch::RankLease;

/// The lease of a rank, and the inputs of the plans that determine its samples.
pub struct Assignment {
    pub rank: RankLease,
    pub plans: Arc<Plans>,
    pub identity: JobIdentity,
    pub world_size: u64,
}

impl Assignment {
    /// Returns the plan of an epoch of a deterministic job.
    ///
    /// # Errors  The lease is known to be invalid; there is no such plan.
    pub(crate) fn plan(&self, epoch: u64) -> Result<Arc<EpochPlan>, LoadError> {
        self.rank.check()?;
        let lanes = self.rank.lease.lanes(epoch);
        Ok(self.plans.plan(&self.identity, epoch, &lanes, self.world_size)?)
    }

    /// Returns the number of samples of a full batch of a dynamic job.
    pub(crate) fn batch_size(&self) -> u64 {
        let open = self.rank.lease.segments.last();
        open.map_or(1, |open| open.global_batch / self.world_size.max(1))
    }
}

/// Inputs, position and limits of reading ahead for one rank.
pub struct PrefetchOptions {
    pub dataset: Arc<Dataset>,
    /// Features, operators and outputs of its records.
    pub schemas: ShardSchemas,
    pub corrupt: Corrupt,
    /// Slots that batches are written into.
    pub slots: SlotPool,
    pub rank: u64,
    pub epoch: u64,
    pub step: u64,
    /// Maximum number of batches ready or in progress; `None`: chosen while reading.
    pub prefetch: Option<usize>,
    /// Bytes for records being read and batches ahead.
    pub budget_bytes: u64,
    /// True if this process reads because a worker was lost or stopped serving the rank.
    pub took_over: bool,
}
