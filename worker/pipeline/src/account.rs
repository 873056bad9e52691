//! Where the time of a rank's batches went. Sums only: whoever has clocks fills them in, and
//! [`finding`](crate::finding) says what they mean.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::tune::Reasons;

/// Recent is what the last so many stretches saw,
const STRETCHES: usize = 40;
/// each of a batch, or of so long if there are more batches than that.
const STRETCH_US: u64 = 250_000;

/// A trainer that waits for one batch for so long says more by that than by its last batches.
const LONG_WAIT_US: u64 = 2_000_000;

/// What was spent since reading began. Every sum only grows, so the difference of two says what was
/// spent between them. Times are in microseconds; those of reading and computing threads are summed
/// over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Time that passed.
    pub wall_us: u64,
    /// Batches that the trainer took.
    pub batches: u64,
    /// Their samples, padding counted.
    pub samples: u64,
    /// Bytes of their slots.
    pub batch_bytes: u64,
    /// Bytes of shards that were read, before inflating.
    pub stored_bytes: u64,
    /// Bytes that this process fetched from storage devices; what came from the system's memory is not
    /// among them. 0 also where the system does not say.
    pub device_bytes: u64,

    /// The planning thread, until the first batch of an epoch was gathered: two windows are filled. 0
    /// without a window.
    pub fill_us: u64,
    /// Then: it waited for shards to be read.
    pub read_wait_us: u64,
    /// It gathered records from windows.
    pub gather_us: u64,
    /// It waited for a coordinator to grant samples.
    pub grant_us: u64,
    /// It waited for room for a batch: enough were ahead.
    pub room_us: u64,
    /// Batches that were made were kept until the coordinator confirmed their lease again.
    pub confirm_us: u64,

    /// Reading threads waited for storage.
    pub storage_us: u64,
    /// Reading threads computed: inflated, checked framing, copied.
    pub inflate_us: u64,

    /// Computing threads checked and parsed records.
    pub parse_us: u64,
    /// Computing threads ran operators and wrote batches.
    pub write_us: u64,
    /// Both by the clock: also what they waited for a core that others had.
    pub compute_us: u64,

    /// The trainer waited for its next batch.
    pub wait_us: u64,
    /// The trainer worked, from one batch to when it asked for the next.
    pub work_us: u64,
    /// Batches that were copied because the trainer holds many, and what that took of its waiting.
    pub copied: u64,
    /// See `copied`.
    pub copy_us: u64,

    /// Requests for ranges that were made to an object store or a web server.
    pub store_requests: u64,
    /// Of these, those that were made again after one failed.
    pub store_retries: u64,
    /// Bytes that came from there.
    pub store_bytes: u64,
    /// Bytes that this host had kept of it.
    pub cached_bytes: u64,

    /// Images that were decoded although libjpeg-turbo warned of their data.
    pub suspect_images: u64,
}

impl Spent {
    /// What was spent since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let (mut left, before) = (*self, *before);
        for (sum, before) in left.sums().into_iter().zip({ before }.sums()) {
            *sum = sum.saturating_sub(*before);
        }
        left
    }

    fn sums(&mut self) -> [&mut u64; 26] {
        let Self {
            wall_us,
            batches,
            samples,
            batch_bytes,
            stored_bytes,
            device_bytes,
            fill_us,
            read_wait_us,
            gather_us,
            grant_us,
            room_us,
            confirm_us,
            storage_us,
            inflate_us,
            parse_us,
            write_us,
            compute_us,
            wait_us,
            work_us,
            copied,
            copy_us,
            store_requests,
            store_retries,
            store_bytes,
            cached_bytes,
            suspect_images,
        } = self;
        [
            wall_us,
            batches,
            samples,
            batch_bytes,
            stored_bytes,
            device_bytes,
            fill_us,
            read_wait_us,
            gather_us,
            grant_us,
            room_us,
            confirm_us,
            storage_us,
            inflate_us,
            parse_us,
            write_us,
            compute_us,
            wait_us,
            work_us,
            copied,
            copy_us,
            store_requests,
            store_retries,
            store_bytes,
            cached_bytes,
            suspect_images,
        ]
    }
}

/// What reading chose, as far as it matters to where time goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Cores that this process may use.
    pub cores: u64,
    /// Computing threads, of all loaders of the process.
    pub computing_threads: u64,
    /// Reading threads.
    pub reading_threads: u64,
    /// Batches ahead at most.
    pub prefetch: u64,
    /// As many as were asked for; fewer if the memory budget does not hold them. 0: nobody asked.
    pub prefetch_asked: u64,
    /// Bytes for records and batches ahead.
    pub budget_bytes: u64,
    /// Records are read one by one, because two shuffle windows do not fit into the budget.
    pub by_place: bool,
    /// The budget with which two windows would be held.
    pub hold_bytes: u64,
    /// Whether any shard is compressed.
    pub compressed: bool,
    /// Shards are in an object store or on a web server.
    pub remote: bool,
    /// And this host keeps what comes from there.
    pub cached: bool,
    /// The trainer's process reads, because a worker was lost or stopped serving it.
    pub took_over: bool,
    /// Why there are as many batches ahead and threads.
    pub reasons: Reasons,
}

/// Where the time of a rank's batches went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// What reading chose.
    pub setup: Setup,
    /// The epoch of the batch that was taken last.
    pub epoch: u64,
    /// Whether it is the first that was read since reading began: shards may be read for the first time.
    pub is_first: bool,
    /// Time since the trainer took its last batch, or since reading began.
    pub idle_us: u64,
    /// Of that, how long it has waited for the next one; 0: it has not asked. `None`: it does not tell.
    pub waiting_us: Option<u64>,
    /// Time since all of this was so. Whoever passes it on adds the time that it lay there.
    pub age_us: u64,
    /// Spent over the last seconds, or the last batches if they take longer. Of a trainer that waits
    /// for long: since its last batch, so of no batch at all.
    pub recent: Spent,
    /// Spent on this epoch so far.
    pub in_epoch: Spent,
    /// Spent since reading began.
    pub since_start: Spent,
}

impl Account {
    /// The same account, after it lay somewhere for so long.
    pub fn aged(self, us: u64) -> Self {
        Self { age_us: self.age_us.saturating_add(us), ..self }
    }
}

/// Sums over the recent past and over the epoch, from sums that only grow.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// What was spent when each stretch began, oldest first.
    stretches: VecDeque<Spent>,
    now: Spent,
    epoch: Option<u64>,
    epoch_began: Spent,
    epochs: u64,
}

impl Book {
    /// The trainer took a batch of `epoch`, and so much was spent until then.
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

    /// What was spent, as of the batch that was taken last; before the first one, and while the trainer
    /// waits for long, as of `spent`.
    /// - `waiting_us`: how long the trainer has waited for its next batch, if it tells.
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
        // One that has not asked yet is told by its batches, however long ago they were.
        let account = told(&book, spent);
        assert_eq!((account.idle_us, account.recent.batches), (95_000_000, 100));
        assert_eq!(account.aged(5).aged(6).age_us, 11);
    }
}
