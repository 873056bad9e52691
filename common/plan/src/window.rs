//! Shuffle of a lane: two passes of block permutations. Source: docs/ORDER.md, section 4, Shuffle.

use std::ops::Range;

use crate::PlanError;
use crate::random::Draws;

/// Block size where nothing is shuffled; it only determines how much is processed at once.
const PLAIN_BLOCK: u64 = 1024;

/// Shuffle of a lane's samples, from *input* positions (interleaved) to *outputs*.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    samples: u64,
    size: u64,
    mode: WindowMode,
}

#[derive(Clone, Copy, Debug)]
enum WindowMode {
    /// Outputs equal inputs.
    Plain,
    /// One permutation of the whole lane.
    Whole { key_a: u64 },
    /// Blocks of `size`, then blocks of `size` half a block later.
    TwoPasses { key_a: u64, key_b: u64 },
}

impl Window {
    pub(crate) fn plain(samples: u64) -> Self {
        Self { samples, size: PLAIN_BLOCK, mode: WindowMode::Plain }
    }

    pub(crate) fn shuffled(samples: u64, size: u64, key_a: u64, key_b: u64) -> Self {
        let mode = match size {
            1 => return Self::plain(samples),
            _ if size >= samples => WindowMode::Whole { key_a },
            _ => WindowMode::TwoPasses { key_a, key_b },
        };
        Self { samples, size: size.min(samples.max(1)), mode }
    }

    /// Returns true if outputs equal inputs.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.mode, WindowMode::Plain)
    }

    /// Returns the number of the block that contains `output`.
    pub(crate) fn block_of(&self, output: u64) -> u64 {
        match self.mode {
            WindowMode::Plain | WindowMode::Whole { .. } => output / self.size,
            WindowMode::TwoPasses { .. } if output < self.half() => 0,
            WindowMode::TwoPasses { .. } => 1 + (output - self.half()) / self.size,
        }
    }

    pub(crate) fn outputs(&self, block: u64) -> Range<u64> {
        match self.mode {
            WindowMode::Plain | WindowMode::Whole { .. } => self.inputs_block(block),
            WindowMode::TwoPasses { .. } if block == 0 => 0..self.half(),
            WindowMode::TwoPasses { .. } => {
                let start = self.half() + (block - 1) * self.size;
                start..self.samples.min(start + self.size)
            }
        }
    }

    /// Returns the inputs of the outputs of a block: at most two blocks of pass a.
    pub(crate) fn inputs(&self, block: u64) -> Range<u64> {
        let outputs = self.outputs(block);
        if outputs.start >= outputs.end {
            return outputs.start..outputs.start;
        }
        let first = self.inputs_block(outputs.start / self.size).start;
        first..self.inputs_block((outputs.end - 1) / self.size).end
    }

    /// Returns the first input that an output or a later one needs.
    pub(crate) fn needs_from(&self, output: u64) -> u64 {
        if self.is_plain() { output } else { self.inputs(self.block_of(output)).start }
    }

    /// Returns the input of each output of a block; `passes` caches data for the next block.
    pub(crate) fn sources(&self, block: u64, passes: &mut PassA) -> Result<Vec<u64>, PlanError> {
        let outputs = self.outputs(block);
        let (key_a, order) = match self.mode {
            WindowMode::Plain => return Ok(outputs.collect()),
            WindowMode::Whole { key_a } => (key_a, None),
            WindowMode::TwoPasses { key_a, key_b } => {
                let length = outputs.end - outputs.start;
                (key_a, Some(Draws::new(key_b, block).permutation(length)?))
            }
        };
        passes.load(self, key_a, &outputs)?;
        let middle = |index: u64| match &order {
            None => outputs.start + index,
            Some(order) => outputs.start + u64::from(order[index as usize]),
        };
        let length = outputs.end - outputs.start;
        Ok((0..length).map(|index| passes.input(self.size, middle(index))).collect())
    }

    /// Returns the output of `input`.
    pub(crate) fn output_of(&self, input: u64, known: &mut Permutations) -> Result<u64, PlanError> {
        let block_a = input / self.size;
        let (key_a, key_b) = match self.mode {
            WindowMode::Plain => return Ok(input),
            WindowMode::Whole { key_a } => (key_a, None),
            WindowMode::TwoPasses { key_a, key_b } => (key_a, Some(key_b)),
        };
        let middle = known.place_in(self.inputs_block(block_a), (key_a, block_a), input)?;
        match key_b {
            None => Ok(middle),
            Some(key_b) => {
                let block_b = self.block_of(middle);
                known.place_in(self.outputs(block_b), (key_b, block_b), middle)
            }
        }
    }

    /// Returns the inputs of `outputs`. Both are any number of ascending, disjoint ranges.
    ///
    /// Costs the permutations of the blocks that `outputs` cover partially.
    pub(crate) fn inputs_of(&self, outputs: Vec<Range<u64>>) -> Result<Vec<Range<u64>>, PlanError> {
        let (key_a, middles) = match self.mode {
            WindowMode::Plain => return Ok(outputs),
            WindowMode::Whole { key_a } => (key_a, outputs),
            WindowMode::TwoPasses { key_a, key_b } => {
                let block_at = |middle| {
                    let block = self.block_of(middle);
                    (block, self.outputs(block))
                };
                (key_a, undone(&outputs, key_b, block_at)?)
            }
        };
        let size = self.size;
        undone(&middles, key_a, |input| (input / size, self.inputs_block(input / size)))
    }

    /// Returns a range with the outputs of `inputs` (not empty): less than two windows larger.
    pub(crate) fn outputs_near(&self, inputs: &Range<u64>) -> Range<u64> {
        if self.is_plain() {
            return inputs.clone();
        }
        let first = self.inputs_block(inputs.start / self.size).start;
        let end = self.inputs_block((inputs.end - 1) / self.size).end;
        self.outputs(self.block_of(first)).start..self.outputs(self.block_of(end - 1)).end
    }

    fn half(&self) -> u64 {
        self.size / 2
    }

    /// Returns the range of a block of pass a; without pass b it is also a block of outputs.
    fn inputs_block(&self, block: u64) -> Range<u64> {
        let start = block * self.size;
        start..self.samples.min(start + self.size)
    }
}

