//! A rank that is being served: its lease, its reading, and the thread that sends its batches.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_pipeline::Reading;
use shardfeed_proto::ErrorKind;
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_reader::{
    Consumer, Control, Delivered, Delivery, Demand, GrantStats, Lease, Prefetch, PrefetchStats,
    account_to,
};
use shardfeed_socket::{Sender, SocketError};
use shardfeed_source::{LoadError, Lock, trace};

use crate::pulse::Pulse;
use crate::serve::budget::BudgetGuard;
use crate::serve::flight::Flight;
use crate::serve::send::send;

/// Maximum wait of a sending thread that has nothing to send.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval of reports about reading, if nothing else changed.
const STATS_EVERY: Duration = Duration::from_millis(250);

/// Silence of a sending thread after which it counts as stuck. It normally runs at least four times
/// a second, also while its trainer does not read.
const STUCK_AFTER: Duration = Duration::from_secs(15);

/// Additional time from the first observation of that silence.
const STUCK_SURE_AFTER: Duration = Duration::from_secs(2);

/// Reason why nothing is delivered of a dynamic job while its coordinator is silent.
const UNCONFIRMED: &str =
    "the coordinator has not confirmed the lease of this dynamic job for most of its life";

/// State of a sending thread: whether it has ended, so that its last message is sent.
#[derive(Debug, Default)]
pub(crate) struct FeederDone {
    is_so: Lock<bool>,
    changed: Condvar,
}

impl FeederDone {
    pub(crate) fn is_so(&self) -> bool {
        *self.is_so.lock()
    }

    /// Waits at most `patience` for the end.
    pub(crate) fn wait(&self, patience: Duration) {
        let is_so = self.is_so.lock();
        drop(self.changed.wait_timeout_while(is_so, patience, |is_so| !*is_so));
    }
}

/// Guard that records the end of the thread, also by a panic.
struct Ending(Arc<FeederDone>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.is_so.lock() = true;
        self.0.changed.notify_all();
    }
}

pub(crate) struct Running {
    pub(crate) start: u64,
    pub(crate) lease: Lease,
    pub(crate) control: Arc<dyn Control>,
    consumer: Consumer,
    flight: Flight,
    stop: Arc<AtomicBool>,
    pub(crate) done: Arc<FeederDone>,
    thread: Option<JoinHandle<()>>,
    pulse: Arc<Pulse>,
    /// Time when the sending thread was first found silent for too long.
    suspected: Lock<Option<Instant>>,
    ended: Arc<Lock<Option<SendingEnd>>>,
    is_kept: bool,
    /// The trainer has reported its final position.
    is_told: bool,
    _share: BudgetGuard,
}

/// Reason why the sending thread ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SendingEnd {
    /// It was stopped, or has notified the trainer of the reason.
    InOrder,
    /// It could not send. The trainer does not know.
    Failed(String),
}

/// Resources needed to serve a rank.
pub(crate) struct ReadyRank {
    pub(crate) start: u64,
    pub(crate) lease: Lease,
    pub(crate) control: Arc<dyn Control>,
    /// Set when the worker stops.
    pub(crate) hub_stop: Arc<AtomicBool>,
    pub(crate) prefetch: Prefetch,
    pub(crate) flight: Flight,
    pub(crate) sender: Sender<wire::ToTrainer>,
    pub(crate) share: BudgetGuard,
}

impl Running {
    pub(crate) fn begin(ready: ReadyRank) -> Result<Self, LoadError> {
        let ReadyRank { start, lease, control, hub_stop, prefetch, flight, sender, share } = ready;
        flight.restart();
        let (consumer, stop) = (prefetch.consumer(), Arc::new(AtomicBool::new(false)));
        let (pulse, ended) = (Arc::new(Pulse::new()), Arc::<Lock<_>>::default());
        let feeder = Feeder {
            start,
            lease: lease.clone(),
            is_dynamic: control.good_for(&lease).is_some(),
            control: Arc::clone(&control),
            prefetch,
            flight: flight.clone(),
            line: Line { sender, stops: [hub_stop, Arc::clone(&stop)], pulse: Arc::clone(&pulse) },
            reports: Reports::default(),
            told: None,
        };
        let done = Arc::new(FeederDone::default());
        let (ending, end) = (Ending(Arc::clone(&done)), Arc::clone(&ended));
        let thread = std::thread::Builder::new()
            .name("shardfeed-send".into())
            .spawn(move || {
                let _ending = ending;
                *end.lock() = Some(feeder.run());
            })
            .map_err(|source| LoadError::Io { file: "sending threads".into(), source })?;
        Ok(Self {
            start,
            lease,
            control,
            consumer,
            flight,
            stop,
            done,
            thread: Some(thread),
            pulse,
            suspected: Lock::new(None),
            ended,
            is_kept: false,
            is_told: false,
            _share: share,
        })
    }

