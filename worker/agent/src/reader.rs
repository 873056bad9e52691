//! The rows of one rank's steps, gathered in plan order from what is read ahead.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use shardfeed_pipeline::{LaneFeed, RawRecord, Reading};
use shardfeed_plan::{EpochPlan, Inputs, Lane, LanePosition, PlanError, Sample, Slot, SlotSource};

use crate::error::LoadError;
use crate::place::{Place, Places};
use crate::stream::{StreamTools, Streams};

/// Samples that are looked at beforehand to open the files that come next.
const LOOK_AHEAD: usize = 2048;

/// A row whose record is in hand, or known by its place.
#[derive(Debug)]
pub(crate) struct PendingRow {
    pub(crate) item: Item,
    pub(crate) valid: bool,
}

#[derive(Debug)]
pub(crate) enum Item {
    Record(RawRecord),
    Place(Place),
}

impl PendingRow {
    /// Which sample it is.
    pub(crate) fn sample(&self) -> Sample {
        match &self.item {
            Item::Record(record) => record.sample,
            Item::Place(place) => place.sample,
        }
    }
}

/// Reads what one rank needs of one epoch, step by step.
#[derive(Debug)]
pub(crate) struct RankReader {
    plan: Arc<EpochPlan>,
    rank: u64,
    reading: Reading,
    tools: StreamTools,
    /// By lane of the step's segment and lane of the line: after a new cut two lanes of a rank may
    /// read different parts of one.
    feeds: BTreeMap<(u64, u64), Feed>,
    /// Padding repeats the line from its start.
    padding: Streams,
}

/// A lane in reading.
#[derive(Debug)]
pub(crate) struct Feed {
    lane: LaneFeed<Item, LoadError>,
    source: Source,
    used_at: u64,
}

#[derive(Debug)]
enum Source {
    Streams { streams: Streams, ahead: Ahead },
    Places(Places),
}

impl RankReader {
    pub(crate) fn new(
        plan: Arc<EpochPlan>,
        rank: u64,
        reading: Reading,
        mut tools: StreamTools,
    ) -> Self {
        if let Reading::Hold { chunk_bytes, primed_max } = reading {
            (tools.chunk_bytes, tools.primed_max) = (chunk_bytes, primed_max);
        }
        let padding = Streams::new(tools.clone());
        Self { plan, rank, reading, tools, feeds: BTreeMap::new(), padding }
    }

    /// The rows of a step, in order; steps are asked for in ascending order.
    pub(crate) fn rows(&mut self, step: u64) -> Result<Vec<PendingRow>, LoadError> {
        let slots = self.plan.slots(step, self.rank)?;
        let mut rows = Vec::with_capacity(slots.len());
        let mut items = Vec::new();
        for run in slots.chunk_by(follows) {
            match run[0].source {
                SlotSource::Lane(at) => {
                    self.take(run, at, step, &mut items)?;
                    rows.extend(items.drain(..).map(|item| PendingRow { item, valid: true }));
                }
                SlotSource::Padding { position } => {
                    let sample = self.plan.line().sample(position);
                    let item = Item::Record(self.padding.fetch(sample)?);
                    rows.push(PendingRow { item, valid: false });
                }
            }
        }
        // A lane that gave nothing is not needed now; if it comes again it is read anew.
        self.feeds.retain(|_, feed| feed.used_at == step);
        Ok(rows)
    }

    /// Takes a run of slots, the first of which is `at`, from its lane.
    fn take(
        &mut self,
        run: &[Slot],
        at: LanePosition,
        step: u64,
        items: &mut Vec<Item>,
    ) -> Result<(), LoadError> {
        let key = (run[0].lane, at.lane);
        // After ranks stopped at different steps a lane goes on with one rank's rest after another's,
        // so it may go back on the line's lane; then it is read anew from there.
        let fits = |feed: &Feed| feed.next_output() <= at.output;
        if !self.feeds.get(&key).is_some_and(fits) {
            let lane = self.plan.lane(at.lane);
            let feed = Feed::new(&lane, at.output, self.reading, &self.tools)?;
            self.feeds.insert(key, feed);
        }
        let feed = self.feeds.get_mut(&key).expect("just made");
        feed.used_at = step;
        feed.take(at.output..at.output + run.len() as u64, items)
    }
}

