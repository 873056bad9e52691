//! Lane: one of C equal parts of an epoch, with an order of its own. Source: docs/ORDER.md, sections
//! 3, 4 and 13.

mod part;

use std::ops::Range;
use std::sync::Arc;

pub use part::{LaneBlock, Planned, Portion, SplitRun};
pub(crate) use part::{LanePart, Part, PartInputs, PartOutputs, cut, last_where, part_of};

use crate::PlanError;
use crate::line::{Line, Sample, Shuffle};
use crate::mixture::{MergedBlocks, MergedInputs, MergedLane, MergedOutputs};
use crate::window::Permutations;
use part::PartBlocks;

/// One lane of an epoch.
///
/// Its samples have two numberings: *inputs*, the order in which they are read, and *outputs*, the
/// lane's order. Each is computed from the other block by block.
#[derive(Clone, Debug)]
pub struct Lane(LaneForm);

#[derive(Clone, Debug)]
enum LaneForm {
    /// Lane of a dataset, or a group of a dynamic job.
    Part(Part),
    Merged(Arc<MergedLane>),
}

impl Lane {
    /// Returns lane `index` of `lanes` of the sequence of `epoch`.
    pub(crate) fn of_line(
        line: &Arc<Line>,
        shuffle: &Shuffle,
        epoch: u64,
        lanes: u64,
        index: u64,
    ) -> Self {
        Self(LaneForm::Part(Part::of_lane(line, shuffle, epoch, lanes, index)))
    }

    /// Returns the order of a group of whole shards, those in `range` of the sequence of `epoch`.
    pub(crate) fn of_group(
        line: &Arc<Line>,
        shuffle: &Shuffle,
        epoch: u64,
        group: u64,
        range: Range<u64>,
    ) -> Self {
        Self(LaneForm::Part(Part::of_group(line, shuffle, epoch, group, range)))
    }

    pub(crate) fn merged(lane: MergedLane) -> Self {
        Self(LaneForm::Merged(Arc::new(lane)))
    }

    pub fn samples(&self) -> u64 {
        match &self.0 {
            LaneForm::Part(part) => part.samples(),
            LaneForm::Merged(lane) => lane.samples(),
        }
    }

    /// Returns the sample at an input, which is below [`Lane::samples`].
    pub fn input(&self, input: u64) -> Sample {
        match &self.0 {
            LaneForm::Part(part) => part.input(input),
            LaneForm::Merged(lane) => lane.input(input),
        }
    }

    /// Iterates over all samples from an input on, in reading order.
    pub fn inputs_from(&self, input: u64) -> Inputs {
        Inputs(match &self.0 {
            LaneForm::Part(part) => InputsForm::Part(part.inputs_from(input)),
            LaneForm::Merged(lane) => {
                InputsForm::Merged(Box::new(MergedInputs::new(Arc::clone(lane), input)))
            }
        })
    }

    /// Returns the sample at an output, which is below [`Lane::samples`].
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn output(&self, output: u64) -> Result<Sample, PlanError> {
        self.lookup().planned(output).map(|planned| planned.sample)
    }

    /// Returns the samples at outputs, which are all below [`Lane::samples`], with their portions.
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn planned(&self, outputs: Range<u64>) -> Result<Vec<Planned>, PlanError> {
        let mut lookup = self.lookup();
        outputs.map(|output| lookup.planned(output)).collect()
    }

    /// Returns a lookup of outputs that are close together.
    pub(crate) fn lookup(&self) -> Outputs {
        match &self.0 {
            LaneForm::Part(part) => Outputs::Part(PartOutputs::new(part)),
            LaneForm::Merged(lane) => {
                Outputs::Merged(Box::new(MergedOutputs::new(Arc::clone(lane))))
            }
        }
    }

    /// Returns the output of a sample of a portion, or `None` if it is in another lane.
    /// - `known`: a cache, which it uses and extends.
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn output_with(
        &self,
        portion: Portion,
        sample: Sample,
        known: &mut Permutations,
    ) -> Result<Option<u64>, PlanError> {
        match &self.0 {
            LaneForm::Part(part) => part.output_with(sample, known),
            LaneForm::Merged(lane) => lane.output_with(portion, sample, known),
        }
    }

    /// Iterates over the blocks of outputs, beginning with the one that contains `output`.
    pub fn blocks_from(&self, output: u64) -> Blocks {
        Blocks(match &self.0 {
            LaneForm::Part(part) => BlocksForm::Part(part.blocks_from(output)),
            LaneForm::Merged(lane) => {
                BlocksForm::Merged(Box::new(MergedBlocks::new(Arc::clone(lane), output)))
            }
        })
    }

