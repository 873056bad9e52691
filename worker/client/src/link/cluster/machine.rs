//! State machine of a rank in a cluster: the source of its batches, and those that it may return.
//!
//! It has no sockets, threads and clocks: the link feeds it inputs and runs the effects.
//!
//! | State | Input | Next state | Effect |
//! | --- | --- | --- | --- |
//! | `Connecting` | `Connected` | `Idle` | |
//! | `Connecting` | `NotConnected`: absent or cordoned, with fallback | `Opening` | `Open` |
//! | `Connecting` | `NotConnected`: else | *lost* | *lost*; returns the error |
//! | `Opening` | `Opened` | `InProcess` | `ReportSkipped` |
//! | `Opening` | `NotOpened` | *lost* | *lost*; returns the error |
//! | `InProcess` | `EpochEnded`: a worker may come, the position is reported | `Returning` | `Reconnect` |
//! | `InProcess`, `Returning` | `EpochEnded`: else | same | |
//! | `Returning` | `Reconnected` | `Idle` | |
//! | `Returning` | `NotReconnected` | `InProcess` | |
//! | `InProcess`, `Returning` | `Stop` | same | `Stop` |
//! | `Idle` | `Ask` | `Starting` | `Start`, under a new number |
//! | `Starting`, `Running` | `Stop` | `Idle` | `Stop`; a new start number |
//! | `Idle`, `Connecting`, `Opening` | `Stop` | same | |
//! | *worker* | `Started` | `Running` | returns the generation |
//! | *worker* | `Batch` | same | queues the batch or the end of the epoch |
//! | *worker* | `Again` | `Idle` | drops the batches in hand |
//! | *worker* | `Pong` | same | keeps the validity |
//! | *worker* | `Failed`: the rank was started elsewhere | `Idle` | drops the batches in hand; a new start number; returns the error |
//! | *worker* | `Failed`: cordoned, with fallback | `Opening` | `Open`; the worker is not asked again |
//! | *worker* | `Failed`: else | `Idle` | returns the error after the batches in hand |
//! | *worker* | `Goodbye`, with fallback | `Opening` | `Open` |
//! | *worker* | `Goodbye`, without | *lost* | *lost* |
//! | *worker* | a message of an earlier start, `Other` | same | |
//! | *worker* | `Gone` | *lost* | *lost* |
//! | any | `NotRead`: the rank was started elsewhere | same | drops the batches in hand; returns the error |
//! | any | `NotRead`: else | same | returns the error after the batches in hand |
//! | any, deterministic job | `Check` | same | |
//! | `Running` | `Check` | same | `Ping` if the validity has to be asked for |
//! | `Idle`, `Starting`, `InProcess`, `Returning` | `Check` | same | drops the batches in hand |
//! | `Connecting`, `Opening` | `Check` | same | |
//!
//! *worker*: `Idle`, `Starting` or `Running`. `Stop` drops the batches in hand and a kept error in
//! every state. Other pairs of state and input do not occur and change nothing.
//!
//! *lost*, which also drops the batches in hand of a dynamic job:
//!
//! | Case | Next state | Effect |
//! | --- | --- | --- |
//! | with fallback, first loss since a batch | `Connecting` | `Connect` for 300 ms |
//! | with fallback, second loss | `Opening` | `Open` |
//! | without fallback | `Connecting` | `Connect` for the coordinator timeout |
//! | without fallback, no batch for that timeout | `Connecting` | the same; returns an error after the batches in hand |

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_reader::{LeaseTime, Skipped, StartPosition};
use shardfeed_source::LoadError;

use crate::link::exchange::Event;
use crate::link::lease_validity::LeaseValidity;
use crate::link::outcome::{Heard, Unavailable};

/// Wait for a worker that was lost during a run.
const RETURN_WAIT: Duration = Duration::from_millis(300);

/// This process replaces a worker that was lost this many times in a row without serving a batch.
const LOST_MAX: u32 = 2;

/// Maximum corrupt records reported again at a start: the worker reported those before.
const MET_MAX: usize = 1000;

