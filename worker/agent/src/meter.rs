//! The clocks behind an account: a few reads for each chunk, part and batch, none for a record.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use shardfeed_pipeline::{Account, Begun, Book, Setup, Spent, Stage, Watch};

use crate::remote::RemoteCounters;
use crate::trace;

/// How often the system is asked what came from storage devices.
const DEVICE_EVERY: Duration = Duration::from_millis(20);

/// A trainer that waits says so again within this time.
const TOLD_FOR: Duration = Duration::from_secs(5);

/// What the thread that plans does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Waits for room for a batch.
    Room,
    /// Fills the windows of an epoch and gathers its first batch.
    Fill,
    /// Gathers a batch.
    Gather,
    /// Waits to be granted samples.
    Grant,
}

impl Doing {
    fn name(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Fill => "fill window",
            Self::Gather => "gather",
            Self::Grant => "grant",
        }
    }
}

/// What a trainer spent on one batch: the wait for it, and the work before that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Epoch of the batch.
    pub epoch: u64,
    /// Samples in it, padding counted.
    pub samples: u64,
    /// Bytes of its slot.
    pub bytes: u64,
    /// It waited for the batch.
    pub wait: Duration,
    /// It worked, since it took the one before.
    pub work: Duration,
    /// Of the wait, copying the batch; zero if it was not copied.
    pub copy: Duration,
    /// The trainer also tells when it waits for long.
    pub tells_waits: bool,
}

/// Sums of all threads that work for one rank.
#[derive(Debug)]
pub(crate) struct Meter {
    begun: Instant,
    /// What talking to stores costs.
    pub(crate) remote: Arc<RemoteCounters>,
    storage_ns: AtomicU64,
    stored_bytes: AtomicU64,
    inflate_ns: AtomicU64,
    read_wait_ns: AtomicU64,
    /// A wait for a shard that is under way: since when, counted from `begun`; 0: there is none.
    reading_since_ns: AtomicU64,
    parse_ns: AtomicU64,
    write_ns: AtomicU64,
    compute_ns: AtomicU64,
    suspect_images: AtomicU64,
    sums: Mutex<Sums>,
}

#[derive(Debug)]
struct Sums {
    /// Of the planning thread and the trainer, microseconds apart from what is being done now.
    spent: Spent,
    /// What the planning thread does, since when, and what it had waited for shards before.
    doing: Option<(Doing, Instant, u64)>,
    /// Since when what is made may not be delivered, because nobody confirms the lease.
    unconfirmed: Option<Instant>,
    demand: Between,
    book: Book,
    setup: Setup,
    /// Bytes from storage devices when this began, and when that was looked at last.
    device: Option<(u64, Instant)>,
}

/// What the trainer does, since it took its last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// It does not tell.
    Unknown,
    /// It has not asked for the next one.
    Works,
    /// It has waited since then, as it said at the second time.
    Waits(Instant, Instant),
}

impl Default for Meter {
    fn default() -> Self {
        let begun = Instant::now();
        let setup = Setup {
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            ..Setup::default()
        };
        let sums = Sums {
            spent: Spent::default(),
            doing: None,
            unconfirmed: None,
            demand: Between::Unknown,
            book: Book::default(),
            setup,
            device: device_bytes().map(|bytes| (bytes, begun)),
        };
        Self {
            begun,
            remote: Arc::default(),
            storage_ns: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            inflate_ns: AtomicU64::new(0),
            read_wait_ns: AtomicU64::new(0),
            reading_since_ns: AtomicU64::new(0),
            parse_ns: AtomicU64::new(0),
            write_ns: AtomicU64::new(0),
            compute_ns: AtomicU64::new(0),
            suspect_images: AtomicU64::new(0),
            sums: Mutex::new(sums),
        }
    }
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, Sums> {
        // Every change of the sums is complete when the lock is released, also by a panic.
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a part of the planning thread's work.
    pub(crate) fn during<T>(&self, doing: Doing, work: impl FnOnce() -> T) -> T {
        let _span = trace::span(doing.name());
        let (begun, read_wait_ns) = (Instant::now(), self.read_wait_ns.load(Ordering::Relaxed));
        self.lock().doing = Some((doing, begun, read_wait_ns));
        let done = work();
        let mut sums = self.lock();
        let mut spent = sums.spent;
        self.count(&mut spent, (doing, begun, read_wait_ns));
        (sums.spent, sums.doing) = (spent, None);
        done
    }

    /// Counts what the planning thread does, up to now.
    fn count(&self, spent: &mut Spent, (doing, since, waited_ns): (Doing, Instant, u64)) {
        let took_us = micros(since.elapsed());
        match doing {
            Doing::Room => spent.room_us += took_us,
            Doing::Fill => spent.fill_us += took_us,
            Doing::Grant => spent.grant_us += took_us,
            Doing::Gather => {
                let waiting_ns = match self.reading_since_ns.load(Ordering::Relaxed) {
                    0 => 0,
                    since_ns => nanos(self.begun.elapsed()).saturating_sub(since_ns),
                };
                let waited_ns = self.read_wait_ns.load(Ordering::Relaxed) - waited_ns;
                let read_wait_us = ((waited_ns + waiting_ns) / 1000).min(took_us);
                spent.read_wait_us += read_wait_us;
                spent.gather_us += took_us - read_wait_us;
            }
        }
    }

    /// The planning thread waits for a shard to be read.
    pub(crate) fn read_wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let _span = trace::span("wait for shard");
        let begun = Instant::now();
        self.reading_since_ns.store(nanos(begun - self.begun).max(1), Ordering::Relaxed);
        let done = wait();
        self.reading_since_ns.store(0, Ordering::Relaxed);
        add(&self.read_wait_ns, nanos(begun.elapsed()));
        done
    }

