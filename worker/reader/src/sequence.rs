//! Finished batches in sequence, independent of the order in which they finish.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{Batch, BatchTooLarge, ChunkPool, Reading, Room};
use shardfeed_plan::Planned;
use shardfeed_source::{LoadError, Lock, wait_for};

use crate::dynamic::GrantFeed;
use crate::records::stream::ReadCounters;
use crate::skipped::Skipped;
use crate::tuning::Tuning;

#[derive(Debug)]
pub struct Delivered {
    pub epoch: u64,
    pub step: u64,
    /// Its rows, as planned.
    pub samples: Vec<Planned>,
    /// Samples that were skipped: their rows hold substitutes and are not valid.
    pub skipped: Vec<Skipped>,
    pub batch: Batch,
}

/// Result of waiting for a rank's next batch, from its reader to the training loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery<B = Box<Delivered>> {
    Batch(B),
    /// The rank gets no more batches in this epoch.
    EpochEnd {
        epoch: u64,
        steps: u64,
    },
    /// No batch is ready yet.
    Pending,
}

#[derive(Debug)]
pub(crate) struct BatchSequence {
    pub(crate) state: Lock<SequenceState>,
    /// A batch became ready, or the planner ended.
    pub(crate) ready: Condvar,
    /// A batch was taken, or the planner is to stop.
    pub(crate) room: Condvar,
    pub(crate) counters: Arc<ReadCounters>,
    pub(crate) tuning: Tuning,
    /// Memory of the chunks that batches are made of.
    pub(crate) chunks: ChunkPool,
    /// Slots that batches are written into.
    pub(crate) slots: SlotPool,
}

/// Interval at which released chunks are detected.
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(crate) struct SequenceState {
    /// Finished batches by their position in the sequence.
    pub(crate) results: BTreeMap<u64, Result<Delivery, LoadError>>,
    pub(crate) started: u64,
    /// Batches that were shown and not taken yet.
    pub(crate) shown: usize,
    pub(crate) taken: u64,
    /// Memory limit and use of batches ahead.
    pub(crate) budget: Room,
    /// Batches that wait for memory, by their position.
    pub(crate) parked: BTreeMap<u64, Parked>,
    pub(crate) prefetch: usize,
    pub(crate) reading: Option<Reading>,
    /// Dynamic jobs only: the granted list.
    pub(crate) feed: Option<Arc<GrantFeed>>,
    pub(crate) stop: bool,
    pub(crate) planner_ended: bool,
}

impl BatchSequence {
    pub(crate) fn finish(&self, place: u64, result: Result<Delivery, LoadError>) {
        let mut state = self.state.lock();
        let bytes = match &result {
            Ok(Delivery::Batch(delivered)) => delivered.batch.slot.size_bytes(),
            _ => 0,
        };
        state.budget.finish(place, bytes);
        state.results.insert(place, result);
        drop(state);
        self.ready.notify_all();
        if place == 0 {
            self.room.notify_all();
        }
        self.unpark();
    }

