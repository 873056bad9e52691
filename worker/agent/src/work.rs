//! One batch on its way through the threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shardfeed_pipeline::{Assembler, ChunkPool, DrawKey, Row, RowError, RowFault};
use shardfeed_plan::Planned;
use shardfeed_tfrecord::{DataCrcMismatch, ReadError, ReadErrorKind};

use crate::error::LoadError;
use crate::files::Files;
use crate::reader::{Item, PendingRow};
use crate::sequence::{Delivered, Outcome, Ticket};

/// Computing threads that were asked for; 0: one for each core.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Sets how many threads compute, before the first of them is needed.
pub(crate) fn use_threads(threads: Option<usize>) {
    THREADS.store(threads.unwrap_or(0), Ordering::Relaxed);
}

/// The computing threads of this process, shared by all its loaders.
pub(crate) fn computing() -> Arc<rayon::ThreadPool> {
    static POOL: Mutex<Option<(u32, Arc<rayon::ThreadPool>)>> = Mutex::new(None);
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((of, pool)) = &*pool
        && *of == process
    {
        return Arc::clone(pool);
    }
    let builder = rayon::ThreadPoolBuilder::new()
        .num_threads(THREADS.load(Ordering::Relaxed))
        .thread_name(|index| format!("shardfeed-cpu-{index}"))
        .panic_handler(|_| tracing::error!("a computing thread panicked"));
    let made = Arc::new(builder.build().expect("the system has threads for computing"));
    // After a fork the threads of the parent's pool are not there: it can only be forgotten.
    std::mem::forget(pool.replace((process, Arc::clone(&made))));
    made
}

/// One batch on its way through the threads.
pub(crate) struct Work {
    pub(crate) assembler: Assembler,
    pub(crate) files: Arc<Files>,
    pub(crate) chunks: ChunkPool,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) ticket: Ticket,
    pub(crate) draw: DrawKey,
    pub(crate) step: u64,
    pub(crate) samples: Vec<Planned>,
}

impl Work {
    pub(crate) fn read_then(self, rows: Vec<PendingRow>, then: impl FnOnce(Self, Vec<Row>)) {
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
            Ok(Row { record, valid: row.valid, occurrence: u32::from(!row.valid) })
        };
        rows.into_iter().map(read).collect()
    }

    pub(crate) fn run(self, rows: &[Row]) {
        let result = self.assembler.assemble(rows, &self.draw).map_err(|error| self.located(error));
        let Self { ticket, draw: DrawKey { epoch, .. }, step, samples, .. } = self;
        let delivered = |batch| Outcome::Batch(Delivered { epoch, step, samples, batch });
        ticket.finish(result.map(delivered));
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
