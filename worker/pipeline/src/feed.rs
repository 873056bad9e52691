//! A lane's samples in the lane's order, from samples in reading order.

use std::collections::VecDeque;

use shardfeed_plan::{Blocks, Inputs, Lane, LaneBlock, PlanError, Sample};

/// Holds what was read of a lane until its turn comes: at most two shuffle windows.
#[derive(Debug)]
pub struct LaneFeed<T, E> {
    inputs: Inputs,
    blocks: Blocks,
    block: Option<LaneBlock>,
    upcoming: Option<LaneBlock>,
    /// Input of the first item in `held`.
    base: u64,
    held: VecDeque<Option<T>>,
    /// Output that was taken last, to load on at the pace of taking.
    last: u64,
    /// Why loading ahead stopped; told when its turn comes.
    failed: Option<E>,
}

impl<T, E: From<PlanError>> LaneFeed<T, E> {
    /// A feed that starts at `output` of `lane` and reads at most two windows before it.
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn new(lane: &Lane, output: u64) -> Result<Self, PlanError> {
        let mut blocks = lane.blocks_from(output);
        let block = blocks.next().transpose()?;
        let upcoming = blocks.next().transpose()?;
        let base = block.as_ref().map_or(0, |block| block.needs.start);
        let inputs = lane.inputs_from(base);
        let held = VecDeque::new();
        Ok(Self { inputs, blocks, block, upcoming, base, held, last: output, failed: None })
    }

    /// What stands at `output`; outputs are taken in ascending order, each at most once.
    /// - `load`: gives the next sample in reading order.
    ///
    /// # Errors  Whatever `load` says, at the first output that needs it; taking may be tried again.
    pub fn take(
        &mut self,
        output: u64,
        load: &mut impl FnMut(Sample) -> Result<T, E>,
    ) -> Result<T, E> {
        while self.block.as_ref().is_some_and(|block| output >= block.outputs.end) {
            self.advance()?;
        }
        let block = self.block.as_ref().expect("the output is in the lane");
        let (end, source) =
            (block.needs.end, block.sources[(output - block.outputs.start) as usize]);
        if let Some(error) = self.failed.take() {
            if self.loaded() < end {
                return Err(error);
            }
            self.failed = Some(error);
        }
        while self.loaded() < end {
            self.load_one(load)?;
        }
        let item = self.held[(source - self.base) as usize].take();
        self.load_ahead(output, load);
        Ok(item.expect("each output is taken once"))
    }

    /// Items in hand.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn loaded(&self) -> u64 {
        self.base + self.held.len() as u64
    }

    fn advance(&mut self) -> Result<(), E> {
        self.block = self.upcoming.take();
        self.upcoming = self.blocks.next().transpose()?;
        let Some(block) = &self.block else {
            return Ok(());
        };
        while self.base < block.needs.start && !self.held.is_empty() {
            self.held.pop_front();
            self.base += 1;
        }
        Ok(())
    }

    /// Loads as many inputs of the coming block as outputs were taken, so that its beginning does
    /// not wait for a whole window.
    fn load_ahead(&mut self, output: u64, load: &mut impl FnMut(Sample) -> Result<T, E>) {
        let paced = output + 1 - self.last.min(output + 1);
        self.last = output + 1;
        let end = self.upcoming.as_ref().map_or(0, |block| block.needs.end);
        for _ in 0..paced {
            if self.loaded() >= end || self.failed.is_some() {
                return;
            }
            if let Err(error) = self.load_one(load) {
                self.failed = Some(error);
            }
        }
    }

    fn load_one(&mut self, load: &mut impl FnMut(Sample) -> Result<T, E>) -> Result<(), E> {
        let sample = self.inputs.next().expect("a block needs inputs of its lane only");
        let item = load(sample)?;
        self.held.push_back(Some(item));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use shardfeed_plan::{Digest, EpochPlan, Line, Segment, Shuffle, Tail};

    use super::*;

    fn plan(counts: &[u64], window: u64, lanes: u64) -> EpochPlan {
        let content = Digest::from_bytes([2; 32]);
        let shuffle =
            Shuffle { content, seed: 4, enabled: true, window, interleave: 3, block_length: 2 };
        let line = Arc::new(Line::new(counts, &shuffle, 0).unwrap());
        let segment = Segment::start(lanes, lanes, 1).unwrap();
        EpochPlan::new(line, shuffle, 0, (Tail::Pad, None), &[segment], 1).unwrap()
    }

    proptest! {
        #[test]
        fn follows_the_lane_from_anywhere_and_holds_two_windows_at_most(
            counts in prop::collection::vec(1u64..40, 1..8),
            window in 1u64..20,
            lanes in 1u64..4,
            part in 0.0..1.0f64,
            stride in 1u64..4,
        ) {
            let plan = plan(&counts, window, lanes);
            for lane in (0..lanes).map(|lane| plan.lane(lane)) {
                let from = (lane.samples() as f64 * part) as u64;
                let mut feed = LaneFeed::<Sample, PlanError>::new(&lane, from).unwrap();
                let mut loads = 0;
                for output in (from..lane.samples()).step_by(stride as usize) {
                    let taken = feed.take(output, &mut |sample| { loads += 1; Ok(sample) }).unwrap();
                    prop_assert_eq!(taken, lane.output(output).unwrap());
                    if window < lane.samples() && window > 1 {
                        prop_assert!(feed.held() as u64 <= 3 * window, "{} held", feed.held());
                    }
                }
                prop_assert!(loads <= lane.samples() - from.min(lane.samples()) + 2 * window.max(1024));
            }
        }
    }

    #[test]
    fn an_error_comes_at_the_first_output_that_needs_it() {
        let plan = plan(&[30], 4, 1);
        let lane = plan.lane(0);
        let mut feed = LaneFeed::<Sample, PlanError>::new(&lane, 0).unwrap();
        let broken = |sample: Sample| match sample.ordinal {
            17.. => Err(PlanError::Zero { name: "broken" }),
            _ => Ok(sample),
        };
        let results: Vec<_> =
            (0..30).map_while(|output| feed.take(output, &mut { broken }).ok()).collect();
        let blocks: Vec<_> = lane.blocks_from(0).map(|block| block.unwrap()).collect();
        let first = blocks.iter().find(|block| block.needs.end > 17).unwrap();
        assert_eq!(results.len() as u64, first.outputs.start);
    }
}
