//! Batches ahead of the trainer: one thread follows the plan, others read and assemble.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_handoff::{SlotPool, SlotPoolStats};
use shardfeed_pipeline::{Account, Assembler, Batch, ChunkPool, Reading, Room, Schema};
use shardfeed_plan::{Corrupt, EpochPlan, JobIdentity};

use crate::control::{Control, Lease};
use crate::dataset::Dataset;
pub use crate::dynamic::GrantStats;
use crate::dynamic::{DynamicRank, Gate, lapsed};
use crate::error::LoadError;
use crate::files::Files;
use crate::meter::Demand;
use crate::planner::Planner;
use crate::plans::Plans;
use crate::remote::RemoteStats;
use crate::sequence::{Delivered, Outcome, Shared, State};
use crate::stream::{ReadCounters, StreamTools};
use crate::tuning::{PREFETCH_START, Tuning};

/// Chunks kept for reuse at most.
const CHUNKS_KEEP: usize = 64;
/// And of the memory budget one part in so many.
const CHUNKS_PART: u64 = 8;

/// How long stopping waits for a read that is under way.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// The plan of an epoch, as whoever assigns work says.
pub type PlanOf = Box<dyn FnMut(u64) -> Result<Arc<EpochPlan>, LoadError> + Send>;

/// Who says what a rank reads.
pub enum Assignment {
    /// The plan of an epoch; asked for each epoch once, in ascending order.
    Planned(PlanOf),
    /// Whoever grants groups.
    Dynamic(DynamicRank),
}

impl Assignment {
    /// What `lease` gives the right to read of a job.
    pub fn of(
        control: Arc<dyn Control>,
        lease: &Lease,
        plans: Arc<Plans>,
        identity: &JobIdentity,
        world_size: u64,
    ) -> Self {
        let (lease, identity) = (lease.clone(), identity.clone());
        if identity.is_dynamic() {
            let open = lease.segments.last();
            let batch_size = open.map_or(1, |open| open.global_batch / world_size.max(1));
            let shuffle = identity.shuffle.clone();
            let groups_of = Box::new(move |epoch| Ok(plans.groups(&identity, epoch)?));
            return Self::Dynamic(DynamicRank { control, lease, groups_of, shuffle, batch_size });
        }
        Self::Planned(Box::new(move |epoch| {
            let segments = control.lanes(&lease, epoch)?;
            Ok(plans.plan(&identity, epoch, &segments, world_size)?)
        }))
    }
}

/// What a rank reads, and how far ahead.
pub struct PrefetchOptions {
    /// The dataset.
    pub dataset: Arc<Dataset>,
    /// What becomes of a record.
    pub schema: Arc<Schema>,
    /// What happens when a record is corrupt.
    pub corrupt: Corrupt,
    /// Slots that batches are written into.
    pub slots: SlotPool,
    /// This rank.
    pub rank: u64,
    /// Where to start.
    pub epoch: u64,
    /// Step of `epoch` to start at.
    pub step: u64,
    /// Batches ready or in work at most; `None`: as many as turn out to be of use.
    pub prefetch: Option<usize>,
    /// Bytes for records in reading and batches ahead.
    pub budget_bytes: u64,
    /// This process reads because a worker was lost or stopped serving the rank.
    pub took_over: bool,
}

/// What a look for the next batch found.
#[derive(Debug)]
pub enum Polled {
    /// The next batch.
    Ready(Box<Delivered>),
    /// A dynamic job: the rank gets nothing more of this epoch.
    EpochEnd {
        /// The epoch.
        epoch: u64,
        /// Steps that it had for this rank.
        steps: u64,
    },
    /// Not yet.
    Pending,
}

/// What a prefetcher chose and holds.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchStats {
    /// Batches ready and not given to anybody.
    pub ready: usize,
    /// Batches that were given to somebody who passes them on, and that the trainer has not taken.
    pub shown: usize,
    /// Batches that are being read or assembled.
    pub in_work: usize,
    /// Batches ahead at most, after the memory budget had its say.
    pub prefetch: usize,
    /// Bytes for records in reading and batches ahead.
    pub budget_bytes: u64,
    /// How files are read; `None` before the first plan.
    pub reading: Option<Reading>,
    /// Bytes that were read from shards.
    pub read_bytes: u64,
    /// Bytes of compressed shards that were inflated only to be passed over.
    pub reinflated_bytes: u64,
    /// What reading remote files cost; `None` if files are local.
    pub remote: Option<RemoteStats>,
    /// Slots that exist and are in use.
    pub slots: SlotPoolStats,
    /// Time that the trainer waited.
    pub waited: Duration,
    /// Of a dynamic job: what it was granted.
    pub granted: Option<GrantStats>,
    /// Where time went.
    pub account: Account,
}