    /// A reading thread reads, checks and inflates a chunk.
    pub(crate) fn chunk<T>(&self, shard: u32, work: impl FnOnce() -> T) -> T {
        let _span = trace::span_of("chunk", [("shard", u64::from(shard)), trace::NONE]);
        let begun = thread_ns();
        let done = work();
        add(&self.inflate_ns, thread_ns().saturating_sub(begun));
        done
    }

    /// Some thread reads stored bytes; whatever of it is no computing is waiting for storage.
    pub(crate) fn storage<E>(&self, read: impl FnOnce() -> Result<usize, E>) -> Result<usize, E> {
        let _span = trace::span("read");
        let (begun, cpu_ns) = (Instant::now(), thread_ns());
        let result = read();
        let computed_ns = thread_ns().saturating_sub(cpu_ns);
        add(&self.storage_ns, nanos(begun.elapsed()).saturating_sub(computed_ns));
        if let Ok(bytes) = &result {
            add(&self.stored_bytes, *bytes as u64);
        }
        result
    }

    /// What reading chose.
    pub(crate) fn set_up(&self, change: impl FnOnce(&mut Setup)) {
        change(&mut self.lock().setup);
    }

    /// Whether what is made may be delivered, as far as the coordinator's word goes.
    pub(crate) fn confirmed(&self, is_confirmed: bool) {
        let mut sums = self.lock();
        match (is_confirmed, sums.unconfirmed) {
            (true, Some(since)) => {
                sums.spent.confirm_us += micros(since.elapsed());
                sums.unconfirmed = None;
            }
            (false, None) => sums.unconfirmed = Some(Instant::now()),
            _ => {}
        }
    }

    /// The trainer has waited for its next batch for so long by now.
    pub(crate) fn waits(&self, waiting: Duration) {
        let now = Instant::now();
        let since = now.checked_sub(waiting).unwrap_or(self.begun);
        self.lock().demand = Between::Waits(since, now);
    }

    /// The trainer took a batch.
    pub(crate) fn took(&self, demand: &Demand) {
        let mut sums = self.lock();
        sums.demand = if demand.tells_waits { Between::Works } else { Between::Unknown };
        let spent = &mut sums.spent;
        spent.batches += 1;
        spent.samples += demand.samples;
        spent.batch_bytes += demand.bytes;
        spent.wait_us += micros(demand.wait);
        spent.work_us += micros(demand.work);
        spent.copied += u64::from(!demand.copy.is_zero());
        spent.copy_us += micros(demand.copy);
        let spent = self.spent(&mut sums);
        sums.book.took(demand.epoch, spent);
    }

    /// Where time went.
    pub(crate) fn account(&self) -> Account {
        let mut sums = self.lock();
        let spent = self.spent(&mut sums);
        let waiting_us = match sums.demand {
            Between::Works => Some(0),
            Between::Waits(since, told) if told.elapsed() < TOLD_FOR => {
                Some(micros(since.elapsed()))
            }
            // One that no longer says so was stopped, or does something else.
            Between::Unknown | Between::Waits(..) => None,
        };
        sums.book.account(sums.setup, spent, waiting_us)
    }

    fn spent(&self, sums: &mut Sums) -> Spent {
        let us = |sum: &AtomicU64| sum.load(Ordering::Relaxed) / 1000;
        if let Some((last, _)) = sums.device.filter(|(_, at)| at.elapsed() >= DEVICE_EVERY)
            && let Some(now) = device_bytes()
        {
            sums.spent.device_bytes += now.saturating_sub(last);
            sums.device = Some((now, Instant::now()));
        }
        let remote = self.remote.stats();
        let mut spent = Spent {
            wall_us: micros(self.begun.elapsed()),
            stored_bytes: self.stored_bytes.load(Ordering::Relaxed),
            storage_us: us(&self.storage_ns),
            inflate_us: us(&self.inflate_ns),
            parse_us: us(&self.parse_ns),
            write_us: us(&self.write_ns),
            compute_us: us(&self.compute_ns),
            store_requests: remote.requests,
            store_retries: remote.retries,
            store_bytes: remote.bytes,
            cached_bytes: remote.cached_bytes,
            suspect_images: self.suspect_images.load(Ordering::Relaxed),
            ..sums.spent
        };
        // What takes long is seen while it does.
        if let Some(doing) = sums.doing {
            self.count(&mut spent, doing);
        }
        spent.confirm_us += sums.unconfirmed.map_or(0, |since| micros(since.elapsed()));
        spent
    }
}

impl Watch for Meter {
    fn begin(&self) -> Begun {
        Begun { cpu_ns: thread_ns(), wall_ns: trace::now_ns() }
    }

    fn end(&self, stage: Stage, begun: Begun) {
        let cpu_ns = thread_ns().saturating_sub(begun.cpu_ns);
        let (sum, name) = match stage {
            Stage::Parse => (&self.parse_ns, "check and parse"),
            Stage::Write => (&self.write_ns, "operate and write"),
        };
        add(sum, cpu_ns);
        add(&self.compute_ns, trace::now_ns().saturating_sub(begun.wall_ns));
        trace::since(name, begun.wall_ns);
    }

    fn suspect_images(&self, count: u64) {
        add(&self.suspect_images, count);
    }
}

fn add(sum: &AtomicU64, more: u64) {
    sum.fetch_add(more, Ordering::Relaxed);
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Time that this thread computed.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

/// Bytes that this process has fetched from storage devices; `None` where the system does not say.
fn device_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes:"))?;
    line.trim().parse().ok()
}
