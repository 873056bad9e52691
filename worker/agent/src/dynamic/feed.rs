//! A rank's list between the thread that asks for more and the one that reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_proto::{ErrorKind, WireError};

use crate::control::{Bell, Control, ControlError, Grant, Lease, News, Take};
use crate::dynamic::granted::{Granted, Lapsed, Step, Upcoming};
use crate::dynamic::pace::Pace;
use crate::error::LoadError;

/// How often a thread that waits looks whether it shall stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A thread that has nothing to ask is woken when it has; this is only for the unforeseen.
const IDLE_WAIT: Duration = Duration::from_secs(1);

/// After an answer that said nothing new, and came at once, the next request waits so long.
const NOTHING_PAUSE: Duration = Duration::from_millis(100);

/// An answer that took at least so long was waited for.
const AT_ONCE: Duration = Duration::from_millis(50);

/// After a request that was not answered.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The lookahead grows up to so many times of what it began with, if reading had to wait for grants.
const LOOKAHEAD_GROWTH_MAX: u64 = 16;

/// What is known of the epoch, and what is to be asked.
#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    granted: Granted,
    /// The epoch before, which ended: what was opened of it stays open.
    before: Option<Granted>,
    batch_size: u64,
    /// Samples to have granted and not begun; and the most that it grows to.
    lookahead: u64,
    lookahead_max: u64,
    /// Reading waits for more.
    is_waiting: bool,
    /// Control has something to tell.
    is_asked: bool,
    /// The trainer consumed something since the last request.
    has_consumed: bool,
    /// How fast it consumes, and how far the horizon shall be ahead of it.
    pace: Pace,
    /// A batch is ready that lies beyond the horizon.
    is_gated: bool,
    /// Batches that had to wait for the horizon.
    gated: u64,
    /// No request before then, unless something happens.
    not_before: Option<Instant>,
    error: Option<LoadError>,
    /// Nothing is asked any more: what was granted and not opened is not delivered.
    has_failed: bool,
    stop: bool,
}

/// What a rank was granted, in samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantStats {
    /// Granted and not begun.
    pub granted: u64,
    /// How many there shall be.
    pub lookahead: u64,
    /// Batches that were ready and had to wait until the coordinator let them be delivered.
    pub horizon_waits: u64,
}

/// Whether a batch may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It lies before the horizon.
    Open,
    /// Not yet.
    Closed,
    /// The list that it was made of is no longer this rank's; the error that says so comes with a later batch.
    Never,
    /// Its epoch has ended, and it was not opened: to leave it out would lose it.
    Lost,
}

/// What comes next, for whoever reads.
#[derive(Debug)]
pub(crate) enum Begun {
    /// A batch, which is begun now.
    Step(Step),
    /// The epoch ended for this rank.
    Ended {
        /// Steps that it had.
        steps: u64,
    },
}

