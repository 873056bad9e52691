//! Samples and steps of an epoch.

use shardfeed_plan::EpochPlan;
use shardfeed_scheduler::{Generation, Tally};

use crate::error::Result;
use crate::leader::plans::EpochOf;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) total: u64,
    pub(super) delivered: u64,
    /// Samples left out by the tail or a limit.
    pub(super) dropped: u64,
    /// Samples of steps that all ranks left out.
    pub(super) left_out: u64,
    pub(super) duplicated: u64,
    /// Samples possibly consumed twice: by a lost rank and by another one.
    pub(super) redelivered: u64,
    /// Steps of every rank; 0 for a dynamic job.
    pub(super) steps: u64,
    /// Steps consumed by every rank.
    pub(super) steps_done: u64,
}

impl Counts {
    /// Returns the counts of an epoch of a generation that a plan gives, up to the ranks' `steps`.
    pub(super) fn of_plan(of: &Generation, plan: &EpochPlan, steps: &[u64]) -> Result<Self> {
        // They are before the generation's origin, so that all ranks are beyond them.
        let left_out = of.left_out_of(plan.epoch()).samples(&of.origin.segments);
        let consumed = plan.delivered_before(steps)?;
        Ok(Self {
            total: plan.samples(),
            delivered: consumed.saturating_sub(left_out),
            dropped: plan.dropped(),
            left_out,
            // A cursor never goes back in a generation, which continues where its parent stopped.
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
        let gone = self.dropped.saturating_add(self.left_out);
        self.total.saturating_sub(gone).saturating_sub(self.delivered)
    }
}

/// Samples of each shard of an epoch, in manifest order.
#[derive(Debug)]
pub(super) struct ByShard {
    pub(super) delivered: Vec<u64>,
    pub(super) dropped: Vec<u64>,
    pub(super) left_out: Vec<u64>,
}

impl ByShard {
    /// Returns those of an epoch's plan, up to the ranks' `steps`. Slow to compute.
    pub(super) fn of_plan(of: &EpochOf, plan: &EpochPlan, steps: &[u64]) -> Result<Self> {
        let mut delivered = plan.delivered_by_shard(steps)?;
        let dropped = plan.dropped_by_shard()?;
        let left_out = plan.left_out_by_shard(&of.left_out)?;
        // These steps are before the generation's origin, so that all ranks are beyond them.
        for (delivered, left_out) in delivered.iter_mut().zip(&left_out) {
            *delivered = delivered.saturating_sub(*left_out);
        }
        Ok(Self { delivered, dropped, left_out })
    }
}

/// Returns the samples of each source that a rank has before `step` in the last segment of an epoch,
/// without those of steps that all ranks left out.
pub(super) fn of_rank(of: &EpochOf, plan: &EpochPlan, rank: u64, step: u64) -> Result<Vec<u64>> {
    let before = |step: u64| {
        let steps = (0..of.world_size).map(|of| if of == rank { step } else { 0 });
        plan.delivered_by_source(&steps.collect::<Vec<_>>())
    };
    let mut counts = before(step)?;
    for (first, end) in of.left_out.ranges() {
        let left_out = before(*end)?.into_iter().zip(before(*first)?);
        for (count, (to, from)) in counts.iter_mut().zip(left_out) {
            *count = count.saturating_sub(to - from);
        }
    }
    Ok(counts)
}
