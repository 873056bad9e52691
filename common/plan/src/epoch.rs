//! Plan of an epoch: steps, global batches, tails, and the inverse lookup. Source: docs/ORDER.md,
//! sections 5 to 7 and 13.

mod balance;
mod progress;

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

pub use balance::{BALANCE_WINDOW_MAX, BalancedPlan, check_balance_window};

use crate::PlanError;
use crate::job::Tail;
use crate::lane::{Lane, Outputs, Planned, Portion, SplitRun, part_of};
use crate::layer::{Fate, LanePosition, Layer, entries_of};
use crate::line::{Line, Sample, Shuffle};
use crate::mixture::MixtureEpoch;
use crate::segment::{SEGMENTS_MAX, Segment, Steps};
use crate::window::Permutations;

/// Plan of one epoch: maps any (step, rank) to its samples and back without iterating over it.
#[derive(Clone, Debug)]
pub struct EpochPlan {
    sequence: Sequence,
    shuffle: Shuffle,
    epoch: u64,
    tail: Tail,
    limit: Option<u64>,
    world_size: u64,
    pub(crate) layers: Vec<Layer>,
}

/// The epoch sequence of one dataset or of a mixture.
#[derive(Clone, Debug)]
pub(crate) enum Sequence {
    Dataset(Arc<Line>),
    Mixture(Arc<MixtureEpoch>),
}

/// An entry of a global batch that exists or is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index in the global batch.
    pub entry: u64,
    /// Lane of the step's segment to which it belongs.
    pub lane: u64,
    pub source: SlotSource,
}

/// Source of an entry's sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotSource {
    /// Next sample of a lane.
    Lane(LanePosition),
    /// Padding: the sample at this position of the epoch sequence, marked not valid.
    Padding { position: u64 },
}

/// Adjacent entries with adjacent samples of one lane, or a single padded entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// First of the entries.
    pub first: Slot,
    pub slots: u64,
}

/// Position at which a sample is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub step: u64,
    /// Index in the global batch.
    pub entry: u64,
    /// Rank of this entry at this plan's world size.
    pub rank: u64,
}

impl SlotRun {
    fn goes_on_with(&self, next: &Slot) -> bool {
        match (self.first.source, next.source) {
            (SlotSource::Lane(first), SlotSource::Lane(at)) => {
                self.first.lane == next.lane
                    && first.lane == at.lane
                    && first.output + self.slots == at.output
            }
            _ => false,
        }
    }
}

impl EpochPlan {
    /// Returns the plan of `epoch` through `segments`, the last of which has `world_size` ranks.
    /// - `line`: epoch sequence of the same epoch and shuffle; `limit`: maximum number of entries.
    ///
    /// # Errors
    /// The parameters are inconsistent, see [`PlanError`].
    ///
    /// # Panics
    /// If `line` is not from [`Line::new`].
    pub fn new(
        line: Arc<Line>,
        shuffle: Shuffle,
        epoch: u64,
        rules: (Tail, Option<u64>),
        segments: &[Segment],
        world_size: u64,
    ) -> Result<Self, PlanError> {
        assert!(line.is_rotated(), "a plan is over the epoch sequence of a deterministic job");
        shuffle.validate()?;
        Self::over(Sequence::Dataset(line), shuffle, epoch, rules, segments, world_size)
    }

    /// Returns the plan of a mixture's epoch; parameters and errors as of [`EpochPlan::new`].
    ///
    /// # Errors
    /// The parameters are inconsistent, see [`PlanError`].
    pub fn of_mixture(
        mixture: Arc<MixtureEpoch>,
        rules: (Tail, Option<u64>),
        segments: &[Segment],
        world_size: u64,
    ) -> Result<Self, PlanError> {
        let (shuffle, epoch) = (mixture.shuffle().clone(), mixture.epoch());
        Self::over(Sequence::Mixture(mixture), shuffle, epoch, rules, segments, world_size)
    }

