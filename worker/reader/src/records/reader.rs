//! The rows of one rank's steps, collected in plan order from the shards read ahead.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use shardfeed_pipeline::{LaneFeed, Load, Reading};
use shardfeed_plan::{EpochPlan, Inputs, Lane, PlanError, SlotSource, SplitRun};
use shardfeed_source::LoadError;

use crate::records::balanced::{BalancedRows, Balancing};
use crate::records::gather::{Gathered, Item, PendingRow};
use crate::records::place::RecordLocator;
use crate::records::stream::{StreamTools, Streams};

/// Samples examined in advance to open the files that come next.
const LOOK_AHEAD: u64 = 2048;

/// Reads the samples of one rank in one epoch, step by step.
#[derive(Debug)]
pub(crate) struct PlanReader {
    rank: u64,
    feeds: Feeds,
    /// Padding repeats the epoch sequence from its start.
    padding: Streams,
    /// Rows of balanced steps; `None`: steps are not balanced.
    balanced: Option<BalancedRows>,
}

/// Lane of the step's segment and lane of the epoch sequence: after a new segment begins, two lanes
/// of a rank may read different parts of one lane of the sequence.
pub(crate) type FeedKey = (u64, u64);

/// The lanes that a rank reads.
#[derive(Debug)]
pub(crate) struct Feeds {
    plan: Arc<EpochPlan>,
    reading: Reading,
    tools: StreamTools,
    feeds: BTreeMap<FeedKey, LaneReader>,
}

/// A lane being read.
#[derive(Debug)]
pub(crate) struct LaneReader {
    lane: LaneFeed<Item, LoadError>,
    source: LaneSource,
    items: Vec<Item>,
    used_at: u64,
}

#[derive(Debug)]
enum LaneSource {
    Streams { streams: Streams, ahead: InputsAhead },
    Places(RecordLocator),
}

impl PlanReader {
    /// - `balancing`: `None`: steps are not balanced.
    ///
    /// # Errors  The window is out of range.
    pub(crate) fn new(
        plan: Arc<EpochPlan>,
        rank: u64,
        reading: Reading,
        balancing: Option<Balancing>,
        mut tools: StreamTools,
    ) -> Result<Self, PlanError> {
        if let Reading::Hold { chunk_bytes, primed_max } = reading {
            (tools.chunk_bytes, tools.primed_max) = (chunk_bytes, primed_max);
        }
        let balanced = balancing
            .map(|balancing| BalancedRows::new(Arc::clone(&plan), rank, balancing, &tools))
            .transpose()?;
        let padding = Streams::new(tools.clone());
        let feeds = Feeds { plan, reading, tools, feeds: BTreeMap::new() };
        Ok(Self { rank, feeds, padding, balanced })
    }

    /// Returns the rows of a step, in order; steps are requested in ascending order.
    pub(crate) fn rows(&mut self, step: u64) -> Result<Gathered, LoadError> {
        let Self { rank, feeds, padding, balanced } = self;
        if let Some(balanced) = balanced {
            let slots = balanced.read(step, feeds)?;
            let mut gathered = Gathered::with_capacity(slots.len());
            for slot in slots {
                match slot.source {
                    SlotSource::Lane(at) => {
                        balanced.give((slot.lane, at.lane), at.output, step, &mut gathered);
                    }
                    SlotSource::Padding { position } => {
                        padding.fetch_padding(feeds.plan.sample_at(position), &mut gathered)?;
                    }
                }
            }
            return Ok(gathered);
        }
        let runs = feeds.plan.slot_runs(step, *rank)?;
        let rows: u64 = runs.iter().map(|run| run.slots).sum();
        let mut gathered = Gathered::with_capacity(rows as usize);
        for run in runs {
            match run.first.source {
                SlotSource::Lane(at) => {
                    let (key, outputs) =
                        ((run.first.lane, at.lane), at.output..at.output + run.slots);
                    feeds.take(key, outputs, step, &mut gathered)?;
                }
                SlotSource::Padding { position } => {
                    padding.fetch_padding(feeds.plan.sample_at(position), &mut gathered)?;
                }
            }
        }
        // A lane that gave no rows is not needed now; if it is needed again, it is reopened.
        feeds.keep_used_since(step);
        Ok(gathered)
    }
}

impl Feeds {
    /// Takes rows from a lane of the epoch sequence, for a lane of a step's segment.
    /// - `step`: that is being given.
    pub(crate) fn take(
        &mut self,
        key: FeedKey,
        outputs: Range<u64>,
        step: u64,
        into: &mut Gathered,
    ) -> Result<(), LoadError> {
        // After ranks stopped at different steps, a lane continues with the remainders of one rank
        // after another, so it may go back on its lane of the epoch sequence; so it may with
        // balanced steps after a new segment began. Then it is reopened there.
        let fits = |feed: &LaneReader| feed.next_output() <= outputs.start;
        if !self.feeds.get(&key).is_some_and(fits) {
            let lane = self.plan.lane(key.1);
            let feed = LaneReader::new(&lane, outputs.start, self.reading, &self.tools)?;
            self.feeds.insert(key, feed);
        }
        let feed = self.feeds.get_mut(&key).expect("just made");
        feed.used_at = step;
        feed.take(outputs, into)
    }