/// Source of the next batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Connecting,
    /// A worker is connected and does not read for this rank.
    Idle,
    /// A worker was asked for batches.
    Starting,
    Running,
    /// This process opens the dataset, to read in a worker's place.
    Opening,
    /// This process reads.
    InProcess,
    /// This process reads while a connection to a worker is being made.
    Returning,
}

impl State {
    fn has_worker(self) -> bool {
        matches!(self, Self::Idle | Self::Starting | Self::Running)
    }
}

/// Result of an attempt, message of a worker, or request of the loader.
#[derive(Debug)]
pub(super) enum Input<B> {
    Connected,
    NotConnected(Unavailable),
    Opened,
    NotOpened(LoadError),
    /// A worker is connected, in place of this process.
    Reconnected,
    /// No worker could be connected in place of this process.
    NotReconnected,
    /// A worker sent a message.
    Heard(Heard<B>),
    /// The worker is gone, for this reason.
    Gone(String),
    /// This process could not start to read while batches are in hand.
    NotRead(LoadError),
    /// The loader needs batches from this position on.
    Ask(StartPosition),
    /// The loader moves or ends; `failure`: the error that ends the trainer.
    Stop {
        failure: Option<String>,
    },
    /// The loader has finished an epoch; `is_reported`: the coordinator knows its position.
    EpochEnded {
        is_reported: bool,
    },
    /// A batch is about to be returned or consumed.
    Check(LeaseTime),
}

/// An action outside of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Connect to a worker in the background; `None`: at the default path.
    Connect { path: Option<PathBuf>, patience: Duration },
    /// Connect to a worker in the background, once, while this process reads.
    Reconnect { path: PathBuf },
    /// Open the dataset in this process, in the background.
    Open,
    /// Report the skipped records, which a lost worker may not have reported.
    ReportSkipped,
    /// Ask the worker for batches.
    Start { start: u64, position: StartPosition },
    /// End the worker's or this process's reading.
    Stop { failure: Option<String> },
    /// Ask the worker how long its lease is valid.
    Ping(u64),
}

/// Result of an input.
#[derive(Debug)]
#[must_use]
pub(super) struct Step {
    pub(super) effect: Option<Effect>,
    pub(super) reply: Result<Option<Event>, LoadError>,
}

impl Step {
    fn new(effect: Option<Effect>) -> Self {
        Self { effect, reply: Ok(None) }
    }

    fn refused(self, error: LoadError) -> Self {
        Self { reply: Err(error), ..self }
    }
}

/// Action of the loader that waits for a batch.
#[derive(Debug)]
pub(super) enum Next<B> {
    Return(Queued<B>),
    Fail(LoadError),
    Ask,
    Hear,
    Read,
    /// Wait for a worker, or for this process to replace it.
    Settle,
}

/// Rules that do not change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// True if a missing worker is replaced by this process.
    pub(super) fallback: bool,
    /// Maximum wait for a batch of a worker that must not be replaced.
    pub(super) timeout: Duration,
    pub(super) is_dynamic: bool,
}

/// Connection and start that a received batch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    connection: u64,
    start: u64,
}

/// A received batch.
#[derive(Debug)]
pub(super) struct Queued<B> {
    pub(super) origin: Origin,
    pub(super) epoch: u64,
    pub(super) step: u64,
    /// `None`: the epoch ended for this rank after `step` steps.
    pub(super) batch: Option<B>,
    pub(super) skipped: Vec<Skipped>,
}

/// State of a rank in a cluster.
#[derive(Debug)]
pub(super) struct Machine<B> {
    rules: Rules,
    state: State,
    /// Socket path where a worker is or may come.
    worker: Option<PathBuf>,
    /// Number of the current start; messages of earlier starts are dropped.
    start: u64,
    /// Number of the current worker connection.
    connection: u64,
    /// Received batches, from any worker, that were not returned yet.
    queue: VecDeque<Queued<B>>,
    /// Origin of the offered batch that is not consumed yet; `None` also if this process read it.
    offered: Option<Origin>,
    /// Error that is returned after the received batches.
    failure: Option<LoadError>,
    /// Of a dynamic job: the time until which received batches are valid.
    validity: LeaseValidity,
    /// Maximum batches that the trainer may hold in a worker's memory.
    hold_max: usize,
    /// Workers lost since a worker sent a batch, and the time of the first loss.
    losses: Option<(u32, Instant)>,
    /// Corrupt records in batches that workers sent, each once, at most [`MET_MAX`].
    met: VecDeque<Skipped>,
}

