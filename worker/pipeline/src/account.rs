//! Time breakdown of a rank's batches. Contains sums only: callers with clocks fill them in, and
//! [`finding`](crate::finding) interprets them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Number of intervals that the recent figures cover.
const STRETCHES: usize = 40;
/// Minimum length of an interval in microseconds; it contains at least one batch.
const STRETCH_US: u64 = 250_000;

/// A trainer that waits this long for one batch, in microseconds, is diagnosed by that wait.
const LONG_WAIT_US: u64 = 2_000_000;

/// Metric that shows a counter for each rank. All counters are in time breakdowns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterMetric {
    None,
    /// A metric of this part of the page, under this name without prefix and unit.
    Of(&'static str, &'static str),
    /// The time of the stage of this name.
    Stage(&'static str),
}

/// Unit of a counter, which is the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterUnit {
    Microseconds,
    Bytes,
    Number,
}

#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// Name of its field in [`Spent`], in messages and in JSON.
    pub name: &'static str,
    /// Description for docs/FIELDS.md and its metric.
    pub help: &'static str,
    pub metric: CounterMetric,
}

impl Counter {
    pub fn unit(&self) -> CounterUnit {
        match self.name {
            name if name.ends_with("_us") => CounterUnit::Microseconds,
            name if name.ends_with("_bytes") => CounterUnit::Bytes,
            _ => CounterUnit::Number,
        }
    }
}

/// Declares the counters, each with its metric and description.
macro_rules! counters {
    ($d:tt $($name:ident: $metric:expr, $help:literal;)+) => {
        /// Counters since reading began.
        ///
        /// Every sum only grows, so the difference of two values covers the time between them.
        /// Times are in microseconds; those of reading and computing threads are summed over all.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Spent {
            $(#[doc = $help] pub $name: u64,)+
        }

        impl Spent {
            pub const COUNTERS: &[Counter] =
                &[$(Counter { name: stringify!($name), help: $help, metric: $metric }),+];

            /// Returns the counters in the order of their declarations.
            pub fn values(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$name),+].into_iter()
            }

            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name)),+ }
            }
        }

        /// Calls a macro with the names of all counters.
        #[macro_export]
        macro_rules! with_counters {
            ($d then:ident) => { $d then! { $($name),+ } };
        }
    };
}

use CounterMetric::{None as Without, Of, Stage};

counters! { $
    wall_us: Without, "Time that passed";
    batches: Of("trainer", "batches"), "Batches that the trainer took";
    samples: Of("trainer", "samples"), "Samples of the batches that the trainer took, \
        including padding";
    batch_bytes: Of("trainer", "batch"), "Size of the slots of the batches that the trainer took";
    stored_bytes: Of("worker", "read"), "Read of shards, before inflating";
    device_bytes: Without, "Read by this process from storage devices, without the system's page \
        cache; 0 also where the system does not report it";
    fill_us: Stage("fill"), "Planning thread: filling two windows, until the first batch of an \
        epoch was collected; 0 without a window";
    read_wait_us: Stage("read_wait"), "Planning thread, after that: waiting for shards to be read";
    gather_us: Stage("gather"), "Planning thread: collecting records from windows";
    grant_us: Stage("grant"), "Planning thread: waiting for the coordinator to grant samples";
    room_us: Stage("room"), "Planning thread: waiting for memory for a batch, because enough were \
        prefetched";
    confirm_us: Stage("confirm"), "Finished batches withheld until the coordinator confirmed \
        their lease again";
    storage_us: Stage("storage"), "Reading threads: waiting for storage";
    inflate_us: Stage("inflate"), "Reading threads: computing (inflating, checking framing, copying)";
    pass_us: Stage("pass"), "Reading threads, elapsed: inflating compressed shards up to the first \
        record needed";
    parse_us: Stage("parse"), "Computing threads: checking and parsing records";
    write_us: Stage("write"), "Computing threads: running operators and writing batches";
    compute_us: Without, "Computing threads: elapsed time, including waiting for a core that other \
        threads used";
    wait_us: Of("trainer", "wait"), "Time that the trainer waited for batches";
    work_us: Of("trainer", "work"), "Time that the trainer worked, from a batch to the request for \
        the next";
    copied: Without, "Batches copied because the trainer holds many";
    copy_us: Without, "Part of the trainer's waiting that was spent on these copies";
    store_requests: Of("worker", "store_requests"), "Range requests to object stores and web servers";
    store_retries: Of("worker", "store_retries"), "Range requests that repeated a failed one";
    store_bytes: Of("worker", "store_read"), "Received from object stores and web servers";
    cached_bytes: Of("worker", "cache_read"), "Read of remote files from this host's cache";
    suspect_images: Of("worker", "suspect_images"), "Images that were decoded although \
        libjpeg-turbo warned about their data";
}

