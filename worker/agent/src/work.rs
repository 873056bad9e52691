//! One batch on its way through the threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shardfeed_pipeline::{Assembler, Batch, DrawKey, Row, RowError};
use shardfeed_plan::Planned;

use crate::error::LoadError;
use crate::mend::{Mending, Order, Skipped};
use crate::reader::{Item, PendingRow};
use crate::sequence::{Delivered, Outcome, Ticket};
use crate::stream::StreamTools;

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
    pub(crate) tools: StreamTools,
    /// What says which records stand in for corrupt ones; `None`: they are errors.
    pub(crate) order: Option<Order>,
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
                Item::Place(_) if self.tools.stop.load(Ordering::Relaxed) => {
                    return Err(LoadError::Interrupted);
                }
                Item::Place(place) => place.read(&self.tools.files, &self.tools.chunks)?,
            };
            Ok(Row { record, valid: row.valid, occurrence: u32::from(!row.valid) })
        };
        rows.into_iter().map(read).collect()
    }

    pub(crate) fn run(self, rows: Vec<Row>) {
        let error = match self.assembler.assemble(&rows, &self.draw) {
            Ok(batch) => return self.finish(batch, vec![]),
            Err(error) => error,
        };
        let faults = match self.mending() {
            Some(mending) if error.fault.is_of_record() => mending.faults(&rows),
            _ => Err(self.tools.files.located(error)),
        };
        match faults {
            Ok(faults) => {
                // Records that stand in are read, for which no computing thread waits.
                let io = Arc::clone(&self.tools.io);
                io.spawn(move || self.mend(rows, &faults));
            }
            Err(error) => self.ticket.finish(Err(error)),
        }
    }

    /// How corrupt records are skipped, if they are.
    fn mending(&self) -> Option<Mending<'_>> {
        let Self { assembler, tools, order, draw, .. } = self;
        order.as_ref().map(|order| Mending { assembler, tools, order, draw })
    }

    fn mend(self, mut rows: Vec<Row>, faults: &[Option<RowError>]) {
        let mending = self.mending().expect("only where records are skipped");
        let skipped = match mending.mend(&mut rows, faults) {
            Ok(skipped) => skipped,
            Err(error) => return self.ticket.finish(Err(error)),
        };
        computing().spawn(move || match self.assembler.assemble(&rows, &self.draw) {
            Ok(batch) => self.finish(batch, skipped),
            Err(error) => {
                let error = self.tools.files.located(error);
                self.ticket.finish(Err(error));
            }
        });
    }

    fn finish(self, batch: Batch, skipped: Vec<Skipped>) {
        let Self { ticket, draw: DrawKey { epoch, .. }, step, mut samples, .. } = self;
        for planned in &mut samples {
            planned.valid &= skipped.iter().all(|skipped| skipped.sample != planned.sample);
        }
        let delivered = Delivered { epoch, step, samples, skipped, batch };
        ticket.finish(Ok(Outcome::Batch(delivered)));
    }
}