    fn over(
        sequence: Sequence,
        shuffle: Shuffle,
        epoch: u64,
        (tail, limit): (Tail, Option<u64>),
        segments: &[Segment],
        world_size: u64,
    ) -> Result<Self, PlanError> {
        check_segments(segments, tail)?;
        let last = segments.last().expect("checked: at least one");
        if world_size == 0 || !last.global_batch.is_multiple_of(world_size) {
            let global_batch = last.global_batch;
            return Err(PlanError::WorldDoesNotDivide { world_size, global_batch });
        }
        let layers = Vec::with_capacity(segments.len());
        let mut plan = Self { sequence, shuffle, epoch, tail, limit, world_size, layers };
        for segment in segments {
            let mut segment = segment.clone();
            segment.steps = segment.steps.normalized();
            let layer = match plan.layers.last() {
                None => Layer::first(plan.samples(), segment),
                Some(below) => below.next(segment),
            };
            plan.layers.push(layer);
            plan.check_end(plan.layers.len() - 1)?;
        }
        Ok(plan)
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of data-parallel ranks of the last segment.
    pub fn world_size(&self) -> u64 {
        self.world_size
    }

    pub fn shuffle(&self) -> &Shuffle {
        &self.shuffle
    }

    pub fn samples(&self) -> u64 {
        match &self.sequence {
            Sequence::Dataset(line) => line.samples(),
            Sequence::Mixture(mixture) => mixture.samples(),
        }
    }

    /// Returns the sample at a position of the epoch sequence below [`EpochPlan::samples`].
    pub fn sample_at(&self, position: u64) -> SplitRun {
        match &self.sequence {
            Sequence::Dataset(line) => SplitRun {
                portion: Portion::default(),
                split: line.place(position),
                first: line.sample(position),
                samples: 1,
            },
            Sequence::Mixture(mixture) => mixture.at(position),
        }
    }

    /// Returns the epoch of the mixture, if the job is over one.
    pub fn mixture(&self) -> Option<&Arc<MixtureEpoch>> {
        match &self.sequence {
            Sequence::Dataset(_) => None,
            Sequence::Mixture(mixture) => Some(mixture),
        }
    }

    pub(crate) fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Returns the number of lanes of the first segment, among which the samples are divided.
    pub fn lanes(&self) -> u64 {
        self.layers[0].segment.lanes
    }

    /// Returns one of these lanes.
    pub fn lane(&self, lane: u64) -> Lane {
        match &self.sequence {
            Sequence::Dataset(line) => {
                Lane::of_line(line, &self.shuffle, self.epoch, self.lanes(), lane)
            }
            Sequence::Mixture(mixture) => Lane::merged(mixture.lane(self.lanes(), lane)),
        }
    }

    /// Returns the number of steps of the whole epoch, over all segments.
    pub fn steps(&self) -> u64 {
        self.first_step() + self.steps_in(self.layers.len() - 1)
    }

    /// Returns the number of steps before the last segment.
    pub fn first_step(&self) -> u64 {
        let earlier = &self.layers[..self.layers.len() - 1];
        earlier.iter().map(|layer| layer.segment.steps.most()).sum()
    }

    /// Returns a rank's steps of the epoch; less than [`EpochPlan::steps`] only with `uneven`.
    pub fn rank_steps(&self, rank: u64) -> u64 {
        if self.tail != Tail::Uneven {
            return self.steps();
        }
        let index = self.layers.len() - 1;
        let per_lane = self.layers[index].segment.per_lane();
        let entries = entries_of(&self.layers[index].segment, rank, self.world_size);
        // Within a lane the first of a rank's entries has the most steps.
        let firsts = (entries.start / per_lane..entries.end.div_ceil(per_lane))
            .map(|lane| (lane * per_lane).max(entries.start));
        self.first_step() + firsts.map(|entry| self.entry_steps(index, entry)).max().unwrap_or(0)
    }

    /// Returns the number of lanes of the last segment that a rank reads, at least one.
    pub fn rank_lanes(&self, rank: u64) -> u64 {
        let segment = &self.layers[self.layers.len() - 1].segment;
        let entries = entries_of(segment, rank, self.world_size);
        entries.end.div_ceil(segment.per_lane()) - entries.start / segment.per_lane()
    }

    /// True if some lane of the last segment is read by several ranks.
    pub fn shares_lanes(&self) -> bool {
        let segment = &self.layers[self.layers.len() - 1].segment;
        !self.rows().is_multiple_of(segment.per_lane())
    }

    /// Returns the number of samples of a full step of one rank, padding included.
    pub fn rows(&self) -> u64 {
        self.layers[self.layers.len() - 1].segment.global_batch / self.world_size
    }

    /// Returns the number of samples of the epoch that no step delivers.
    pub fn dropped(&self) -> u64 {
        let delivered = self.delivered_before(&self.ends());
        self.samples() - delivered.expect("every rank may be at the end")
    }

    /// Returns the entries of `rank` at `step` in order; with `uneven` only those that exist.
    ///
    /// # Errors  `RankOutOfRange`, `NoSuchStep`; `WorldDoesNotDivide` for a step of an earlier
    /// segment whose global batch this plan's world size does not divide.
    pub fn slots(&self, step: u64, rank: u64) -> Result<Vec<Slot>, PlanError> {
        let (index, step, entries) = self.entries(step, rank)?;
        let segment = &self.layers[index].segment;
        let mut padded = match self.tail {
            Tail::Pad => self.padded_before(index, step, entries.start),
            Tail::Drop | Tail::Uneven => 0,
        };
        let full = step < self.full_steps(index);
        let mut slots = Vec::with_capacity((entries.end - entries.start) as usize);
        for entry in entries {
            let lane = entry / segment.per_lane();
            if full || step < self.entry_steps(index, entry) {
                let source = SlotSource::Lane(self.resolve(index, step, entry));
                slots.push(Slot { entry, lane, source });
            } else if self.tail == Tail::Pad {
                let position = padded % self.samples();
                let source = SlotSource::Padding { position };
                slots.push(Slot { entry, lane, source });
                padded += 1;
            }
        }
        Ok(slots)
    }

    /// Returns the same entries as runs of adjacent samples of one lane.
    ///
    /// # Errors  As [`EpochPlan::slots`].
    pub fn slot_runs(&self, step: u64, rank: u64) -> Result<Vec<SlotRun>, PlanError> {
        let mut runs: Vec<SlotRun> = Vec::new();
        let (index, local, entries) = self.entries(step, rank)?;
        if index == 0 && local < self.full_steps(0) {
            let per_lane = self.layers[0].segment.per_lane();
            let mut entry = entries.start;
            while entry < entries.end {
                let source = SlotSource::Lane(self.resolve(0, local, entry));
                let first = Slot { entry, lane: entry / per_lane, source };
                let slots = (per_lane - entry % per_lane).min(entries.end - entry);
                runs.push(SlotRun { first, slots });
                entry += slots;
            }
            return Ok(runs);
        }
        for slot in self.slots(step, rank)? {
            match runs.last_mut() {
                Some(run) if run.goes_on_with(&slot) => run.slots += 1,
                _ => runs.push(SlotRun { first: slot, slots: 1 }),
            }
        }
        Ok(runs)
    }

    /// Returns the samples of `rank` at `step` of the epoch, in order.
    ///
    /// # Errors  As [`EpochPlan::slots`], and `WindowTooLarge`.
    pub fn batch(&self, step: u64, rank: u64) -> Result<Vec<Planned>, PlanError> {
        self.planned(self.slots(step, rank)?)
    }

    /// Returns the samples of entries.
    ///
    /// # Errors  `WindowTooLarge`.
    pub(crate) fn planned(&self, slots: Vec<Slot>) -> Result<Vec<Planned>, PlanError> {
        let mut held: Option<(u64, Outputs)> = None;
        let planned = |slot: Slot| {
            let at = match slot.source {
                SlotSource::Lane(at) => at,
                SlotSource::Padding { position } => {
                    let SplitRun { portion, first: sample, .. } = self.sample_at(position);
                    return Ok(Planned { portion, sample, valid: false });
                }
            };
            let outputs = match held.take().filter(|(lane, _)| *lane == at.lane) {
                Some(outputs) => outputs,
                None => (at.lane, self.lane(at.lane).lookup()),
            };
            held.insert(outputs).1.planned(at.output)
        };
        slots.into_iter().map(planned).collect()
    }

    /// Returns the position at which `sample` of `portion` is delivered, or `None` if it is dropped.
    ///
    /// # Errors  `NoSuchSample`, in a mixture `NotInEpoch`; `WindowTooLarge`.
    pub fn place(&self, portion: Portion, sample: Sample) -> Result<Option<Placed>, PlanError> {
        self.place_with(portion, sample, &mut Permutations::default())
    }

    /// As [`EpochPlan::place`], for many lookups: `known` caches what neighbours share.
    ///
    /// # Errors  As [`EpochPlan::place`].
    pub fn place_with(
        &self,
        portion: Portion,
        sample: Sample,
        known: &mut Permutations,
    ) -> Result<Option<Placed>, PlanError> {
        self.place_by(portion, sample, known, |_, _, position| Ok(position))
    }

    /// As [`EpochPlan::place_with`], for lanes in another order: `balanced` maps a segment's index,
    /// a lane and a position to the position in that order.
    pub(crate) fn place_by(
        &self,
        portion: Portion,
        sample: Sample,
        known: &mut Permutations,
        mut balanced: impl FnMut(usize, u64, u64) -> Result<u64, PlanError>,
    ) -> Result<Option<Placed>, PlanError> {
        let mut lane = self.lane_of(portion, sample)?;
        let first = self.lane(lane);
        let mut at = first.output_with(portion, sample, known)?.expect("the lane has this sample");
        let mut before = 0;
        for (index, layer) in self.layers.iter().enumerate() {
            if index > 0 {
                (lane, at) = layer.up(lane, at);
            }
            at = balanced(index, lane, at)?;
            let per_lane = layer.segment.per_lane();
            let entry = lane * per_lane + at % per_lane;
            let fate = if index + 1 == self.layers.len() {
                Fate::Taken { step: at / per_lane }
            } else {
                layer.fate(lane, at)
            };
            match fate {
                Fate::Left { place } => at = place,
                Fate::Taken { step } if step >= self.steps_in(index) => return Ok(None),
                Fate::Taken { step } if step >= self.entry_steps(index, entry) => return Ok(None),
                Fate::Taken { step } => {
                    let rank = entry * self.world_size / layer.segment.global_batch;
                    return Ok(Some(Placed { step: before + step, entry, rank }));
                }
            }
            before += layer.segment.steps.most();
        }
        unreachable!("the last segment takes or drops every sample")
    }

    /// Returns the lane of the first segment that has a sample.
    pub(crate) fn lane_of(&self, portion: Portion, sample: Sample) -> Result<u64, PlanError> {
        match &self.sequence {
            Sequence::Dataset(line) => {
                let position = line.position(sample).filter(|_| portion == Portion::default());
                let missing =
                    PlanError::NoSuchSample { shard: sample.shard, ordinal: sample.ordinal };
                Ok(part_of(line.samples(), self.lanes(), position.ok_or(missing)?))
            }
            Sequence::Mixture(mixture) => mixture.lane_of(portion, sample, self.lanes()),
        }
    }

    /// Returns the index of the segment that contains a step of the epoch, and the step within it.
    fn segment_of(&self, step: u64, rank: u64) -> Result<(usize, u64), PlanError> {
        let mut left = step;
        let last = self.layers.len() - 1;
        for (index, layer) in self.layers[..last].iter().enumerate() {
            let steps = layer.segment.steps.most();
            if left < steps {
                return Ok((index, left));
            }
            left -= steps;
        }
        let steps = self.rank_steps(rank);
        if step < steps {
            return Ok((last, left));
        }
        Err(PlanError::NoSuchStep { epoch: self.epoch, step, steps })
    }

    /// Returns the number of steps of a segment if it continues to the end of the epoch.
    pub(crate) fn steps_in(&self, index: usize) -> u64 {
        let layer = &self.layers[index];
        let per_lane = layer.segment.per_lane();
        match self.tail {
            Tail::Drop => self.full_steps(index),
            Tail::Pad | Tail::Uneven => {
                let limit = self.slots_left(index).div_ceil(layer.segment.global_batch);
                layer.longest.div_ceil(per_lane).min(limit)
            }
        }
    }

    /// Returns the number of initial steps of a segment at which every entry exists.
    fn full_steps(&self, index: usize) -> u64 {
        let layer = &self.layers[index];
        let limit = self.slots_left(index) / layer.segment.global_batch;
        (layer.shortest / layer.segment.per_lane()).min(limit)
    }

    /// Returns the number of entries that `limit` leaves from the start of a segment on.
    pub(crate) fn slots_left(&self, index: usize) -> u64 {
        let used =
            |layer: &Layer| layer.segment.steps.most().saturating_mul(layer.segment.global_batch);
        let used: u64 = self.layers[..index].iter().map(used).sum();
        self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }

    /// Returns the number of initial steps of a segment at which `entry` exists.
    fn entry_steps(&self, index: usize, entry: u64) -> u64 {
        let layer = &self.layers[index];
        let per_lane = layer.segment.per_lane();
        let length = layer.lengths[(entry / per_lane) as usize];
        let in_lane = length.saturating_sub(entry % per_lane).div_ceil(per_lane);
        let limit = self.slots_left(index).saturating_sub(entry);
        in_lane.min(limit.div_ceil(layer.segment.global_batch))
    }

    /// Returns the number of padded entries of a segment before `entry` of `step`.
    fn padded_before(&self, index: usize, step: u64, entry: u64) -> u64 {
        if step < self.full_steps(index) {
            return 0;
        }
        let batch = self.layers[index].segment.global_batch;
        let missing = |e: u64| {
            let slots = if e < entry { step + 1 } else { step };
            slots - self.entry_steps(index, e).min(slots)
        };
        (0..batch).map(missing).sum()
    }

    fn resolve(&self, index: usize, step: u64, entry: u64) -> LanePosition {
        let same = |_, _, position| Ok::<_, Infallible>(position);
        let Ok(at) = self.resolve_by(index, step, entry, same);
        at
    }

    /// Returns lane and position of an entry in the first segment; `unbalanced` undoes `place_by`.
    pub(crate) fn resolve_by<E>(
        &self,
        index: usize,
        step: u64,
        entry: u64,
        mut unbalanced: impl FnMut(usize, u64, u64) -> Result<u64, E>,
    ) -> Result<LanePosition, E> {
        let per_lane = self.layers[index].segment.per_lane();
        let (mut lane, mut position) = (entry / per_lane, step * per_lane + entry % per_lane);
        for at in (0..=index).rev() {
            position = unbalanced(at, lane, position)?;
            let below = at.checked_sub(1).map(|below| &self.layers[below]);
            match self.layers[at].down(below, lane, position) {
                None => break,
                Some(place) => (lane, position) = place,
            }
        }
        Ok(LanePosition { lane, output: position })
    }

    /// Returns the segment of a step, the step within it, and the entries of `rank`.
    pub(crate) fn entries(
        &self,
        step: u64,
        rank: u64,
    ) -> Result<(usize, u64, Range<u64>), PlanError> {
        let world_size = self.world_size;
        if rank >= world_size {
            return Err(PlanError::RankOutOfRange { rank, world_size });
        }
        let (index, step) = self.segment_of(step, rank)?;
        let segment = &self.layers[index].segment;
        if !segment.global_batch.is_multiple_of(world_size) {
            let global_batch = segment.global_batch;
            return Err(PlanError::WorldDoesNotDivide { world_size, global_batch });
        }
        Ok((index, step, entries_of(segment, rank, world_size)))
    }

    /// Checks that a segment does not claim more steps than it has.
    fn check_end(&self, index: usize) -> Result<(), PlanError> {
        let segment = &self.layers[index].segment;
        let (steps, steps_max) = (segment.steps.most(), self.steps_in(index));
        if steps <= steps_max {
            return Ok(());
        }
        let Segment { lanes, global_batch, .. } = *segment;
        Err(PlanError::BeyondEnd { lanes, global_batch, steps, steps_max })
    }
}

fn check_segments(segments: &[Segment], tail: Tail) -> Result<(), PlanError> {
    if segments.is_empty() {
        return Err(PlanError::Zero { name: "segments" });
    }
    if segments.len() > SEGMENTS_MAX {
        return Err(PlanError::TooManySegments);
    }
    for segment in segments {
        let Segment { lanes, global_batch, .. } = *segment;
        let ranks = match &segment.steps {
            Steps::All(_) => 1,
            Steps::PerRank(_) if tail != Tail::Uneven => return Err(PlanError::UnevenSteps),
            Steps::PerRank(steps) => steps.len() as u64,
        };
        Segment::start(lanes, global_batch, 1)?;
        if ranks == 0 || !global_batch.is_multiple_of(ranks) {
            return Err(PlanError::WorldDoesNotDivide { world_size: ranks, global_batch });
        }
    }
    let earlier = &segments[..segments.len() - 1];
    if earlier.iter().any(|segment| segment.steps.most() == 0) {
        return Err(PlanError::Zero { name: "steps of an earlier segment" });
    }
    Ok(())
}