/// Reason for a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Initial value; no reason to change it was found yet.
    #[default]
    Start,
    /// Set by the user.
    Asked,
    /// The trainer was kept waiting with fewer.
    KeptWaiting,
    /// The trainer was not kept waiting, and fewer suffice: the trainer gets the other cores.
    LeftToTrainer,
    /// More do not fit into the memory budget, or on the cores.
    AtMost,
}

impl Reason {
    /// Description for users.
    pub fn words(self) -> &'static str {
        match self {
            Self::Start => "to begin with",
            Self::Asked => "as asked",
            Self::KeptWaiting => "the trainer was kept waiting with fewer",
            Self::LeftToTrainer => "fewer are enough, the other cores are the trainer's",
            Self::AtMost => "more do not fit",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasons {
    pub prefetch: Reason,
    pub reading: Reason,
    pub computing: Reason,
}

/// Configuration of reading, as far as it affects the time breakdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Cores that this process may use.
    pub cores: u64,
    /// Computing threads of all loaders of the process.
    pub computing_threads: u64,
    /// Threads that wait for storage.
    pub reading_threads: u64,
    /// Maximum prefetched batches.
    pub prefetch: u64,
    /// Requested number of prefetched batches, which may exceed the budget. 0: none was requested.
    pub prefetch_asked: u64,
    /// Bytes for records and prefetched batches.
    pub budget_bytes: u64,
    /// Records are read one by one, because two shuffle windows do not fit into the budget.
    pub by_place: bool,
    /// Budget with which two windows could be held.
    pub hold_bytes: u64,
    /// True if any shard is compressed.
    pub compressed: bool,
    /// True if shards are in an object store or on a web server.
    pub remote: bool,
    /// True if this host caches remote files.
    pub cached: bool,
    /// True if the trainer's process reads because a worker was lost or stopped serving it.
    pub took_over: bool,
    /// Reasons for the numbers of prefetched batches and threads.
    pub reasons: Reasons,
}

/// Time breakdown of a rank's batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Configuration of reading.
    pub setup: Setup,
    /// Epoch of the batch taken last.
    pub epoch: u64,
    /// True in the first epoch since reading began: shards may be read for the first time.
    pub is_first: bool,
    /// Time since the trainer took its last batch, or since reading began.
    pub idle_us: u64,
    /// Part of that spent waiting for the next batch; 0: none requested. `None`: not reported.
    pub waiting_us: Option<u64>,
    /// Age of these figures; a component that forwards them adds the time that it kept them.
    pub age_us: u64,
    /// Counters of the last seconds, or of the last batches if they take longer. For a trainer that
    /// waits long: since its last batch, so for no batch at all.
    pub recent: Spent,
    /// Counters of this epoch so far.
    pub in_epoch: Spent,
    /// Counters since reading began.
    pub since_start: Spent,
}

impl Account {
    /// Returns the breakdown with its age increased by `us` microseconds.
    pub fn aged(self, us: u64) -> Self {
        Self { age_us: self.age_us.saturating_add(us), ..self }
    }
}

/// Computes recent and per-epoch sums from sums that only grow.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Counters at the start of each interval, oldest first.
    stretches: VecDeque<Spent>,
    now: Spent,
    epoch: Option<u64>,
    epoch_began: Spent,
    epochs: u64,
}

impl Book {
    /// Records that the trainer took a batch of `epoch`, with the counters at that time.
    pub fn took(&mut self, epoch: u64, spent: Spent) {
        if self.epoch != Some(epoch) {
            self.epoch_began = self.now;
            self.epoch = Some(epoch);
            self.epochs += 1;
        }
        let last = self.stretches.back().map_or(0, |began| began.wall_us);
        if self.stretches.is_empty() || self.now.wall_us >= last.saturating_add(STRETCH_US) {
            self.stretches.push_back(self.now);
        }
        if self.stretches.len() > STRETCHES {
            self.stretches.pop_front();
        }
        self.now = spent;
    }

