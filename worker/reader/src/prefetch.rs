//! Batches ahead of the trainer: one thread follows the plan, others read and assemble.

mod leased;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_handoff::{SlotPool, SlotPoolStats};
use shardfeed_pipeline::{Account, Assembler, Batch, ChunkPool, Reading};
use shardfeed_source::{Files, LoadError, Lock, RemoteStats, wait_for};

use crate::assignment::{Assignment, PrefetchOptions};
use crate::dynamic::{Gate, GrantStats, lapsed};
use crate::epoch_samples::EpochSamples;
use crate::meter::Demand;
use crate::planner::Planner;
use crate::records::stream::{ReadCounters, StreamTools};
use crate::sequence::{BatchSequence, Delivery, SequenceState};
use crate::tuning::{PREFETCH_START, Tuning};

pub use leased::{LeaseGuard, RankLease, RankReader};

/// Maximum number of chunks kept for reuse.
const CHUNKS_KEEP: usize = 64;
/// Divisor of the memory budget that gives the maximum bytes of these chunks.
const CHUNKS_PART: u64 = 8;

/// Maximum time that stopping waits for a read in progress.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// Settings and counters of a prefetcher.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchStats {
    /// Batches that are ready and not handed out.
    pub ready: usize,
    /// Batches that were handed out for forwarding and not yet taken by the trainer.
    pub shown: usize,
    /// Batches that are being read or assembled.
    pub in_work: usize,
    /// Maximum number of batches ahead, within the memory budget.
    pub prefetch: usize,
    /// Bytes for records being read and batches ahead.
    pub budget_bytes: u64,
    /// Reading mode; `None` before the first plan.
    pub reading: Option<Reading>,
    pub read_bytes: u64,
    /// Bytes of compressed shards that were inflated only to be skipped.
    pub reinflated_bytes: u64,
    /// Requests for remote files; `None` if files are local.
    pub remote: Option<RemoteStats>,
    /// Slots that exist and are in use.
    pub slots: SlotPoolStats,
    /// Time that the trainer waited.
    pub waited: Duration,
    /// Dynamic jobs only: samples granted.
    pub granted: Option<GrantStats>,
    pub account: Account,
}

/// Reads ahead for one rank's trainer until dropped.
#[derive(Debug)]
pub struct Prefetch {
    shared: Arc<BatchSequence>,
    planner: Option<JoinHandle<()>>,
    next: u64,
    waited: Duration,
    slots: SlotPool,
    budget_bytes: u64,
    is_remote: bool,
    /// Stops all reads when set.
    stop: Arc<AtomicBool>,
}

