//! Application of the settings that are chosen while batches flow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed_pipeline::{Account, Choice, Range, Reasons, Spent, Tuner};
use shardfeed_source::Lock;

use crate::io_pool::IoPool;
use crate::meter::Meter;
use crate::threads::{Share, cores};

/// Initial number of batches ahead, unless it is given.
pub const PREFETCH_START: usize = 4;
/// Maximum that is chosen: a longer shortage is not a burst.
pub(crate) const PREFETCH_MOST: usize = 16;
const _: () = assert!(PREFETCH_MOST as u64 == shardfeed_pipeline::PREFETCH_CHOSEN_MAX);

/// Initial number of threads that wait for storage: minimum, maximum, and threads per core.
const READING_START: (usize, usize, usize) = (4, 16, 2);
/// Maximum number of these threads, when storage keeps the trainer waiting.
const READING_MOST: usize = 32;

/// Minimum interval between reviews of the settings.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Tuning {
    pub(crate) io: Arc<IoPool>,
    share: Share,
    state: Lock<TuningState>,
}

#[derive(Debug)]
struct TuningState {
    tuner: Tuner,
    looked: Instant,
}

impl Tuning {
    /// - `prefetch`: `None`: it is chosen as well.
    ///
    /// # Errors  The system has no threads.
    pub(crate) fn start(prefetch: Option<usize>) -> std::io::Result<Self> {
        let cores = cores();
        let (least, most, per_core) = READING_START;
        let reading = (per_core * cores).clamp(least, most);
        let prefetch = match prefetch {
            Some(asked) => Range::fixed(asked.max(1) as u64),
            None => Range { start: PREFETCH_START as u64, least: 1, most: PREFETCH_MOST as u64 },
        };
        let computing = match Share::asked() {
            Some(asked) => Range::fixed(asked as u64),
            // Until the first batches are ready, the trainer has no work for the cores.
            None => Range { start: cores as u64, least: 1, most: cores as u64 },
        };
        let start = reading as u64;
        let reading_range = Range { start, least: start, most: READING_MOST as u64 };
        let tuner = Tuner::new(prefetch, reading_range, computing);
        let share = Share::new(tuner.choice().computing as usize);
        let io = Arc::new(IoPool::new(reading)?);
        let state = TuningState { tuner, looked: Instant::now() };
        Ok(Self { io, share, state: Lock::new(state) })
    }

    pub(crate) fn choice(&self) -> (Choice, Reasons) {
        let state = self.state.lock();
        (state.tuner.choice(), state.tuner.reasons())
    }

    /// Bounds the number of batches ahead to what the memory budget holds.
    pub(crate) fn fit_prefetch(&self, most: usize) {
        self.state.lock().tuner.fit_prefetch(most as u64);
    }

    /// Reviews the settings if it is time; returns them if they changed.
    pub(crate) fn look(&self, meter: &Meter) -> Option<Choice> {
        let mut state = self.state.lock();
        if state.looked.elapsed() < LOOK_EVERY {
            return None;
        }
        let (spent, before) = (up_to_now(&meter.account()), state.tuner.choice());
        let choice = state.tuner.look(&spent);
        state.looked = Instant::now();
        if choice == before {
            return None;
        }
        let reasons = state.tuner.reasons();
        drop(state);
        tracing::debug!(?choice, ?reasons, "chosen again from the time spent");
        self.share.set(choice.computing as usize);
        self.io.grow_to(choice.reading as usize);
        self.tell(meter);
        Some(choice)
    }

    /// Records the settings in force in `meter`.
    pub(crate) fn tell(&self, meter: &Meter) {
        let (choice, reasons) = self.choice();
        let (computing, reading) = (Share::threads() as u64, self.io.threads() as u64);
        meter.set_up(|setup| {
            (setup.prefetch, setup.reasons) = (choice.prefetch, reasons);
            (setup.computing_threads, setup.reading_threads) = (computing, reading);
        });
    }
}

/// Returns the times since reading began, including the trainer's activity since its last batch.
fn up_to_now(account: &Account) -> Spent {
    let waiting_us = account.waiting_us.unwrap_or(0);
    let mut spent = account.since_start;
    if waiting_us > 0 {
        spent.wait_us += waiting_us;
        spent.work_us += account.idle_us.saturating_sub(waiting_us);
    }
    spent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trainer_does_counts_before_its_batch_is_taken() {
        let since_start = Spent { wait_us: 1, work_us: 2, ..Spent::default() };
        let account =
            |waiting_us| Account { since_start, idle_us: 70, waiting_us, ..Account::default() };
        let of = |waiting_us| {
            let Spent { wait_us, work_us, .. } = up_to_now(&account(waiting_us));
            (wait_us, work_us)
        };
        assert_eq!((of(Some(10)), of(Some(0)), of(None)), ((11, 62), (1, 2), (1, 2)));
    }
}
