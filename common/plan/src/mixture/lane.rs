//! A lane of a mixture: the queues of its sources, merged. Source: docs/ORDER.md, section 13, Lanes
//! of a mixture.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::MixtureEpoch;
use super::epoch::{Division, SourceRange};
use super::merge::{Labels, Merge};
use crate::PlanError;
use crate::lane::{
    LaneBlock, LanePart, Part, PartInputs, PartOutputs, Planned, Portion, SplitRun, last_where,
};
use crate::line::Sample;
use crate::random::{Draws, stream_key};
use crate::window::{Permutations, joined};

/// Labels that are permuted together.
const BLOCK: u64 = 1024;

/// A lane of a mixture.
///
/// As in a [`Part`], *outputs* are the order of the lane. *Inputs*, the order of reading, are the
/// merged order: sources in the order before labels are permuted, each with the inputs of its parts.
#[derive(Clone, Debug)]
pub(crate) struct MergedLane {
    epoch: Arc<MixtureEpoch>,
    lane: u64,
    divisions: Vec<Division>,
    merge: Merge,
    /// Key of the permutations of labels; `None` without shuffle.
    key: Option<u64>,
}

/// Block of outputs: source and position in its queue for each.
#[derive(Clone, Debug)]
struct LabelBlock {
    outputs: Range<u64>,
    picks: Vec<(usize, u64)>,
}

/// The part of a queue that contains the last requested position.
#[derive(Clone, Debug)]
struct QueueCursor {
    positions: Range<u64>,
    outputs: PartOutputs,
}

impl MergedLane {
    pub(super) fn new(epoch: Arc<MixtureEpoch>, lanes: u64, lane: u64) -> Self {
        let divisions = epoch.divisions(lanes);
        let length = |(range, division): (&SourceRange, &Division)| {
            range.queue_start(range.portions(), *division, lane)
        };
        let merge = Merge::new(epoch.ranges().iter().zip(&divisions).map(length).collect());
        let shuffle = epoch.shuffle();
        let numbers = [shuffle.seed, epoch.epoch(), lanes, lane];
        let key = shuffle.enabled.then(|| stream_key("mixture", &shuffle.digest, &numbers));
        Self { epoch, lane, divisions, merge, key }
    }

    pub(crate) fn samples(&self) -> u64 {
        self.merge.total()
    }

    /// Returns the sample at an input, which is below [`MergedLane::samples`].
    pub(crate) fn input(&self, input: u64) -> Sample {
        let labels = self.merge.labels_from(input);
        let source = labels.peek().expect("the input is in the lane");
        let at = labels.passed()[source];
        let (positions, part) = self.part_at(source, at);
        part.input(at - positions.start)
    }

    /// Returns the output of a sample, or `None` if it is in another lane.
    pub(crate) fn output_with(
        &self,
        portion: Portion,
        sample: Sample,
        known: &mut Permutations,
    ) -> Result<Option<u64>, PlanError> {
        let Some((range, index)) = self.epoch.portion_of(portion) else {
            return Ok(None);
        };
        let source = portion.source as usize;
        let division = self.divisions[source];
        let part = range.part(index, division, self.lane);
        let Some(output) = part.output_with(sample, known)? else {
            return Ok(None);
        };
        let position = range.queue_start(index, division, self.lane) + output;
        let block = self.block_at(self.merge.position(source, position))?;
        let pick = block.picks.iter().position(|pick| *pick == (source, position));
        Ok(pick.map(|pick| block.outputs.start + pick as u64))
    }

    /// Returns the part with the samples that this lane has of a portion, or `None` if the epoch
    /// has no such portion.
    pub(crate) fn part_of(&self, portion: Portion) -> Option<Part> {
        let (range, index) = self.epoch.portion_of(portion)?;
        Some(range.part(index, self.divisions[portion.source as usize], self.lane))
    }

