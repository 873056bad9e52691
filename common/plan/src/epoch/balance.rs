//! Balanced steps: samples of similar cost share a step. Source: docs/ORDER.md, section 15.

use std::ops::Range;
use std::sync::Arc;

use crate::epoch::{EpochPlan, Placed, Slot, SlotSource};
use crate::lane::{Outputs, Planned, Portion};
use crate::line::Sample;
use crate::random::{Draws, stream_key};
use crate::window::Permutations;
use crate::{PlanError, check_parameters};

/// Maximum of the window of balanced steps: bounds the memory of a megablock.
pub const BALANCE_WINDOW_MAX: u64 = 1 << 20;

/// Plan of an epoch with balanced steps: an [`EpochPlan`] in which each segment begins with its
/// lanes in another order.
///
/// A lookup costs the samples of a segment's megablock, and those of its neighbours are kept.
#[derive(Debug)]
pub struct BalancedPlan<C> {
    plan: Arc<EpochPlan>,
    window: u64,
    cost: C,
    /// The lane of the first segment whose samples were looked up last.
    lookup: Option<(u64, Outputs)>,
    /// Megablocks of each segment; the most recently used one is last.
    held: Vec<Vec<HeldMegablock>>,
    /// Maximum number of megablocks of an earlier segment that are held.
    held_max: usize,
}

/// Checks the number of samples of a lane that are sorted together.
///
/// # Errors  `Zero`, `TooLarge`.
pub fn check_balance_window(window: u64) -> Result<(), PlanError> {
    check_parameters(&[("balance window", window, BALANCE_WINDOW_MAX)])
}

/// Lane and number of a megablock, and its order.
type HeldMegablock = ((u64, u64), Arc<Megablock>);

/// Order of a megablock: for each position the one before balancing, relative to the start of the
/// megablock, and the cost of its sample.
#[derive(Debug)]
struct Megablock {
    order: Vec<u32>,
    costs: Vec<u64>,
}

impl<C: FnMut(Portion, Sample) -> u64> BalancedPlan<C> {
    /// Returns the plan with balanced steps.
    /// - `window`: samples of a lane that are sorted together, rounded to whole steps. `cost`: cost
    ///   of a sample, always the same.
    ///
    /// # Errors  `Zero` and `TooLarge`, for the window.
    pub fn new(plan: Arc<EpochPlan>, window: u64, cost: C) -> Result<Self, PlanError> {
        check_balance_window(window)?;
        // A rank reads its lanes in turn, each from a few megablocks of every earlier segment.
        let lanes = (0..plan.world_size()).map(|rank| plan.rank_lanes(rank)).max().unwrap_or(1);
        let held = plan.layers.iter().map(|_| vec![]).collect();
        let held_max = 4 * (lanes as usize + 1);
        Ok(Self { plan, window, cost, lookup: None, held, held_max })
    }

    /// Returns the plan without balanced steps. It has the same counts of steps, entries and samples.
    pub fn plan(&self) -> &EpochPlan {
        &self.plan
    }

    /// Returns the entries of `rank` at `step`, as [`EpochPlan::slots`].
    ///
    /// # Errors  As [`EpochPlan::batch`].
    pub fn slots(&mut self, step: u64, rank: u64) -> Result<Vec<Slot>, PlanError> {
        let plan = Arc::clone(&self.plan);
        let (index, local, _) = plan.entries(step, rank)?;
        let mut slots = plan.slots(step, rank)?;
        for slot in &mut slots {
            if let SlotSource::Lane(at) = &mut slot.source {
                *at = plan.resolve_by(index, local, slot.entry, |index, lane, position| {
                    self.unbalanced(index, lane, position)
                })?;
            }
        }
        Ok(slots)
    }

    /// Returns the steps whose samples are sorted together with those of `step`, a step of the last
    /// segment; `step` alone behind the last full step.
    pub fn together(&self, step: u64) -> Range<u64> {
        let (index, first) = (self.plan.layers.len() - 1, self.plan.first_step());
        let per_lane = self.plan.layers[index].segment.per_lane();
        let position = step.saturating_sub(first).saturating_mul(per_lane);
        match self.megablock_of(index, position) {
            Some((_, range)) => first + range.start / per_lane..first + range.end / per_lane,
            None => step..step + 1,
        }
    }

    /// Returns the samples of `rank` at `step`, as [`EpochPlan::batch`].
    ///
    /// # Errors  As [`EpochPlan::batch`].
    pub fn batch(&mut self, step: u64, rank: u64) -> Result<Vec<Planned>, PlanError> {
        let slots = self.slots(step, rank)?;
        self.plan.planned(slots)
    }

