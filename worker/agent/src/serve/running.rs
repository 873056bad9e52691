//! A rank that is being served: its lease, its reading, and the thread that sends its batches.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_pipeline::Reading;
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_reader::{
    Consumer, Delivered, Delivery, Demand, GrantStats, Lease, LeaseGuard, PrefetchStats,
    RankReader, account_to,
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

pub(crate) struct Running {
    pub(crate) start: u64,
    /// First to be dropped, before the memory is returned.
    pub(crate) rank: LeaseGuard,
    consumer: Consumer,
    flight: Flight,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    pulse: Arc<Pulse>,
    /// Time when the sending thread was first found silent for too long.
    suspected: Lock<Option<Instant>>,
    ended: Arc<Lock<Option<SendingEnd>>>,
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
    pub(crate) rank: LeaseGuard,
    /// Set when the worker stops.
    pub(crate) hub_stop: Arc<AtomicBool>,
    pub(crate) reader: RankReader,
    pub(crate) flight: Flight,
    pub(crate) sender: Sender<wire::ToTrainer>,
    pub(crate) share: BudgetGuard,
}

impl Running {
    /// Starts to send; also returns a channel that closes when the last message is sent.
    pub(crate) fn begin(ready: ReadyRank) -> Result<(Self, Receiver<()>), LoadError> {
        let ReadyRank { start, mut rank, hub_stop, reader, flight, sender, share } = ready;
        flight.restart();
        let (consumer, stop) = (reader.prefetch.consumer(), Arc::new(AtomicBool::new(false)));
        let (pulse, ended) = (Arc::new(Pulse::new()), Arc::<Lock<_>>::default());
        let feeder = Feeder {
            start,
            reader,
            flight: flight.clone(),
            line: Line { sender, stops: [hub_stop, Arc::clone(&stop)], pulse: Arc::clone(&pulse) },
            reports: Reports::default(),
            told: None,
        };
        let ((sending, done), end) = (channel::<()>(), Arc::clone(&ended));
        let thread = std::thread::Builder::new()
            .name("shardfeed-send".into())
            .spawn(move || {
                // Dropped at the end of the thread, also by a panic.
                let _sending = sending;
                *end.lock() = Some(feeder.run());
            })
            .map_err(|source| LoadError::Io { file: "sending threads".into(), source })?;
        rank.is_told = false;
        let running = Self {
            start,
            rank,
            consumer,
            flight,
            stop,
            thread: Some(thread),
            pulse,
            suspected: Lock::new(None),
            ended,
            _share: share,
        };
        Ok((running, done))
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
        let demand = Demand {
            epoch: took.taken_epoch,
            samples: took.rows,
            bytes: took.bytes,
            wait: Duration::from_micros(took.wait_us),
            work: Duration::from_micros(took.work_us),
            copy: Duration::from_micros(took.copy_us),
            tells_waits: waiting_us.is_some(),
        };
        self.rank.took(&self.consumer, (epoch, step), (batches > 0).then_some(&demand));
    }

    /// Ends the served rank, whose trainer has finished and reported its final position.
    pub(crate) fn end_told(running: &mut Option<Self>) {
        if let Some(mut running) = running.take() {
            running.rank.is_told = true;
        }
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
    }
}

struct Feeder {
    start: u64,
    reader: RankReader,
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
    fn report(&mut self, reader: &RankReader) {
        if self.reported.is_some_and(|at| at.elapsed() <= STATS_EVERY) {
            return;
        }
        let mut reading: Vec<u32> = self.ahead.iter().flatten().copied().collect();
        reading.sort_unstable();
        reading.dedup();
        reader.report(&reading);
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
            Err(Ended::Failed(error)) if self.reader.lapses(&error) => {
                let Lease { job, rank, .. } = &self.reader.rank.lease;
                tracing::warn!(%job, rank, %error, "a lease lapsed");
                let again = wire::Again { start: self.start, reason: error.to_string() };
                self.line.send(Message::Again(again), None)
            }
            Err(Ended::Failed(error)) => {
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
            let delivery = self.reader.next(LOOK_EVERY)?;
            let stats = self.reader.prefetch.stats();
            self.tell(&stats)?;
            if let Some(reason) = self.reader.take_reason() {
                let note = wire::Progress { note: reason.to_owned(), ..Default::default() };
                self.line.send(Message::Progress(note), None)?;
            }
            match delivery {
                Delivery::Batch(delivered) => {
                    // The messages before it wait while the trainer does not read.
                    self.reader.rank.check()?;
                    self.reports.sends(&delivered, stats.prefetch);
                    let at = [("epoch", delivered.epoch), ("step", delivered.step)];
                    let _span = trace::span_of("send", at);
                    let Self { start, line, flight, reports, reader, .. } = &mut *self;
                    let mut send = |message, descriptor: Option<BorrowedFd<'_>>| {
                        // Waits here while the trainer does not read.
                        send(&line.sender, message, descriptor, &mut || {
                            reports.report(reader);
                            line.is_wanted()
                        })
                    };
                    flight.send(&mut send, *start, *delivered)?;
                }
                Delivery::EpochEnd { epoch, steps } => {
                    let ended = wire::EpochEnded { start: self.start, epoch, steps };
                    self.line.send(Message::EpochEnded(ended), None)?;
                }
                Delivery::Pending => {}
            }
        }
        Ok(())
    }

    /// Reports the batches ahead to the trainer and to control.
    fn tell(&mut self, stats: &PrefetchStats) -> Result<(), Ended> {
        self.reports.report(&self.reader);
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