/// Reads ahead of one rank's trainer until dropped.
#[derive(Debug)]
pub struct Prefetch {
    shared: Arc<Shared>,
    planner: Option<JoinHandle<()>>,
    next: u64,
    waited: Duration,
    slots: SlotPool,
    budget_bytes: u64,
    is_remote: bool,
    /// Tells everything that reads to stop.
    stop: Arc<AtomicBool>,
}

impl Prefetch {
    /// Starts to read ahead.
    ///
    /// # Errors  The system has no threads.
    pub fn start(assignment: Assignment, options: PrefetchOptions) -> Result<Self, LoadError> {
        let state = State {
            results: BTreeMap::new(),
            started: 0,
            shown: 0,
            taken: 0,
            budget: Room::default(),
            parked: BTreeMap::new(),
            prefetch: options.prefetch.unwrap_or(PREFETCH_START).max(1),
            reading: None,
            feed: None,
            stop: false,
            planner_ended: false,
        };
        let no_threads = |source| LoadError::Io { file: "reading threads".into(), source };
        let chunks_keep_bytes =
            usize::try_from(options.budget_bytes / CHUNKS_PART).unwrap_or(usize::MAX);
        let chunks = ChunkPool::new(CHUNKS_KEEP, chunks_keep_bytes);
        let tuning = Tuning::start(options.prefetch).map_err(no_threads)?;
        let counters = Arc::new(ReadCounters::default());
        let meter = Arc::clone(&counters.meter);
        tuning.tell(&meter);
        meter.set_up(|setup| setup.took_over = options.took_over);
        let io = Arc::clone(tuning.io());
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            ready: Condvar::new(),
            room: Condvar::new(),
            counters: Arc::clone(&counters),
            tuning,
            chunks: chunks.clone(),
            slots: options.slots.clone(),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let dataset = Arc::clone(&options.dataset);
        let files = Files::new(dataset, &counters, Arc::clone(&stop))?;
        let tools = StreamTools {
            files: Arc::new(files),
            io,
            chunks,
            counters,
            chunk_bytes: 0,
            primed_max: 0,
            trails: Arc::default(),
            stop: Arc::clone(&stop),
        };
        let (slots, budget_bytes) = (options.slots.clone(), options.budget_bytes);
        let is_remote = options.dataset.is_remote();
        let planner = Planner {
            assembler: Assembler::new(Arc::clone(&options.schema), options.slots.clone())
                .watched(meter),
            shared: Arc::clone(&shared),
            assignment: Some(assignment),
            options,
            tools,
            order: None,
        };
        let planner = std::thread::Builder::new()
            .name("shardfeed-plan".into())
            .spawn(move || planner.run())
            .map_err(no_threads)?;
        Ok(Self {
            shared,
            planner: Some(planner),
            next: 0,
            waited: Duration::ZERO,
            slots,
            budget_bytes,
            is_remote,
            stop,
        })
    }

    /// Waits at most `timeout` for the next batch, strictly in sequence, and takes it.
    ///
    /// # Errors  What stopped the reading; nothing comes after it.
    pub fn poll(&mut self, timeout: Duration) -> Result<Polled, LoadError> {
        let polled = self.show(timeout)?;
        if let Polled::Ready(delivered) = &polled {
            self.taken().take(1, delivered.batch.slot.size_bytes());
        }
        Ok(polled)
    }