impl Feed {
    /// A lane from an output on; its first shards are in reading from here on.
    pub(crate) fn new(
        lane: &Lane,
        output: u64,
        reading: Reading,
        tools: &StreamTools,
    ) -> Result<Self, PlanError> {
        let source = match reading {
            Reading::Locate => Source::Places(Places::new(Arc::clone(&tools.files))),
            Reading::Hold { .. } => {
                let start = lane.blocks_from(output).next().transpose()?;
                let from = start
                    .map_or(0, |block| if block.is_plain { output } else { block.needs.start });
                let mut streams = Streams::new(tools.clone());
                let mut ahead = Ahead::new(lane.inputs_from(from));
                ahead.prime(&mut streams);
                Source::Streams { streams, ahead }
            }
        };
        Ok(Self { lane: LaneFeed::new(lane, output)?, source, used_at: 0 })
    }

    /// Appends what stands at `outputs`, which are taken in ascending order.
    pub(crate) fn take(
        &mut self,
        outputs: Range<u64>,
        items: &mut Vec<Item>,
    ) -> Result<(), LoadError> {
        let source = &mut self.source;
        self.lane.take(outputs, &mut |sample| source.load(sample), items)
    }

    /// The first output that may still be taken.
    pub(crate) fn next_output(&self) -> u64 {
        self.lane.next_output()
    }

    /// Whether there is no further shard of the lane to begin with.
    pub(crate) fn is_all_in_reading(&self) -> bool {
        match &self.source {
            // What is read by place is not read ahead.
            Source::Places(_) => false,
            Source::Streams { ahead, .. } => ahead.is_done,
        }
    }
}

/// The samples that come next, looked at beforehand so that their shards are in reading in time.
#[derive(Debug)]
struct Ahead {
    inputs: Inputs,
    /// The next one whose shard found no room yet.
    waiting: Option<Sample>,
    /// Samples looked at and not loaded yet.
    distance: usize,
    /// There is no further one to look at.
    is_done: bool,
}

impl Ahead {
    fn new(inputs: Inputs) -> Self {
        Self { inputs, waiting: None, distance: 0, is_done: false }
    }

    /// Starts what there is room for, up to [`LOOK_AHEAD`] samples from here.
    fn prime(&mut self, streams: &mut Streams) {
        while self.distance < LOOK_AHEAD {
            let Some(sample) = self.waiting.take().or_else(|| self.inputs.next()) else {
                self.is_done = true;
                return;
            };
            if !streams.prime(sample) {
                self.waiting = Some(sample);
                return;
            }
            self.distance += 1;
        }
    }

    /// One sample is being loaded: the oldest of those looked at, or the one that waits.
    fn pass(&mut self) {
        match self.distance.checked_sub(1) {
            Some(distance) => self.distance = distance,
            None if self.waiting.take().is_some() => {}
            None => drop(self.inputs.next()),
        }
    }
}

/// Whether two slots are neighbours on one lane.
fn follows(a: &Slot, b: &Slot) -> bool {
    match (a.source, b.source) {
        (SlotSource::Lane(x), SlotSource::Lane(y)) => {
            a.lane == b.lane && x.lane == y.lane && x.output + 1 == y.output
        }
        _ => false,
    }
}

impl Source {
    fn load(&mut self, sample: Sample) -> Result<Item, LoadError> {
        match self {
            Self::Places(places) => places.find(sample).map(Item::Place),
            Self::Streams { streams, ahead } => {
                ahead.pass();
                let record = streams.fetch(sample)?;
                ahead.prime(streams);
                Ok(Item::Record(record))
            }
        }
    }
}
