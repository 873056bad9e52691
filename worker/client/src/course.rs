//! What is known beforehand of an epoch: its plan or, in a dynamic job, nothing.

use std::sync::Arc;

use shardfeed_agent::Plans;
use shardfeed_plan::{Cursor, EpochPlan, PlanError};

/// The epoch that a rank stands in.
#[derive(Clone, Debug)]
pub(crate) enum Course {
    /// Everything is known.
    Planned(Arc<EpochPlan>),
    /// What a rank delivers is known as it is granted.
    Dynamic,
}

impl Course {
    /// Of the epoch that a cursor stands in.
    /// - `records`: of the dataset.
    pub(crate) fn at(plans: &Plans, cursor: &Cursor, records: u64) -> Result<Self, PlanError> {
        let identity = cursor.identity();
        if !identity.is_dynamic() {
            let world_size = cursor.start().world_size;
            let plan = plans.plan(identity, cursor.epoch(), cursor.segments(), world_size)?;
            return Ok(Self::Planned(plan));
        }
        if records == 0 {
            // The same error as that of a plan.
            drop(plans.groups(identity, cursor.epoch())?);
        }
        Ok(Self::Dynamic)
    }

    /// Steps of the whole epoch for a rank, if they are known.
    pub(crate) fn steps(&self, rank: u64) -> Option<u64> {
        match self {
            Self::Planned(plan) => Some(plan.rank_steps(rank)),
            Self::Dynamic => None,
        }
    }

    /// Samples of the epoch that no step delivers.
    pub(crate) fn dropped(&self) -> u64 {
        match self {
            Self::Planned(plan) => plan.dropped(),
            Self::Dynamic => 0,
        }
    }
}
