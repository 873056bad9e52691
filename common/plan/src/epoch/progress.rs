//! Delivered samples of an epoch, computed from cursors alone. Source: docs/ORDER.md, sections 4 to
//! 7.
//!
//! The delivered outputs of a lane form a few long ranges, and such a range has the same inputs as
//! before the shuffle except near its ends. Therefore only the shuffle blocks at the ends are
//! walked; whole splits and whole interleave groups are counted by their lengths.

use std::ops::Range;

use crate::PlanError;
use crate::epoch::{EpochPlan, Sequence};
use crate::interleave::{Turns, TurnsIter};
use crate::lane::{LanePart, Part};
use crate::layer::{Layer, columns, sums, taken_of};
use crate::segment::{LeftOut, Steps};
use crate::window::joined;

impl EpochPlan {
    /// Returns the number of samples of each shard that were delivered before the ranks' cursors,
    /// without padding, `[shards]` in manifest order; of a mixture of all sources, by name.
    ///
    /// - `steps`: for each rank the first step of the epoch that it has not consumed,
    ///   `[world_size]`. Segments before the last one are complete, so a cursor in one of them
    ///   counts as the start of the last one. A cursor at [`EpochPlan::steps`] is at the end, even
    ///   for a rank that has fewer steps.
    ///
    /// Costs O(shards + lanes x (window + interleave)), independent of the number of samples; if
    /// ranks share a lane, also the steps of it by which some are ahead of others. Each further
    /// segment adds ends, as many as lanes. After ranks that shared a lane stopped at different
    /// steps (`uneven`), every row of every step is a separate range: time and memory then grow
    /// with the samples delivered since, by some tens of bytes each.
    ///
    /// # Errors  `CursorsDoNotFit`; `NoSuchStep`: a step beyond the epoch; `WindowTooLarge`.
    pub fn delivered_by_shard(&self, steps: &[u64]) -> Result<Vec<u64>, PlanError> {
        let open = self.open_steps(steps)?;
        self.by_shard(self.outputs_where(|index, lane, end| self.taken_in(index, &open, lane, end)))
    }

    /// Returns the number of samples of each shard in steps that all ranks left out, `[shards]`;
    /// their sum is [`LeftOut::samples`]. [`EpochPlan::delivered_by_shard`] has these steps, too.
    /// - `left_out`: full steps.
    ///
    /// Costs as [`EpochPlan::delivered_by_shard`].
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn left_out_by_shard(&self, left_out: &LeftOut) -> Result<Vec<u64>, PlanError> {
        self.by_shard(self.outputs_where(|index, _, end| {
            let steps = self.segment_steps(index);
            let per_lane = self.layers[index].segment.per_lane();
            let position = |step: u64| (step - steps.start).saturating_mul(per_lane).min(end);
            let parts = left_out.within(steps.clone());
            parts.map(|part| position(part.start)..position(part.end)).collect()
        }))
    }

    /// Returns the number of samples of each source of a mixture that were delivered in the last
    /// segment before the ranks' cursors, `[sources]` by name; of a dataset the number of all.
    /// - `steps`: as for [`EpochPlan::delivered_by_shard`].
    ///
    /// Costs O(lanes x sources); of lanes that ranks share, also the steps between their cursors.
    ///
    /// # Errors  `CursorsDoNotFit`, `NoSuchStep`, `WindowTooLarge`.
    pub fn delivered_by_source(&self, steps: &[u64]) -> Result<Vec<u64>, PlanError> {
        let (open, last) = (self.open_steps(steps)?, self.layers.len() - 1);
        let outputs = self.outputs_where(|index, lane, end| match index == last {
            true => self.taken_in(index, &open, lane, end),
            false => vec![],
        });
        let sources = self.mixture().map_or(1, |mixture| mixture.sources().count());
        let mut counts = vec![0; sources];
        for (lane, outputs) in (0..).zip(outputs).filter(|(_, outputs)| !outputs.is_empty()) {
            self.lane(lane).count_sources(&outputs, &mut counts)?;
        }
        Ok(counts)
    }

    /// Returns the steps of the epoch that a segment has; the last one is open.
    fn segment_steps(&self, index: usize) -> Range<u64> {
        let most = |layer: &Layer| layer.segment.steps.most();
        let start = self.layers[..index].iter().map(most).sum();
        let is_last = index + 1 == self.layers.len();
        start..if is_last { u64::MAX } else { start + most(&self.layers[index]) }
    }