impl<B> Machine<B> {
    pub(super) fn new(rules: Rules, state: State, worker: Option<PathBuf>) -> Self {
        Self {
            rules,
            state,
            worker,
            start: 0,
            connection: 0,
            queue: VecDeque::new(),
            offered: None,
            failure: None,
            validity: LeaseValidity::default(),
            hold_max: 1,
            losses: None,
            met: VecDeque::new(),
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Number of received batches that were not returned yet.
    pub(super) fn in_hand(&self) -> usize {
        self.queue.len()
    }

    /// Received batches of the next `count`.
    pub(super) fn batches_mut(&mut self, count: usize) -> impl Iterator<Item = &mut B> {
        self.queue.iter_mut().take(count).filter_map(|queued| queued.batch.as_mut())
    }

    pub(super) fn hold_max(&self) -> usize {
        self.hold_max
    }

    /// Corrupt records in batches that workers sent, the latest first.
    pub(super) fn met(&mut self) -> &[Skipped] {
        self.met.make_contiguous()
    }

    pub(super) fn on(&mut self, input: Input<B>, now: Instant) -> Step {
        use State::{Connecting, Idle, InProcess, Opening, Returning, Running, Starting};
        match (self.state, input) {
            (Connecting, Input::Connected) => self.to(Idle, None),
            (Connecting, Input::NotConnected(error)) => self.not_connected(error, now),
            (Opening, Input::Opened) => self.to(InProcess, Some(Effect::ReportSkipped)),
            (Opening, Input::NotOpened(error)) => {
                self.lose("no worker in this process", now).refused(error)
            }
            (InProcess, Input::EpochEnded { is_reported: true }) => match self.worker.clone() {
                Some(path) => self.to(Returning, Some(Effect::Reconnect { path })),
                None => Step::new(None),
            },
            (Returning, Input::Reconnected) => {
                self.connection += 1;
                self.to(Idle, None)
            }
            (Returning, Input::NotReconnected) => self.to(InProcess, None),
            (Idle, Input::Ask(position)) => {
                self.start += 1;
                self.to(Starting, Some(Effect::Start { start: self.start, position }))
            }
            (Idle | Starting | Running, Input::Heard(heard)) => self.heard(heard, now),
            (Idle | Starting | Running, Input::Gone(reason)) => self.lose(&reason, now),
            (_, Input::NotRead(error)) => self.not_read(error),
            (_, Input::Stop { failure }) => self.stop(failure),
            (_, Input::Check(at)) => self.check(at),
            _ => Step::new(None),
        }
    }

    fn to(&mut self, state: State, effect: Option<Effect>) -> Step {
        self.state = state;
        Step::new(effect)
    }

    fn not_connected(&mut self, error: Unavailable, now: Instant) -> Step {
        match error {
            Unavailable::Absent(reason) | Unavailable::Cordoned(reason) if self.rules.fallback => {
                tracing::warn!("{reason}; reading in this process");
                self.to(State::Opening, Some(Effect::Open))
            }
            error => {
                // The next call tries again.
                let error = LoadError::from(error);
                let step = self.lose(&error.to_string(), now);
                self.failure = None;
                step.refused(error)
            }
        }
    }

    fn heard(&mut self, heard: Heard<B>, now: Instant) -> Step {
        match heard {
            Heard::Started(started) if started.start == self.start => {
                self.hold_max = usize::try_from(started.hold_max).unwrap_or(1).max(1);
                let event = Event::Started { generation: started.generation };
                Step { reply: Ok(Some(event)), ..self.to(State::Running, None) }
            }
            Heard::Batch { start, epoch, step, batch, skipped } if start == self.start => {
                if batch.is_some() {
                    self.losses = None;
                }
                self.meet(&skipped);
                let origin = self.origin();
                self.queue.push_back(Queued { origin, epoch, step, batch, skipped });
                Step::new(None)
            }
            Heard::Again { start } if start == self.start => {
                self.drop_in_hand();
                self.to(State::Idle, None)
            }
            Heard::Pong { nonce, good_for } => {
                self.validity.answered(nonce, good_for);
                Step::new(None)
            }
            Heard::Failed { start, error } if start == self.start || start == 0 => {
                self.failed(error, now)
            }
            Heard::Goodbye(reason) => self.replace_worker(&reason, now),
            // Messages of an earlier start: dropping them returns their slots.
            Heard::Started(_)
            | Heard::Batch { .. }
            | Heard::Again { .. }
            | Heard::Failed { .. }
            | Heard::Other => Step::new(None),
        }
    }

    fn failed(&mut self, error: WireError, now: Instant) -> Step {
        let step = self.to(State::Idle, None);
        if is_over(&error) {
            // No batch received or under way belongs to this rank any more.
            self.drop_in_hand();
            self.start += 1;
            return step.refused(error.into());
        }
        if error.kind == ErrorKind::Cordoned && self.rules.fallback {
            // The worker may serve others for a long time: this loader does not ask it again.
            self.worker = None;
            return self.replace_worker(&error.message, now);
        }
        self.failure = Some(error.into());
        step
    }

    /// Replaces a worker that no longer serves this rank by this process, looking for no other.
    fn replace_worker(&mut self, reason: &str, now: Instant) -> Step {
        if !self.rules.fallback {
            return self.lose(reason, now);
        }
        tracing::warn!("{reason}; reading in this process");
        self.connection += 1;
        self.forget_granted();
        self.to(State::Opening, Some(Effect::Open))
    }

    /// Handles the loss of the worker: received batches stay valid, except those of a dynamic job.
    fn lose(&mut self, reason: &str, now: Instant) -> Step {
        match self.rules.is_dynamic {
            true => tracing::warn!("{reason}; looking for a worker"),
            false => {
                tracing::warn!("{reason}; batches in hand are delivered, looking for a worker");
            }
        }
        self.connection += 1;
        self.forget_granted();
        let Rules { fallback, timeout, .. } = self.rules;
        let (times, since) = self.losses.unwrap_or((0, now));
        self.losses = Some((times + 1, since));
        if fallback && times + 1 >= LOST_MAX {
            tracing::warn!(
                "the worker was lost again before its first batch; reading in this process"
            );
            return self.to(State::Opening, Some(Effect::Open));
        }
        let waited = now.duration_since(since);
        if !fallback && waited >= timeout {
            self.losses = None;
            let waited_s = waited.as_secs_f64();
            let message = format!("the worker sent no batch in {waited_s:.1} s: {reason}");
            self.failure = Some(WireError::new(ErrorKind::Unreachable, message).into());
        }
        let patience = if fallback { RETURN_WAIT } else { timeout };
        let path = self.worker.clone();
        self.to(State::Connecting, Some(Effect::Connect { path, patience }))
    }

    fn not_read(&mut self, error: LoadError) -> Step {
        let step = Step::new(None);
        match error {
            LoadError::Wire(error) if is_over(&error) => {
                self.drop_in_hand();
                step.refused(error.into())
            }
            // Received batches stay valid.
            error => {
                self.failure = Some(error);
                step
            }
        }
    }

    fn stop(&mut self, failure: Option<String>) -> Step {
        self.drop_in_hand();
        self.failure = None;
        match self.state {
            State::InProcess | State::Returning => Step::new(Some(Effect::Stop { failure })),
            State::Starting | State::Running => {
                self.start += 1;
                self.to(State::Idle, Some(Effect::Stop { failure }))
            }
            State::Idle | State::Connecting | State::Opening => Step::new(None),
        }
    }

    /// Prepares [`Machine::may_return`].
    ///
    /// Batches of a dynamic job are valid as long as the lease; another worker's start drops them.
    fn check(&mut self, at: LeaseTime) -> Step {
        if !self.rules.is_dynamic {
            return Step::new(None);
        }
        match self.state {
            State::Idle | State::Starting | State::InProcess | State::Returning => {
                self.drop_in_hand();
                Step::new(None)
            }
            State::Running => {
                let ping = self.validity.due_request(at).map(Effect::Ping);
                Step::new(ping)
            }
            State::Connecting | State::Opening => Step::new(None),
        }
    }

    /// True if received batches may be returned; call it after [`Input::Check`], with a time read
    /// after its effect.
    pub(super) fn may_return(&mut self, at: LeaseTime) -> bool {
        if !self.rules.is_dynamic {
            return true;
        }
        if !self.queue.is_empty() && self.validity.take_warning(at) {
            tracing::warn!(
                "the coordinator has not confirmed the lease of this dynamic job for most of its \
                 life; batches in hand wait"
            );
        }
        self.validity.is_valid(at)
    }

    /// Returns the next action of a loader that waits for a batch.
    /// - `may_return`: result of [`Machine::may_return`].
    pub(super) fn next(&mut self, may_return: bool) -> Next<B> {
        if let Some(queued) = self.queue.pop_front_if(|_| may_return) {
            return Next::Return(queued);
        }
        if let Some(error) = self.failure.take_if(|_| self.queue.is_empty()) {
            return Next::Fail(error);
        }
        match self.state {
            State::Idle => Next::Ask,
            State::Starting | State::Running => Next::Hear,
            State::InProcess | State::Returning => Next::Read,
            State::Connecting | State::Opening => Next::Settle,
        }
    }

    /// True if the worker's replacement may start to read behind the batches in hand.
    ///
    /// A dynamic rank's next samples are agreed upon only at its current position.
    pub(super) fn may_read_ahead(&self) -> bool {
        !(self.queue.is_empty() || self.rules.is_dynamic || self.failure.is_some())
    }

    /// True if an error is kept until the batches in hand were returned.
    pub(super) fn has_failure(&self) -> bool {
        self.failure.is_some()
    }

    /// Keeps an error until the batches in hand were returned.
    pub(super) fn fail_later(&mut self, error: LoadError) {
        self.failure = Some(error);
    }

    /// True if a batch must be copied, so that a trainer never waits for slots that it holds.
    /// - `out`: slots of the worker that are viewed, or that hold a queued batch.
    pub(super) fn must_copy(&self, origin: Origin, out: usize) -> bool {
        // Slots viewed by arrays: all except those of queued batches and of this one.
        let held = out.saturating_sub(self.queue.len() + 1);
        self.state.has_worker() && origin == self.origin() && held >= self.hold_max
    }

    /// Records that a received batch is offered.
    pub(super) fn offer(&mut self, origin: Origin) {
        self.offered = Some(origin);
    }

    /// True if a received batch is offered and still valid.
    pub(super) fn is_offered(&self) -> bool {
        self.offered.is_some()
    }

    /// Records that the offered batch is consumed; true if the current worker sent it.
    pub(super) fn consume(&mut self) -> bool {
        self.offered.take() == Some(self.origin())
    }

    fn origin(&self) -> Origin {
        Origin { connection: self.connection, start: self.start }
    }

    fn meet(&mut self, skipped: &[Skipped]) {
        for one in skipped {
            if self.met.iter().all(|met| met.sample != one.sample) {
                self.met.truncate(MET_MAX - 1);
                self.met.push_front(one.clone());
            }
        }
    }

    /// Drops a dynamic job's batches from a lost worker: they may belong to another rank by now.
    ///
    /// Samples that are still this rank's are delivered again.
    fn forget_granted(&mut self) {
        if self.rules.is_dynamic {
            self.drop_in_hand();
        }
    }

    fn drop_in_hand(&mut self) {
        self.queue.clear();
        self.offered = None;
        self.validity.forget();
    }
}

/// True if the rank must stop: others were started in its place.
fn is_over(error: &WireError) -> bool {
    use ErrorKind::{Conflict, Fenced, Replaced, Superseded};
    matches!(error.kind, Superseded | Fenced | Replaced | Conflict)
}
