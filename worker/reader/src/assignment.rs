//! Source of a rank's samples, and the inputs and limits of reading them.

use std::sync::Arc;

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::ShardSchemas;
use shardfeed_plan::{Corrupt, EpochPlan, JobIdentity};
use shardfeed_source::{Dataset, LoadError};

use crate::control::{Control, Lease};
use crate::dynamic::DynamicRank;
use crate::plans::Plans;

/// Callback that returns the plan of an epoch, from the component that assigns work.
pub type PlanOf = Box<dyn FnMut(u64) -> Result<Arc<EpochPlan>, LoadError> + Send>;

/// Source of a rank's samples.
pub enum Assignment {
    /// The plan of an epoch; requested once for each epoch, in ascending order.
    Planned(PlanOf),
    Dynamic(DynamicRank),
}

impl Assignment {
    pub fn of(
        control: Arc<dyn Control>,
        lease: &Lease,
        plans: Arc<Plans>,
        identity: &JobIdentity,
        world_size: u64,
    ) -> Self {
        let (lease, identity) = (lease.clone(), identity.clone());
        if identity.is_dynamic() {
            let open = lease.segments.last();
            let batch_size = open.map_or(1, |open| open.global_batch / world_size.max(1));
            let shuffle = identity.shuffle.clone();
            let groups_of = Box::new(move |epoch| Ok(plans.groups(&identity, epoch)?));
            return Self::Dynamic(DynamicRank { control, lease, groups_of, shuffle, batch_size });
        }
        Self::Planned(Box::new(move |epoch| {
            control.check(&lease)?;
            Ok(plans.plan(&identity, epoch, &lease.lanes(epoch), world_size)?)
        }))
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