    /// Returns the samples of each shard at the given outputs of each lane of the first segment.
    fn by_shard(&self, outputs: Vec<Vec<Range<u64>>>) -> Result<Vec<u64>, PlanError> {
        let mut counts = vec![0; self.shards_total()];
        for (lane, outputs) in (0..).zip(outputs) {
            if outputs.is_empty() {
                continue;
            }
            for LanePart { first_shard, part, outputs } in self.lane(lane).parts(outputs)? {
                let mut tally = Tally::new(&part, &mut counts[first_shard..]);
                part.inputs_of(outputs)?.into_iter().for_each(|inputs| tally.add(inputs));
            }
        }
        Ok(counts)
    }

    /// Returns the number of shards of the dataset, or of all sources of the mixture.
    fn shards_total(&self) -> usize {
        match self.sequence() {
            Sequence::Dataset(line) => line.shards_total(),
            Sequence::Mixture(mixture) => mixture.shards_total(),
        }
    }

    /// Returns the number of samples delivered before the ranks' cursors: the sum of
    /// [`EpochPlan::delivered_by_shard`], in O(lanes + ranks).
    ///
    /// # Errors  `CursorsDoNotFit`, `NoSuchStep`.
    pub fn delivered_before(&self, steps: &[u64]) -> Result<u64, PlanError> {
        let open = self.open_steps(steps)?;
        let mut delivered = 0;
        for index in 0..self.layers.len() {
            let segment = &self.layers[index].segment;
            for (lane, end) in (0..).zip(self.lane_ends(index)) {
                let columns = columns(segment, self.steps_of(index, &open), lane);
                delivered += columns.map(|c| c.taken(segment.per_lane(), end)).sum::<u64>();
            }
        }
        Ok(delivered)
    }

    /// Returns the number of samples of each shard that no step delivers, `[shards]`; their sum is
    /// [`EpochPlan::dropped`]. Costs as [`EpochPlan::delivered_by_shard`].
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn dropped_by_shard(&self) -> Result<Vec<u64>, PlanError> {
        let mut dropped = self.delivered_by_shard(&self.ends())?;
        let whole = |samples: &u64| std::iter::once(0..*samples).collect();
        let samples = self.by_shard(self.layers[0].lengths.iter().map(whole).collect())?;
        for (dropped, samples) in dropped.iter_mut().zip(samples) {
            *dropped = samples - *dropped;
        }
        Ok(dropped)
    }

    /// Returns cursors of all ranks at the end of the epoch.
    pub(super) fn ends(&self) -> Vec<u64> {
        vec![self.steps(); self.world_size() as usize]
    }

    /// Returns the ranks that read each shard in the last segment, `[shards]`: two ascending and
    /// disjoint ranges of them.
    ///
    /// These are the ranks with a lane of the shard. Lanes are contiguous in the epoch sequence, so
    /// the ranks of a stretch are contiguous too.
    /// - The second range is empty, except of the shard inside which the epoch sequence begins: its
    ///   last samples may be in the first lanes and its first samples in the last ones. If both are
    ///   empty, the shard has no samples, or none left for the segment.
    /// - After resharding in mid-epoch the range may contain more ranks than necessary, because the
    ///   location of samples is known only to within a shuffle window, or to within a lane after
    ///   ranks stopped at different steps. Of a mixture one range contains those of all portions.
    ///
    /// Costs O(shards + lanes x segments), in a mixture O(shards + lanes) for each source epoch.
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn ranks_of_shards(&self) -> Result<Vec<[Range<u64>; 2]>, PlanError> {
        let last = self.layers.len() - 1;
        let rests: Vec<Rests> = self.layers[..last].iter().map(Rests::of).collect();
        let first_starts = sums(self.layers[0].lengths.iter().copied());
        let last_starts = sums(self.layers[last].lengths.iter().copied());
        let mut ranks = vec![[0..0, 0..0]; self.shards_total()];
        let second = match self.sequence() {
            Sequence::Dataset(line) => line.second_stretch(),
            Sequence::Mixture(_) => None,
        };
        let mut second_ranks = (0, 0..0);
        for (index, start) in (0..self.lanes()).zip(first_starts) {
            let lane = self.lane(index);
            for LanePart { first_shard, part, .. } in lane.all_parts()? {
                for group in part.groups() {
                    let outputs = part.outputs_near(&part.inputs_of_group(&group));
                    let outputs = lane.outputs_near(&part, outputs);
                    let items = start + outputs.start..start + outputs.end;
                    let items = rests.iter().fold(items, |items, rests| rests.left_of(items));
                    if items.is_empty() {
                        continue;
                    }
                    let lanes =
                        part_at(&last_starts, items.start)..part_at(&last_starts, items.end - 1);
                    let found = self.ranks_of_lanes(lanes.start as u64, lanes.end as u64);
                    for place in group {
                        let shard = part.line().shards()[place] as usize;
                        match second == Some(place) {
                            true => {
                                second_ranks.0 = shard;
                                extend(&mut second_ranks.1, &found);
                            }
                            false => extend(&mut ranks[first_shard + shard][0], &found),
                        }
                    }
                }
            }
        }
        let (shard, second) = second_ranks;
        if let Some([first, further]) = ranks.get_mut(shard).filter(|_| !second.is_empty()) {
            match first.is_empty() || second.start <= first.end {
                true => extend(first, &second),
                false => *further = second,
            }
        }
        Ok(ranks)
    }