    /// Waits until one more batch may be started; `None` to stop.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Ticket> {
        let mut state = self.state.lock();
        loop {
            let ahead = (state.started - state.taken) as usize;
            if state.stop {
                return None;
            }
            let fits = ahead < state.prefetch
                && !state.is_first_in_work()
                && state.budget.may_begin(self.chunks.shared_bytes());
            if fits || ahead == 0 {
                let place = state.started;
                state.started += 1;
                state.budget.begin(place);
                return Some(Ticket { shared: Arc::clone(self), place, is_open: true });
            }
            // The release of chunks sends no notification.
            state = match ahead < state.prefetch {
                true => wait_for(&self.room, state, LOOK_EVERY),
                false => self.room.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Resumes batches that wait for memory, as far as there is some.
    pub(crate) fn unpark(&self) {
        let mut state = self.state.lock();
        let taken = state.taken;
        while let Some((&place, parked)) = state.parked.first_key_value() {
            let bytes = parked.bytes;
            if !state.stop && !state.budget.fits(place, bytes, taken) {
                return;
            }
            let parked = state.parked.remove(&place).expect("just seen");
            drop(state);
            (parked.go_on)();
            state = self.state.lock();
        }
    }
}

impl SequenceState {
    /// True if the trainer waits for its first batch, whose records are being held: then no other
    /// batch may take its computing threads. Reading by position takes none, and may wait long.
    fn is_first_in_work(&self) -> bool {
        let is_alone = self.started == 1 && self.taken == 0 && self.shown == 0;
        is_alone && self.results.is_empty() && matches!(self.reading, Some(Reading::Hold { .. }))
    }
}

/// A batch that waits for memory.
pub(crate) struct Parked {
    bytes: usize,
    go_on: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parked").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A position in the sequence that must be filled, even if the thread that fills it panics.
pub(crate) struct Ticket {
    shared: Arc<BatchSequence>,
    place: u64,
    is_open: bool,
}

impl Ticket {
    /// Returns true if a slot of `bytes` may be allocated for this position.
    ///
    /// # Errors  It will never fit.
    pub(crate) fn has_room(&self, bytes: usize) -> Result<bool, BatchTooLarge> {
        let mut state = self.shared.state.lock();
        let (taken, size) = (state.taken, SlotPool::slot_bytes(bytes));
        state.budget.check(bytes)?;
        let fits = state.stop || state.budget.fits(self.place, size, taken);
        if fits {
            state.budget.grant(self.place, size);
            self.shared.slots.bound(state.budget.pool_bytes());
        }
        Ok(fits)
    }

    /// Returns a function that runs its argument once there is memory for a slot of `bytes`.
    pub(crate) fn park(&self, bytes: usize) -> impl FnOnce(Box<dyn FnOnce() + Send>) + use<> {
        let (shared, place) = (Arc::clone(&self.shared), self.place);
        move |go_on| {
            let parked = Parked { bytes: SlotPool::slot_bytes(bytes), go_on };
            shared.state.lock().parked.insert(place, parked);
            // Memory may have been released since the request.
            shared.unpark();
        }
    }

    pub(crate) fn finish(mut self, result: Result<Delivery, LoadError>) {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn shared(reading: Reading) -> Arc<BatchSequence> {
        let state =
            SequenceState { prefetch: 3, reading: Some(reading), ..SequenceState::default() };
        Arc::new(BatchSequence {
            state: Lock::new(state),
            ready: Condvar::new(),
            room: Condvar::new(),
            counters: Arc::default(),
            tuning: Tuning::start(Some(3)).unwrap(),
            chunks: ChunkPool::new(1, 1),
            slots: SlotPool::new(1),
        })
    }

    #[test]
    fn the_first_batch_has_the_computing_threads_for_itself() {
        let shared = shared(Reading::Hold { chunk_bytes: 1, primed_max: 1 });
        shared.state.lock().budget.bound(1 << 20, 1, 1 << 20);
        let first = shared.begin().unwrap();
        let is_finished = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                let others = [shared.begin().unwrap(), shared.begin().unwrap()];
                assert!(is_finished.load(Ordering::Acquire), "begun beside the first one");
                others
            });
            // Enough time for the other thread to continue if it were not blocked.
            (0..10_000).for_each(|_| drop(shared.state.lock()));
            assert_eq!(shared.state.lock().started, 1);
            is_finished.store(true, Ordering::Release);
            first.finish(Err(LoadError::Interrupted));
            drop(others.join().unwrap());
        });
    }

    #[test]
    fn batches_that_wait_for_storage_are_begun_together() {
        let shared = shared(Reading::Locate);
        shared.state.lock().budget.bound(1 << 20, 1, 1 << 20);
        let tickets = [shared.begin().unwrap(), shared.begin().unwrap(), shared.begin().unwrap()];
        assert_eq!(shared.state.lock().started, 3);
        drop(tickets);
    }
}
