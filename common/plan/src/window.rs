//! The shuffle of a lane: two passes of block permutations. Source: docs/ORDER.md, section 4, Shuffle.

use std::ops::Range;

use crate::PlanError;
use crate::random::Draws;

/// Positions of one block where nothing is shuffled; only how much is worked on at once.
const PLAIN_BLOCK: u64 = 1024;

/// How the samples of a lane are shuffled: from *input* positions (interleaved) to *outputs*.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    samples: u64,
    size: u64,
    mode: Mode,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    /// Outputs are inputs.
    Plain,
    /// One permutation of the whole lane.
    Whole { key_a: u64 },
    /// Blocks of `size`, then blocks of `size` half a block later.
    TwoPasses { key_a: u64, key_b: u64 },
}

impl Window {
    pub(crate) fn plain(samples: u64) -> Self {
        Self { samples, size: PLAIN_BLOCK, mode: Mode::Plain }
    }

    pub(crate) fn shuffled(samples: u64, size: u64, key_a: u64, key_b: u64) -> Self {
        let mode = match size {
            1 => return Self::plain(samples),
            _ if size >= samples => Mode::Whole { key_a },
            _ => Mode::TwoPasses { key_a, key_b },
        };
        Self { samples, size: size.min(samples.max(1)), mode }
    }

    /// Whether outputs are inputs.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.mode, Mode::Plain)
    }

    /// Number of the block of outputs that `output` is in.
    pub(crate) fn block_of(&self, output: u64) -> u64 {
        match self.mode {
            Mode::Plain | Mode::Whole { .. } => output / self.size,
            Mode::TwoPasses { .. } if output < self.half() => 0,
            Mode::TwoPasses { .. } => 1 + (output - self.half()) / self.size,
        }
    }

    /// Outputs of a block.
    pub(crate) fn outputs(&self, block: u64) -> Range<u64> {
        match self.mode {
            Mode::Plain | Mode::Whole { .. } => self.inputs_block(block),
            Mode::TwoPasses { .. } if block == 0 => 0..self.half(),
            Mode::TwoPasses { .. } => {
                let start = self.half() + (block - 1) * self.size;
                start..self.samples.min(start + self.size)
            }
        }
    }

    /// Inputs that the outputs of a block are made of: at most two blocks of pass a.
    pub(crate) fn inputs(&self, block: u64) -> Range<u64> {
        let outputs = self.outputs(block);
        if outputs.start >= outputs.end {
            return outputs.start..outputs.start;
        }
        let first = self.inputs_block(outputs.start / self.size).start;
        first..self.inputs_block((outputs.end - 1) / self.size).end
    }

    /// The input of each output of a block; `passes` keeps what the next block needs again.
    pub(crate) fn sources(&self, block: u64, passes: &mut PassA) -> Result<Vec<u64>, PlanError> {
        let outputs = self.outputs(block);
        let (key_a, order) = match self.mode {
            Mode::Plain => return Ok(outputs.collect()),
            Mode::Whole { key_a } => (key_a, None),
            Mode::TwoPasses { key_a, key_b } => {
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

    /// The output that `input` becomes.
    pub(crate) fn output_of(&self, input: u64) -> Result<u64, PlanError> {
        let block_a = input / self.size;
        let (key_a, key_b) = match self.mode {
            Mode::Plain => return Ok(input),
            Mode::Whole { key_a } => (key_a, None),
            Mode::TwoPasses { key_a, key_b } => (key_a, Some(key_b)),
        };
        let middle = place_in(self.inputs_block(block_a), key_a, block_a, input)?;
        match key_b {
            None => Ok(middle),
            Some(key_b) => {
                let block_b = self.block_of(middle);
                place_in(self.outputs(block_b), key_b, block_b, middle)
            }
        }
    }

    fn half(&self) -> u64 {
        self.size / 2
    }

    /// Block of pass a, which is also a block of outputs where there is no pass b.
    fn inputs_block(&self, block: u64) -> Range<u64> {
        let start = block * self.size;
        start..self.samples.min(start + self.size)
    }
}

/// Where `item` comes to stand when the positions of `block` are permuted.
fn place_in(block: Range<u64>, key: u64, stream: u64, item: u64) -> Result<u64, PlanError> {
    let order = Draws::new(key, stream).permutation(block.end - block.start)?;
    let place = order.iter().position(|&from| block.start + u64::from(from) == item);
    Ok(block.start + place.expect("a permutation holds every position") as u64)
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