    /// Returns the ranks with entries of lanes `first..=last` of the last segment.
    fn ranks_of_lanes(&self, first: u64, last: u64) -> Range<u64> {
        let per_lane = self.layers[self.layers.len() - 1].segment.per_lane();
        first * per_lane / self.rows()..((last + 1) * per_lane).div_ceil(self.rows())
    }

    /// Returns the steps of the last segment that the ranks took, in the form of a segment.
    fn open_steps(&self, steps: &[u64]) -> Result<Steps, PlanError> {
        let (cursors, world_size) = (steps.len() as u64, self.world_size());
        if cursors != world_size {
            return Err(PlanError::CursorsDoNotFit { cursors, world_size });
        }
        let all = self.steps();
        if let Some(&step) = steps.iter().find(|&&step| step > all) {
            return Err(PlanError::NoSuchStep { epoch: self.epoch(), step, steps: all });
        }
        let first = self.first_step();
        let open = steps.iter().map(|step| step.saturating_sub(first)).collect();
        Ok(Steps::PerRank(open).normalized())
    }

    /// Returns the steps taken in a segment; `open` are those of the last one.
    fn steps_of<'a>(&'a self, index: usize, open: &'a Steps) -> &'a Steps {
        if index + 1 == self.layers.len() { open } else { &self.layers[index].segment.steps }
    }

    /// Returns the end of each lane's entries of a segment that exist and that the steps reach.
    fn lane_ends(&self, index: usize) -> Vec<u64> {
        let Layer { segment, lengths, .. } = &self.layers[index];
        let (per_lane, left) = (segment.per_lane(), self.slots_left(index));
        let (full, partial) = (left / segment.global_batch, left % segment.global_batch);
        let reached = self.steps_in(index).saturating_mul(per_lane);
        let end = |(lane, length): (u64, &u64)| {
            let partial = partial.saturating_sub(lane * per_lane).min(per_lane);
            full.saturating_mul(per_lane).saturating_add(partial).min(reached).min(*length)
        };
        (0..).zip(lengths).map(end).collect()
    }

    /// Returns the positions of a lane of a segment, below `end`, that the ranks took.
    fn taken_in(&self, index: usize, open: &Steps, lane: u64, end: u64) -> Vec<Range<u64>> {
        let segment = &self.layers[index].segment;
        let columns: Vec<_> = columns(segment, self.steps_of(index, open), lane).collect();
        taken_of(segment.per_lane(), &columns, end)
    }

    /// Returns the outputs of each lane of the first segment at some positions of all segments:
    /// ascending, disjoint and not adjacent.
    /// - `positions`: of a segment, by its index, a lane, and the end of what its steps reach of it.
    fn outputs_where(
        &self,
        positions: impl Fn(usize, u64, u64) -> Vec<Range<u64>>,
    ) -> Vec<Vec<Range<u64>>> {
        let mut above: Vec<Vec<Range<u64>>> = Vec::new();
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let ends = (0..).zip(self.lane_ends(index));
            let mut found: Vec<_> = ends.map(|(lane, end)| positions(index, lane, end)).collect();
            for (lane, stretches) in (0..).zip(above) {
                for stretch in stretches {
                    let upper = &self.layers[index + 1];
                    for (lane, positions) in upper.down_all(layer, lane, stretch) {
                        found[lane as usize].push(positions);
                    }
                }
            }
            above = found.into_iter().map(joined).collect();
        }
        above
    }
}

/// Extends a range, which may be empty, so that it contains another one.
fn extend(range: &mut Range<u64>, other: &Range<u64>) {
    let start = if range.start < range.end { range.start.min(other.start) } else { other.start };
    *range = start..range.end.max(other.end);
}

