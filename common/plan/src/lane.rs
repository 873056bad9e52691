//! Lane: one of C equal contiguous parts of the epoch sequence, with its own shuffle. Source:
//! docs/ORDER.md, sections 3 and 4.

use std::ops::Range;
use std::sync::Arc;

use crate::PlanError;
use crate::interleave::{Turn, Turns, TurnsIter};
use crate::line::{Line, Sample, Shuffle};
use crate::random::stream_key;
use crate::window::{PassA, Permutations, Window};

/// Returns the range of the `part`-th of `parts` equal parts of `items`.
pub(crate) fn cut(items: u64, parts: u64, part: u64) -> Range<u64> {
    let start = part * (items / parts) + part.min(items % parts);
    start..start + items / parts + u64::from(part < items % parts)
}

/// Returns the part that contains `item` when `items` are cut into `parts`.
pub(crate) fn part_of(items: u64, parts: u64, item: u64) -> u64 {
    let (small, longer) = (items / parts, items % parts);
    let border = longer * (small + 1);
    if item < border { item / (small + 1) } else { longer + (item - border) / small.max(1) }
}

/// One lane of an epoch as it is cut from the epoch sequence.
///
/// Its samples have two numberings: *inputs*, interleaved but not shuffled, the order in which they
/// are read, and *outputs*, the lane's order. Each is computed from the other block by block.
#[derive(Clone, Debug)]
pub struct Lane {
    line: Arc<Line>,
    range: Range<u64>,
    /// Indices of its splits among the shards of the epoch sequence.
    places: Range<usize>,
    interleave: u64,
    block_length: u64,
    window: Window,
}

/// Consecutive outputs of a lane and their sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneBlock {
    /// Outputs of the block.
    pub outputs: Range<u64>,
    /// Inputs that they need: at most two shuffle windows.
    pub needs: Range<u64>,
    /// Input of each output, `[outputs.end - outputs.start]`.
    pub sources: Vec<u64>,
    /// True if nothing is shuffled: each output needs only its own input.
    pub is_plain: bool,
}

impl Lane {
    /// Returns lane `index` of `lanes` of the sequence of `epoch`.
    pub(crate) fn new(
        line: &Arc<Line>,
        shuffle: &Shuffle,
        epoch: u64,
        lanes: u64,
        index: u64,
    ) -> Self {
        let range = cut(line.samples(), lanes, index);
        let labels = ("window a", "window b");
        Self::over(line, shuffle, range, labels, &[shuffle.seed, epoch, lanes, index])
    }

    /// Returns the order of a group of whole shards, those in `range` of the sequence of `epoch`.
    pub(crate) fn of_group(
        line: &Arc<Line>,
        shuffle: &Shuffle,
        epoch: u64,
        group: u64,
        range: Range<u64>,
    ) -> Self {
        let labels = ("group a", "group b");
        Self::over(line, shuffle, range, labels, &[shuffle.seed, epoch, group])
    }

    /// Returns the lane over a range of the epoch sequence; labels and numbers are the keys of its
    /// two shuffles.
    fn over(
        line: &Arc<Line>,
        shuffle: &Shuffle,
        range: Range<u64>,
        (label_a, label_b): (&str, &str),
        numbers: &[u64],
    ) -> Self {
        let samples = range.end - range.start;
        let places = if range.is_empty() {
            0..0
        } else {
            line.place(range.start)..line.place(range.end - 1) + 1
        };
        let window = if shuffle.enabled {
            let key_a = stream_key(label_a, &shuffle.content, numbers);
            let key_b = stream_key(label_b, &shuffle.content, numbers);
            Window::shuffled(samples, shuffle.window, key_a, key_b)
        } else {
            Window::plain(samples)
        };
        let (line, interleave, block_length) =
            (Arc::clone(line), shuffle.interleave, shuffle.block_length);
        Self { line, range, places, interleave, block_length, window }
    }

