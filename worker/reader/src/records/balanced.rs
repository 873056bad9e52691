//! Rows of balanced steps: read in the order of their lanes, and given in the order of the steps.
//!
//! Steps whose samples are sorted together form a block. All rows of a block are held when its
//! first step is given; from there on, each step reads its part of the next block.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use shardfeed_plan::{BalancedPlan, EpochPlan, PlanError, Portion, Sample, Slot, SlotSource};
use shardfeed_source::{Grouping, LoadError, SampleMaps};

use crate::records::gather::{Gathered, Stock};
use crate::records::reader::{FeedKey, Feeds};
use crate::records::stream::StreamTools;

/// Maximum number of packs whose costs are kept: 16 MiB.
const PACK_COSTS_MAX: usize = 1 << 21;

/// Function that returns the cost of a sample.
type CostOf = Box<dyn FnMut(Portion, Sample) -> u64 + Send>;

/// Rows of one rank's balanced steps.
pub(crate) struct BalancedRows {
    plan: BalancedPlan<CostOf>,
    rank: u64,
    now: StepBlock,
    next: Option<StepBlock>,
}

impl fmt::Debug for BalancedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalancedRows").field("now", &self.now.steps).finish_non_exhaustive()
    }
}

/// Steps whose samples are sorted together, and their rows as far as they were read.
#[derive(Default)]
struct StepBlock {
    steps: Range<u64>,
    /// Entries of each step that was not given.
    slots: VecDeque<Vec<Slot>>,
    /// Outputs of each lane that were not read, in ascending order, and their number at first.
    wanted: BTreeMap<FeedKey, (VecDeque<u64>, usize)>,
    stocks: Vec<Stock>,
    /// Stock and row of each output that was read.
    read: HashMap<(FeedKey, u64), (usize, usize)>,
    /// Error of reading ahead; returned when the block begins.
    failed: Option<LoadError>,
}

impl BalancedRows {
    /// Returns the rows of a plan with balanced steps.
    /// - `window`: samples of a lane that are sorted together.
    ///
    /// # Errors  As [`BalancedPlan::new`].
    pub(crate) fn new(
        plan: Arc<EpochPlan>,
        rank: u64,
        window: u64,
        tools: &StreamTools,
    ) -> Result<Self, PlanError> {
        let plan = BalancedPlan::new(plan, window, cost_of(tools))?;
        Ok(Self { plan, rank, now: StepBlock::default(), next: None })
    }

    /// Returns the entries of a step, whose rows are read; steps are requested in ascending order.
    ///
    /// # Errors  A row of the step's block cannot be read.
    pub(crate) fn read(&mut self, step: u64, feeds: &mut Feeds) -> Result<Vec<Slot>, LoadError> {
        if !self.now.steps.contains(&step) {
            let next = self.next.take().filter(|next| next.steps.start == step);
            feeds.keep_used_since(self.now.steps.start);
            self.now = match next {
                Some(next) => next,
                None => self.block_at(step)?,
            };
            if let Some(error) = self.now.failed.take() {
                return Err(error);
            }
            self.now.read(step, 1.0, feeds)?;
        }
        let Range { start, end } = self.now.steps;
        if end < self.plan.plan().rank_steps(self.rank) {
            let part = (step + 1 - start) as f64 / (end - start) as f64;
            let mut next = match self.next.take() {
                Some(next) => next,
                None => self.block_at(end)?,
            };
            if next.failed.is_none() {
                next.failed = next.read(step, part, feeds).err();
            }
            self.next = Some(next);
        }
        Ok(self.now.slots.pop_front().expect("each step of a block is given once"))
    }

    /// Moves the row of an entry into the batch of a step.
    /// - `step`: that was read last.
    pub(crate) fn give(&mut self, key: FeedKey, output: u64, step: u64, into: &mut Gathered) {
        let found = self.now.read.remove(&(key, output));
        let (stock, row) = found.expect("the block was read");
        self.now.stocks[stock].give(row, step, into);
    }

    /// Returns the block of a step, from this step on.
    fn block_at(&mut self, step: u64) -> Result<StepBlock, PlanError> {
        let end = self.plan.together(step).end.min(self.plan.plan().rank_steps(self.rank));
        let mut block = StepBlock { steps: step..end, ..StepBlock::default() };
        for step in block.steps.clone() {
            let slots = self.plan.slots(step, self.rank)?;
            for slot in &slots {
                if let SlotSource::Lane(at) = slot.source {
                    block.wanted.entry((slot.lane, at.lane)).or_default().0.push_back(at.output);
                }
            }
            block.slots.push_back(slots);
        }
        for (outputs, count) in block.wanted.values_mut() {
            outputs.make_contiguous().sort_unstable();
            *count = outputs.len();
        }
        Ok(block)
    }
}

impl StepBlock {
    /// Reads rows until this part of all has been read in each lane.
    fn read(&mut self, step: u64, part: f64, feeds: &mut Feeds) -> Result<(), LoadError> {
        let mut gathered = Gathered::default();
        for (key, (wanted, count)) in &mut self.wanted {
            let target = (*count as f64 * part).ceil() as usize;
            let mut left = (target + wanted.len()).saturating_sub(*count);
            while left > 0
                && let Some(&first) = wanted.front()
            {
                let follows = |(at, output): (usize, &u64)| *output == first + at as u64;
                let run = wanted.iter().take(left).enumerate();
                let run = run.take_while(|one| follows(*one)).count();
                let from = gathered.rows.len();
                feeds.take(*key, first..first + run as u64, step, &mut gathered)?;
                for (row, output) in (from..).zip(wanted.drain(..run)) {
                    self.read.insert((*key, output), (self.stocks.len(), row));
                }
                left -= run;
            }
        }
        self.stocks.push(Stock::new(gathered));
        Ok(())
    }
}

/// Returns the cost of each sample of an epoch. Source: docs/ORDER.md, section 15.
fn cost_of(tools: &StreamTools) -> CostOf {
    let tools = tools.clone();
    let maps = Arc::clone(
        tools.files.dataset().samples().expect("a record spec with `balance` makes samples"),
    );
    if !maps.has_groups() {
        return Box::new(move |portion, sample| {
            let Sample { shard, ordinal } = tools.in_dataset(portion, sample);
            maps.of(shard).cost_of(ordinal)
        });
    }
    let mut costs = PackCosts { maps, known: HashMap::new(), held: 0 };
    Box::new(move |portion, sample| {
        costs.of(tools.in_dataset(portion, sample), tools.variant(portion))
    })
}

/// Costs of packs, of the blocks that were needed last.
struct PackCosts {
    maps: Arc<SampleMaps>,
    /// Costs of a shard's block in a variant.
    known: HashMap<(u32, u64, u64), Vec<u64>>,
    held: usize,
}

impl PackCosts {
    fn of(&mut self, sample: Sample, epoch: u64) -> u64 {
        let grouping = self.maps.of(sample.shard).grouping();
        let packing = grouping.and_then(Grouping::packing).expect("packs are samples");
        let variant = epoch % packing.settings().variants;
        let block = packing.block_of(sample.ordinal);
        let key = (sample.shard, block, variant);
        if !self.known.contains_key(&key) {
            let costs = packing.sums_of_squares(block, variant);
            self.held += costs.len();
            if self.held > PACK_COSTS_MAX {
                self.known.clear();
                self.held = costs.len();
            }
            self.known.insert(key, costs);
        }
        self.known[&key][(sample.ordinal - packing.packs_of(block).start) as usize]
    }
}
