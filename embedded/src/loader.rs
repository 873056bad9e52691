//! A rank's loader: where it stands, and the batches from there on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardfeed_agent::{
    Control, Dataset, Delivered, JobSpec, Lease, LeaseRequest, LoadError, Polled, Prefetch,
    PrefetchOptions, PrefetchStats, ScanProgress, default_budget_bytes,
};
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::Schema;
use shardfeed_plan::{
    Cursor, Digest, EpochPlan, JobIdentity, Line, Segment, Shuffle, Start, Tail, Token,
};

use crate::control::LocalControl;
use crate::ledger::Ledger;
use crate::options::LoaderOptions;

/// Free slots that are kept beyond the prefetched batches: the one that is viewed, and the next.
const SLOTS_BEYOND_PREFETCH: usize = 2;

/// One rank's batches, epoch after epoch.
pub struct Loader {
    options: LoaderOptions,
    plans: Arc<Plans>,
    schema: Arc<Schema>,
    control: Arc<LocalControl>,
    cursor: Cursor,
    /// Plan of the cursor's epoch.
    plan: Arc<EpochPlan>,
    slots: SlotPool,
    running: Option<Running>,
    ledger: Option<Ledger>,
    /// Generation whose beginning stands in the ledger; starting again after an error is no new one.
    in_ledger: Option<u64>,
    handed_out: u64,
}

/// A prefetcher that stands where the cursor stands.
struct Running {
    prefetch: Prefetch,
    lease: Lease,
}

/// What a look for the next batch found.
#[derive(Debug)]
pub enum Next {
    /// The next batch; it is consumed.
    Batch(Box<Delivered>),
    /// The epoch has no further batch for this rank; the cursor stands at the next epoch.
    EpochEnd,
    /// Not ready yet.
    Pending,
}

/// What a loader holds and has done.
#[derive(Clone, Copy, Debug)]
pub struct LoaderStats {
    /// Batches handed out.
    pub batches: u64,
    /// Of the prefetcher, once it runs.
    pub prefetch: Option<PrefetchStats>,
    /// Bytes that the loader may use for records and batches ahead.
    pub memory_budget_bytes: u64,
}

impl Loader {
    /// Finds and indexes the files and stands at the beginning of epoch 0.
    /// - `progress`: called while files are indexed; returning `false` gives up.
    ///
    /// # Errors  See [`LoadError`].
    pub fn open(
        options: LoaderOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        if options.limit == Some(0) {
            return Err(LoadError::Option("limit must be at least 1, or None for no limit".into()));
        }
        if options.prefetch == 0 {
            return Err(LoadError::Option("prefetch must be at least 1".into()));
        }
        let schema = match options.features.clone() {
            None => Schema::raw(),
            Some(features) => Schema::parsed(features)?,
        };
        let start = start(&options);
        // Numbers that make no plan are refused before anything is scanned.
        let lanes = start.lanes.unwrap_or(start.world_size);
        Segment::start(lanes, start.batch_size, start.world_size)?;
        let dataset = Dataset::open(&options.files, options.compression, &options.cache, progress)?;
        let identity = JobIdentity {
            shuffle: Shuffle {
                content: dataset.manifest().digest(),
                seed: options.seed,
                enabled: options.shuffle,
                window: options.shuffle_window,
                interleave: options.interleave,
                block_length: options.block_length,
            },
            lanes,
            tail: options.tail,
            operators: schema.operators().to_owned(),
            decoder: schema.decoder().to_owned(),
        };
        let cursor = Cursor::new(identity, start)?;
        let dataset = Arc::new(dataset);
        let plans = Arc::new(Plans::new(Arc::clone(&dataset), &options));
        let plan = plans.get(&cursor)?;
        let control = Arc::new(LocalControl::default());
        control.register(&job(&options, &cursor))?;
        let ledger = Ledger::from_environment(options.rank)?;
        let slots = SlotPool::new(options.prefetch + SLOTS_BEYOND_PREFETCH);
        let (schema, running) = (Arc::new(schema), None);
        let (in_ledger, handed_out) = (None, 0);
        Ok(Self {
            options,
            plans,
            schema,
            control,
            cursor,
            plan,
            slots,
            running,
            ledger,
            in_ledger,
            handed_out,
        })
    }