    /// Returns the position at which a sample is delivered, as [`EpochPlan::place_with`].
    ///
    /// # Errors  As [`EpochPlan::place`].
    pub fn place_with(
        &mut self,
        portion: Portion,
        sample: Sample,
        known: &mut Permutations,
    ) -> Result<Option<Placed>, PlanError> {
        let plan = Arc::clone(&self.plan);
        plan.place_by(portion, sample, known, |index, lane, position| {
            let Some((block, range)) = self.megablock_of(index, position) else {
                return Ok(position);
            };
            let from = position - range.start;
            let megablock = self.megablock(index, lane, block, &range)?;
            let found = megablock.order.iter().position(|&other| u64::from(other) == from);
            Ok(range.start + found.expect("an order has every position") as u64)
        })
    }

    /// Returns the position before balancing of a position of a segment's lane.
    fn unbalanced(&mut self, index: usize, lane: u64, position: u64) -> Result<u64, PlanError> {
        let Some((block, range)) = self.megablock_of(index, position) else {
            return Ok(position);
        };
        let megablock = self.megablock(index, lane, block, &range)?;
        Ok(range.start + u64::from(megablock.order[(position - range.start) as usize]))
    }

    /// Returns the megablock of a position and its positions, or `None` from the last full step on.
    fn megablock_of(&self, index: usize, position: u64) -> Option<(u64, Range<u64>)> {
        let layer = &self.plan.layers[index];
        let per_lane = layer.segment.per_lane();
        let end = layer.shortest / per_lane * per_lane;
        let length = (self.window / per_lane).max(1) * per_lane;
        let block = position / length;
        (position < end).then(|| (block, block * length..end.min((block + 1) * length)))
    }

    fn megablock(
        &mut self,
        index: usize,
        lane: u64,
        block: u64,
        range: &Range<u64>,
    ) -> Result<Arc<Megablock>, PlanError> {
        let held = &mut self.held[index];
        let megablock = match held.iter().rposition(|(key, _)| *key == (lane, block)) {
            Some(place) => held.remove(place).1,
            None => Arc::new(self.sorted(index, lane, block, range)?),
        };
        let held = &mut self.held[index];
        // Steps of the last segment are looked up in order.
        let is_last = index + 1 == self.plan.layers.len();
        let held_max = if is_last { self.held_max / 4 } else { self.held_max };
        held.drain(..(held.len() + 1).saturating_sub(held_max));
        held.push(((lane, block), Arc::clone(&megablock)));
        Ok(megablock)
    }

    fn sorted(
        &mut self,
        index: usize,
        lane: u64,
        block: u64,
        range: &Range<u64>,
    ) -> Result<Megablock, PlanError> {
        let costs: Vec<u64> = range
            .clone()
            .map(|position| self.cost_before(index, lane, position))
            .collect::<Result<_, _>>()?;
        let samples = range.end - range.start;
        let bound = u32::try_from(samples).map_err(|_| PlanError::WindowTooLarge { samples })?;
        let mut by_cost: Vec<u32> = (0..bound).collect();
        by_cost.sort_by_key(|&place| costs[place as usize]);

        let (segment, shuffle) = (&self.plan.layers[index].segment, self.plan.shuffle());
        let (lanes, per_lane) = (segment.lanes, segment.per_lane());
        let numbers = [shuffle.seed, self.plan.epoch(), index as u64, lanes, lane];
        let steps_key = stream_key("balance", &shuffle.digest, &numbers[..4]);
        let lane_key = stream_key("balance lane", &shuffle.digest, &numbers);
        let first_group = range.start / per_lane;
        let mut order = Vec::with_capacity(by_cost.len());
        for group in Draws::new(steps_key, block).permutation(samples / per_lane)? {
            let group = u64::from(group);
            let start = (group * per_lane) as usize;
            let inside = Draws::new(lane_key, first_group + group).permutation(per_lane)?;
            order.extend(inside.into_iter().map(|place| by_cost[start + place as usize]));
        }
        let costs = order.iter().map(|&place| costs[place as usize]).collect();
        Ok(Megablock { order, costs })
    }

    /// Returns the cost of the sample at a position before balancing.
    fn cost_before(&mut self, index: usize, lane: u64, position: u64) -> Result<u64, PlanError> {
        let plan = Arc::clone(&self.plan);
        let below = index.checked_sub(1);
        match plan.layers[index].down(below.map(|below| &plan.layers[below]), lane, position) {
            None => {
                // Compared in place: a lookup is large.
                if self.lookup.as_ref().is_none_or(|(held, _)| *held != lane) {
                    self.lookup = Some((lane, plan.lane(lane).lookup()));
                }
                let (_, lookup) = self.lookup.as_mut().expect("just made");
                let Planned { portion, sample, .. } = lookup.planned(position)?;
                Ok((self.cost)(portion, sample))
            }
            Some((lane, position)) => {
                let below = index - 1;
                match self.megablock_of(below, position) {
                    None => self.cost_before(below, lane, position),
                    Some((block, range)) => {
                        let megablock = self.megablock(below, lane, block, &range)?;
                        Ok(megablock.costs[(position - range.start) as usize])
                    }
                }
            }
        }
    }
}
