//! A rank that is being served: its lease, its reading, and the thread that sends its batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shardfeed_pipeline::Reading;
use shardfeed_proto::ErrorKind;
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_socket::{Sender, SocketError};

use crate::account::account_to;
use crate::control::{Control, Lease};
use crate::error::LoadError;
use crate::meter::Demand;
use crate::prefetch::{Polled, Prefetch, PrefetchStats, Taken};
use crate::sequence::Delivered;
use crate::serve::budget::Share;
use crate::serve::flight::Flight;
use crate::serve::send;
use crate::trace;

/// How often a thread that has nothing to send looks around.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often it is told what reading holds, if nothing else changed.
const STATS_EVERY: Duration = Duration::from_millis(250);

/// Why nothing is delivered of a dynamic job while its coordinator is silent.
const UNCONFIRMED: &str =
    "the coordinator has not confirmed the lease of this dynamic job for most of its life";

/// A rank that is being served; ends when dropped.
pub(crate) struct Running {
    pub(crate) start: u64,
    pub(crate) lease: Lease,
    pub(crate) control: Arc<dyn Control>,
    taken: Taken,
    flight: Flight,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    is_kept: bool,
    _share: Share,
}

/// What it takes to serve a rank.
pub(crate) struct Ready {
    pub(crate) start: u64,
    pub(crate) lease: Lease,
    pub(crate) control: Arc<dyn Control>,
    pub(crate) prefetch: Prefetch,
    pub(crate) flight: Flight,
    pub(crate) sender: Sender<wire::ToTrainer>,
    pub(crate) share: Share,
}

impl Running {
    pub(crate) fn begin(ready: Ready) -> Result<Self, LoadError> {
        let Ready { start, lease, control, prefetch, flight, sender, share } = ready;
        flight.restart();
        let (taken, stop) = (prefetch.taken(), Arc::new(AtomicBool::new(false)));
        let feeder = Feeder {
            start,
            lease: lease.clone(),
            is_dynamic: control.good_for(&lease).is_some(),
            control: Arc::clone(&control),
            prefetch,
            flight: flight.clone(),
            sender,
            stop: Arc::clone(&stop),
            ahead: VecDeque::new(),
            reported: None,
            told: None,
        };
        let thread = std::thread::Builder::new()
            .name("shardfeed-send".into())
            .spawn(move || feeder.run())
            .map_err(|source| LoadError::Io { file: "sending threads".into(), source })?;
        let (thread, is_kept) = (Some(thread), false);
        Ok(Self { start, lease, control, taken, flight, stop, thread, is_kept, _share: share })
    }

    /// The trainer took batches, and stands at (epoch, step).
    pub(crate) fn took(&self, took: &wire::Took) {
        let wire::Took { batches, epoch, step, waiting_us, .. } = *took;
        if let Some(waiting_us) = waiting_us.filter(|us| *us > 0) {
            // It stands where it stood.
            return self.taken.waits(Duration::from_micros(waiting_us));
        }
        let (batches, bytes) = self.flight.taken(usize::try_from(batches).unwrap_or(usize::MAX));
        self.taken.take(batches, bytes);
        if batches > 0 {
            self.taken.account(&Demand {
                epoch: took.taken_epoch,
                samples: took.rows,
                bytes: took.bytes,
                wait: Duration::from_micros(took.wait_us),
                work: Duration::from_micros(took.work_us),
                copy: Duration::from_micros(took.copy_us),
                tells_waits: waiting_us.is_some(),
            });
        }
        // What control says to it comes to the trainer with the sending thread's next look.
        let _ = self.control.report(&self.lease, epoch, step);
    }
}

impl Running {
    /// Leaves it to the end of the session to give the lease back.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// How long what was sent may be taken; `None`: always.
    pub(crate) fn good_for(&self) -> Option<Duration> {
        self.control.good_for(&self.lease)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a sending thread panicked");
        }
        if !self.is_kept {
            self.control.release(&self.lease);
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
    sender: Sender<wire::ToTrainer>,
    stop: Arc<AtomicBool>,
    /// Shards of the batches that were sent last, as many as may be on their way.
    ahead: VecDeque<Vec<u32>>,
    reported: Option<Instant>,
    told: Option<(Instant, wire::Stats)>,
}

/// The shards that a batch is made of.
fn shards_of(delivered: &Delivered) -> Vec<u32> {
    let mut shards: Vec<u32> = delivered.samples.iter().map(|row| row.sample.shard).collect();
    shards.sort_unstable();
    shards.dedup();
    shards
}

impl Feeder {
    fn run(mut self) {
        match self.feed() {
            Ok(()) => {}
            Err(Ended::Failed(error))
                if self.is_dynamic
                    && matches!(&*error, LoadError::Wire(error) if error.kind == ErrorKind::Fenced) =>
            {
                tracing::warn!(job = %self.lease.job, rank = self.lease.rank, %error, "a lease lapsed");
                let again = wire::Again { start: self.start, reason: error.to_string() };
                // A trainer that is gone has no use for it.
                let _ = send(&self.sender, Message::Again(again), None);
            }
            Err(Ended::Failed(error)) => {
                let error = Some(error.to_wire().to_message());
                let failed = wire::Failed { start: self.start, error };
                // A trainer that is gone has no use for it.
                let _ = send(&self.sender, Message::Failed(failed), None);
            }
            Err(Ended::Closed(error)) => tracing::debug!(%error, "a trainer went away"),
        }
    }