/// Start of each lane of a segment in their concatenation, and likewise of each rest.
struct Rests {
    lanes: Vec<u64>,
    rests: Vec<u64>,
    /// Number of positions taken of each lane, if they are its first ones.
    taken: Option<u64>,
}

impl Rests {
    fn of(layer: &Layer) -> Self {
        let lanes = sums(layer.lengths.iter().copied());
        let rests = sums((0..layer.segment.lanes).map(|lane| layer.rest(lane)));
        let taken = match &layer.segment.steps {
            Steps::All(steps) => Some(steps.saturating_mul(layer.segment.per_lane())),
            Steps::PerRank(_) => None,
        };
        Self { lanes, rests, taken }
    }

    /// Returns a range of rest items that contains those left of lane `items`; the next segment's
    /// lanes consist of rest items.
    fn left_of(&self, items: Range<u64>) -> Range<u64> {
        if items.is_empty() {
            return items;
        }
        let first = part_at(&self.lanes, items.start);
        let last = part_at(&self.lanes, items.end - 1);
        let Some(taken) = self.taken else {
            return self.rests[first]..self.rests[last + 1];
        };
        let left = |lane: usize, item: u64| {
            self.rests[lane] + (item - self.lanes[lane]).saturating_sub(taken)
        };
        left(first, items.start)..left(last, items.end)
    }
}

fn part_at(starts: &[u64], item: u64) -> usize {
    starts.partition_point(|&start| start <= item) - 1
}

/// Number of turns per split that are walked instead of searched again, at about equal cost.
const WALKED_PER_SPLIT: u64 = 16;

/// Counts inputs of a part by shard, in ascending order.
struct Tally<'a> {
    part: &'a Part,
    counts: &'a mut [u64],
    /// Current group: the indices of its splits, and its inputs.
    group: Range<usize>,
    inputs: Range<u64>,
    /// Turns of the group, once a part of it was counted.
    walk: Option<TurnsWalk>,
}

/// Iteration over the turns of a group, and its position.
struct TurnsWalk {
    turns: Turns,
    iter: TurnsIter,
    next: u64,
}

impl<'a> Tally<'a> {
    fn new(part: &'a Part, counts: &'a mut [u64]) -> Self {
        Self { part, counts, group: 0..0, inputs: 0..0, walk: None }
    }

    fn add(&mut self, inputs: Range<u64>) {
        let mut input = inputs.start;
        while input < inputs.end {
            self.enter(input);
            let end = inputs.end.min(self.inputs.end);
            if input == self.inputs.start && end == self.inputs.end {
                for place in self.group.clone() {
                    let samples = self.part.split_length(place);
                    self.add_to(place, samples);
                }
            } else {
                self.add_part(input - self.inputs.start..end - self.inputs.start);
            }
            input = end;
        }
    }

    /// Moves to the group that contains `input`.
    fn enter(&mut self, input: u64) {
        if self.inputs.contains(&input) {
            return;
        }
        let follows = !self.inputs.is_empty() && input == self.inputs.end;
        self.group =
            if follows { self.part.group_at(self.group.end) } else { self.part.group_of(input) };
        self.inputs = self.part.inputs_of_group(&self.group);
        self.walk = None;
    }

    /// Adds some positions of the group: by lengths if they are many, otherwise turn by turn.
    fn add_part(&mut self, positions: Range<u64>) {
        let walked_max = self.group.len() as u64 * WALKED_PER_SPLIT;
        let walk = self.walk.get_or_insert_with(|| TurnsWalk {
            turns: self.part.turns(&self.group),
            iter: TurnsIter::empty(),
            next: u64::MAX,
        });
        let length = positions.end - positions.start;
        if length > walked_max {
            let before = walk.turns.given(positions.start);
            let after = walk.turns.given(positions.end);
            for (place, (before, after)) in self.group.clone().zip(before.into_iter().zip(after)) {
                self.add_to(place, after - before);
            }
            return;
        }
        if positions.start < walk.next || positions.start - walk.next > walked_max {
            walk.iter = walk.turns.clone().iter_from(positions.start);
            walk.next = positions.start;
        }
        let skipped = positions.start - walk.next;
        walk.next = positions.end;
        for turn in walk.iter.by_ref().skip(skipped as usize).take(length as usize) {
            let shard = self.part.line().shards()[self.group.start + turn.split];
            self.counts[shard as usize] += 1;
        }
    }

    fn add_to(&mut self, place: usize, samples: u64) {
        self.counts[self.part.line().shards()[place] as usize] += samples;
    }
}