    /// Returns why nothing more is sent, if the trainer does not know and would wait for ever.
    pub(crate) fn lost(&self) -> Option<String> {
        // In this order: a thread records the reason before it ends.
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        match self.ended.lock().clone() {
            Some(SendingEnd::InOrder) => None,
            Some(SendingEnd::Failed(reason)) => Some(reason),
            None if has_ended => Some("its sending thread panicked".into()),
            None if self.is_stuck() => {
                let silent_s = self.pulse.silent().as_secs();
                Some(format!("its sending thread has not run for {silent_s} s"))
            }
            None => None,
        }
    }

    /// True if the sending thread is stuck. After a worker process was suspended, all of its
    /// threads seem silent for a moment; therefore the silence must last.
    fn is_stuck(&self) -> bool {
        let mut suspected = self.suspected.lock();
        if self.pulse.silent() <= STUCK_AFTER {
            *suspected = None;
            return false;
        }
        suspected.get_or_insert_with(Instant::now).elapsed() >= STUCK_SURE_AFTER
    }

    /// Records that the trainer took batches, and its position (epoch, step).
    pub(crate) fn took(&self, took: &wire::Took) {
        let wire::Took { batches, epoch, step, waiting_us, .. } = *took;
        if let Some(waiting_us) = waiting_us.filter(|us| *us > 0) {
            // Its position is unchanged.
            return self.consumer.waits(Duration::from_micros(waiting_us));
        }
        let (batches, bytes) = self.flight.taken(usize::try_from(batches).unwrap_or(usize::MAX));
        self.consumer.take(batches, bytes);
        if batches > 0 {
            self.consumer.account(&Demand {
                epoch: took.taken_epoch,
                samples: took.rows,
                bytes: took.bytes,
                wait: Duration::from_micros(took.wait_us),
                work: Duration::from_micros(took.work_us),
                copy: Duration::from_micros(took.copy_us),
                tells_waits: waiting_us.is_some(),
            });
        }
        // The trainer receives an error of control from the sending thread's next check.
        let _ = self.control.report(&self.lease, epoch, step);
    }

    /// Ends the served rank, whose trainer has finished and reported its final position.
    pub(crate) fn end_told(running: &mut Option<Self>) {
        if let Some(mut running) = running.take() {
            running.is_told = true;
        }
    }

    /// Keeps the lease until the session ends.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    pub(crate) fn fail(&self, failure: &str) {
        self.control.report_failure(&self.lease, failure);
    }

    /// Returns the time for which sent batches may be taken; `None`: unlimited.
    pub(crate) fn good_for(&self) -> Option<Duration> {
        self.control.good_for(&self.lease)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let is_stuck = self.pulse.silent() > STUCK_AFTER;
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished() || !is_stuck)
            && thread.join().is_err()
        {
            tracing::error!("a sending thread panicked");
        }
        if !self.is_kept {
            self.control.release(&self.lease, self.is_told);
        }
    }
}

struct Feeder {
    start: u64,
    is_dynamic: bool,
    lease: Lease,
    control: Arc<dyn Control>,
    prefetch: Prefetch,
    flight: Flight,
    line: Line,
    reports: Reports,
    told: Option<(Instant, wire::Stats)>,
}

#[derive(Default)]
struct Reports {
    /// Shards of the last batches sent, up to the maximum number in flight.
    ahead: VecDeque<Vec<u32>>,
    reported: Option<Instant>,
}