    /// Returns the first output of an open lane that may still be taken.
    pub(crate) fn next_output(&self, key: FeedKey) -> Option<u64> {
        self.feeds.get(&key).map(LaneReader::next_output)
    }

    pub(crate) fn close(&mut self, key: FeedKey) {
        self.feeds.remove(&key);
    }

    /// Closes the lanes that were used for no step from this one on.
    pub(crate) fn keep_used_since(&mut self, step: u64) {
        self.feeds.retain(|_, feed| feed.used_at >= step);
    }
}

impl LaneReader {
    /// Opens a lane from an output on; reading of its first shards starts here.
    pub(crate) fn new(
        lane: &Lane,
        output: u64,
        reading: Reading,
        tools: &StreamTools,
    ) -> Result<Self, PlanError> {
        let source = match reading {
            Reading::Locate => LaneSource::Places(RecordLocator::new(tools, lane.samples())),
            Reading::Hold { .. } => {
                let start = lane.blocks_from(output).next().transpose()?;
                let from = start
                    .map_or(0, |block| if block.is_plain { output } else { block.needs.start });
                let mut streams = Streams::new(tools.for_samples(lane.samples()));
                let mut ahead = InputsAhead::new(lane.inputs_from(from));
                ahead.prime(&mut streams);
                LaneSource::Streams { streams, ahead }
            }
        };
        Ok(Self { lane: LaneFeed::new(lane, output)?, source, items: Vec::new(), used_at: 0 })
    }

    /// Appends the items of `outputs`, which are taken in ascending order.
    pub(crate) fn take(
        &mut self,
        outputs: Range<u64>,
        into: &mut Gathered,
    ) -> Result<(), LoadError> {
        let Self { lane, source, items, .. } = self;
        lane.take(outputs, source, items)?;
        match source {
            LaneSource::Streams { streams, .. } => streams.give(items.drain(..), true, into),
            LaneSource::Places(_) => {
                let row = |item| PendingRow { item, valid: true, occurrence: 0 };
                into.rows.extend(items.drain(..).map(row));
            }
        }
        Ok(())
    }

    /// Returns the first output that may still be taken.
    pub(crate) fn next_output(&self) -> u64 {
        self.lane.next_output()
    }

    /// True if reading of all the lane's splits has started.
    pub(crate) fn is_all_in_reading(&self) -> bool {
        match &self.source {
            // Positions are not read ahead.
            LaneSource::Places(_) => false,
            LaneSource::Streams { ahead, .. } => ahead.is_done,
        }
    }
}

/// The samples that come next, examined in advance so that reading of their splits starts in time.
#[derive(Debug)]
struct InputsAhead {
    inputs: Inputs,
    /// The next samples, whose split could not be started yet.
    waiting: Option<SplitRun>,
    /// Samples examined and not loaded yet.
    distance: u64,
    /// True if no further samples are left to examine.
    is_done: bool,
}

impl InputsAhead {
    fn new(inputs: Inputs) -> Self {
        Self { inputs, waiting: None, distance: 0, is_done: false }
    }

    /// Starts splits while the limit allows, up to [`LOOK_AHEAD`] samples from here.
    fn prime(&mut self, streams: &mut Streams) {
        while self.distance < LOOK_AHEAD {
            let most = LOOK_AHEAD - self.distance;
            let Some(run) = self.waiting.take().or_else(|| self.inputs.next_run(most)) else {
                self.is_done = true;
                return;
            };
            if !streams.prime(run) {
                self.waiting = Some(run);
                return;
            }
            self.distance += run.samples;
        }
    }

    /// Accounts for `samples` being loaded: first those examined, then those that wait or follow.
    fn pass(&mut self, samples: u64) {
        let looked_at = samples.min(self.distance);
        self.distance -= looked_at;
        let mut left = samples - looked_at;
        while left > 0 {
            let Some(mut run) = self.waiting.take().or_else(|| self.inputs.next_run(left)) else {
                return;
            };
            let passed = run.samples.min(left);
            left -= passed;
            if passed < run.samples {
                run.first.ordinal += passed;
                run.samples -= passed;
                self.waiting = Some(run);
            }
        }
    }
}

impl Load for LaneSource {
    type Item = Item;
    type Error = LoadError;

    fn load(&mut self, run: SplitRun, items: &mut VecDeque<Option<Item>>) -> Result<(), LoadError> {
        match self {
            Self::Places(places) => {
                let SplitRun { portion, split, first: mut sample, samples } = run;
                for _ in 0..samples {
                    items.push_back(Some(Item::Place(places.find((portion, split), sample)?)));
                    sample.ordinal += 1;
                }
            }
            Self::Streams { streams, ahead } => {
                ahead.pass(run.samples);
                streams.fetch(run, items)?;
                ahead.prime(streams);
            }
        }
        Ok(())
    }

    fn pass(&mut self, item: Item) {
        if let Self::Streams { streams, .. } = self {
            streams.pass(item);
        }
    }
}
