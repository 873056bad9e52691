//! Finished batches in sequence, whoever finishes them first.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use shardfeed_pipeline::{Batch, Reading};
use shardfeed_plan::Planned;

use crate::dynamic::Feed;
use crate::error::LoadError;
use crate::mend::Skipped;
use crate::stream::ReadCounters;
use crate::tuning::Tuning;

/// A batch, in sequence.
#[derive(Debug)]
pub struct Delivered {
    /// Epoch of the batch.
    pub epoch: u64,
    /// Its step in the epoch.
    pub step: u64,
    /// Its rows, as planned.
    pub samples: Vec<Planned>,
    /// Those of them that were skipped: other records stand in their slots, not valid.
    pub skipped: Vec<Skipped>,
    /// What the trainer gets.
    pub batch: Batch,
}

/// What stands at a place of the sequence.
#[derive(Debug)]
pub(crate) enum Outcome {
    Batch(Delivered),
    /// A dynamic job: the rank gets nothing more of this epoch, of which it had so many steps.
    EpochEnd {
        epoch: u64,
        steps: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    /// A batch became ready, or the planner ended.
    pub(crate) ready: Condvar,
    /// A batch was taken, or the planner shall stop.
    pub(crate) room: Condvar,
    pub(crate) counters: Arc<ReadCounters>,
    pub(crate) tuning: Tuning,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Finished batches by their place in the sequence.
    pub(crate) results: BTreeMap<u64, Result<Outcome, LoadError>>,
    pub(crate) started: u64,
    /// Batches that were shown to somebody who has not taken them yet.
    pub(crate) shown: usize,
    pub(crate) taken: u64,
    /// Bytes of finished batches, and of the largest one so far.
    pub(crate) ready_bytes: usize,
    pub(crate) largest_bytes: usize,
    pub(crate) prefetch: usize,
    pub(crate) batch_budget_bytes: usize,
    pub(crate) reading: Option<Reading>,
    /// Of a dynamic job: what it was granted.
    pub(crate) feed: Option<Arc<Feed>>,
    pub(crate) stop: bool,
    pub(crate) planner_ended: bool,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete when the lock is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn finish(&self, place: u64, result: Result<Outcome, LoadError>) {
        let mut state = self.lock();
        if let Ok(Outcome::Batch(delivered)) = &result {
            let bytes = delivered.batch.slot.size_bytes();
            state.ready_bytes += bytes;
            state.largest_bytes = state.largest_bytes.max(bytes);
        }
        state.results.insert(place, result);
        drop(state);
        self.ready.notify_all();
    }

    /// Waits until one more batch may be started; `None` to stop.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Ticket> {
        let mut state = self.lock();
        loop {
            let ahead = (state.started - state.taken) as usize;
            let in_work = ahead - state.results.len() - state.shown;
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
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    place: u64,
    is_open: bool,
}

impl Ticket {
    pub(crate) fn finish(mut self, result: Result<Outcome, LoadError>) {
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