    /// Returns the first samples of the lane's splits, with their portions, in sequence order.
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn splits(&self) -> Result<Vec<(Portion, Sample)>, PlanError> {
        let parts = self.all_parts()?;
        let splits = |part: &LanePart| {
            let portion = part.part.portion();
            part.part.splits().map(|first| (portion, first)).collect::<Vec<_>>()
        };
        Ok(parts.iter().flat_map(splits).collect())
    }

    /// Returns the part with the lane's samples of a portion, whose order it has.
    pub(crate) fn part_of(&self, portion: Portion) -> Option<Part> {
        match &self.0 {
            LaneForm::Part(part) => Some(part.clone()),
            LaneForm::Merged(lane) => lane.part_of(portion),
        }
    }

    /// Returns all parts with their outputs.
    ///
    /// # Errors  `WindowTooLarge`.
    pub(crate) fn all_parts(&self) -> Result<Vec<LanePart>, PlanError> {
        self.parts(std::iter::once(0..self.samples()).collect())
    }

    /// Returns the parts with samples at `outputs`, which are ascending and disjoint.
    ///
    /// # Errors  `WindowTooLarge`.
    pub(crate) fn parts(&self, outputs: Vec<Range<u64>>) -> Result<Vec<LanePart>, PlanError> {
        match &self.0 {
            LaneForm::Part(part) => {
                Ok(vec![LanePart { first_shard: 0, part: part.clone(), outputs }])
            }
            LaneForm::Merged(lane) => lane.parts(&outputs),
        }
    }

    /// Adds the number of samples of each source at `outputs`, which are disjoint.
    ///
    /// # Errors  `WindowTooLarge`.
    pub(crate) fn count_sources(
        &self,
        outputs: &[Range<u64>],
        counts: &mut [u64],
    ) -> Result<(), PlanError> {
        match &self.0 {
            LaneForm::Part(_) => {
                counts[0] += outputs.iter().map(|outputs| outputs.end - outputs.start).sum::<u64>();
                Ok(())
            }
            LaneForm::Merged(lane) => lane.count_sources(outputs, counts),
        }
    }

    /// Returns a range of outputs that contains those of a part's outputs, which are not empty.
    pub(crate) fn outputs_near(&self, part: &Part, outputs: Range<u64>) -> Range<u64> {
        match &self.0 {
            LaneForm::Part(_) => outputs,
            LaneForm::Merged(lane) => lane.outputs_near(part.portion(), &outputs),
        }
    }
}

/// Samples at outputs of a lane; cheap if they are close to the last one.
#[derive(Debug)]
pub(crate) enum Outputs {
    Part(PartOutputs),
    Merged(Box<MergedOutputs>),
}

impl Outputs {
    /// Returns the sample at an output, which is below [`Lane::samples`].
    ///
    /// # Errors  `WindowTooLarge`.
    pub(crate) fn planned(&mut self, output: u64) -> Result<Planned, PlanError> {
        match self {
            Self::Part(outputs) => outputs.planned(output),
            Self::Merged(outputs) => outputs.planned(output),
        }
    }
}

/// Iterator over the samples of a lane in reading order.
#[derive(Clone, Debug)]
pub struct Inputs(InputsForm);

#[derive(Clone, Debug)]
enum InputsForm {
    Part(PartInputs),
    Merged(Box<MergedInputs>),
}

impl Inputs {
    /// Returns the next sample and those that follow it in its split and in reading order: at most
    /// `max`, which is not 0.
    pub fn next_run(&mut self, max: u64) -> Option<SplitRun> {
        match &mut self.0 {
            InputsForm::Part(inputs) => inputs.next_run(max),
            InputsForm::Merged(inputs) => inputs.next_run(max),
        }
    }
}

impl Iterator for Inputs {
    type Item = Sample;

    fn next(&mut self) -> Option<Sample> {
        self.next_run(1).map(|run| run.first)
    }
}

/// Iterator over the blocks of a lane's outputs, in order.
#[derive(Clone, Debug)]
pub struct Blocks(BlocksForm);

#[derive(Clone, Debug)]
enum BlocksForm {
    Part(PartBlocks),
    Merged(Box<MergedBlocks>),
}

impl Iterator for Blocks {
    type Item = Result<LaneBlock, PlanError>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            BlocksForm::Part(blocks) => blocks.next(),
            BlocksForm::Merged(blocks) => blocks.next_block(),
        }
    }
}