impl Prefetch {
    /// Starts to read ahead.
    ///
    /// # Errors  The system has no threads.
    pub fn start(assignment: Assignment, options: PrefetchOptions) -> Result<Self, LoadError> {
        let prefetch = options.prefetch.unwrap_or(PREFETCH_START).max(1);
        let state = SequenceState { prefetch, ..SequenceState::default() };
        let no_threads = |source| LoadError::Io { file: "reading threads".into(), source };
        let chunks_keep_bytes =
            usize::try_from(options.budget_bytes / CHUNKS_PART).unwrap_or(usize::MAX);
        let chunks = ChunkPool::new(CHUNKS_KEEP, chunks_keep_bytes);
        let tuning = Tuning::start(options.prefetch).map_err(no_threads)?;
        let counters = Arc::new(ReadCounters::default());
        let meter = Arc::clone(&counters.meter);
        tuning.tell(&meter);
        meter.set_up(|setup| setup.took_over = options.took_over);
        let io = Arc::clone(&tuning.io);
        let shared = Arc::new(BatchSequence {
            state: Lock::new(state),
            ready: Condvar::new(),
            room: Condvar::new(),
            counters: Arc::clone(&counters),
            tuning,
            chunks: chunks.clone(),
            slots: options.slots.clone(),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let dataset = Arc::clone(&options.dataset);
        let files = Files::new(dataset, Arc::clone(&meter.storage), Arc::clone(&stop))?;
        let tools = StreamTools {
            files: Arc::new(files),
            io,
            chunks,
            counters,
            chunk_bytes: 0,
            primed_max: 0,
            trails: Arc::default(),
            samples: EpochSamples::default(),
            schemas: options.schemas.clone(),
            stop: Arc::clone(&stop),
        };
        let (slots, budget_bytes) = (options.slots.clone(), options.budget_bytes);
        let assembler = Assembler::new(options.schemas.clone(), options.slots.clone());
        let assembler = match options.dataset.samples().map(Arc::clone) {
            Some(samples) => {
                let maps = Arc::clone(&samples);
                assembler
                    .of_records(move |sample| samples.named_record(sample))
                    .of_rows(move |sample, most| maps.rows_of(sample, most))
            }
            None => assembler,
        };
        let is_remote = options.dataset.is_remote();
        let planner = Planner {
            assembler: assembler.watched(meter),
            shared: Arc::clone(&shared),
            options,
            tools,
            order: None,
        };
        let planner = std::thread::Builder::new()
            .name("shardfeed-plan".into())
            .spawn(move || planner.run(&assignment))
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

    /// Calls `see` for those of the next `count` batches that are ready, in sequence, without
    /// taking them. All other work is blocked meanwhile, so `see` should be short.
    pub fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        let mut state = self.shared.state.lock();
        for place in (self.next..).take(count) {
            let Some(Ok(Delivery::Batch(delivered))) = state.results.get_mut(&place) else {
                return;
            };
            see(&mut delivered.batch);
        }
    }

    /// Returns a handle to report that shown batches were taken.
    pub fn consumer(&self) -> Consumer {
        Consumer { shared: Arc::clone(&self.shared) }
    }

    /// Waits at most `timeout` for the next batch, strictly in sequence. The batch counts as ahead
    /// until [`Consumer::take`]: its consumer may take it later.
    ///
    /// # Errors  The error that stopped reading; no batch follows it.
    pub fn show(&mut self, timeout: Duration) -> Result<Delivery, LoadError> {
        let begun = Instant::now();
        let mut state = self.shared.state.lock();
        while !state.results.contains_key(&self.next) {
            if state.planner_ended && state.started <= self.next {
                return Err(LoadError::ReaderLost);
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.waited += begun.elapsed();
                return Ok(Delivery::Pending);
            }
            state = wait_for(&self.shared.ready, state, left);
        }
        if let (Some(feed), Some(Ok(Delivery::Batch(batch)))) =
            (state.feed.clone(), state.results.get(&self.next))
        {
            let step = (batch.epoch, batch.step);
            drop(state);
            let gate = feed.await_open(step, timeout.saturating_sub(begun.elapsed()));
            if gate == Gate::Lost {
                return Err(lapsed().into());
            }
            state = self.shared.state.lock();
            if gate == Gate::Never {
                // A later result states the reason.
                state.results.remove(&self.next);
                state.taken += 1;
                self.next += 1;
            }
            if gate != Gate::Open {
                drop(state);
                self.waited += begun.elapsed();
                return Ok(Delivery::Pending);
            }
        }
        let result = state.results.remove(&self.next).expect("no other caller takes it");
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
        result
    }

    /// Records whether batches may be delivered: whether the coordinator has confirmed the lease.
    pub fn confirmed(&self, is_confirmed: bool) {
        self.shared.counters.meter.confirmed(is_confirmed);
    }

    pub fn stats(&self) -> PrefetchStats {
        let state = self.shared.state.lock();
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
            remote: self.is_remote.then(|| counters.meter.storage.remote()),
            slots: self.slots.stats(),
            waited: self.waited,
            granted: state.feed.as_ref().map(|feed| feed.stats()),
            account: counters.meter.account(),
        }
    }
}

/// True if a result of the sequence is a batch, false if it is an end or an error.
fn is_batch(result: &Result<Delivery, LoadError>) -> bool {
    matches!(result, Ok(Delivery::Batch(_)))
}

/// Handle to report that batches were taken, so that more may be started.
#[derive(Clone, Debug)]
pub struct Consumer {
    shared: Arc<BatchSequence>,
}

impl Consumer {
    /// Records that the trainer has waited `waiting` for its next batch.
    pub fn waits(&self, waiting: Duration) {
        self.shared.counters.meter.waits(waiting);
        self.tune();
    }

    /// Records the time that the trainer spent on a batch that it took.
    pub fn account(&self, demand: &Demand) {
        self.shared.counters.meter.took(demand);
        self.tune();
    }

    fn tune(&self) {
        if let Some(choice) = self.shared.tuning.look(&self.shared.counters.meter) {
            self.shared.state.lock().prefetch = choice.prefetch as usize;
            self.shared.room.notify_all();
        }
    }

    /// Records that `batches` shown batches were taken; their slots have `bytes` in total.
    pub fn take(&self, batches: usize, bytes: usize) {
        let mut state = self.shared.state.lock();
        debug_assert!(batches <= state.shown, "only shown batches can be taken");
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
        self.shared.state.lock().stop = true;
        self.stop.store(true, Ordering::Relaxed);
        self.shared.room.notify_all();
        self.shared.unpark();
        let Some(planner) = self.planner.take() else {
            return;
        };
        let begun = Instant::now();
        let mut state = self.shared.state.lock();
        while !state.planner_ended && begun.elapsed() < STOP_WAIT {
            state = wait_for(&self.shared.ready, state, STOP_WAIT);
        }
        if !state.planner_ended {
            // Hung storage must not block the trainer; the thread ends with its read.
            tracing::warn!("a read is still under way, leaving its thread behind");
            return;
        }
        drop(state);
        if planner.join().is_err() {
            tracing::error!("the planning thread panicked");
        }
    }
}