    /// Returns the parts with samples at ascending, disjoint `outputs`, with their own outputs.
    pub(crate) fn parts(&self, outputs: &[Range<u64>]) -> Result<Vec<LanePart>, PlanError> {
        let mut parts: Vec<LanePart> = Vec::new();
        // The last part of each source: its positions in the queue, and its index.
        let mut last: Vec<(Range<u64>, usize)> = vec![(0..0, 0); self.merge.queues()];
        for outputs in outputs {
            let (from, to) = (self.passed(outputs.start)?, self.passed(outputs.end)?);
            for (source, (mut at, to)) in from.into_iter().zip(to).enumerate() {
                let (positions, index) = &mut last[source];
                while at < to {
                    if !positions.contains(&at) {
                        let first_shard = self.epoch.ranges()[source].first_shard();
                        let (found, part) = self.part_at(source, at);
                        (*positions, *index) = (found, parts.len());
                        parts.push(LanePart { first_shard, part, outputs: vec![] });
                    }
                    let end = positions.end.min(to);
                    let outputs = at - positions.start..end - positions.start;
                    parts[*index].outputs.push(outputs);
                    at = end;
                }
            }
        }
        for part in &mut parts {
            part.outputs = joined(std::mem::take(&mut part.outputs));
        }
        Ok(parts)
    }

    /// Adds the number of samples of each source at `outputs`.
    pub(crate) fn count_sources(
        &self,
        outputs: &[Range<u64>],
        counts: &mut [u64],
    ) -> Result<(), PlanError> {
        for outputs in outputs {
            let (from, to) = (self.passed(outputs.start)?, self.passed(outputs.end)?);
            for ((count, from), to) in counts.iter_mut().zip(from).zip(to) {
                *count += to - from;
            }
        }
        Ok(())
    }

    /// Returns a range of outputs that contains those of a part's outputs, which are not empty.
    pub(crate) fn outputs_near(&self, portion: Portion, outputs: &Range<u64>) -> Range<u64> {
        let source = portion.source as usize;
        let Some((range, index)) = self.epoch.portion_of(portion) else {
            return 0..0;
        };
        let start = range.queue_start(index, self.divisions[source], self.lane);
        let position = |output| self.merge.position(source, start + output);
        let (first, last) = (position(outputs.start), position(outputs.end - 1));
        let end = (last / BLOCK + 1) * BLOCK;
        first / BLOCK * BLOCK..end.min(self.samples())
    }

    /// Returns the samples of each source before an output, at most [`MergedLane::samples`].
    fn passed(&self, output: u64) -> Result<Vec<u64>, PlanError> {
        let mut passed = self.merge.passed(output / BLOCK * BLOCK);
        if !output.is_multiple_of(BLOCK) {
            let block = self.block_at(output)?;
            let picks = &block.picks[..(output % BLOCK) as usize];
            picks.iter().for_each(|(source, _)| passed[*source] += 1);
        }
        Ok(passed)
    }

    /// Returns the part of a queue that contains a position, and its positions.
    fn part_at(&self, source: usize, position: u64) -> (Range<u64>, Part) {
        let (range, division) = (&self.epoch.ranges()[source], self.divisions[source]);
        let start = |portion| range.queue_start(portion, division, self.lane);
        let portion = last_where(0..range.portions(), |portion| start(portion) <= position);
        let start = start(portion);
        let part = range.part(portion, division, self.lane);
        (start..start + part.samples(), part)
    }

    /// Returns the block that contains an output, which is below [`MergedLane::samples`].
    fn block_at(&self, output: u64) -> Result<LabelBlock, PlanError> {
        let mut labels = self.merge.labels_from(output / BLOCK * BLOCK);
        self.next_block(&mut labels)
    }