    /// Returns the number of samples of the lane.
    pub fn samples(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the sample at an input, which is below [`Lane::samples`].
    pub fn input(&self, input: u64) -> Sample {
        let group = self.group_of(input);
        let turn = self.turns(&group).at(input - self.input_of_group(&group));
        self.sample(&group, turn)
    }

    /// Iterates over all samples from an input on, in reading order.
    pub fn inputs_from(&self, input: u64) -> Inputs {
        if input >= self.samples() {
            return Inputs { lane: self.clone(), group: 0..0, turns: TurnsIter::empty() };
        }
        let group = self.group_of(input);
        let turns = self.turns(&group).iter_from(input - self.input_of_group(&group));
        Inputs { lane: self.clone(), group, turns }
    }

    /// Returns the input at which `sample` is read, or `None` if it is in another lane.
    pub fn input_of(&self, sample: Sample) -> Option<u64> {
        let position = self.line.position(sample).filter(|p| self.range.contains(p))?;
        let place = self.line.place(position);
        let group = self.group_at(place);
        let offset = position - self.line.start(place).max(self.range.start);
        let turn = Turn { split: place - group.start, offset };
        Some(self.input_of_group(&group) + self.turns(&group).position(turn))
    }

    /// Returns the sample at an output, which is below [`Lane::samples`].
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn output(&self, output: u64) -> Result<Sample, PlanError> {
        let mut blocks = self.blocks_from(output);
        let block = blocks.next().expect("the output is in the lane")?;
        Ok(self.input(block.sources[(output - block.outputs.start) as usize]))
    }

    /// Returns the samples at outputs, which are all below [`Lane::samples`].
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn outputs(&self, outputs: Range<u64>) -> Result<Vec<Sample>, PlanError> {
        let mut samples = Vec::new();
        let mut next = outputs.start;
        for block in self.blocks_from(outputs.start) {
            if next >= outputs.end {
                break;
            }
            let block = block?;
            let end = block.outputs.end.min(outputs.end);
            let place = |output: u64| (output - block.outputs.start) as usize;
            let sources = &block.sources[place(next)..place(end)];
            samples.extend(sources.iter().map(|input| self.input(*input)));
            next = end;
        }
        Ok(samples)
    }

    /// Returns the output of `sample`, or `None` if it is in another lane.
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn output_of(&self, sample: Sample) -> Result<Option<u64>, PlanError> {
        self.output_with(sample, &mut Permutations::default())
    }

    /// As [`Lane::output_of`], using and extending the cache `known`.
    pub(crate) fn output_with(
        &self,
        sample: Sample,
        known: &mut Permutations,
    ) -> Result<Option<u64>, PlanError> {
        self.input_of(sample).map(|input| self.window.output_of(input, known)).transpose()
    }

    /// Iterates over the blocks of outputs, beginning with the one that contains `output`.
    pub fn blocks_from(&self, output: u64) -> Blocks {
        Blocks { lane: self.clone(), next: self.window.block_of(output), passes: PassA::default() }
    }

    /// Returns the inputs of `outputs`. Both are any number of ascending, disjoint ranges.
    ///
    /// # Errors  `WindowTooLarge`.
    pub(crate) fn inputs_of(&self, outputs: Vec<Range<u64>>) -> Result<Vec<Range<u64>>, PlanError> {
        self.window.inputs_of(outputs)
    }

    /// Returns a range of outputs that contains those of `inputs`, which is not empty.
    pub(crate) fn outputs_near(&self, inputs: &Range<u64>) -> Range<u64> {
        self.window.outputs_near(inputs)
    }

    /// Iterates over the groups of splits, as indices of shards in the epoch sequence.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut next = self.places.start;
        std::iter::from_fn(move || {
            let group = (next < self.places.end).then(|| self.group_at(next))?;
            next = group.end;
            Some(group)
        })
    }

    /// Returns the group that contains an input, which is below [`Lane::samples`].
    pub(crate) fn group_of(&self, input: u64) -> Range<usize> {
        self.group_at(self.line.place(self.range.start + input))
    }

    /// Returns the indices of the splits of the group to which the split at `place` belongs.
    pub(crate) fn group_at(&self, place: usize) -> Range<usize> {
        let size = usize::try_from(self.interleave).unwrap_or(usize::MAX);
        let start = self.places.start + (place - self.places.start) / size * size;
        start..start.saturating_add(size).min(self.places.end)
    }

    fn input_of_group(&self, group: &Range<usize>) -> u64 {
        self.inputs_of_group(group).start
    }

    pub(crate) fn inputs_of_group(&self, group: &Range<usize>) -> Range<u64> {
        let start = self.line.start(group.start).max(self.range.start);
        let end = self.line.start(group.end).min(self.range.end);
        start - self.range.start..end - self.range.start
    }

    pub(crate) fn split_length(&self, place: usize) -> u64 {
        self.line.start(place + 1).min(self.range.end)
            - self.line.start(place).max(self.range.start)
    }

    pub(crate) fn turns(&self, group: &Range<usize>) -> Turns {
        let lengths = group.clone().map(|place| self.split_length(place)).collect();
        Turns::new(lengths, self.block_length)
    }

    fn sample(&self, group: &Range<usize>, turn: Turn) -> Sample {
        let place = group.start + turn.split;
        let skipped = self.range.start.saturating_sub(self.line.start(place));
        self.line.sample_in(place, skipped + turn.offset)
    }
}

/// Iterator over the samples of a lane in reading order.
#[derive(Clone, Debug)]
pub struct Inputs {
    lane: Lane,
    group: Range<usize>,
    turns: TurnsIter,
}

impl Inputs {
    /// Returns the next sample and the number of samples that follow each other in its shard,
    /// itself included: at most `max`, which is not 0.
    pub fn next_run(&mut self, max: u64) -> Option<(Sample, u64)> {
        loop {
            if let Some((turn, run)) = self.turns.next_run(max) {
                return Some((self.lane.sample(&self.group, turn), run));
            }
            if self.group.is_empty() || self.group.end >= self.lane.places.end {
                return None;
            }
            self.group = self.lane.group_at(self.group.end);
            self.turns = self.lane.turns(&self.group).iter_from(0);
        }
    }
}

impl Iterator for Inputs {
    type Item = Sample;

    fn next(&mut self) -> Option<Sample> {
        self.next_run(1).map(|(sample, _)| sample)
    }
}

/// Iterator over the blocks of a lane's outputs, in order.
#[derive(Clone, Debug)]
pub struct Blocks {
    lane: Lane,
    next: u64,
    passes: PassA,
}

impl Iterator for Blocks {
    type Item = Result<LaneBlock, PlanError>;

    fn next(&mut self) -> Option<Self::Item> {
        let window = &self.lane.window;
        let (outputs, needs) = (window.outputs(self.next), window.inputs(self.next));
        if outputs.start >= self.lane.samples() {
            return None;
        }
        let sources = window.sources(self.next, &mut self.passes);
        self.next += 1;
        let is_plain = window.is_plain();
        Some(sources.map(|sources| LaneBlock { outputs, needs, sources, is_plain }))
    }
}