impl Reports {
    /// Records that a batch is sent, of at most `prefetch` in flight.
    fn sends(&mut self, delivered: &Delivered, prefetch: usize) {
        self.ahead.push_back(shards_of(delivered));
        self.ahead.drain(..self.ahead.len().saturating_sub(prefetch));
    }

    /// Reports, at most four times a second.
    fn report(&mut self, control: &dyn Control, lease: &Lease, stats: impl Fn() -> PrefetchStats) {
        if self.reported.is_some_and(|at| at.elapsed() <= STATS_EVERY) {
            return;
        }
        let stats = stats();
        let mut reading: Vec<u32> = self.ahead.iter().flatten().copied().collect();
        reading.sort_unstable();
        reading.dedup();
        // Sent batches are ahead of the trainer until it takes them.
        let ready = (stats.ready + stats.shown) as u64;
        control.report_ahead(lease, ready, &reading);
        control.report_account(lease, &stats.account);
        self.reported = Some(Instant::now());
    }
}

/// The connection to the trainer.
struct Line {
    sender: Sender<wire::ToTrainer>,
    /// Of the worker, and of this start.
    stops: [Arc<AtomicBool>; 2],
    pulse: Arc<Pulse>,
}

impl Line {
    /// True if messages should still be sent.
    fn is_wanted(&self) -> bool {
        self.pulse.beat();
        !self.stops.iter().any(|stop| stop.load(Ordering::Relaxed))
    }

    fn send(
        &self,
        message: Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), SocketError> {
        send(&self.sender, message, descriptor, &mut || self.is_wanted())
    }
}

fn shards_of(delivered: &Delivered) -> Vec<u32> {
    let mut shards: Vec<u32> = delivered.samples.iter().map(|row| row.sample.shard).collect();
    shards.sort_unstable();
    shards.dedup();
    shards
}

impl Feeder {
    fn run(mut self) -> SendingEnd {
        let said = match self.feed() {
            Ok(()) => Ok(()),
            Err(Ended::Failed(error))
                if self.is_dynamic
                    && matches!(&*error, LoadError::Wire(error) if error.kind == ErrorKind::Fenced) =>
            {
                tracing::warn!(job = %self.lease.job, rank = self.lease.rank, %error, "a lease lapsed");
                let again = wire::Again { start: self.start, reason: error.to_string() };
                self.line.send(Message::Again(again), None)
            }
            Err(Ended::Failed(error)) => {
                if error.fails_job() {
                    self.control.report_failure(&self.lease, &error.to_string());
                }
                let error = Some(error.to_wire().to_message());
                let failed = wire::Failed { start: self.start, error };
                self.line.send(Message::Failed(failed), None)
            }
            Err(Ended::Closed(error)) => Err(error),
        };
        match said {
            // A trainer that is gone does not need the message.
            Ok(()) | Err(SocketError::Closed) => SendingEnd::InOrder,
            Err(_) if !self.line.is_wanted() => SendingEnd::InOrder,
            Err(error) => SendingEnd::Failed(error.to_string()),
        }
    }

