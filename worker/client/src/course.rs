//! Plan of an epoch, known in advance for a deterministic job only.

use std::sync::Arc;

use shardfeed_plan::{Cursor, EpochPlan, PlanError};
use shardfeed_reader::Plans;

/// Plan of the epoch that a rank is in, if it has one.
#[derive(Clone, Debug)]
pub(crate) enum Course {
    /// A deterministic job: the plan of the whole epoch.
    Planned(Arc<EpochPlan>),
    /// A dynamic job: the samples of a rank are known only as they are granted.
    Dynamic,
}

impl Course {
    /// Returns the course of the cursor's epoch.
    /// - `samples`: of the dataset.
    pub(crate) fn at(plans: &Plans, cursor: &Cursor, samples: u64) -> Result<Self, PlanError> {
        let identity = cursor.identity();
        if !identity.is_dynamic() {
            return Ok(Self::Planned(plan_at(plans, cursor)?));
        }
        if samples == 0 {
            // Returns the same error as planning would.
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

    /// Samples of the epoch, if they are known from its plan.
    pub(crate) fn samples(&self) -> Option<u64> {
        match self {
            Self::Planned(plan) => Some(plan.samples()),
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

pub(crate) fn plan_at(plans: &Plans, cursor: &Cursor) -> Result<Arc<EpochPlan>, PlanError> {
    let world_size = cursor.start().world_size;
    plans.plan(cursor.identity(), cursor.epoch(), cursor.segments(), world_size)
}