impl Feed {
    pub(crate) fn new(batch_size: u64) -> Self {
        let state = State {
            granted: Granted::new(batch_size, (0, 0)),
            before: None,
            batch_size,
            lookahead: 0,
            lookahead_max: 0,
            is_waiting: false,
            is_asked: false,
            has_consumed: false,
            pace: Pace::new(batch_size),
            is_gated: false,
            gated: 0,
            not_before: None,
            error: None,
            has_failed: false,
            stop: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete when the lock is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on to an epoch.
    /// - `lookahead`: samples to have granted and not begun.
    pub(crate) fn begin_epoch(&self, at: (u64, u64), lookahead: u64) {
        let mut state = self.lock();
        let next = Granted::new(state.batch_size, at);
        state.before = Some(std::mem::replace(&mut state.granted, next));
        state.lookahead = state.lookahead.max(lookahead);
        state.lookahead_max = lookahead.saturating_mul(LOOKAHEAD_GROWTH_MAX);
        state.not_before = None;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the next batch and begins it.
    ///
    /// # Errors  What stopped the asking; `Interrupted` when told to stop.
    pub(crate) fn begin(&self, stop: &AtomicBool) -> Result<Begun, LoadError> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            let begun = state.granted.begin();
            state.is_waiting = begun == Upcoming::Waiting;
            self.changed.notify_all();
            match begun {
                Upcoming::Step(step) => return Ok(Begun::Step(step)),
                Upcoming::Ended { steps } => return Ok(Begun::Ended { steps }),
                Upcoming::Waiting => {}
            }
            if stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
            let wait = self.changed.wait_timeout(state, LOOK_EVERY);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits at most `timeout` until a step may be delivered: it lies before the horizon.
    pub(crate) fn await_open(&self, (epoch, step): (u64, u64), timeout: Duration) -> Gate {
        let begun = Instant::now();
        let mut state = self.lock();
        let mut is_first = true;
        loop {
            let gate = match state.is_open(epoch, step) {
                true => Some(Gate::Open),
                false if state.has_failed => Some(Gate::Never),
                // What was not opened of an epoch that ended will not be.
                false if epoch < state.granted.epoch() => Some(Gate::Lost),
                false => None,
            };
            if let Some(gate) = gate {
                state.is_gated = false;
                return gate;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() || state.stop {
                return Gate::Closed;
            }
            if is_first && !state.is_gated {
                state.is_gated = true;
                state.gated += 1;
                state.pace.was_late();
                self.changed.notify_all();
            }
            is_first = false;
            let wait = self.changed.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was granted and not begun.
    pub(crate) fn stats(&self) -> GrantStats {
        let state = self.lock();
        let (granted, lookahead) = (state.granted.rest(), state.lookahead);
        GrantStats { granted, lookahead, horizon_waits: state.gated }
    }

    /// Hears what happens to the lease.
    pub(crate) fn bell(self: &Arc<Self>) -> Bell {
        let feed = Arc::downgrade(self);
        Bell::new(move |news| {
            let Some(feed) = feed.upgrade() else {
                return;
            };
            let mut state = feed.lock();
            match news {
                News::Revoked | News::Ended => state.is_asked = true,
                News::Consumed { epoch, step } => {
                    state.has_consumed = true;
                    if epoch == state.granted.epoch() {
                        let more = state.granted.consume(step);
                        state.pace.consumed(more, Instant::now());
                    }
                }
            }
            drop(state);
            feed.changed.notify_all();
        })
    }

    /// The next request, when it is due; `None` to stop.
    fn due(&self) -> Option<Take> {
        let mut state = self.lock();
        loop {
            if state.stop || state.error.is_some() {
                return None;
            }
            let is_low = state.granted.wants_horizon(state.pace.ahead());
            let is_woken = state.is_asked || is_low || (state.is_waiting && state.has_consumed);
            let now = Instant::now();
            let pause = state.not_before.and_then(|at| at.checked_duration_since(now));
            if pause.is_none() || is_woken {
                let ahead = state.pace.ahead();
                let take = state.granted.due(state.lookahead, ahead, state.is_asked);
                if let Some(take) = take.filter(|_| state.lookahead > 0) {
                    (state.is_asked, state.has_consumed, state.not_before) = (false, false, None);
                    return Some(take);
                }
            }
            let wait = self.changed.wait_timeout(state, pause.unwrap_or(IDLE_WAIT));
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether a request that was sent still says what is to be said. One that gives back is never
    /// given up: another one after it could be overtaken by it.
    fn is_current(&self, take: &Take) -> bool {
        let state = self.lock();
        if state.stop {
            return false;
        }
        take.released.is_some() || take.wait.is_zero() || !state.has_news_since(take)
    }

    /// Takes an answer; returns whether to go on.
    fn answer(&self, take: &Take, took: Duration, answer: Result<Grant, ControlError>) -> bool {
        let mut state = self.lock();
        match answer {
            Ok(grant) => {
                let is_late = state.is_waiting && take.known > 0 && !grant.pieces.is_empty();
                match state.granted.answer(take, &grant) {
                    Ok(true) if is_late && took < take.wait / 2 => {
                        state.lookahead = (2 * state.lookahead).min(state.lookahead_max);
                    }
                    Ok(false) if took < AT_ONCE => {
                        state.not_before = Some(Instant::now() + NOTHING_PAUSE);
                    }
                    Ok(_) => {}
                    Err(Lapsed) => state.error = Some(lapsed().into()),
                }
            }
            Err(error) if matches!(error.kind, ErrorKind::Retry | ErrorKind::Unreachable) => {
                // Given up because there is news, or nobody answers: asked again.
                if !state.has_news_since(take) {
                    state.not_before = Some(Instant::now() + RETRY_PAUSE);
                }
            }
            Err(error) => state.error = Some(error.into()),
        }
        state.has_failed |= state.error.is_some();
        let goes_on = !state.has_failed && !state.stop;
        drop(state);
        self.changed.notify_all();
        goes_on
    }

    fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }
}

impl State {
    /// Whether a step lies before the horizon.
    fn is_open(&self, epoch: u64, step: u64) -> bool {
        let mut epochs = [Some(&self.granted), self.before.as_ref()].into_iter().flatten();
        epochs.any(|granted| granted.epoch() == epoch && granted.is_open(step))
    }

    /// Whether something happened since a request that makes another one worth it.
    fn has_news_since(&self, take: &Take) -> bool {
        let is_further = self.granted.started() != take.started || self.has_consumed;
        self.granted.epoch() != take.epoch
            || self.is_asked
            || (self.is_waiting && is_further)
            || self.granted.wants_horizon(self.pace.ahead())
    }
}

/// What was sent and not taken may be somebody else's now.
pub(crate) fn lapsed() -> WireError {
    WireError::new(
        ErrorKind::Fenced,
        "the lease lapsed and what it had was given to others; the rank goes on from what it consumed",
    )
}

/// The thread that asks; ends when dropped.
#[derive(Debug)]
pub(crate) struct Taker {
    feed: Arc<Feed>,
    thread: Option<JoinHandle<()>>,
}

impl Taker {
    pub(crate) fn start(
        feed: &Arc<Feed>,
        control: Arc<dyn Control>,
        lease: Lease,
    ) -> Result<Self, LoadError> {
        let asking = Arc::clone(feed);
        let run = move || {
            while let Some(take) = asking.due() {
                let begun = Instant::now();
                let answer = control.take(&lease, &take, &mut |_| asking.is_current(&take));
                if !asking.answer(&take, begun.elapsed(), answer) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("shardfeed-take".into())
            .spawn(run)
            .map_err(|source| LoadError::Io { file: "asking threads".into(), source })?;
        Ok(Self { feed: Arc::clone(feed), thread: Some(thread) })
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.feed.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("an asking thread panicked");
        }
    }
}