    fn feed(&mut self) -> Result<(), Ended> {
        while self.line.is_wanted() {
            self.control.check(&self.lease).map_err(LoadError::from)?;
            let delivery = self.prefetch.show(LOOK_EVERY)?;
            self.prefetch.confirmed(!self.is_unconfirmed());
            let stats = self.prefetch.stats();
            self.tell(&stats)?;
            if let Delivery::Batch(delivered) = delivery {
                self.reports.sends(&delivered, stats.prefetch);
                if !self.may_send()? {
                    return Ok(());
                }
                let at = [("epoch", delivered.epoch), ("step", delivered.step)];
                let _span = trace::span_of("send", at);
                let Lease { job, mixture, .. } = &self.lease;
                self.control.report_skipped(job, *mixture, &delivered.skipped);
                let Self { start, line, flight, reports, control, lease, prefetch, .. } =
                    &mut *self;
                let mut send = |message, descriptor: Option<BorrowedFd<'_>>| {
                    // Waits here while the trainer does not read.
                    send(&line.sender, message, descriptor, &mut || {
                        reports.report(&**control, lease, || prefetch.stats());
                        line.is_wanted()
                    })
                };
                flight.send(&mut send, *start, *delivered)?;
            } else if let Delivery::EpochEnd { epoch, steps } = delivery {
                let ended = wire::EpochEnded { start: self.start, epoch, steps };
                self.line.send(Message::EpochEnded(ended), None)?;
            }
        }
        Ok(())
    }

    /// True if granted samples may not be delivered because the coordinator is silent.
    fn is_unconfirmed(&self) -> bool {
        self.control.good_for(&self.lease).is_some_and(|good| good.is_zero())
    }

    /// Returns why ready batches may not be delivered now, if so.
    fn waits_for(&mut self) -> Option<String> {
        if self.is_unconfirmed() {
            self.prefetch.confirmed(false);
            return Some(UNCONFIRMED.to_owned());
        }
        self.control.paused(&self.lease)
    }

    /// Waits until ready batches may be delivered: until the grants of a dynamic job are confirmed
    /// and the job is not paused. Returns `false` to stop.
    fn may_send(&mut self) -> Result<bool, Ended> {
        let mut told = None;
        while let Some(reason) = self.waits_for() {
            let stats = self.prefetch.stats();
            self.tell(&stats)?;
            if !self.line.is_wanted() {
                return Ok(false);
            }
            self.control.check(&self.lease).map_err(LoadError::from)?;
            if told.as_ref() != Some(&reason) {
                let note = wire::Progress { note: reason.clone(), ..wire::Progress::default() };
                tracing::warn!(job = %self.lease.job, rank = self.lease.rank, "{reason}");
                self.line.send(Message::Progress(note), None)?;
                told = Some(reason);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    /// Reports the batches ahead to the trainer and to control.
    fn tell(&mut self, stats: &PrefetchStats) -> Result<(), Ended> {
        self.reports.report(&*self.control, &self.lease, || *stats);
        let now = stats_message(stats);
        let is_news = self.told.as_ref().is_none_or(|(at, told)| {
            let same = told.reading == now.reading
                && told.prefetch == now.prefetch
                && (told.reinflated_bytes > 0) == (now.reinflated_bytes > 0);
            !same || (at.elapsed() > STATS_EVERY && without_clocks(told) != without_clocks(&now))
        });
        if is_news {
            self.line.send(Message::Stats(now.clone()), None)?;
            self.told = Some((Instant::now(), now));
        }
        Ok(())
    }
}

/// Removes the values that change with time alone: a trainer that works for a long time does not
/// read its messages, which must not pile up. A waiting trainer reads them.
fn without_clocks(stats: &wire::Stats) -> wire::Stats {
    let mut stats = stats.clone();
    if let Some(account) =
        stats.account.as_mut().filter(|account| account.waiting_us.unwrap_or(0) == 0)
    {
        (account.since_start, account.idle_us) = (None, 0);
    }
    stats
}

/// Reason why nothing more is sent.
enum Ended {
    Failed(Box<LoadError>),
    Closed(SocketError),
}

impl From<LoadError> for Ended {
    fn from(error: LoadError) -> Self {
        Self::Failed(Box::new(error))
    }
}

impl From<SocketError> for Ended {
    fn from(error: SocketError) -> Self {
        Self::Closed(error)
    }
}

fn stats_message(stats: &PrefetchStats) -> wire::Stats {
    let (reading, chunk_bytes) = match stats.reading {
        None => ("starting", 0),
        Some(Reading::Hold { chunk_bytes, .. }) => ("hold", chunk_bytes as u64),
        Some(Reading::Locate) => ("locate", 0),
    };
    let GrantStats { granted, lookahead, horizon_waits } = stats.granted.unwrap_or_default();
    wire::Stats {
        prefetch: stats.prefetch as u64,
        budget_bytes: stats.budget_bytes,
        reading: reading.into(),
        chunk_bytes,
        read_bytes: stats.read_bytes,
        reinflated_bytes: stats.reinflated_bytes,
        ready: stats.ready as u64,
        in_work: stats.in_work as u64,
        slots: stats.slots.slots as u64,
        slot_bytes: stats.slots.bytes as u64,
        slots_mapped_total: stats.slots.mapped_total,
        granted,
        lookahead,
        horizon_waits,
        account: Some(account_to(&stats.account)),
    }
}

#[cfg(test)]
mod tests;