    /// Returns the block that begins with the next one of `labels`.
    fn next_block(&self, labels: &mut Labels) -> Result<LabelBlock, PlanError> {
        let (first, mut next) = (labels.at(), labels.passed().to_vec());
        let merged: Vec<usize> = labels.take(BLOCK as usize).collect();
        let order = match self.key {
            Some(key) => Draws::new(key, first / BLOCK).permutation(merged.len() as u64)?,
            None => (0..merged.len() as u32).collect(),
        };
        let pick = |from: u32| {
            let source = merged[from as usize];
            next[source] += 1;
            (source, next[source] - 1)
        };
        let picks: Vec<_> = order.into_iter().map(pick).collect();
        Ok(LabelBlock { outputs: first..first + picks.len() as u64, picks })
    }

    /// Returns the first input still needed of each queue with more items than `passed`.
    fn needs(&self, cursors: &mut [Option<QueueCursor>], passed: &[u64]) -> Vec<(usize, u64)> {
        let left = |(source, at): &(usize, &u64)| **at < self.merge.length(*source);
        let need = |(source, &at): (usize, &u64)| {
            let cursor = self.enter(cursors, source, at);
            let start = cursor.positions.start;
            (source, start + cursor.outputs.needs_from(at - start))
        };
        passed.iter().enumerate().filter(left).map(need).collect()
    }

    /// Returns the cursor of a queue at the part that contains a position.
    fn enter<'a>(
        &self,
        cursors: &'a mut [Option<QueueCursor>],
        source: usize,
        position: u64,
    ) -> &'a mut QueueCursor {
        let known = cursors[source].take();
        let entered = known.filter(|cursor| cursor.positions.contains(&position));
        cursors[source].insert(entered.unwrap_or_else(|| {
            let (positions, part) = self.part_at(source, position);
            QueueCursor { positions, outputs: PartOutputs::new(&part) }
        }))
    }
}

/// Samples at outputs; cheap if they are close to the last one.
#[derive(Clone, Debug)]
pub(crate) struct MergedOutputs {
    lane: Arc<MergedLane>,
    block: Option<LabelBlock>,
    cursors: Vec<Option<QueueCursor>>,
}

impl MergedOutputs {
    pub(crate) fn new(lane: Arc<MergedLane>) -> Self {
        let cursors = vec![None; lane.merge.queues()];
        Self { lane, block: None, cursors }
    }

    pub(crate) fn planned(&mut self, output: u64) -> Result<Planned, PlanError> {
        let block = match self.block.take().filter(|block| block.outputs.contains(&output)) {
            Some(block) => block,
            None => self.lane.block_at(output)?,
        };
        let block = self.block.insert(block);
        let (source, position) = block.picks[(output - block.outputs.start) as usize];
        let cursor = self.lane.enter(&mut self.cursors, source, position);
        cursor.outputs.planned(position - cursor.positions.start)
    }
}

/// Iterator over the samples of a lane in reading order.
#[derive(Clone, Debug)]
pub(crate) struct MergedInputs {
    lane: Arc<MergedLane>,
    labels: Labels,
    /// A source and the number of its inputs that come next, if their labels were passed already.
    pending: Option<(usize, u64)>,
    queues: Vec<OpenQueue>,
}

/// Next input of a queue, and the part that is read.
#[derive(Clone, Debug)]
struct OpenQueue {
    next: u64,
    inputs: Option<PartInputs>,
}

impl MergedInputs {
    pub(crate) fn new(lane: Arc<MergedLane>, input: u64) -> Self {
        let labels = lane.merge.labels_from(input.min(lane.samples()));
        let queue = |next: &u64| OpenQueue { next: *next, inputs: None };
        let queues = labels.passed().iter().map(queue).collect();
        Self { lane, labels, pending: None, queues }
    }

    pub(crate) fn next_run(&mut self, max: u64) -> Option<SplitRun> {
        let (source, count) = match self.pending.take() {
            Some(pending) => pending,
            None => {
                let (source, mut count) = (self.labels.next()?, 1);
                while count < max && self.labels.next_if(source) {
                    count += 1;
                }
                (source, count)
            }
        };
        let OpenQueue { next, inputs } = &mut self.queues[source];
        let most = count.min(max);
        let run = match inputs.as_mut().and_then(|inputs| inputs.next_run(most)) {
            Some(run) => run,
            None => {
                let (positions, part) = self.lane.part_at(source, *next);
                let inputs = inputs.insert(part.inputs_from(*next - positions.start));
                inputs.next_run(most).expect("the part contains the input")
            }
        };
        *next += run.samples;
        self.pending = (run.samples < count).then(|| (source, count - run.samples));
        Some(run)
    }
}

