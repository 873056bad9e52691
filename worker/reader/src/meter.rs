//! The clocks of a time breakdown: a few reads for each chunk, part and batch, none for a record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shardfeed_pipeline::{Account, Begun, Book, Setup, Spent, Stage, Watch};
use shardfeed_source::{Lock, StorageMeter, trace};

/// Minimum interval between queries of the bytes read from storage devices.
const DEVICE_EVERY: Duration = Duration::from_millis(20);

/// A waiting trainer repeats its report within this time.
const TOLD_FOR: Duration = Duration::from_secs(5);

/// Activity of the planning thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Waits for memory for a batch.
    Room,
    /// Fills the windows of an epoch and collects its first batch.
    Fill,
    Gather,
    /// Waits for granted samples.
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

/// Time that a trainer spent on one batch: the wait for it, and the work before that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    pub epoch: u64,
    /// Samples in it, including padding.
    pub samples: u64,
    /// Bytes of its slot.
    pub bytes: u64,
    /// Time that the trainer waited for the batch.
    pub wait: Duration,
    /// Time that it worked since it received the previous one.
    pub work: Duration,
    /// Part of the wait that copied the batch; zero if it was not copied.
    pub copy: Duration,
    /// True if the trainer also reports long waits.
    pub tells_waits: bool,
}

/// Sums over all threads that work for one rank.
#[derive(Debug)]
pub(crate) struct Meter {
    begun: Instant,
    pub(crate) storage: Arc<StorageMeter>,
    inflate_ns: AtomicU64,
    pass_ns: AtomicU64,
    read_wait_ns: AtomicU64,
    /// Start of the wait for a shard in progress, as time since `begun`; 0: none.
    reading_since_ns: AtomicU64,
    parse_ns: AtomicU64,
    write_ns: AtomicU64,
    compute_ns: AtomicU64,
    suspect_images: AtomicU64,
    sums: Lock<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    /// Sums of the planning thread and the trainer, without the activity in progress.
    spent: Spent,
    /// Activity of the planning thread, its start, and the time waited for shards before it.
    doing: Option<(Doing, Instant, u64)>,
    /// Start of the period in which batches may not be delivered because the lease is unconfirmed.
    unconfirmed: Option<Instant>,
    demand: Between,
    book: Book,
    setup: Setup,
    /// Bytes from storage devices at the last query, and its time.
    device: Option<(u64, Instant)>,
}

/// Activity of the trainer since it received its last batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Between {
    #[default]
    Unknown,
    /// It has not requested the next batch.
    Works,
    /// It has waited since the first time, according to its report at the second.
    Waits(Instant, Instant),
}

impl Default for Meter {
    fn default() -> Self {
        let begun = Instant::now();
        let setup = Setup {
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            ..Setup::default()
        };
        let device = device_bytes().map(|bytes| (bytes, begun));
        let sums = Sums { setup, device, ..Sums::default() };
        Self {
            begun,
            storage: Arc::default(),
            inflate_ns: AtomicU64::new(0),
            pass_ns: AtomicU64::new(0),
            read_wait_ns: AtomicU64::new(0),
            reading_since_ns: AtomicU64::new(0),
            parse_ns: AtomicU64::new(0),
            write_ns: AtomicU64::new(0),
            compute_ns: AtomicU64::new(0),
            suspect_images: AtomicU64::new(0),
            sums: Lock::new(sums),
        }
    }
}

impl Meter {
    /// Runs a part of the planning thread's work and counts its time.
    pub(crate) fn during<T>(&self, doing: Doing, work: impl FnOnce() -> T) -> T {
        let _span = trace::span(doing.name());
        let (begun, read_wait_ns) = (Instant::now(), self.read_wait_ns.load(Ordering::Relaxed));
        self.sums.lock().doing = Some((doing, begun, read_wait_ns));
        let done = work();
        let mut sums = self.sums.lock();
        let mut spent = sums.spent;
        self.count(&mut spent, (doing, begun, read_wait_ns));
        (sums.spent, sums.doing) = (spent, None);
        done
    }

    /// Adds the time of the planning thread's activity up to now.
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

    pub(crate) fn read_wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let _span = trace::span("wait for shard");
        let begun = Instant::now();
        self.reading_since_ns.store(nanos(begun - self.begun).max(1), Ordering::Relaxed);
        let done = wait();
        self.reading_since_ns.store(0, Ordering::Relaxed);
        add(&self.read_wait_ns, nanos(begun.elapsed()));
        done
    }

    /// Counts a reading thread's work to read, check and inflate a chunk.
    pub(crate) fn chunk<T>(&self, shard: u32, work: impl FnOnce() -> T) -> T {
        let _span = trace::span_of("chunk", [("shard", u64::from(shard)), trace::NONE]);
        let begun = trace::thread_ns();
        let done = work();
        add(&self.inflate_ns, trace::thread_ns().saturating_sub(begun));
        done
    }

    /// Counts a reading thread's way to the first record needed of a compressed shard.
    pub(crate) fn pass<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        add(&self.pass_ns, nanos(begun.elapsed()));
        done
    }

    pub(crate) fn set_up(&self, change: impl FnOnce(&mut Setup)) {
        change(&mut self.sums.lock().setup);
    }

    /// Records whether batches may be delivered: whether the coordinator has confirmed the lease.
    pub(crate) fn confirmed(&self, is_confirmed: bool) {
        let mut sums = self.sums.lock();
        match (is_confirmed, sums.unconfirmed) {
            (true, Some(since)) => {
                sums.spent.confirm_us += micros(since.elapsed());
                sums.unconfirmed = None;
            }
            (false, None) => sums.unconfirmed = Some(Instant::now()),
            _ => {}
        }
    }

    /// Records that the trainer has waited `waiting` for its next batch.
    pub(crate) fn waits(&self, waiting: Duration) {
        let now = Instant::now();
        let since = now.checked_sub(waiting).unwrap_or(self.begun);
        self.sums.lock().demand = Between::Waits(since, now);
    }

    /// Records that the trainer received a batch.
    pub(crate) fn took(&self, demand: &Demand) {
        let mut sums = self.sums.lock();
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

    pub(crate) fn account(&self) -> Account {
        let mut sums = self.sums.lock();
        let spent = self.spent(&mut sums);
        let waiting_us = match sums.demand {
            Between::Works => Some(0),
            Between::Waits(since, told) if told.elapsed() < TOLD_FOR => {
                Some(micros(since.elapsed()))
            }
            // A trainer that stopped reporting was stopped, or does something else.
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
        let remote = self.storage.remote();
        let mut spent = Spent {
            wall_us: micros(self.begun.elapsed()),
            stored_bytes: self.storage.bytes(),
            storage_us: self.storage.wait_us(),
            inflate_us: us(&self.inflate_ns),
            pass_us: us(&self.pass_ns),
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
        // Long activities are visible while they are in progress.
        if let Some(doing) = sums.doing {
            self.count(&mut spent, doing);
        }
        spent.confirm_us += sums.unconfirmed.map_or(0, |since| micros(since.elapsed()));
        spent
    }
}

impl Watch for Meter {
    fn begin(&self) -> Begun {
        Begun { cpu_ns: trace::thread_ns(), wall_ns: trace::now_ns() }
    }

    fn end(&self, stage: Stage, begun: Begun) {
        let cpu_ns = trace::thread_ns().saturating_sub(begun.cpu_ns);
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

/// Returns the bytes this process has read from storage devices; `None`: not reported.
fn device_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes:"))?;
    line.trim().parse().ok()
}