    /// Lets `see` have those of the next `count` batches that are ready, in sequence, without taking
    /// them. Nothing goes on meanwhile, so it should only note what it sees.
    pub fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        let mut state = self.shared.lock();
        for place in (self.next..).take(count) {
            let Some(Ok(Outcome::Batch(delivered))) = state.results.get_mut(&place) else {
                return;
            };
            see(&mut delivered.batch);
        }
    }

    /// A handle to say that batches that were shown were taken.
    pub fn taken(&self) -> Taken {
        Taken { shared: Arc::clone(&self.shared) }
    }

    /// As [`Prefetch::poll`], but the batch counts as ahead until it is [taken](Taken::take): for one
    /// who passes it on to somebody who takes it later.
    ///
    /// # Errors  What stopped the reading; nothing comes after it.
    pub fn show(&mut self, timeout: Duration) -> Result<Polled, LoadError> {
        let begun = Instant::now();
        let mut state = self.shared.lock();
        while !state.results.contains_key(&self.next) {
            if state.planner_ended && state.started <= self.next {
                return Err(LoadError::ReaderLost);
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.waited += begun.elapsed();
                return Ok(Polled::Pending);
            }
            state = self
                .shared
                .ready
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        if let (Some(feed), Some(Ok(Outcome::Batch(batch)))) =
            (state.feed.clone(), state.results.get(&self.next))
        {
            let step = (batch.epoch, batch.step);
            drop(state);
            let gate = feed.await_open(step, timeout.saturating_sub(begun.elapsed()));
            if gate == Gate::Lost {
                return Err(lapsed().into());
            }
            state = self.shared.lock();
            if gate == Gate::Never {
                // What follows says why.
                state.results.remove(&self.next);
                state.taken += 1;
                self.next += 1;
            }
            if gate != Gate::Open {
                drop(state);
                self.waited += begun.elapsed();
                return Ok(Polled::Pending);
            }
        }
        let result = state.results.remove(&self.next).expect("nobody else takes it");
        let is_batch = is_batch(&result);
        state.shown += usize::from(is_batch);
        state.taken += u64::from(!is_batch);
        drop(state);
        if !is_batch {
            self.shared.room.notify_all();
            self.shared.unpark();
        }
        self.next += 1;
        self.waited += begun.elapsed();
        Ok(match result? {
            Outcome::Batch(delivered) => Polled::Ready(Box::new(delivered)),
            Outcome::EpochEnd { epoch, steps } => Polled::EpochEnd { epoch, steps },
        })
    }

    /// Whether what is made may be delivered, as far as the coordinator's word goes.
    pub fn confirmed(&self, is_confirmed: bool) {
        self.shared.counters.meter.confirmed(is_confirmed);
    }

    /// What was chosen and what is held.
    pub fn stats(&self) -> PrefetchStats {
        let state = self.shared.lock();
        let counters = &self.shared.counters;
        PrefetchStats {
            ready: state.results.values().filter(|result| is_batch(result)).count(),
            shown: state.shown,
            in_work: (state.started - state.taken) as usize - state.results.len() - state.shown,
            prefetch: state.prefetch,
            budget_bytes: self.budget_bytes,
            reading: state.reading,
            read_bytes: counters.bytes.load(Ordering::Relaxed),
            reinflated_bytes: counters.reinflated_bytes.load(Ordering::Relaxed),
            remote: self.is_remote.then(|| counters.meter.remote.stats()),
            slots: self.slots.stats(),
            waited: self.waited,
            granted: state.feed.as_ref().map(|feed| feed.stats()),
            account: counters.meter.account(),
        }
    }
}

/// Whether there is a batch at a place of the sequence; else it is an end, or an error.
fn is_batch(result: &Result<Outcome, LoadError>) -> bool {
    matches!(result, Ok(Outcome::Batch(_)))
}

/// Says that batches were taken, so that others may be started.
#[derive(Clone, Debug)]
pub struct Taken {
    shared: Arc<Shared>,
}

impl Taken {
    /// The trainer has waited for its next batch for so long by now.
    pub fn waits(&self, waiting: Duration) {
        self.shared.counters.meter.waits(waiting);
        self.tune();
    }

    /// What the trainer spent on a batch that it took.
    pub fn account(&self, demand: &Demand) {
        self.shared.counters.meter.took(demand);
        self.tune();
    }

    fn tune(&self) {
        if let Some(choice) = self.shared.tuning.look(&self.shared.counters.meter) {
            self.shared.lock().prefetch = choice.prefetch as usize;
            self.shared.room.notify_all();
        }
    }

    /// `batches` that were shown were taken; their slots together have `bytes`.
    pub fn take(&self, batches: usize, bytes: usize) {
        let mut state = self.shared.lock();
        debug_assert!(batches <= state.shown, "only what was shown can be taken");
        state.shown -= batches.min(state.shown);
        state.taken += batches as u64;
        state.budget.take(bytes);
        drop(state);
        self.shared.room.notify_all();
        self.shared.unpark();
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.stop.store(true, Ordering::Relaxed);
        self.shared.room.notify_all();
        self.shared.unpark();
        let Some(planner) = self.planner.take() else {
            return;
        };
        let begun = Instant::now();
        let mut state = self.shared.lock();
        while !state.planner_ended && begun.elapsed() < STOP_WAIT {
            let wait = self.shared.ready.wait_timeout(state, STOP_WAIT);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        if !state.planner_ended {
            // Storage that hangs must not hang the trainer as well; the thread ends with its read.
            tracing::warn!("a read is still under way, leaving its thread behind");
            return;
        }
        drop(state);
        if planner.join().is_err() {
            tracing::error!("the planning thread panicked");
        }
    }
}
