//! Returns a lane's samples in the lane's order, from samples in reading order.

use std::collections::VecDeque;
use std::ops::Range;

use shardfeed_plan::{Blocks, Inputs, Lane, LaneBlock, PlanError, SplitRun};

/// Maximum samples loaded at a time, before items that were skipped are released.
const RUN_MAX: u64 = 1024;

/// Loader of a lane's samples.
pub trait Load {
    /// Item that is held for a sample until its output is due.
    type Item;
    type Error;

    /// Appends the items of a run, the next samples in reading order.
    ///
    /// # Errors  The reason for the failure; items appended before stay.
    fn load(
        &mut self,
        run: SplitRun,
        items: &mut VecDeque<Option<Self::Item>>,
    ) -> Result<(), Self::Error>;

    /// Releases an item that no output uses.
    fn pass(&mut self, item: Self::Item);
}

/// Buffer of a lane's loaded samples until their output is due: at most two shuffle windows.
#[derive(Debug)]
pub struct LaneFeed<T, E> {
    inputs: Inputs,
    blocks: Blocks,
    block: Option<LaneBlock>,
    upcoming: Option<LaneBlock>,
    /// Input index of the first item in `held`.
    base: u64,
    held: VecDeque<Option<T>>,
    /// First output that may be taken; also determines how many inputs are loaded ahead.
    last: u64,
    /// Error that stopped loading ahead; returned when its output is due.
    failed: Option<E>,
}

impl<T, E: From<PlanError>> LaneFeed<T, E> {
    /// Creates a feed that starts at `output` of `lane` and reads at most two windows before it.
    ///
    /// # Errors  `WindowTooLarge`.
    pub fn new(lane: &Lane, output: u64) -> Result<Self, PlanError> {
        let mut blocks = lane.blocks_from(output);
        let block = blocks.next().transpose()?;
        let upcoming = blocks.next().transpose()?;
        let base = block
            .as_ref()
            .map_or(0, |block| if block.is_plain { output } else { block.needs.start });
        let inputs = lane.inputs_from(base);
        let held = VecDeque::new();
        Ok(Self { inputs, blocks, block, upcoming, base, held, last: output, failed: None })
    }

    /// Appends the items of `outputs` to `out`.
    ///
    /// Outputs are taken in ascending order, each at most once.
    /// - `load`: loads the samples in reading order.
    ///
    /// # Errors
    ///
    /// The error of `load`, at the first output that needs the sample. Items appended before stay;
    /// the feed is unusable afterwards.
    pub fn take(
        &mut self,
        outputs: Range<u64>,
        load: &mut impl Load<Item = T, Error = E>,
        out: &mut Vec<T>,
    ) -> Result<(), E> {
        debug_assert!(outputs.start >= self.last, "outputs are taken in ascending order");
        let mut next = outputs.start;
        while next < outputs.end {
            while self.block.as_ref().is_some_and(|block| next >= block.outputs.end) {
                self.advance(load)?;
            }
            let block = self.block.as_ref().expect("the outputs are in the lane");
            let end = block.outputs.end.min(outputs.end);
            let (passed, needed) =
                if block.is_plain { (next, end) } else { (block.needs.start, block.needs.end) };
            if self.loaded() < needed
                && let Some(error) = self.failed.take()
            {
                return Err(error);
            }
            while self.loaded() < needed {
                self.load_some(needed - self.loaded(), load)?;
                self.drop_before(passed, load);
            }
            // A window is larger than the processor's cache. In a loop without other work the cache
            // misses overlap, so the items are collected first.
            let block = self.block.as_ref().expect("as above");
            let from = (next - block.outputs.start) as usize;
            let sources = &block.sources[from..from + (end - next) as usize];
            out.extend(sources.iter().map(|source| {
                let item = self.held[(source - self.base) as usize].take();
                item.expect("each output is taken once")
            }));
            self.load_ahead(end, load);
            next = end;
        }
        Ok(())
    }

