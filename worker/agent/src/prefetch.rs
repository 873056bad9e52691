//! Batches ahead of the trainer: one thread follows the plan, others read and assemble.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_handoff::{SlotPool, SlotPoolStats};
use shardfeed_pipeline::{
    Assembler, Batch, ChunkPool, Need, Reading, Row, RowError, RowFault, Schema, reading,
};
use shardfeed_plan::{EpochPlan, Planned};
use shardfeed_tfrecord::{DataCrcMismatch, ReadError, ReadErrorKind};

use crate::dataset::Dataset;
use crate::error::LoadError;
use crate::files::Files;
use crate::io_pool::IoPool;
use crate::reader::{Item, PendingRow, RankReader};
use crate::stream::{ReadCounters, StreamTools};

/// Chunks kept for reuse at most.
const CHUNKS_KEEP: usize = 16;

/// Threads that wait for storage: at least, at most, and for each core.
const IO_THREADS: (usize, usize, usize) = (4, 16, 2);

/// How long stopping waits for a read that is under way.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// The plan of an epoch, as whoever assigns work says.
pub type PlanOf = Box<dyn FnMut(u64) -> Result<Arc<EpochPlan>, LoadError> + Send>;

/// What a rank reads, and how far ahead.
pub struct PrefetchOptions {
    /// The dataset.
    pub dataset: Arc<Dataset>,
    /// What becomes of a record.
    pub schema: Arc<Schema>,
    /// Slots that batches are written into.
    pub slots: SlotPool,
    /// The plan of an epoch; asked for each epoch once, in ascending order.
    pub plan_of: PlanOf,
    /// This rank.
    pub rank: u64,
    /// Where to start.
    pub epoch: u64,
    /// Step of `epoch` to start at.
    pub step: u64,
    /// Batches ready or in work at most.
    pub prefetch: usize,
    /// Bytes for records in reading and batches ahead.
    pub budget_bytes: u64,
}

/// The computing threads of this process, one for each core, shared by all its loaders.
fn computing() -> Arc<rayon::ThreadPool> {
    static POOL: Mutex<Option<(u32, Arc<rayon::ThreadPool>)>> = Mutex::new(None);
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((of, pool)) = &*pool
        && *of == process
    {
        return Arc::clone(pool);
    }
    let builder = rayon::ThreadPoolBuilder::new()
        .thread_name(|index| format!("shardfeed-cpu-{index}"))
        .panic_handler(|_| tracing::error!("a computing thread panicked"));
    let made = Arc::new(builder.build().expect("the system has threads for computing"));
    // After a fork the threads of the parent's pool are not there: it can only be forgotten.
    std::mem::forget(pool.replace((process, Arc::clone(&made))));
    made
}

/// A batch, in sequence.
#[derive(Debug)]
pub struct Delivered {
    /// Epoch of the batch.
    pub epoch: u64,
    /// Its step in the epoch.
    pub step: u64,
    /// Its rows, as planned.
    pub samples: Vec<Planned>,
    /// What the trainer gets.
    pub batch: Batch,
}

/// What a look for the next batch found.
#[derive(Debug)]
pub enum Polled {
    /// The next batch.
    Ready(Box<Delivered>),
    /// Not yet.
    Pending,
}

/// What a prefetcher chose and holds.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchStats {
    /// Batches ready.
    pub ready: usize,
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
    /// Slots that exist and are in use.
    pub slots: SlotPoolStats,
    /// Time that the trainer waited.
    pub waited: Duration,
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
    /// Tells everything that reads to stop.
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// A batch became ready, or the planner ended.
    ready: Condvar,
    /// A batch was taken, or the planner shall stop.
    room: Condvar,
    counters: Arc<ReadCounters>,
}

#[derive(Debug)]
struct State {
    /// Finished batches by their place in the sequence.
    results: BTreeMap<u64, Result<Delivered, LoadError>>,
    started: u64,
    taken: u64,
    /// Bytes of finished batches, and of the largest one so far.
    ready_bytes: usize,
    largest_bytes: usize,
    prefetch: usize,
    batch_budget_bytes: usize,
    reading: Option<Reading>,
    stop: bool,
    planner_ended: bool,
}

