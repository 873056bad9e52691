//! Rows of balanced steps: read in the order of their lanes, and given in the order of the steps.
//!
//! Steps whose samples are sorted together form a block. All rows of a block are held when its
//! first step is given; from there on, each step reads its part of the next block.
//!
//! After a segment was cut, a block takes rows from between those of the next one. As far as memory
//! allows, the reader keeps what it passes there, so that it does not go back in its lanes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use shardfeed_plan::{BalancedPlan, EpochPlan, PlanError, Slot, SlotSource};
use shardfeed_source::LoadError;

use crate::epoch_samples::CostOf;
use crate::records::gather::{Gathered, Stock};
use crate::records::reader::{FeedKey, Feeds};
use crate::records::stream::StreamTools;

/// Rows of one rank's balanced steps.
pub(crate) struct BalancedRows {
    plan: BalancedPlan<CostOf>,
    rank: u64,
    now: StepBlock,
    next: Option<StepBlock>,
    /// The block after the next one, which is given the rows that the next one passes.
    after: Option<StepBlock>,
    /// True if rows that are passed are kept.
    keeps_passed: bool,
}

impl fmt::Debug for BalancedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BalancedRows").field("now", &self.now.steps).finish_non_exhaustive()
    }
}

/// Balanced steps of a plan, as they are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balancing {
    /// Samples of a lane that are sorted together.
    pub(crate) window: u64,
    /// True if rows that are passed are kept.
    pub(crate) keeps_passed: bool,
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
    ///
    /// # Errors  As [`BalancedPlan::new`].
    pub(crate) fn new(
        plan: Arc<EpochPlan>,
        rank: u64,
        balancing: Balancing,
        tools: &StreamTools,
    ) -> Result<Self, PlanError> {
        let Balancing { window, keeps_passed } = balancing;
        let maps = tools.files.dataset().samples().map(Arc::clone);
        let maps = maps.expect("a record spec with `balance` makes samples");
        let plan = BalancedPlan::new(plan, window, tools.samples.clone().costs(maps))?;
        Ok(Self { plan, rank, now: StepBlock::default(), next: None, after: None, keeps_passed })
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
            self.next = match (self.after.take(), self.keeps_passed) {
                (None, true) => self.block_from(self.now.steps.end)?,
                (after, _) => after,
            };
            self.now.read(step, 1.0, feeds, self.next.as_mut())?;
        }
        let Range { start, end } = self.now.steps;
        if self.next.is_none() {
            self.next = self.block_from(end)?;
        }
        if let Some(mut next) = self.next.take() {
            if self.after.is_none() && self.keeps_passed {
                self.after = self.block_from(next.steps.end)?;
            }
            let part = (step + 1 - start) as f64 / (end - start) as f64;
            if next.failed.is_none() {
                next.failed = next.read(step, part, feeds, self.after.as_mut()).err();
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

    /// Returns the block that begins with a step; `None` if the rank has no such step.
    fn block_from(&mut self, step: u64) -> Result<Option<StepBlock>, PlanError> {
        let has_step = step < self.plan.plan().rank_steps(self.rank);
        has_step.then(|| self.block_at(step)).transpose()
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
    /// Reads rows until this part of all has been read in each lane. An error ends the block: what was
    /// read before it is not given.
    /// - `after`: block whose rows are kept where they are passed.
    fn read(
        &mut self,
        step: u64,
        part: f64,
        feeds: &mut Feeds,
        mut after: Option<&mut Self>,
    ) -> Result<(), LoadError> {
        let (mut gathered, mut passed) = (Gathered::default(), Gathered::default());
        for (key, (wanted, count)) in &mut self.wanted {
            let target = (*count as f64 * part).ceil() as usize;
            let mut left = (target + wanted.len()).saturating_sub(*count);
            while left > 0
                && let Some(&first) = wanted.front()
            {
                let follows = |(at, output): (usize, &u64)| *output == first + at as u64;
                let run = wanted.iter().take(left).enumerate();
                let run = run.take_while(|one| follows(*one)).count();
                if let Some(after) = &mut after
                    && let Err(error) = after.keep(*key, first, step, feeds, &mut passed)
                {
                    feeds.close(*key);
                    after.failed = Some(error);
                }
                let from = gathered.rows.len();
                feeds.take(*key, first..first + run as u64, step, &mut gathered)?;
                for (row, output) in (from..).zip(wanted.drain(..run)) {
                    self.read.insert((*key, output), (self.stocks.len(), row));
                }
                left -= run;
            }
        }
        self.stocks.push(Stock::new(gathered));
        if let Some(after) = after.filter(|_| !passed.rows.is_empty()) {
            after.stocks.push(Stock::new(passed));
        }
        Ok(())
    }

    /// Reads its rows of a lane that the reader passes on its way to an output.
    fn keep(
        &mut self,
        key: FeedKey,
        output: u64,
        step: u64,
        feeds: &mut Feeds,
        into: &mut Gathered,
    ) -> Result<(), LoadError> {
        let (Some((wanted, _)), Some(next)) = (self.wanted.get_mut(&key), feeds.next_output(key))
        else {
            return Ok(());
        };
        let [from, to] = [next, output].map(|end| wanted.partition_point(|other| *other < end));
        if self.failed.is_some() || from >= to {
            return Ok(());
        }
        for output in wanted.drain(from..to) {
            feeds.take(key, output..output + 1, step, into)?;
            self.read.insert((key, output), (self.stocks.len(), into.rows.len() - 1));
        }
        Ok(())
    }
}