    /// First output that may still be taken.
    pub fn next_output(&self) -> u64 {
        self.last
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn loaded(&self) -> u64 {
        self.base + self.held.len() as u64
    }

    fn advance(&mut self, load: &mut impl Load<Item = T, Error = E>) -> Result<(), E> {
        self.block = self.upcoming.take();
        self.upcoming = self.blocks.next().transpose()?;
        let passed = self.block.as_ref().map_or(0, |block| block.needs.start);
        self.drop_before(passed, load);
        Ok(())
    }

    /// Releases inputs that no later output uses.
    fn drop_before(&mut self, input: u64, load: &mut impl Load<Item = T, Error = E>) {
        while self.base < input {
            match self.held.pop_front() {
                Some(Some(item)) => load.pass(item),
                Some(None) => {}
                None => return,
            }
            self.base += 1;
        }
    }

    /// Loads as many inputs of the next block as outputs were taken, so that it need not wait then.
    fn load_ahead(&mut self, taken_to: u64, load: &mut impl Load<Item = T, Error = E>) {
        let paced = taken_to.saturating_sub(self.last);
        self.last = taken_to;
        // Without a window no smoothing is needed: the shards are read ahead anyway.
        let shuffled = self.upcoming.as_ref().filter(|block| !block.is_plain);
        let end = shuffled.map_or(0, |block| block.needs.end).min(self.loaded() + paced);
        while self.loaded() < end && self.failed.is_none() {
            if let Err(error) = self.load_some(end - self.loaded(), load) {
                self.failed = Some(error);
            }
        }
    }

    /// Loads one input, or up to `most` if they are consecutive in a split.
    fn load_some(&mut self, most: u64, load: &mut impl Load<Item = T, Error = E>) -> Result<(), E> {
        let run = self.inputs.next_run(most.min(RUN_MAX));
        load.load(run.expect("a block needs inputs of its lane only"), &mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use shardfeed_plan::{
        Digest, EpochPlan, Length, Line, Mixture, MixtureEpoch, Sample, Segment, Shuffle, Source,
        Stage, Tail,
    };

    use super::*;

    /// Loads samples as themselves, up to an ordinal; counts those loaded and passed.
    #[derive(Default)]
    struct Samples {
        loaded: u64,
        passed: u64,
        broken_from: Option<u64>,
    }

    impl Load for Samples {
        type Item = Sample;
        type Error = PlanError;

        fn load(
            &mut self,
            SplitRun { first, samples, .. }: SplitRun,
            items: &mut VecDeque<Option<Sample>>,
        ) -> Result<(), PlanError> {
            for ordinal in first.ordinal..first.ordinal + samples {
                if self.broken_from.is_some_and(|from| ordinal >= from) {
                    return Err(PlanError::Zero { name: "broken" });
                }
                self.loaded += 1;
                items.push_back(Some(Sample { ordinal, ..first }));
            }
            Ok(())
        }

        fn pass(&mut self, _: Sample) {
            self.passed += 1;
        }
    }

    fn shuffle(window: u64) -> Shuffle {
        let digest = Digest::from_bytes([2; 32]);
        Shuffle { digest, seed: 4, enabled: true, window, interleave: 3, block_length: 2 }
    }

    fn plan(counts: &[u64], window: u64, lanes: u64) -> EpochPlan {
        let shuffle = shuffle(window);
        let line = Arc::new(Line::new(counts, &shuffle, 0).unwrap());
        let segment = Segment::start(lanes, lanes, 1).unwrap();
        EpochPlan::new(line, shuffle, 0, (Tail::Pad, None), &[segment], 1).unwrap()
    }

    /// Mixes samples of `counts` with those of a source that is repeated.
    fn mixture(counts: &[u64], samples: u64, window: u64, lanes: u64) -> EpochPlan {
        let source = |name, counts: &[u64]| Arc::new(Source::new(name, counts.to_vec()).unwrap());
        let sources = [source("large", counts), source("small", &[7])];
        let weighted = [(&*sources[0], "0.8"), (&*sources[1], "0.2")];
        let stage = Stage::new(0, Length::Samples(samples), &weighted).unwrap();
        let mixture = Mixture::new(vec![stage]).unwrap();
        let epoch = MixtureEpoch::new(&mixture, &sources, &shuffle(window), 3).unwrap();
        let segment = Segment::start(lanes, lanes, 1).unwrap();
        EpochPlan::of_mixture(Arc::new(epoch), (Tail::Pad, None), &[segment], 1).unwrap()
    }

    proptest! {
        #[test]
        fn a_lane_of_a_mixture_is_followed_like_one_of_a_dataset(
            counts in prop::collection::vec(1u64..40, 1..8),
            samples in prop_oneof![5u64..200, 5_000u64..9_000],
            window in prop_oneof![1u64..20, 500u64..2_000],
            lanes in 1u64..4,
            part in 0.0..1.0f64,
        ) {
            let plan = mixture(&counts, samples, window, lanes);
            for lane in (0..lanes).map(|lane| plan.lane(lane)) {
                let from = (lane.samples() as f64 * part) as u64;
                let mut feed = LaneFeed::<Sample, PlanError>::new(&lane, from).unwrap();
                let (mut samples, mut taken) = (Samples::default(), Vec::new());
                for output in (from..lane.samples()).step_by(7) {
                    let end = lane.samples().min(output + 7);
                    feed.take(output..end, &mut samples, &mut taken).unwrap();
                    // Those of the next block are loaded while this one is taken.
                    let held_max = 2 * (3 * window + 1024 + 8);
                    prop_assert!(feed.held() as u64 <= held_max, "{} held", feed.held());
                }
                let planned = lane.planned(from..lane.samples()).unwrap().into_iter();
                prop_assert_eq!(taken, planned.map(|planned| planned.sample).collect::<Vec<_>>());
            }
        }

        #[test]
        fn follows_the_lane_from_anywhere_and_holds_two_windows_at_most(
            counts in prop::collection::vec(1u64..40, 1..8),
            window in 1u64..20,
            lanes in 1u64..4,
            part in 0.0..1.0f64,
            (stride, run) in (1u64..9).prop_flat_map(|stride| (Just(stride), 1..=stride)),
        ) {
            let plan = plan(&counts, window, lanes);
            for lane in (0..lanes).map(|lane| plan.lane(lane)) {
                let from = (lane.samples() as f64 * part) as u64;
                let mut feed = LaneFeed::<Sample, PlanError>::new(&lane, from).unwrap();
                let (mut samples, mut all) = (Samples::default(), 0);
                for output in (from..lane.samples()).step_by(stride as usize) {
                    let end = lane.samples().min(output + run);
                    let mut taken = Vec::new();
                    feed.take(output..end, &mut samples, &mut taken).unwrap();
                    all += taken.len() as u64;
                    let expected: Vec<_> = (output..end).map(|o| lane.output(o).unwrap()).collect();
                    prop_assert_eq!(taken, expected);
                    if window < lane.samples() && window > 1 {
                        prop_assert!(feed.held() as u64 <= 3 * window, "{} held", feed.held());
                    }
                }
                let Samples { loaded, passed, .. } = samples;
                prop_assert!(loaded <= lane.samples() - from.min(lane.samples()) + 2 * window.max(1024));
                let held = feed.held.iter().flatten().count() as u64;
                prop_assert_eq!(loaded, all + passed + held, "each is taken, passed or held");
            }
        }
    }

    #[test]
    fn an_error_comes_at_the_first_output_that_needs_it() {
        let plan = plan(&[30], 4, 1);
        let lane = plan.lane(0);
        let mut feed = LaneFeed::<Sample, PlanError>::new(&lane, 0).unwrap();
        let mut broken = Samples { broken_from: Some(17), ..Samples::default() };
        let mut taken = Vec::new();
        for output in 0..30 {
            if feed.take(output..output + 1, &mut broken, &mut taken).is_err() {
                break;
            }
        }
        let blocks: Vec<_> = lane.blocks_from(0).map(|block| block.unwrap()).collect();
        // The epoch begins inside the file, so that its samples from 17 on may be read first.
        let broken = (0..30).find(|input| lane.input(*input).ordinal >= 17).unwrap();
        let first = blocks.iter().find(|block| block.needs.end > broken).unwrap();
        assert_eq!(taken.len() as u64, first.outputs.start);
    }
}
