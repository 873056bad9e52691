//! What is known beforehand of an epoch: its plan or, in a dynamic job, what its quotas imply.

use std::sync::Arc;

use shardfeed_agent::Plans;
use shardfeed_plan::{Cursor, EpochPlan, PlanError, Segment, Tail, dynamic};

/// The epoch that a rank stands in.
#[derive(Clone, Debug)]
pub(crate) enum Course {
    /// Everything is known.
    Planned(Arc<EpochPlan>),
    /// What a rank delivers is known as it is granted.
    Dynamic {
        /// Steps of every rank; `None` with `tail="uneven"` until the epoch ends.
        steps: Option<u64>,
        /// Samples that no rank will deliver.
        dropped: u64,
    },
}

impl Course {
    /// Of the epoch that a cursor stands in.
    /// - `records`: of the dataset.
    pub(crate) fn at(plans: &Plans, cursor: &Cursor, records: u64) -> Result<Self, PlanError> {
        let (identity, world_size) = (cursor.identity(), cursor.start().world_size);
        if !identity.is_dynamic() {
            let plan = plans.plan(identity, cursor.epoch(), cursor.segments(), world_size)?;
            return Ok(Self::Planned(plan));
        }
        if records == 0 {
            // The same error as that of a plan.
            drop(plans.groups(identity, cursor.epoch())?);
        }
        let (open, closed) = cursor.segments().split_last().expect("a cursor has segments");
        let slots = |segment: &Segment| segment.steps.most().saturating_mul(segment.global_batch);
        let left = records.saturating_sub(closed.iter().map(slots).sum());
        let before: u64 = closed.iter().map(|segment| segment.steps.most()).sum();
        let batch_size = (open.global_batch / world_size.max(1)).max(1);
        let quota = dynamic::quota(identity.tail, left, world_size, batch_size);
        let steps = quota.map(|quota| before + quota / batch_size);
        let dropped = match (identity.tail, quota) {
            (Tail::Drop, Some(quota)) => left.saturating_sub(quota.saturating_mul(world_size)),
            _ => 0,
        };
        Ok(Self::Dynamic { steps, dropped })
    }

    /// Steps of the whole epoch for a rank, if they are known.
    pub(crate) fn steps(&self, rank: u64) -> Option<u64> {
        match self {
            Self::Planned(plan) => Some(plan.rank_steps(rank)),
            Self::Dynamic { steps, .. } => *steps,
        }
    }

    /// Samples of the epoch that no step delivers.
    pub(crate) fn dropped(&self) -> u64 {
        match self {
            Self::Planned(plan) => plan.dropped(),
            Self::Dynamic { dropped, .. } => *dropped,
        }
    }
}
