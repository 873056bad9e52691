//! Balance of an epoch's steps: the largest cost of a rank, compared with the mean of the step.

use serde::Serialize;
use shardfeed_plan::{PlanError, Slot, SlotSource};

use super::{Balance, Order};
use crate::output;

const STEPS_MAX: u64 = 4096;

const SAMPLES_MAX: u64 = 1 << 20;

/// Advice where balance has little effect.
const WEAK: &str = "; the lanes' costs differ: write the samples to files in random order, or give \
                    balance() a larger window";

/// Largest cost of a rank in a step, divided by the mean of the step's ranks.
#[derive(Debug, Serialize)]
pub(super) struct BalanceReport {
    /// Samples of a lane that are sorted together.
    window: u64,
    /// Steps from the beginning of the epoch that the numbers are of: at most 4,096, with at most
    /// 2^20 samples.
    steps: u64,
    mean: f64,
    max: f64,
    /// Mean in the order without balance.
    unbalanced_mean: f64,
    /// Maximum in the order without balance.
    unbalanced_max: f64,
}

impl BalanceReport {
    /// Returns the balance of the first steps; `None` if steps are not balanced, if there is no
    /// full one, if one has too many samples, or if the epoch was cut.
    pub(super) fn new(order: &Order) -> Result<Option<Self>, PlanError> {
        let Some(Balance { window, is_float }) = order.balance else {
            return Ok(None);
        };
        let [segment] = order.cursor.segments() else {
            return Ok(None);
        };
        let (plan, batch) = (&order.plan, segment.global_batch);
        let full = plan.steps().min(plan.samples() / batch);
        let steps = full.min(STEPS_MAX).min(SAMPLES_MAX / batch);
        if steps == 0 {
            return Ok(None);
        }
        let mut balanced = order.balanced(window)?;
        let end = balanced.together(steps - 1).end;
        let per_lane = batch / segment.lanes;
        let mut cost = order.costs();
        let mut costs = Vec::with_capacity(segment.lanes as usize);
        for lane in 0..segment.lanes {
            let samples = plan.lane(lane).planned(0..end * per_lane)?.into_iter();
            let of_lane = samples.map(|planned| {
                let cost = cost(planned.portion, planned.sample);
                if is_float { f64::from_bits(cost) } else { cost as f64 }
            });
            costs.push(of_lane.collect::<Vec<_>>());
        }
        let sum = |slots: Vec<Slot>| {
            let cost = |slot: Slot| match slot.source {
                SlotSource::Lane(at) => costs[at.lane as usize][at.output as usize],
                SlotSource::Padding { .. } => 0.0,
            };
            slots.into_iter().map(cost).sum::<f64>()
        };
        let (mut with, mut without) = (Ratios::new(steps), Ratios::new(steps));
        let mut next = 0;
        while next < steps {
            // The samples of a lane that are sorted together are those of consecutive ranks.
            let together = balanced.together(next);
            for rank in 0..plan.world_size() {
                for step in together.start..together.end.min(steps) {
                    with.add(step, sum(balanced.slots(step, rank)?));
                    without.add(step, sum(plan.slots(step, rank)?));
                }
            }
            next = together.end;
        }
        let ranks = plan.world_size();
        let ((mean, max), (unbalanced_mean, unbalanced_max)) = (with.of(ranks), without.of(ranks));
        Ok(Some(Self { window, steps, mean, max, unbalanced_mean, unbalanced_max }))
    }

    pub(super) fn text(&self) -> String {
        format!(
            "the largest cost of a rank is {:.2} of the mean of its step (without balance {:.2}), \
             at most {:.2} ({:.2}), in {}{}",
            self.mean,
            self.unbalanced_mean,
            self.max,
            self.unbalanced_max,
            output::counted(self.steps, "step"),
            if self.is_weak() { WEAK } else { "" }
        )
    }

    /// True if more than half of the imbalance is left.
    fn is_weak(&self) -> bool {
        self.mean - 1.0 > (self.unbalanced_mean - 1.0) / 2.0 && self.mean > 1.1
    }
}

/// Sum and maximum of the ranks' costs in each step.
struct Ratios(Vec<(f64, f64)>);

impl Ratios {
    fn new(steps: u64) -> Self {
        Self(vec![(0.0, 0.0); steps as usize])
    }

    fn add(&mut self, step: u64, cost: f64) {
        let (sum, max) = &mut self.0[step as usize];
        *sum += cost;
        *max = max.max(cost);
    }

    /// Returns mean and maximum of the largest cost divided by the mean one; 1 where all are 0.
    fn of(&self, ranks: u64) -> (f64, f64) {
        let ratio =
            |&(sum, max): &(f64, f64)| if sum > 0.0 { max * ranks as f64 / sum } else { 1.0 };
        let ratios = self.0.iter().map(ratio);
        (ratios.clone().sum::<f64>() / self.0.len() as f64, ratios.fold(1.0, f64::max))
    }
}