    /// Waits at most `timeout` for the next batch of the cursor's epoch, and consumes it.
    ///
    /// # Errors  Why there is no next batch; the cursor stays, and trying again reads again.
    pub fn next(&mut self, timeout: Duration) -> Result<Next, LoadError> {
        if self.cursor.step() >= self.steps() {
            self.cursor.finish_epoch();
            self.plan = self.plans.get(&self.cursor)?;
            return Ok(Next::EpochEnd);
        }
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        let running = self.running.as_mut().expect("just started");
        let delivered = match running.prefetch.poll(timeout) {
            Ok(Polled::Pending) => return Ok(Next::Pending),
            Ok(Polled::Ready(delivered)) => delivered,
            Err(error) => {
                self.running = None;
                return Err(error);
            }
        };
        debug_assert_eq!(
            (delivered.epoch, delivered.step),
            (self.cursor.epoch(), self.cursor.step())
        );
        let lease = running.lease;
        match self.consume(lease, &delivered) {
            Ok(()) => Ok(Next::Batch(delivered)),
            Err(error) => {
                // The batch was not handed out: whoever tries again gets it again.
                self.running = None;
                Err(error)
            }
        }
    }

    /// Moves the cursor past a batch, once nothing can keep it from being handed out.
    fn consume(&mut self, lease: Lease, delivered: &Delivered) -> Result<(), LoadError> {
        let mut next = self.cursor.clone();
        next.advance(self.steps());
        let ends = next.epoch() != self.cursor.epoch();
        let plan = if ends { self.plans.get(&next)? } else { Arc::clone(&self.plan) };
        self.control.report(&lease, next.epoch(), next.step())?;
        if let Some(ledger) = &mut self.ledger {
            ledger.hand_out(self.cursor.generation(), delivered, &self.plans.dataset)?;
        }
        (self.cursor, self.plan) = (next, plan);
        self.handed_out += 1;
        Ok(())
    }

    /// Where the loader stands.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// The plan of the epoch that it stands in.
    pub fn plan(&self) -> &Arc<EpochPlan> {
        &self.plan
    }

    /// The plan of any epoch: of the current one with its history, of another from its beginning.
    pub fn plan_of(&self, epoch: u64) -> Result<Arc<EpochPlan>, LoadError> {
        let mut cursor = self.cursor.clone();
        if epoch != cursor.epoch() {
            cursor.set_epoch(epoch);
        }
        self.plans.get(&cursor)
    }

    /// Steps of the whole epoch for this rank.
    pub fn steps(&self) -> u64 {
        self.plan.rank_steps(self.options.rank)
    }