/// Inverts a block permutation: returns the items that were permuted to `places`.
///
/// Whole blocks map to themselves, other ranges are mapped sample by sample. `block_at` returns the
/// stream and range of the block that contains a position.
fn undone(
    places: &[Range<u64>],
    key: u64,
    block_at: impl Fn(u64) -> (u64, Range<u64>),
) -> Result<Vec<Range<u64>>, PlanError> {
    let mut items = Vec::new();
    let mut part: Option<PartialBlock> = None;
    for range in places {
        let mut place = range.start;
        while place < range.end {
            let (stream, block) = block_at(place);
            if part.as_ref().is_some_and(|part| part.stream != stream) {
                part.take().into_iter().for_each(|part| part.append_to(&mut items));
            }
            if place == block.start && range.end >= block.end {
                let last = block_at(range.end - 1).1;
                let end = if last.end == range.end { last.end } else { last.start };
                items.push(place..end);
                place = end;
                continue;
            }
            let end = range.end.min(block.end);
            let held = match part.take() {
                Some(held) => held,
                None => PartialBlock::new(key, stream, &block)?,
            };
            part = Some(held.with(place..end));
            place = end;
        }
    }
    part.into_iter().for_each(|part| part.append_to(&mut items));
    Ok(joined(items))
}

/// A permuted block of which only some positions are requested.
struct PartialBlock {
    stream: u64,
    start: u64,
    order: Vec<u32>,
    /// True for each item of the block that was permuted to a requested position.
    found: Vec<bool>,
}

impl PartialBlock {
    fn new(key: u64, stream: u64, block: &Range<u64>) -> Result<Self, PlanError> {
        let order = Draws::new(key, stream).permutation(block.end - block.start)?;
        let found = vec![false; order.len()];
        Ok(Self { stream, start: block.start, order, found })
    }

    fn with(mut self, places: Range<u64>) -> Self {
        let places = (places.start - self.start) as usize..(places.end - self.start) as usize;
        for &item in &self.order[places] {
            self.found[item as usize] = true;
        }
        self
    }

    fn append_to(self, items: &mut Vec<Range<u64>>) {
        let found = (self.start..).zip(self.found).filter(|(_, found)| *found);
        items.extend(found.map(|(item, _)| item..item + 1));
    }
}

/// Returns the ranges in ascending order, without empty ones and with adjacent ones merged. The
/// ranges must be disjoint.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, kept| {
        let touches = kept.end == next.start;
        if touches {
            kept.end = next.end;
        }
        touches
    });
    ranges
}

/// Number of permuted blocks that [`Permutations`] keeps: for neighbours one of pass a, and the two
/// or three of pass b to which its positions are moved.
const BLOCKS_KEPT: usize = 4;

/// Cache of the last permutations, so that lookups of neighbours compute each only once.
#[derive(Debug, Default)]
pub struct Permutations {
    /// Key, stream and permuted positions of each; the most recently used one is last.
    blocks: Vec<((u64, u64), Vec<u32>)>,
}

impl Permutations {
    /// Returns the position of `item` after the positions of `block` are permuted.
    fn place_in(
        &mut self,
        block: Range<u64>,
        stream: (u64, u64),
        item: u64,
    ) -> Result<u64, PlanError> {
        let length = block.end - block.start;
        let is_it =
            |known: &((u64, u64), Vec<u32>)| (known.0, known.1.len() as u64) == (stream, length);
        let known = match self.blocks.iter().position(is_it) {
            Some(index) => self.blocks.remove(index),
            None => {
                let order = Draws::new(stream.0, stream.1).permutation(length)?;
                let mut places = vec![0; order.len()];
                for (place, from) in (0..).zip(order) {
                    places[from as usize] = place;
                }
                self.blocks.drain(..(self.blocks.len() + 1).saturating_sub(BLOCKS_KEPT));
                (stream, places)
            }
        };
        let place = known.1[(item - block.start) as usize];
        self.blocks.push(known);
        Ok(block.start + u64::from(place))
    }
}

/// Permutations of pass a that the current block of outputs needs, at most two.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassA {
    blocks: Vec<(u64, Vec<u32>)>,
}

impl PassA {
    fn load(&mut self, window: &Window, key: u64, outputs: &Range<u64>) -> Result<(), PlanError> {
        if outputs.is_empty() {
            return Ok(());
        }
        let wanted = outputs.start / window.size..=(outputs.end - 1) / window.size;
        self.blocks.retain(|(block, _)| wanted.contains(block));
        for block in wanted {
            if self.blocks.iter().all(|(held, _)| *held != block) {
                let range = window.inputs_block(block);
                let order = Draws::new(key, block).permutation(range.end - range.start)?;
                self.blocks.push((block, order));
            }
        }
        Ok(())
    }

    fn input(&self, size: u64, middle: u64) -> u64 {
        let block = middle / size;
        let (_, order) =
            self.blocks.iter().find(|(held, _)| *held == block).expect("loaded for these outputs");
        block * size + u64::from(order[(middle - block * size) as usize])
    }
}
