//! Samples and steps of an epoch.

use shardfeed_plan::EpochPlan;
use shardfeed_scheduler::Tally;

use crate::error::{self, Result};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) total: u64,
    pub(super) delivered: u64,
    /// Samples left out by the tail or a limit.
    pub(super) dropped: u64,
    pub(super) duplicated: u64,
    /// Samples possibly consumed twice: by a lost rank and by another one.
    pub(super) redelivered: u64,
    /// Steps of every rank; 0 for a dynamic job.
    pub(super) steps: u64,
    /// Steps consumed by every rank.
    pub(super) steps_done: u64,
}

impl Counts {
    /// Returns the counts of an epoch that a plan gives, up to the ranks' `steps`.
    pub(super) fn of_plan(plan: &EpochPlan, steps: &[u64]) -> Result<Self> {
        Ok(Self {
            total: plan.samples(),
            delivered: plan.delivered_before(steps).map_err(|error| error::plan(&error))?,
            dropped: plan.dropped(),
            // A cursor never goes back in a generation, and a generation continues where its parent
            // stopped.
            duplicated: 0,
            redelivered: 0,
            steps: plan.steps(),
            steps_done: steps.iter().min().copied().unwrap_or(0),
        })
    }

    /// Returns the counts of a dynamic epoch that every rank has left.
    pub(super) fn of_tally(tally: Tally) -> Self {
        let Tally { total, delivered, duplicated, redelivered, dropped, .. } = tally;
        Self { total, delivered, dropped, duplicated, redelivered, ..Self::default() }
    }

    /// Returns the number of samples neither delivered nor left out.
    pub(super) fn left(&self) -> u64 {
        self.total.saturating_sub(self.dropped).saturating_sub(self.delivered)
    }
}