    fn feed(&mut self) -> Result<(), Ended> {
        while !self.stop.load(Ordering::Relaxed) {
            self.control.lanes(&self.lease, self.lease.epoch).map_err(LoadError::from)?;
            let polled = self.prefetch.show(LOOK_EVERY)?;
            self.prefetch.confirmed(!self.is_unconfirmed());
            let stats = self.prefetch.stats();
            self.tell(&stats)?;
            if let Polled::Ready(delivered) = polled {
                self.ahead.push_back(shards_of(&delivered));
                self.ahead.drain(..self.ahead.len().saturating_sub(stats.prefetch));
                if !self.may_send()? {
                    return Ok(());
                }
                let at = [("epoch", delivered.epoch), ("step", delivered.step)];
                let _span = trace::span_of("send", at);
                self.control.report_skipped(&self.lease.job, &delivered.skipped);
                self.flight.send(&self.sender, self.start, *delivered)?;
            } else if let Polled::EpochEnd { epoch, steps } = polled {
                let ended = wire::EpochEnded { start: self.start, epoch, steps };
                send(&self.sender, Message::EpochEnded(ended), None)?;
            }
        }
        Ok(())
    }

    /// Whether what was granted may not be delivered: the coordinator is silent.
    fn is_unconfirmed(&self) -> bool {
        self.control.good_for(&self.lease).is_some_and(|good| good.is_zero())
    }

    /// Why what is ready may not be delivered now, if so.
    fn waits_for(&mut self) -> Option<String> {
        if self.is_unconfirmed() {
            self.prefetch.confirmed(false);
            return Some(UNCONFIRMED.to_owned());
        }
        self.control.paused(&self.lease)
    }

    /// Waits until what is ready may be delivered: what was granted of a dynamic job is confirmed, and
    /// nobody paused the job. `false` to stop.
    fn may_send(&mut self) -> Result<bool, Ended> {
        let mut told = None;
        while let Some(reason) = self.waits_for() {
            let stats = self.prefetch.stats();
            self.tell(&stats)?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.control.lanes(&self.lease, self.lease.epoch).map_err(LoadError::from)?;
            if told.as_ref() != Some(&reason) {
                let note = wire::Progress { note: reason.clone(), ..wire::Progress::default() };
                tracing::warn!(job = %self.lease.job, rank = self.lease.rank, "{reason}");
                send(&self.sender, Message::Progress(note), None)?;
                told = Some(reason);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    /// Tells the trainer, and control, what is ahead.
    fn tell(&mut self, stats: &PrefetchStats) -> Result<(), Ended> {
        if self.reported.is_none_or(|at| at.elapsed() > STATS_EVERY) {
            let mut reading: Vec<u32> = self.ahead.iter().flatten().copied().collect();
            reading.sort_unstable();
            reading.dedup();
            // What was sent is ahead of the trainer until it takes it, wherever it lies.
            let ready = (stats.ready + stats.shown) as u64;
            self.control.report_ahead(&self.lease, ready, &reading);
            self.control.report_account(&self.lease, &stats.account);
            self.reported = Some(Instant::now());
        }
        let now = stats_message(stats);
        let is_news = self.told.as_ref().is_none_or(|(at, told)| {
            let same = told.reading == now.reading
                && told.prefetch == now.prefetch
                && (told.reinflated_bytes > 0) == (now.reinflated_bytes > 0);
            !same || (at.elapsed() > STATS_EVERY && without_clocks(told) != without_clocks(&now))
        });
        if is_news {
            send(&self.sender, Message::Stats(now.clone()), None)?;
            self.told = Some((Instant::now(), now));
        }
        Ok(())
    }
}

/// What is told of reading, but for what changes with time alone: a trainer that works for long does not
/// read its messages, which must not pile up. One that waits does.
fn without_clocks(stats: &wire::Stats) -> wire::Stats {
    let mut stats = stats.clone();
    if let Some(account) =
        stats.account.as_mut().filter(|account| account.waiting_us.unwrap_or(0) == 0)
    {
        (account.since_start, account.idle_us) = (None, 0);
    }
    stats
}

/// Why nothing more is sent.
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
    let (granted, lookahead) = stats.granted.unwrap_or((0, 0));
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
        account: Some(account_to(&stats.account)),
    }
}