/// Iterator over the blocks of a lane's outputs, in order.
#[derive(Clone, Debug)]
pub(crate) struct MergedBlocks {
    lane: Arc<MergedLane>,
    /// Labels of the next block.
    labels: Labels,
    cursors: Vec<Option<QueueCursor>>,
    /// Labels of the inputs that no block needed yet; `None` if nothing is shuffled.
    walk: Option<Labels>,
    /// Passed inputs of each queue that a block may still need.
    walked: Vec<WalkedInputs>,
}

/// Places in the merged order of consecutive inputs of a queue.
#[derive(Clone, Debug)]
struct WalkedInputs {
    first: u64,
    places: VecDeque<u64>,
}

impl MergedBlocks {
    pub(crate) fn new(lane: Arc<MergedLane>, output: u64) -> Self {
        let labels = lane.merge.labels_from((output / BLOCK * BLOCK).min(lane.samples()));
        let mut cursors = vec![None; lane.merge.queues()];
        let walk = lane.key.map(|_| {
            let needs = lane.needs(&mut cursors, labels.passed());
            let place = |(source, input)| lane.merge.position(source, input);
            let first = needs.into_iter().map(place).min();
            lane.merge.labels_from(first.unwrap_or(lane.samples()))
        });
        let walked = walk.iter().flat_map(|walk| walk.passed());
        let walked = walked.map(|&first| WalkedInputs { first, places: VecDeque::new() }).collect();
        Self { lane, labels, cursors, walk, walked }
    }

    pub(crate) fn next_block(&mut self) -> Option<Result<LaneBlock, PlanError>> {
        let first = self.labels.at();
        if first >= self.lane.samples() {
            return None;
        }
        let passed = self.labels.passed().to_vec();
        let block = match self.lane.next_block(&mut self.labels) {
            Ok(block) => block,
            Err(error) => return Some(Err(error)),
        };
        Some(self.resolve(block, &passed))
    }

    /// Returns the inputs of a block before which `passed` items of each queue are.
    fn resolve(&mut self, block: LabelBlock, passed: &[u64]) -> Result<LaneBlock, PlanError> {
        let LabelBlock { outputs, picks } = block;
        let Some(walk) = &mut self.walk else {
            let sources = outputs.clone().collect();
            return Ok(LaneBlock { needs: outputs.clone(), outputs, sources, is_plain: true });
        };
        let needs = self.lane.needs(&mut self.cursors, passed);
        let mut sources = Vec::with_capacity(picks.len());
        for (source, position) in picks {
            let cursor = self.lane.enter(&mut self.cursors, source, position);
            let input = cursor.outputs.input(position - cursor.positions.start)?;
            let input = cursor.positions.start + input;
            let place = loop {
                if let Some(place) = self.walked[source].place(input) {
                    break place;
                }
                let at = walk.at();
                let passed = walk.next().expect("the lane contains its inputs");
                self.walked[passed].places.push_back(at);
            };
            sources.push(place);
        }
        let end = walk.at();
        let mut start = end;
        for (source, input) in needs {
            let walked = &mut self.walked[source];
            while walked.first < input && walked.places.pop_front().is_some() {
                walked.first += 1;
            }
            start = start.min(walked.place(input).unwrap_or(end));
        }
        Ok(LaneBlock { outputs, needs: start..end, sources, is_plain: false })
    }
}

impl WalkedInputs {
    fn place(&self, input: u64) -> Option<u64> {
        self.places.get(usize::try_from(input.checked_sub(self.first)?).ok()?).copied()
    }
}
