//! A rank's list between the thread that asks for more and the one that reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_plan::Tail;
use shardfeed_proto::{ErrorKind, WireError};

use crate::control::{Bell, Control, ControlError, Grant, Lease, News, Take};
use crate::dynamic::granted::{Granted, Lapsed, Step, Upcoming};
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
    tail: Tail,
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
    /// No request before then, unless something happens.
    not_before: Option<Instant>,
    error: Option<LoadError>,
    stop: bool,
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
        /// Whether no epoch has any.
        is_empty_for_all: bool,
    },
}

impl Feed {
    pub(crate) fn new(tail: Tail, batch_size: u64) -> Self {
        let state = State {
            granted: Granted::new(tail, batch_size, (0, 0)),
            tail,
            batch_size,
            lookahead: 0,
            lookahead_max: 0,
            is_waiting: false,
            is_asked: false,
            has_consumed: false,
            not_before: None,
            error: None,
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
        state.granted = Granted::new(state.tail, state.batch_size, at);
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
                Upcoming::Ended { steps } => {
                    let is_empty_for_all = state.granted.is_empty_for_all();
                    return Ok(Begun::Ended { steps, is_empty_for_all });
                }
                Upcoming::Waiting => {}
            }
            if stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
            let wait = self.changed.wait_timeout(state, LOOK_EVERY);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Samples granted and not begun, and how many there shall be.
    pub(crate) fn lookahead(&self) -> (u64, u64) {
        let state = self.lock();
        (state.granted.rest(), state.lookahead)
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
                News::Consumed => state.has_consumed = true,
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
            let is_woken = state.is_asked || (state.is_waiting && state.has_consumed);
            let now = Instant::now();
            let pause = state.not_before.and_then(|at| at.checked_duration_since(now));
            if pause.is_none() || is_woken {
                let take = state.granted.due(state.lookahead, state.is_asked);
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
        let goes_on = state.error.is_none() && !state.stop;
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
    /// Whether something happened since a request that makes another one worth it.
    fn has_news_since(&self, take: &Take) -> bool {
        let is_further = self.granted.started() != take.started || self.has_consumed;
        self.granted.epoch() != take.epoch || self.is_asked || (self.is_waiting && is_further)
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