impl Prefetch {
    /// Starts to read ahead.
    ///
    /// # Errors  The system has no threads.
    pub fn start(options: PrefetchOptions) -> Result<Self, LoadError> {
        let state = State {
            results: BTreeMap::new(),
            started: 0,
            taken: 0,
            ready_bytes: 0,
            largest_bytes: 0,
            prefetch: options.prefetch.max(1),
            batch_budget_bytes: usize::try_from(options.budget_bytes / 2).unwrap_or(usize::MAX),
            reading: None,
            stop: false,
            planner_ended: false,
        };
        let counters = Arc::new(ReadCounters::default());
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            ready: Condvar::new(),
            room: Condvar::new(),
            counters: Arc::clone(&counters),
        });
        let no_threads = |source| LoadError::Io { file: "reading threads".into(), source };
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let (least, most, per_core) = IO_THREADS;
        let io = IoPool::new((per_core * cores).clamp(least, most)).map_err(no_threads)?;
        let stop = Arc::new(AtomicBool::new(false));
        let tools = StreamTools {
            files: Arc::new(Files::new(Arc::clone(&options.dataset))),
            io: Arc::new(io),
            chunks: ChunkPool::new(CHUNKS_KEEP),
            counters,
            chunk_bytes: 0,
            primed_max: 0,
            stop: Arc::clone(&stop),
        };
        let (slots, budget_bytes) = (options.slots.clone(), options.budget_bytes);
        let planner = Planner {
            assembler: Assembler::new(Arc::clone(&options.schema), options.slots.clone()),
            shared: Arc::clone(&shared),
            options,
            tools,
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
            stop,
        })
    }

    /// Waits at most `timeout` for the next batch, strictly in sequence.
    ///
    /// # Errors  What stopped the reading; nothing comes after it.
    pub fn poll(&mut self, timeout: Duration) -> Result<Polled, LoadError> {
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
        let result = state.results.remove(&self.next).expect("just seen");
        state.taken += 1;
        if let Ok(delivered) = &result {
            state.ready_bytes -= delivered.batch.slot.size_bytes();
        }
        drop(state);
        self.shared.room.notify_all();
        self.next += 1;
        self.waited += begun.elapsed();
        result.map(|delivered| Polled::Ready(Box::new(delivered)))
    }

    /// What was chosen and what is held.
    pub fn stats(&self) -> PrefetchStats {
        let state = self.shared.lock();
        let counters = &self.shared.counters;
        PrefetchStats {
            ready: state.results.len(),
            in_work: (state.started - state.taken) as usize - state.results.len(),
            prefetch: state.prefetch,
            budget_bytes: self.budget_bytes,
            reading: state.reading,
            read_bytes: counters.bytes.load(Ordering::Relaxed),
            reinflated_bytes: counters.reinflated_bytes.load(Ordering::Relaxed),
            slots: self.slots.stats(),
            waited: self.waited,
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.stop.store(true, Ordering::Relaxed);
        self.shared.room.notify_all();
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete when the lock is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, place: u64, result: Result<Delivered, LoadError>) {
        let mut state = self.lock();
        if let Ok(delivered) = &result {
            let bytes = delivered.batch.slot.size_bytes();
            state.ready_bytes += bytes;
            state.largest_bytes = state.largest_bytes.max(bytes);
        }
        state.results.insert(place, result);
        drop(state);
        self.ready.notify_all();
    }

    /// Waits until one more batch may be started; `None` to stop.
    fn begin(self: &Arc<Self>) -> Option<Ticket> {
        let mut state = self.lock();
        loop {
            let ahead = (state.started - state.taken) as usize;
            let in_work = ahead - state.results.len();
            let bytes = state.ready_bytes + (in_work + 1) * state.largest_bytes;
            let fits = ahead < state.prefetch && bytes <= state.batch_budget_bytes;
            if state.stop {
                return None;
            }
            if fits || ahead == 0 {
                state.started += 1;
                let place = state.started - 1;
                return Some(Ticket { shared: Arc::clone(self), place, is_open: true });
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A place in the sequence that must be filled, whatever happens to whoever fills it.
struct Ticket {
    shared: Arc<Shared>,
    place: u64,
    is_open: bool,
}

impl Ticket {
    fn finish(mut self, result: Result<Delivered, LoadError>) {
        self.is_open = false;
        self.shared.finish(self.place, result);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_open {
            self.shared.finish(self.place, Err(LoadError::ReaderLost));
        }
    }
}

/// The thread that follows the plan.
struct Planner {
    options: PrefetchOptions,
    assembler: Assembler,
    shared: Arc<Shared>,
    tools: StreamTools,
}

impl Planner {
    fn run(mut self) {
        let followed = catch_unwind(AssertUnwindSafe(|| self.follow()));
        // An error outside of any batch takes the place of the next one.
        let error = followed.unwrap_or(Err(LoadError::ReaderLost)).err();
        let mut state = self.shared.lock();
        let place = state.started;
        if error.is_some() {
            state.started += 1;
        }
        drop(state);
        if let Some(error) = error {
            self.shared.finish(place, Err(error));
        }
        // What is held for reading goes before the end is told.
        let shared = Arc::clone(&self.shared);
        drop(self);
        shared.lock().planner_ended = true;
        shared.ready.notify_all();
    }

    /// Epoch after epoch, step after step, until told to stop.
    fn follow(&mut self) -> Result<(), LoadError> {
        let (mut epoch, mut step) = (self.options.epoch, self.options.step);
        loop {
            let plan = (self.options.plan_of)(epoch)?;
            let steps = plan.rank_steps(self.options.rank);
            if steps == 0 {
                return Ok(());
            }
            let reading = self.reading(&plan)?;
            let rank = self.options.rank;
            let mut reader = RankReader::new(Arc::clone(&plan), rank, reading, self.tools.clone());
            while step < steps {
                let Some(ticket) = self.shared.begin() else {
                    return Ok(());
                };
                match reader.rows(step) {
                    Ok(rows) => self.assemble(ticket, (epoch, step), rows),
                    Err(error) => {
                        ticket.finish(Err(error));
                        return Ok(());
                    }
                }
                step += 1;
            }
            (epoch, step) = (epoch.saturating_add(1), 0);
        }
    }

    /// How to read this epoch's lanes, and how many batches ahead, within the budget.
    fn reading(&self, plan: &EpochPlan) -> Result<Reading, LoadError> {
        let PrefetchOptions { dataset, schema, rank, budget_bytes, prefetch, .. } = &self.options;
        let rows = plan.rows();
        let record_bytes = dataset.record_bytes_mean();
        // A batch needs its slot and, while it is assembled, the records that go into it.
        let row_bytes = (schema.fixed_row_bytes() as u64).max(record_bytes) + record_bytes + 17;
        let batch_bytes = rows.saturating_mul(row_bytes).max(1);
        let fits = usize::try_from(budget_bytes / 2 / batch_bytes).unwrap_or(usize::MAX);
        let prefetch = (*prefetch).min(fits).max(1);
        let shuffle = plan.shuffle();
        let lane_samples = plan.line().samples().div_ceil(plan.lanes());
        let reading = reading(&Need {
            lanes: plan.rank_lanes(*rank),
            lane_samples,
            window: if shuffle.enabled { shuffle.window } else { 1 },
            interleave: if shuffle.enabled {
                shuffle.interleave.min(dataset.files().len() as u64)
            } else {
                1
            },
            record_bytes,
            compressed: dataset.is_compressed(),
            shard_bytes: dataset.stream_bytes_mean(),
            batch_bytes: batch_bytes.saturating_mul(prefetch as u64),
            budget_bytes: *budget_bytes,
        })?;
        let mut state = self.shared.lock();
        if state.reading != Some(reading) {
            tracing::debug!(?reading, prefetch, budget_bytes, "reading within the memory budget");
        }
        state.reading = Some(reading);
        state.prefetch = prefetch;
        Ok(reading)
    }

    /// Reads what is only known by place, then assembles on the computing threads.
    fn assemble(&self, ticket: Ticket, (epoch, step): (u64, u64), rows: Vec<PendingRow>) {
        let samples =
            rows.iter().map(|row| Planned { sample: row.sample(), valid: row.valid }).collect();
        let by_place = rows.iter().any(|row| matches!(row.item, Item::Place(_)));
        let work = Work {
            assembler: self.assembler.clone(),
            files: Arc::clone(&self.tools.files),
            chunks: self.tools.chunks.clone(),
            stop: Arc::clone(&self.tools.stop),
            ticket,
            epoch,
            step,
            samples,
        };
        if by_place {
            self.tools.io.spawn(move || {
                work.read_then(rows, |work, rows| {
                    computing().spawn(move || work.run(&rows));
                });
            });
        } else {
            computing().spawn(move || work.read_then(rows, |work, rows| work.run(&rows)));
        }
    }
}

/// One batch on its way through the threads.
struct Work {
    assembler: Assembler,
    files: Arc<Files>,
    chunks: ChunkPool,
    stop: Arc<AtomicBool>,
    ticket: Ticket,
    epoch: u64,
    step: u64,
    samples: Vec<Planned>,
}

impl Work {
    fn read_then(self, rows: Vec<PendingRow>, then: impl FnOnce(Self, Vec<Row>)) {
        match self.read(rows) {
            Ok(rows) => then(self, rows),
            Err(error) => self.ticket.finish(Err(error)),
        }
    }

    fn read(&self, rows: Vec<PendingRow>) -> Result<Vec<Row>, LoadError> {
        let read = |row: PendingRow| {
            let record = match row.item {
                Item::Record(record) => record,
                Item::Place(_) if self.stop.load(Ordering::Relaxed) => {
                    return Err(LoadError::Interrupted);
                }
                Item::Place(place) => place.read(&self.files, &self.chunks)?,
            };
            Ok(Row { record, valid: row.valid })
        };
        rows.into_iter().map(read).collect()
    }

    fn run(self, rows: &[Row]) {
        let result = self.assembler.assemble(rows).map_err(|error| self.located(error));
        let Self { ticket, epoch, step, samples, .. } = self;
        ticket.finish(result.map(|batch| Delivered { epoch, step, samples, batch }));
    }

    fn located(&self, error: RowError) -> LoadError {
        let RowError { sample, offset, len, fault } = error;
        let (file, ordinal) = (self.files.name(sample.shard), sample.ordinal);
        match fault {
            // The same error, whoever checks the data.
            RowFault::Data(DataCrcMismatch { stored, computed }) => {
                let kind = ReadErrorKind::DataCrc { length: len as u64, stored, computed };
                ReadError { file, offset, ordinal, kind }.into()
            }
            fault => LoadError::Record { file, offset, ordinal, fault: Box::new(fault) },
        }
    }
}
