//! A rank's list, shared by the thread that claims and the thread that reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_source::{LoadError, Lock, wait_for};

use crate::control::{Claim, Control, ControlError, Grant, Lease, LeaseUpdate, Notifier};
use crate::dynamic::granted::{Granted, Lapsed, NextStep};
use crate::dynamic::pace::HorizonDistance;

/// Interval at which a waiting thread checks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Maximum wait of an idle thread: it is normally woken, so this is only a safeguard.
const IDLE_WAIT: Duration = Duration::from_secs(1);

/// Pause after an immediate answer without changes.
const NOTHING_PAUSE: Duration = Duration::from_millis(100);

/// Response time from which an answer counts as delayed on purpose.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Pause after a claim without an answer.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Maximum lookahead, as a multiple of its initial value; it grows if reading waits for grants.
const LOOKAHEAD_GROWTH_MAX: u64 = 16;

/// State of the epoch, and of the next claim.
#[derive(Debug)]
pub(crate) struct GrantFeed {
    state: Lock<GrantState>,
    changed: Condvar,
}

#[derive(Debug)]
struct GrantState {
    granted: Granted,
    /// The previous epoch, which ended; its steps that were open for delivery stay open.
    before: Option<Granted>,
    batch_size: u64,
    /// Number of samples that should be granted and not begun, and the maximum it grows to.
    lookahead: u64,
    lookahead_max: u64,
    /// Reading waits for more.
    is_waiting: bool,
    /// Control has an event to report.
    is_asked: bool,
    /// The trainer consumed samples since the last claim.
    has_consumed: bool,
    /// Consumption rate, and the required distance of the horizon.
    pace: HorizonDistance,
    /// A ready batch lies beyond the horizon.
    is_gated: bool,
    /// Number of batches that had to wait for the horizon.
    gated: u64,
    /// Earliest time of the next claim, unless an event occurs.
    not_before: Option<Instant>,
    error: Option<LoadError>,
    /// No more claims are made; granted steps that are not open are not delivered.
    has_failed: bool,
    stop: bool,
}

/// Granted samples of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantStats {
    /// Samples granted and not begun.
    pub granted: u64,
    /// Target of this number.
    pub lookahead: u64,
    /// Ready batches that had to wait until the coordinator allowed their delivery.
    pub horizon_waits: u64,
}

/// Result of the check whether a batch may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It lies before the horizon.
    Open,
    /// Not yet.
    Closed,
    /// Its list no longer belongs to this rank; a later batch returns the error.
    Never,
    /// Its epoch ended before it was opened; skipping it would lose its samples.
    Lost,
}

impl GrantFeed {
    pub(crate) fn new(batch_size: u64) -> Self {
        let state = GrantState {
            granted: Granted::new(batch_size, (0, 0)),
            before: None,
            batch_size,
            lookahead: 0,
            lookahead_max: 0,
            is_waiting: false,
            is_asked: false,
            has_consumed: false,
            pace: HorizonDistance::new(batch_size),
            is_gated: false,
            gated: 0,
            not_before: None,
            error: None,
            has_failed: false,
            stop: false,
        };
        Self { state: Lock::new(state), changed: Condvar::new() }
    }

    /// Continues with an epoch.
    /// - `lookahead`: target number of samples granted and not begun.
    pub(crate) fn begin_epoch(&self, at: (u64, u64), lookahead: u64) {
        let mut state = self.state.lock();
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
    /// # Errors  The error that ended the claims; `Interrupted` when stopped.
    pub(crate) fn begin(&self, stop: &AtomicBool) -> Result<NextStep, LoadError> {
        let mut state = self.state.lock();
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            let begun = state.granted.begin();
            state.is_waiting = begun.is_none();
            self.changed.notify_all();
            if let Some(begun) = begun {
                return Ok(begun);
            }
            if stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
            state = wait_for(&self.changed, state, LOOK_EVERY);
        }
    }

    /// Waits at most `timeout` until a step may be delivered: until it lies before the horizon.
    pub(crate) fn await_open(&self, (epoch, step): (u64, u64), timeout: Duration) -> Gate {
        let begun = Instant::now();
        let mut state = self.state.lock();
        let mut is_first = true;
        loop {
            let gate = match state.is_open(epoch, step) {
                true => Some(Gate::Open),
                false if state.has_failed => Some(Gate::Never),
                // Steps of an ended epoch that are not open stay closed.
                false if epoch < state.granted.epoch => Some(Gate::Lost),
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
            state = wait_for(&self.changed, state, left);
        }
    }

    pub(crate) fn stats(&self) -> GrantStats {
        let state = self.state.lock();
        let (granted, lookahead) = (state.granted.rest(), state.lookahead);
        GrantStats { granted, lookahead, horizon_waits: state.gated }
    }

    /// Returns a notifier that applies the lease's events to this feed.
    pub(crate) fn bell(self: &Arc<Self>) -> Notifier {
        let feed = Arc::downgrade(self);
        Notifier::new(move |news| {
            let Some(feed) = feed.upgrade() else {
                return;
            };
            let mut state = feed.state.lock();
            match news {
                LeaseUpdate::Revoked | LeaseUpdate::Ended => state.is_asked = true,
                LeaseUpdate::Consumed { epoch, step } => {
                    state.has_consumed = true;
                    if epoch == state.granted.epoch {
                        let more = state.granted.consume(step);
                        state.pace.consumed(more, Instant::now());
                    }
                }
            }
            drop(state);
            feed.changed.notify_all();
        })
    }

    /// Returns the next claim, when it is due; `None` to stop.
    fn due(&self) -> Option<Claim> {
        let mut state = self.state.lock();
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
            state = wait_for(&self.changed, state, pause.unwrap_or(IDLE_WAIT));
        }
    }

    /// True if a claim in flight is still up to date. A claim that releases samples is never
    /// cancelled: it could overtake the claim sent after it.
    fn is_current(&self, take: &Claim) -> bool {
        let state = self.state.lock();
        if state.stop {
            return false;
        }
        take.released.is_some() || take.wait.is_zero() || !state.has_news_since(take)
    }

    /// Applies an answer; returns true if the claims continue.
    fn answer(&self, take: &Claim, took: Duration, answer: Result<Grant, ControlError>) -> bool {
        let mut state = self.state.lock();
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
                // Cancelled because of an event, or not answered: a new claim is sent.
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
        self.state.lock().stop = true;
        self.changed.notify_all();
    }
}

impl GrantState {
    /// True if a step lies before the horizon.
    fn is_open(&self, epoch: u64, step: u64) -> bool {
        let mut epochs = [Some(&self.granted), self.before.as_ref()].into_iter().flatten();
        epochs.any(|granted| granted.epoch == epoch && granted.is_open(step))
    }

    /// True if something happened since a claim that justifies another one.
    fn has_news_since(&self, take: &Claim) -> bool {
        let is_further = self.granted.started != take.started || self.has_consumed;
        self.granted.epoch != take.epoch
            || self.is_asked
            || (self.is_waiting && is_further)
            || self.granted.wants_horizon(self.pace.ahead())
    }
}

/// Returns the error of a lapsed lease: samples that were not taken may be another rank's now.
pub fn lapsed() -> WireError {
    WireError::new(
        ErrorKind::Fenced,
        "the lease lapsed and its samples were granted to other ranks; the rank continues after \
         its consumed samples",
    )
}

/// The thread that claims; ends when dropped.
#[derive(Debug)]
pub(crate) struct Taker {
    feed: Arc<GrantFeed>,
    thread: Option<JoinHandle<()>>,
}

impl Taker {
    pub(crate) fn start(
        feed: &Arc<GrantFeed>,
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