    /// Returns the breakdown as of the batch taken last.
    ///
    /// Before the first batch, and during a long wait of the trainer, it is as of `spent`.
    /// - `waiting_us`: how long the trainer has waited for its next batch, if it reports that.
    pub fn account(&self, setup: Setup, spent: Spent, waiting_us: Option<u64>) -> Account {
        let idle_us = spent.wall_us.saturating_sub(self.now.wall_us);
        let waited_us = waiting_us.unwrap_or(0).min(idle_us);
        let is_live = self.epoch.is_none() || waited_us >= LONG_WAIT_US;
        let now = match is_live {
            true => Spent { wait_us: spent.wait_us.saturating_add(waited_us), ..spent },
            false => self.now,
        };
        let began = match is_live {
            true => self.now,
            false => self.stretches.front().copied().unwrap_or_default(),
        };
        Account {
            setup,
            epoch: self.epoch.unwrap_or(0),
            is_first: self.epochs <= 1,
            idle_us,
            waiting_us: waiting_us.map(|_| waited_us),
            age_us: 0,
            recent: now.since(&began),
            in_epoch: now.since(&self.epoch_began),
            since_start: spent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall_us: u64, batches: u64) -> Spent {
        Spent { wall_us, batches, wait_us: wall_us / 2, ..Spent::default() }
    }

    fn told(book: &Book, spent: Spent) -> Account {
        book.account(Setup::default(), spent, Some(0))
    }

    #[test]
    fn recent_forgets_and_the_epoch_does_not() {
        let mut book = Book::default();
        for batch in 1..=10_000 {
            book.took(0, at(batch * 10_000, batch));
        }
        let account = told(&book, at(100_000_000, 10_000));
        assert_eq!(account.in_epoch, at(100_000_000, 10_000));
        // Ten seconds of batches that take 10 ms each.
        assert!((950..=1_050).contains(&account.recent.batches), "{:?}", account.recent);
        assert!(account.is_first);
        book.took(1, at(100_010_000, 10_001));
        let account = told(&book, at(100_010_000, 10_001));
        assert_eq!((account.epoch, account.is_first), (1, false));
        assert_eq!(account.in_epoch.batches, 1);
    }

    #[test]
    fn batches_that_take_long_are_not_too_few() {
        let mut book = Book::default();
        for batch in 1..=100 {
            book.took(0, at(batch * 3_000_000, batch));
        }
        let account = told(&book, at(300_000_000, 100));
        assert_eq!(account.recent.batches, STRETCHES as u64);
    }

    #[test]
    fn before_the_first_batch_it_says_what_was_spent_so_far() {
        let spent = Spent { wall_us: 5, fill_us: 4, ..Spent::default() };
        let account = Book::default().account(Setup::default(), spent, None);
        assert_eq!((account.recent, account.idle_us, account.waiting_us), (spent, 5, None));
    }

    #[test]
    fn a_long_wait_is_told_instead_of_the_batches_before_it() {
        let mut book = Book::default();
        book.took(0, at(10_000_000, 100));
        let spent = Spent { wall_us: 105_000_000, read_wait_us: 94_000_000, ..at(10_000_000, 100) };
        let account = book.account(Setup::default(), spent, Some(94_000_000));
        assert_eq!((account.idle_us, account.waiting_us), (95_000_000, Some(94_000_000)));
        let Spent { batches, wall_us, wait_us, read_wait_us, .. } = account.recent;
        assert_eq!(
            (batches, wall_us, wait_us, read_wait_us),
            (0, 95_000_000, 94_000_000, 94_000_000)
        );
        assert_eq!(account.in_epoch.batches, 100);
        // A trainer that has not requested a batch is diagnosed by its last batches, of any age.
        let account = told(&book, spent);
        assert_eq!((account.idle_us, account.recent.batches), (95_000_000, 100));
        assert_eq!(account.aged(5).aged(6).age_us, 11);
    }
}
