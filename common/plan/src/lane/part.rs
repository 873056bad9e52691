//! Part: a contiguous range of an epoch sequence with a shuffle of its own. Source: docs/ORDER.md,
//! sections 3 and 4.

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

/// Returns the last number of a range for which `holds` is true: it is for the first number, and for
/// none after the returned one.
pub(crate) fn last_where(mut range: Range<u64>, holds: impl Fn(u64) -> bool) -> u64 {
    while range.end - range.start > 1 {
        let middle = range.start + (range.end - range.start) / 2;
        if holds(middle) {
            range.start = middle;
        } else {
            range.end = middle;
        }
    }
    range.start
}

/// Source of a sample, and the epoch of this source in which it is delivered.
///
/// Outside of mixtures both numbers are 0: there is one source, whose epoch is that of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Portion {
    /// Number of the source among those of the stage, ordered by name.
    pub source: u32,
    pub epoch: u64,
}

/// Sample as a rank receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Source and source epoch of the sample.
    pub portion: Portion,
    /// Identity of the sample in its source.
    pub sample: Sample,
    /// `false` for padding.
    pub valid: bool,
}

/// Consecutive samples of one split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitRun {
    /// Source and source epoch of the samples.
    pub portion: Portion,
    /// Identifies the split among those of its portion and lane. A shard can have two of them.
    pub split: usize,
    /// First of the samples; the others follow it in its shard.
    pub first: Sample,
    /// Number of samples, at least 1.
    pub samples: u64,
}

/// Outputs of one of the parts that a lane consists of.
#[derive(Debug)]
pub(crate) struct LanePart {
    /// Ordinal of its source's first shard, when the shards of all sources are counted together.
    pub(crate) first_shard: usize,
    pub(crate) part: Part,
    /// Outputs of the part, ascending and disjoint.
    pub(crate) outputs: Vec<Range<u64>>,
}

/// Consecutive outputs of a lane and their sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneBlock {
    pub outputs: Range<u64>,
    /// Inputs that they need: at most two shuffle windows, in a mixture three and 1,024 inputs. Later
    /// blocks need no input before them.
    pub needs: Range<u64>,
    /// Input of each output, `[outputs.end - outputs.start]`.
    pub sources: Vec<u64>,
    /// True if nothing is shuffled: each output needs only its own input.
    pub is_plain: bool,
}

/// A lane of one dataset, a dynamic job's group, or a portion's samples in a mixture's lane.
///
/// Its samples have two numberings: *inputs*, interleaved but not shuffled, the order in which they
/// are read, and *outputs*, the part's order. Each is computed from the other block by block.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    portion: Portion,
    line: Arc<Line>,
    range: Range<u64>,
    /// Indices of its splits among the stretches of the epoch sequence.
    places: Range<usize>,
    /// True if the last split is a group of its own.
    last_is_alone: bool,
    interleave: u64,
    block_length: u64,
    window: Window,
}

impl Part {
    /// Returns lane `index` of `lanes` of the sequence of `epoch`.
    pub(super) fn of_lane(
        line: &Arc<Line>,
        shuffle: &Shuffle,
        epoch: u64,
        lanes: u64,
        index: u64,
    ) -> Self {
        let range = cut(line.samples(), lanes, index);
        let labels = ("window a", "window b");
        Self::over(line, shuffle, range, labels, &[shuffle.seed, epoch, lanes, index])
            .with_last_alone(shuffle)
    }

    /// Returns the order of a group of whole shards, those in `range` of the sequence of `epoch`.
    pub(super) fn of_group(
        line: &Arc<Line>,
        shuffle: &Shuffle,
        epoch: u64,
        group: u64,
        range: Range<u64>,
    ) -> Self {
        let labels = ("group a", "group b");
        Self::over(line, shuffle, range, labels, &[shuffle.seed, epoch, group])
    }