    /// What becomes of a record.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.plans.dataset
    }

    /// What it was told.
    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// Moves to the beginning of `epoch`, except right after loading a token of it.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<(), LoadError> {
        let mut cursor = self.cursor.clone();
        if cursor.set_epoch(epoch) {
            self.plan = self.plans.get(&cursor)?;
            self.running = None;
        }
        self.cursor = cursor;
        Ok(())
    }

    /// Goes on from one token, or for `tail="uneven"` from the tokens of all ranks.
    /// - `replay_missing`: ranks without a token deliver their part of the segment again.
    ///
    /// # Errors  The tokens do not fit; nothing is changed.
    pub fn load(&mut self, tokens: &[Token], replay_missing: bool) -> Result<(), LoadError> {
        let identity = self.cursor.identity().clone();
        let start = start(&self.options);
        let cursor = match tokens {
            [token] if !(is_whole_world(token) || token.speaks_for.is_some() && replay_missing) => {
                Cursor::resume(identity, start, token)?
            }
            tokens => {
                let plans = &self.plans;
                let rank_steps = |epoch, segments: &[Segment], world_size| {
                    let plan = plans.plan(&identity, epoch, segments, world_size)?;
                    let first = plan.first_step();
                    Ok((0..world_size).map(|rank| plan.rank_steps(rank) - first).collect())
                };
                Cursor::resume_uneven(identity.clone(), start, tokens, replay_missing, rank_steps)?
            }
        };
        let plan = self.plans.get(&cursor)?;
        let control = Arc::new(LocalControl::default());
        control.register(&job(&self.options, &cursor))?;
        (self.cursor, self.plan, self.running, self.control) = (cursor, plan, None, control);
        // The same token may be loaded twice: that is a generation each time.
        self.in_ledger = None;
        Ok(())
    }

    /// Equal on all ranks that were started alike.
    pub fn plan_digest(&self) -> Digest {
        self.cursor.plan_digest(self.options.limit)
    }

    /// What it holds and has done.
    pub fn stats(&self) -> LoaderStats {
        LoaderStats {
            batches: self.handed_out,
            prefetch: self.running.as_ref().map(|running| running.prefetch.stats()),
            memory_budget_bytes: self.budget_bytes(),
        }
    }

    fn budget_bytes(&self) -> u64 {
        self.options.memory_budget_bytes.unwrap_or_else(default_budget_bytes)
    }

    /// Takes a lease from the cursor on and starts to read ahead.
    fn start(&mut self) -> Result<Running, LoadError> {
        let control = Arc::clone(&self.control);
        let request = LeaseRequest {
            rank: self.options.rank,
            world_size: self.options.world_size,
            generation: self.cursor.generation(),
            epoch: self.cursor.epoch(),
            segments: self.cursor.segments().to_vec(),
        };
        let lease = control.lease(&request)?;
        let generation = Some(self.cursor.generation());
        if let Some(ledger) = &mut self.ledger
            && self.in_ledger != generation
        {
            ledger.begin(&self.cursor)?;
            self.in_ledger = generation;
        }
        let plans = Arc::clone(&self.plans);
        let identity = self.cursor.identity().clone();
        let world_size = self.options.world_size;
        let plan_of = move |epoch| {
            let segments = control.lanes(&lease, epoch)?;
            Ok(plans.plan(&identity, epoch, &segments, world_size)?)
        };
        let prefetch = Prefetch::start(PrefetchOptions {
            dataset: Arc::clone(&self.plans.dataset),
            schema: Arc::clone(&self.schema),
            slots: self.slots.clone(),
            plan_of: Box::new(plan_of),
            rank: self.options.rank,
            epoch: self.cursor.epoch(),
            step: self.cursor.step(),
            prefetch: self.options.prefetch,
            budget_bytes: self.budget_bytes(),
        })?;
        Ok(Running { prefetch, lease })
    }
}

/// Whether one token of an uneven job speaks for all of its ranks.
fn is_whole_world(token: &Token) -> bool {
    matches!(token.speaks_for, Some((_, 1)))
}

fn start(options: &LoaderOptions) -> Start {
    let LoaderOptions { lanes, batch_size, rank, world_size, .. } = *options;
    Start { lanes, batch_size, rank, world_size }
}

fn job(options: &LoaderOptions, cursor: &Cursor) -> JobSpec {
    JobSpec { name: options.job.clone(), identity: cursor.identity().clone() }
}

/// Plans of a dataset's epochs, the last lines kept: the trainer's side and the reading side ask for
/// the same ones.
struct Plans {
    dataset: Arc<Dataset>,
    counts: Vec<u64>,
    rules: (Tail, Option<u64>),
    lines: Mutex<Vec<(u64, Arc<Line>)>>,
}

/// Lines kept: the epoch that is consumed and the one that is read ahead.
const LINES_KEPT: usize = 2;

impl Plans {
    fn new(dataset: Arc<Dataset>, options: &LoaderOptions) -> Self {
        let counts = dataset.manifest().counts();
        Self { dataset, counts, rules: (options.tail, options.limit), lines: Mutex::default() }
    }

    fn get(&self, cursor: &Cursor) -> Result<Arc<EpochPlan>, LoadError> {
        let world_size = cursor.start().world_size;
        Ok(self.plan(cursor.identity(), cursor.epoch(), cursor.segments(), world_size)?)
    }

    fn plan(
        &self,
        identity: &JobIdentity,
        epoch: u64,
        segments: &[Segment],
        world_size: u64,
    ) -> Result<Arc<EpochPlan>, shardfeed_plan::PlanError> {
        let line = {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            match lines.iter().find(|(of, _)| *of == epoch) {
                Some((_, line)) => Arc::clone(line),
                None => {
                    let line = Arc::new(Line::new(&self.counts, &identity.shuffle, epoch)?);
                    lines.insert(0, (epoch, Arc::clone(&line)));
                    lines.truncate(LINES_KEPT);
                    line
                }
            }
        };
        let shuffle = identity.shuffle.clone();
        EpochPlan::new(line, shuffle, epoch, self.rules, segments, world_size).map(Arc::new)
    }
}
