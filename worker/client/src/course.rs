//! Plan of an epoch, known in advance for a deterministic job only.

use std::sync::Arc;

use shardfeed_plan::{Cursor, EpochPlan, PlanError};
use shardfeed_reader::Plans;

/// Plan of the epoch that a rank is in; `None` for a dynamic job, whose samples are known only as
/// they are granted.
pub(crate) type Course = Option<Arc<EpochPlan>>;

/// Returns the course of the cursor's epoch.
/// - `samples`: of the dataset.
pub(crate) fn course_at(plans: &Plans, cursor: &Cursor, samples: u64) -> Result<Course, PlanError> {
    let identity = cursor.identity();
    if !identity.is_dynamic() {
        return plan_at(plans, cursor).map(Some);
    }
    if samples == 0 {
        // Returns the same error as planning would.
        drop(plans.groups(identity, cursor.epoch())?);
    }
    Ok(None)
}

pub(crate) fn plan_at(plans: &Plans, cursor: &Cursor) -> Result<Arc<EpochPlan>, PlanError> {
    let world_size = cursor.start().world_size;
    plans.plan(cursor.identity(), cursor.epoch(), cursor.segments(), world_size)
}