    /// Returns the samples of a portion in a range of its sequence; `numbers` are those of the keys
    /// of its two shuffles.
    pub(crate) fn of_portion(
        portion: Portion,
        line: &Arc<Line>,
        shuffle: &Shuffle,
        range: Range<u64>,
        numbers: &[u64],
    ) -> Self {
        let part = Self::over(line, shuffle, range, ("mixture a", "mixture b"), numbers);
        Self { portion, ..part.with_last_alone(shuffle) }
    }

    /// Returns the part over a range of the sequence; labels and numbers key its two shuffles.
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
            let key_a = stream_key(label_a, &shuffle.digest, numbers);
            let key_b = stream_key(label_b, &shuffle.digest, numbers);
            Window::shuffled(samples, shuffle.window, key_a, key_b)
        } else {
            Window::plain(samples)
        };
        let (line, interleave, block_length) =
            (Arc::clone(line), shuffle.interleave, shuffle.block_length);
        let (portion, last_is_alone) = (Portion::default(), false);
        Self { portion, line, range, places, last_is_alone, interleave, block_length, window }
    }

    /// Makes a last split that ends inside its shard a group of its own.
    fn with_last_alone(mut self, shuffle: &Shuffle) -> Self {
        self.last_is_alone = shuffle.enabled && self.is_cut_at_its_end();
        self
    }

    /// Returns true if the last split does not contain the last sample of its shard.
    fn is_cut_at_its_end(&self) -> bool {
        let Some(last) = self.places.clone().last() else {
            return false;
        };
        self.range.end < self.line.start(last + 1) || self.line.second_stretch() == Some(last)
    }

    pub(crate) fn samples(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns the source and source epoch of its samples.
    pub(crate) fn portion(&self) -> Portion {
        self.portion
    }

    /// Returns the sequence of which it is a part.
    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    /// Iterates over the first samples of its splits, in the order of the sequence.
    pub(crate) fn splits(&self) -> impl Iterator<Item = Sample> + '_ {
        let first = |place| self.line.sample(self.line.start(place).max(self.range.start));
        self.places.clone().map(first)
    }

    /// Returns the sample at an input, which is below [`Part::samples`].
    pub(crate) fn input(&self, input: u64) -> Sample {
        let group = self.group_of(input);
        let turn = self.turns(&group).at(input - self.input_of_group(&group));
        self.sample(&group, turn)
    }

    /// Iterates over all samples from an input on, in reading order.
    pub(crate) fn inputs_from(&self, input: u64) -> PartInputs {
        if input >= self.samples() {
            return PartInputs { part: self.clone(), group: 0..0, turns: TurnsIter::empty() };
        }
        let group = self.group_of(input);
        let turns = self.turns(&group).iter_from(input - self.input_of_group(&group));
        PartInputs { part: self.clone(), group, turns }
    }

    /// Returns the input at which `sample` is read, or `None` if it is in another part.
    pub(crate) fn input_of(&self, sample: Sample) -> Option<u64> {
        let position = self.line.position(sample).filter(|p| self.range.contains(p))?;
        let place = self.line.place(position);
        let group = self.group_at(place);
        let offset = position - self.line.start(place).max(self.range.start);
        let turn = Turn { split: place - group.start, offset };
        Some(self.input_of_group(&group) + self.turns(&group).position(turn))
    }

    /// Returns the output of `sample`; `None`: it is in another part. Extends the cache `known`.
    ///
    /// # Errors  `WindowTooLarge`.
    pub(crate) fn output_with(
        &self,
        sample: Sample,
        known: &mut Permutations,
    ) -> Result<Option<u64>, PlanError> {
        self.input_of(sample).map(|input| self.window.output_of(input, known)).transpose()
    }

    /// Iterates over the blocks of outputs, beginning with the one that contains `output`.
    pub(crate) fn blocks_from(&self, output: u64) -> PartBlocks {
        PartBlocks {
            part: self.clone(),
            next: self.window.block_of(output),
            passes: PassA::default(),
        }
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

    /// Iterates over the groups of splits, as indices of stretches of the epoch sequence.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut next = self.places.start;
        std::iter::from_fn(move || {
            let group = (next < self.places.end).then(|| self.group_at(next))?;
            next = group.end;
            Some(group)
        })
    }

    /// Returns the group that contains an input, which is below [`Part::samples`].
    pub(crate) fn group_of(&self, input: u64) -> Range<usize> {
        self.group_at(self.line.place(self.range.start + input))
    }

    /// Returns the indices of the splits of the group to which the split at `place` belongs.
    pub(crate) fn group_at(&self, place: usize) -> Range<usize> {
        let end = self.places.end - usize::from(self.last_is_alone);
        if place == end {
            return end..self.places.end;
        }
        let size = usize::try_from(self.interleave).unwrap_or(usize::MAX);
        let start = self.places.start + (place - self.places.start) / size * size;
        start..start.saturating_add(size).min(end)
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

/// Iterator over the samples of a part in reading order.
#[derive(Clone, Debug)]
pub(crate) struct PartInputs {
    part: Part,
    group: Range<usize>,
    turns: TurnsIter,
}

impl PartInputs {
    /// Returns the next sample and those that follow it in its split and in reading order: at most
    /// `max`, which is not 0.
    pub(crate) fn next_run(&mut self, max: u64) -> Option<SplitRun> {
        loop {
            if let Some((turn, samples)) = self.turns.next_run(max) {
                let (split, first) =
                    (self.group.start + turn.split, self.part.sample(&self.group, turn));
                return Some(SplitRun { portion: self.part.portion, split, first, samples });
            }
            if self.group.is_empty() || self.group.end >= self.part.places.end {
                return None;
            }
            self.group = self.part.group_at(self.group.end);
            self.turns = self.part.turns(&self.group).iter_from(0);
        }
    }
}

/// Iterator over the blocks of a part's outputs, in order.
#[derive(Clone, Debug)]
pub(crate) struct PartBlocks {
    part: Part,
    next: u64,
    passes: PassA,
}

impl Iterator for PartBlocks {
    type Item = Result<LaneBlock, PlanError>;

    fn next(&mut self) -> Option<Self::Item> {
        let window = &self.part.window;
        let (outputs, needs) = (window.outputs(self.next), window.inputs(self.next));
        if outputs.start >= self.part.samples() {
            return None;
        }
        let sources = window.sources(self.next, &mut self.passes);
        self.next += 1;
        let is_plain = window.is_plain();
        Some(sources.map(|sources| LaneBlock { outputs, needs, sources, is_plain }))
    }
}

/// Samples at outputs; cheap if they are in the block of the last one.
#[derive(Clone, Debug)]
pub(crate) struct PartOutputs {
    blocks: PartBlocks,
    block: Option<LaneBlock>,
}

impl PartOutputs {
    pub(crate) fn new(part: &Part) -> Self {
        Self { blocks: part.blocks_from(0), block: None }
    }

    /// Returns the input of an output, which is below [`Part::samples`].
    ///
    /// # Errors  `WindowTooLarge`.
    pub(crate) fn input(&mut self, output: u64) -> Result<u64, PlanError> {
        let block = match self.block.take().filter(|block| block.outputs.contains(&output)) {
            Some(block) => block,
            None => {
                self.blocks.next = self.blocks.part.window.block_of(output);
                self.blocks.next().expect("the output is in the part")?
            }
        };
        let block = self.block.insert(block);
        Ok(block.sources[(output - block.outputs.start) as usize])
    }

    /// Returns the sample at an output, which is below [`Part::samples`].
    ///
    /// # Errors  `WindowTooLarge`.
    pub(crate) fn planned(&mut self, output: u64) -> Result<Planned, PlanError> {
        let input = self.input(output)?;
        let Part { portion, .. } = self.blocks.part;
        Ok(Planned { portion, sample: self.blocks.part.input(input), valid: true })
    }

    /// Returns the first input that an output or a later one needs.
    pub(crate) fn needs_from(&self, output: u64) -> u64 {
        self.blocks.part.window.needs_from(output)
    }
}
