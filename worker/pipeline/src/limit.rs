//! Finds a run's bottleneck from its time breakdown. Source: docs/PERFORMANCE.md, Where time goes.

use serde::Serialize;

use crate::account::{Account, Reason, Setup, Spent};

/// A trainer that waits no more than this fraction of its time, in percent, is not limited by
/// reading.
const WAIT_PERCENT: u64 = 10;

/// Copying limits a run from this fraction of a batch's time in the trainer's process, in percent.
const COPY_PERCENT: u64 = 30;

/// Threads that are busy for this fraction of the time, in percent, are saturated.
const BUSY_PERCENT: u64 = 80;

/// Fraction of the bytes read, in percent, beyond which bytes from devices and stores are called
/// cold: this host had them neither in memory nor in its cache.
const COLD_PERCENT: u64 = 20;

/// Time without any bytes read after which the amount to read is not the cause, in microseconds.
const NOTHING_READ_US: u64 = 2_000_000;

/// A trainer that requests no batch for this time in microseconds, and for `IDLE_TIMES` times its
/// usual time per batch, is the bottleneck.
const IDLE_US: u64 = 10_000_000;
/// See `IDLE_US`.
const IDLE_TIMES: u64 = 3;

/// Figures older than this, in microseconds, are reported with their age.
const OLD_US: u64 = 5_000_000;

/// Bottleneck of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// No batch was taken yet, and no wait was measured.
    Unknown,
    /// The trainer: batches wait for it.
    Trainer,
    /// Storage that shards are read from.
    Storage,
    /// Processors that inflate shards.
    Inflating,
    /// Processors that check and parse records, run operators and write batches.
    Decoding,
    /// The thread that collects records: there are many small ones.
    Gathering,
    /// The shuffle windows, which are refilled at the beginning of each epoch.
    WindowFill,
    /// The memory budget: it holds too few batches, or no windows.
    MemoryBudget,
    /// Too few batches are made concurrently.
    Prefetch,
    /// The trainer holds so many batches that more of them have to be copied.
    HeldBatches,
    /// The coordinator, which grants samples.
    Coordinator,
}

impl Limit {
    /// All variants.
    pub const ALL: [Self; 11] = [
        Self::Unknown,
        Self::Trainer,
        Self::Storage,
        Self::Inflating,
        Self::Decoding,
        Self::Gathering,
        Self::WindowFill,
        Self::MemoryBudget,
        Self::Prefetch,
        Self::HeldBatches,
        Self::Coordinator,
    ];

    /// Short name, in one word. Each begins with a different letter.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Trainer => "trainer",
            Self::Storage => "storage",
            Self::Inflating => "inflate",
            Self::Decoding => "decode",
            Self::Gathering => "gather",
            Self::WindowFill => "window",
            Self::MemoryBudget => "memory",
            Self::Prefetch => "ahead",
            Self::HeldBatches => "held",
            Self::Coordinator => "coordinator",
        }
    }

    /// First letter of its [word](Self::word), unique among all variants.
    pub fn letter(self) -> char {
        self.word().chars().next().unwrap_or('?')
    }

    /// Name for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "nothing yet",
            Self::Trainer => "the trainer",
            Self::Storage => "storage",
            Self::Inflating => "inflating",
            Self::Decoding => "decoding",
            Self::Gathering => "gathering records",
            Self::WindowFill => "filling the shuffle window",
            Self::MemoryBudget => "the memory budget",
            Self::Prefetch => "the batches ahead",
            Self::HeldBatches => "batches that the trainer holds",
            Self::Coordinator => "the coordinator",
        }
    }
}

/// Diagnosis of a run: its bottleneck, the reasons and a recommendation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The bottleneck.
    pub limit: Limit,
    /// Fraction of the trainer's time spent waiting, in percent.
    pub wait_percent: u64,
    /// True if shards are read for the first time, from storage devices or a store.
    pub is_cold: bool,
    /// Age of the figures.
    pub age_us: u64,
    /// The reasons, with figures.
    pub because: String,
    /// The recommended change.
    pub change: String,
}

impl Finding {
    /// Formats the diagnosis as one sentence.
    pub fn sentence(&self) -> String {
        let Self { limit, because, change, .. } = self;
        let verb = if *limit == Limit::HeldBatches || *limit == Limit::Prefetch {
            "limit"
        } else {
            "limits"
        };
        let sentence = match limit {
            Limit::Unknown => {
                format!("nothing is known to limit this rank yet: {because}; {change}")
            }
            limit => format!("{} {verb} this rank: {because}; {change}", limit.name()),
        };
        match self.age_us {
            0..OLD_US => sentence,
            age_us => format!("{sentence} (that was {} ago)", time(age_us)),
        }
    }
}

/// Diagnoses a rank. The planning thread does one thing at a time, and all other work comes either
/// before or after it, so the activity that takes its time while the trainer waits is the
/// bottleneck.
pub fn finding(account: &Account) -> Finding {
    let spent = recent(account);
    let waited_us = match spent.batches {
        0 => spent.wait_us.max(account.waiting_us.unwrap_or(0)),
        _ => spent.wait_us,
    };
    let wait_percent = percent(waited_us, waited_us.saturating_add(spent.work_us));
    let fetched_bytes = spent.device_bytes.saturating_add(spent.store_bytes);
    let is_cold = account.is_first && percent(fetched_bytes, spent.stored_bytes) > COLD_PERCENT;
    let limit = limit(account, spent, wait_percent);
    let mut because = because(account, spent, limit, wait_percent);
    let Setup { by_place, budget_bytes, hold_bytes, .. } = account.setup;
    if by_place && limit != Limit::MemoryBudget {
        because += &format!(
            "; records are read one by one, because two shuffle windows do not fit into {}, but into {}",
            size(budget_bytes),
            size(hold_bytes)
        );
    }
    if account.setup.took_over {
        because += "; the trainer's own process reads, because its worker was lost or stopped serving it, as the \
                    log says";
    }
    let mut change = change(account, spent, limit);
    let reads = matches!(limit, Limit::Storage | Limit::WindowFill | Limit::MemoryBudget);
    if is_cold && reads {
        change += cold(account);
    }
    Finding { limit, wait_percent, is_cold, age_us: account.age_us, because, change }
}

/// Describes later reads of files that are read for the first time.
fn cold(account: &Account) -> &'static str {
    match (account.setup.remote, account.setup.cached) {
        (false, _) => {
            "; this is the first epoch and the files come from the storage itself: later ones are \
             faster if they stay in the system's memory"
        }
        (true, true) => {
            "; this is the first epoch and the files come from the store itself: later ones are faster \
             as far as this host keeps them"
        }
        (true, false) => {
            "; this is the first epoch and the files come from the store, as they will in each: \
             cache_bytes= keeps them on this host"
        }
    }
}

/// Windows are filled once per epoch, so only the whole epoch shows whether that matters.
fn recent(account: &Account) -> &Spent {
    let whole = &account.in_epoch;
    let is_fill = percent(whole.fill_us, whole.wall_us) >= 50 && whole.wait_us >= whole.fill_us / 2;
    match is_fill && account.recent.batches > 0 {
        true => whole,
        false => &account.recent,
    }
}

fn limit(account: &Account, spent: &Spent, wait_percent: u64) -> Limit {
    let setup = &account.setup;
    if has_not_asked(account) {
        return Limit::Trainer;
    }
    if spent.batches == 0 {
        return missing(account, spent);
    }
    if percent(spent.copy_us, spent.wait_us + spent.work_us) >= COPY_PERCENT {
        return Limit::HeldBatches;
    }
    if wait_percent < WAIT_PERCENT {
        return Limit::Trainer;
    }
    if spent.confirm_us > spent.wait_us / 2 {
        return Limit::Coordinator;
    }
    let Spent { fill_us, read_wait_us, gather_us, grant_us, room_us, .. } = *spent;
    let most = [fill_us, read_wait_us, gather_us, grant_us, room_us].into_iter().max();
    let most = most.unwrap_or(0);
    if grant_us == most && most > 0 {
        return Limit::Coordinator;
    }
    if fill_us == most && most > 0 {
        return Limit::WindowFill;
    }
    if read_wait_us == most && most > 0 {
        return if spent.inflate_us > spent.storage_us { Limit::Inflating } else { Limit::Storage };
    }
    if setup.by_place && (gather_us == most || spent.storage_us > spent.parse_us + spent.write_us) {
        return Limit::MemoryBudget;
    }
    if gather_us == most && most > 0 {
        return Limit::Gathering;
    }
    // No further batch fitted although the trainer waited, so the prefetched ones were being made.
    // Wall-clock time counts: on a core shared with other processes, a batch takes longer.
    let computed = (spent.parse_us + spent.write_us).max(spent.compute_us);
    let threads = setup.computing_threads.max(1);
    let busy = percent(computed, spent.wall_us.saturating_mul(threads));
    match busy >= 100 / (threads + 1) || computed > spent.wall_us / 2 {
        true => Limit::Decoding,
        false if setup.prefetch < setup.prefetch_asked => Limit::MemoryBudget,
        false => Limit::Prefetch,
    }
}

/// Returns the reason why the awaited batch is missing; no other batch was taken in the meantime.
fn missing(account: &Account, spent: &Spent) -> Limit {
    let Spent { fill_us, read_wait_us, gather_us, grant_us, room_us, confirm_us, .. } = *spent;
    let granting_us = grant_us.max(confirm_us);
    let most = [fill_us, read_wait_us, gather_us, room_us].into_iter().max().unwrap_or(0);
    let reads_nothing = spent.stored_bytes == 0 && most >= NOTHING_READ_US;
    match () {
        () if granting_us > most || confirm_us > spent.wall_us / 2 => Limit::Coordinator,
        () if most == 0 => Limit::Unknown,
        () if fill_us == most && reads_nothing => Limit::Storage,
        () if fill_us == most => Limit::WindowFill,
        () if read_wait_us == most && spent.inflate_us > spent.storage_us => Limit::Inflating,
        () if read_wait_us == most => Limit::Storage,
        () if gather_us == most => Limit::Gathering,
        // No further batch fits: the awaited one is being made.
        () if account.setup.by_place && reads_nothing => Limit::Storage,
        () if account.setup.by_place => Limit::MemoryBudget,
        () if account.waiting_us.is_some_and(|us| us > 0) => Limit::Decoding,
        () => Limit::Unknown,
    }
}

/// True if the trainer reports its waits, and has been busy with other work for much longer than
/// usual.
fn has_not_asked(account: &Account) -> bool {
    let Account { recent, idle_us, waiting_us, .. } = account;
    let usual_us = recent.wall_us.checked_div(recent.batches).unwrap_or(0);
    *waiting_us == Some(0) && *idle_us >= IDLE_US.max(usual_us.saturating_mul(IDLE_TIMES))
}

/// Describes how long the trainer waited.
fn waits(account: &Account, spent: &Spent, wait_percent: u64) -> String {
    if spent.batches > 0 {
        let whole = time(spent.wait_us + spent.work_us);
        return format!("of the last {whole} the trainer waited {wait_percent} %");
    }
    match account.waiting_us {
        Some(us) if us > 0 => format!("the trainer has waited {} for its next batch", time(us)),
        _ => format!("no batch was taken in {}", time(spent.wall_us)),
    }
}

fn because(account: &Account, spent: &Spent, limit: Limit, wait_percent: u64) -> String {
    let Account { setup, .. } = account;
    let batches = spent.batches.max(1);
    let waits = waits(account, spent, wait_percent);
    let of_wall = |us| percent(us, spent.wall_us);
    match limit {
        Limit::Unknown => waits,
        Limit::Trainer if has_not_asked(account) => format!(
            "it took its last batch {} ago and has not asked for the next",
            time(account.idle_us)
        ),
        Limit::Trainer => format!(
            "it works {} on a batch and waits {} ({wait_percent} %) for the next, which is made in {}",
            time(spent.work_us / batches),
            time(spent.wait_us / batches),
            time(made_us(account, spent))
        ),
        Limit::Storage if spent.batches == 0 => {
            format!("{waits}, and {} of shards came in that time", size(spent.stored_bytes))
        }
        Limit::Storage => format!(
            "{waits}, and planning waited {} % of it for shards at {}/s, {} of waiting for storage by {} \
             threads",
            of_wall(spent.read_wait_us),
            size(per_second(spent.stored_bytes, spent.wall_us)),
            time(spent.storage_us),
            setup.reading_threads
        ),
        Limit::Inflating => format!(
            "{waits}, and planning waited {} % of it for shards that {} reading threads inflate, check and \
             copy, which took {} of processor time",
            of_wall(spent.read_wait_us),
            setup.reading_threads,
            time(spent.inflate_us)
        ),
        Limit::Decoding if spent.batches == 0 => format!(
            "{waits}, which {} computing threads parse, run operators on and write",
            setup.computing_threads
        ),
        Limit::Decoding => format!(
            "{waits}, while {} computing threads parsed for {} and ran operators and wrote for {}, {} for \
             each batch",
            setup.computing_threads,
            time(spent.parse_us),
            time(spent.write_us),
            time((spent.parse_us + spent.write_us) / batches)
        ),
        Limit::Gathering => format!(
            "{waits}, and one thread gathered records for {} % of it, {} ns each",
            of_wall(spent.gather_us),
            (spent.gather_us * 1000).checked_div(spent.samples).unwrap_or(0)
        ),
        Limit::WindowFill => format!(
            "{} of {} passed until two windows were read and an epoch's first batch was made",
            time(spent.fill_us),
            time(spent.wall_us)
        ),
        Limit::MemoryBudget if setup.by_place => format!(
            "{waits}; two shuffle windows do not fit into {}, so records are read one by one, for {}",
            size(setup.budget_bytes),
            time(spent.storage_us)
        ),
        Limit::MemoryBudget => format!(
            "{waits}; {} holds {} of {} batches ahead",
            size(setup.budget_bytes),
            setup.prefetch,
            setup.prefetch_asked
        ),
        Limit::Prefetch => {
            format!("{waits}, while {} batches at a time were made", setup.prefetch)
        }
        Limit::HeldBatches => format!(
            "it held on to so many that {} of {batches} were copied, which took {}",
            spent.copied,
            time(spent.copy_us)
        ),
        Limit::Coordinator if spent.confirm_us > spent.grant_us => format!(
            "{waits}, and ready batches may not be taken until the lease is confirmed, which it \
             was not for {}",
            time(spent.confirm_us)
        ),
        Limit::Coordinator => format!(
            "{waits}, and planning waited {} % of it to be granted samples",
            of_wall(spent.grant_us)
        ),
    }
}

fn change(account: &Account, spent: &Spent, limit: Limit) -> String {
    let Account { setup, .. } = account;
    let spare = setup.cores.saturating_sub(setup.computing_threads);
    let text = match limit {
        Limit::Unknown => "ask again once batches flow",
        Limit::Trainer => "make the training step faster; nothing in reading would help",
        Limit::Storage if spent.batches == 0 && spent.stored_bytes == 0 => {
            "see whether the storage answers; requests that a store refuses or leaves open are \
             tried again for SHARDFEED_STORE_RETRY_SECONDS"
        }
        Limit::Storage => {
            let busy = percent(spent.storage_us, spent.wall_us * setup.reading_threads.max(1));
            if busy >= BUSY_PERCENT {
                "all reading threads wait: use faster storage, or a copy of the files nearer by"
            } else {
                "use faster storage or a copy nearer by, or read more shards at once: a larger interleave=, \
                 and a memory_budget= that is larger, too, as open shards share it"
            }
        }
        Limit::Inflating if !setup.compressed => {
            "give the worker more cores, or write the shards as more and smaller ones (one thread checks and \
             copies a shard)"
        }
        Limit::Inflating => {
            "give the worker more cores, or write the shards without compression or as more and smaller \
             ones (a compressed shard is inflated by one thread)"
        }
        Limit::Decoding if spare > 0 => {
            return format!(
                "give it more than {} computing threads (--threads)",
                setup.computing_threads
            );
        }
        Limit::Decoding if spent.write_us > spent.parse_us => {
            "give the worker more cores, or do less in operators"
        }
        Limit::Decoding => "give the worker more cores, or ask for fewer features",
        Limit::Gathering => {
            "put more into a record, or use block_length= to take neighbours together"
        }
        Limit::WindowFill if spent.batches == 0 => "it takes as long as two windows take to read",
        Limit::WindowFill => "use a smaller shuffle_window=, or faster storage",
        Limit::MemoryBudget if setup.by_place => {
            return format!(
                "raise memory_budget= to {} or more, or use a smaller shuffle_window=",
                size(setup.hold_bytes.saturating_add(SIZE_STEP_BYTES))
            );
        }
        Limit::MemoryBudget => {
            "raise memory_budget=, or use a smaller shuffle_window= or batch_size="
        }
        Limit::Prefetch => return more_ahead(setup),
        Limit::HeldBatches => {
            "keep fewer batches, or raise prefetch=, which raises the number that may be held"
        }
        Limit::Coordinator => {
            "see `shardfeed cluster status`; mode=\"deterministic\" needs no coordinator for \
             samples"
        }
    };
    text.into()
}

/// Maximum automatically chosen number of prefetched batches.
pub const PREFETCH_CHOSEN_MAX: u64 = 16;

/// Recommends how to prefetch more batches. If the number was chosen automatically, any number that
/// is not larger than it would mean fewer.
fn more_ahead(setup: &Setup) -> String {
    let now = setup.prefetch;
    match setup.reasons.prefetch {
        Reason::Asked if now >= PREFETCH_CHOSEN_MAX => format!("raise prefetch= above {now}"),
        Reason::Asked => format!("raise prefetch= above {now}, or leave it out"),
        Reason::AtMost => format!(
            "set prefetch= to {} or more, with a larger memory_budget= if it does not hold them, or use a larger \
             batch_size=",
            2 * now.max(1)
        ),
        _ => format!("ask again in a minute: more batches ahead than {now} are tried as it runs"),
    }
}

/// Time per batch in the slowest stage of reading, independent of the trainer's speed.
fn made_us(account: &Account, spent: &Spent) -> u64 {
    let threads = account.setup.computing_threads.max(1);
    let planned = spent.fill_us + spent.read_wait_us + spent.gather_us + spent.grant_us;
    planned.max((spent.parse_us + spent.write_us) / threads) / spent.batches.max(1)
}

fn percent(part: u64, whole: u64) -> u64 {
    (part.saturating_mul(100)).checked_div(whole).unwrap_or(0)
}

fn per_second(count: u64, us: u64) -> u64 {
    count.saturating_mul(1_000_000).checked_div(us).unwrap_or(0)
}

/// Formats a time for users.
fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{}.{} ms", us / 1_000, us / 100 % 10),
        _ => format!("{}.{} s", us / 1_000_000, us / 100_000 % 10),
    }
}

/// Added to a recommended size, because formatting truncates it.
const SIZE_STEP_BYTES: u64 = 1_000_000;

/// Formats a size for users.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{} kB", bytes / 1_000),
        1_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::account::Reasons;

    const SECOND: u64 = 1_000_000;

    fn setup() -> Setup {
        Setup {
            cores: 4,
            computing_threads: 4,
            reading_threads: 8,
            prefetch: 4,
            prefetch_asked: 4,
            budget_bytes: 1 << 30,
            ..Setup::default()
        }
    }

    /// Ten seconds, of which the trainer waited the given percentage.
    fn waiting(percent: u64) -> Spent {
        Spent {
            wall_us: 10 * SECOND,
            batches: 100,
            samples: 3_200,
            stored_bytes: 1 << 30,
            wait_us: percent * SECOND / 10,
            work_us: (100 - percent) * SECOND / 10,
            ..Spent::default()
        }
    }

    fn found(setup: Setup, spent: Spent) -> Finding {
        let later = Spent { wall_us: 100 * SECOND, ..spent };
        finding(&Account { setup, epoch: 1, recent: spent, in_epoch: later, ..Account::default() })
    }

    #[test]
    fn each_limit_has_a_letter_of_its_own() {
        for (place, limit) in Limit::ALL.into_iter().enumerate() {
            // A new variant must be added to `ALL` at its index in this list.
            let listed = match limit {
                Limit::Unknown => 0,
                Limit::Trainer => 1,
                Limit::Storage => 2,
                Limit::Inflating => 3,
                Limit::Decoding => 4,
                Limit::Gathering => 5,
                Limit::WindowFill => 6,
                Limit::MemoryBudget => 7,
                Limit::Prefetch => 8,
                Limit::HeldBatches => 9,
                Limit::Coordinator => 10,
            };
            assert_eq!(listed, place);
        }
        let letters: std::collections::BTreeSet<_> =
            Limit::ALL.iter().map(|limit| limit.letter()).collect();
        assert_eq!(letters.len(), Limit::ALL.len(), "{letters:?}");
    }

    #[test]
    fn a_trainer_that_does_not_wait_is_the_limit() {
        let spent = Spent { room_us: 9 * SECOND, read_wait_us: SECOND, ..waiting(2) };
        let found = found(setup(), spent);
        assert_eq!((found.limit, found.wait_percent), (Limit::Trainer, 2));
        assert_eq!(
            found.sentence(),
            "the trainer limits this rank: it works 98.0 ms on a batch and waits 2.0 ms (2 %) for the next, \
             which is made in 10.0 ms; make the training step faster; nothing in reading would help"
        );
    }

    #[test]
    fn the_stage_that_planning_spends_its_time_on_is_the_limit() {
        let base = waiting(70);
        let ms = 1_000;
        for (spent, limit) in [
            (Spent { read_wait_us: 8 * SECOND, storage_us: 40 * SECOND, ..base }, Limit::Storage),
            (
                Spent {
                    read_wait_us: 8 * SECOND,
                    inflate_us: 9 * SECOND,
                    storage_us: 5 * ms,
                    ..base
                },
                Limit::Inflating,
            ),
            (Spent { gather_us: 9 * SECOND, ..base }, Limit::Gathering),
            (Spent { grant_us: 6 * SECOND, gather_us: SECOND, ..base }, Limit::Coordinator),
            (Spent { fill_us: 6 * SECOND, gather_us: SECOND, ..base }, Limit::WindowFill),
            (
                Spent { room_us: 9 * SECOND, parse_us: 30 * SECOND, write_us: SECOND, ..base },
                Limit::Decoding,
            ),
            (Spent { room_us: 9 * SECOND, parse_us: 90 * ms, ..base }, Limit::Prefetch),
            (Spent { copied: 90, copy_us: 5 * SECOND, ..base }, Limit::HeldBatches),
        ] {
            assert_eq!(found(setup(), spent).limit, limit, "{spent:?}");
        }
        // Uncompressed shards get no advice to omit compression.
        let spent = Spent { read_wait_us: 8 * SECOND, inflate_us: 9 * SECOND, ..base };
        let advised = |compressed| found(Setup { compressed, ..setup() }, spent).change;
        assert!(advised(true).contains("without compression"));
        assert!(!advised(false).contains("compression"));
    }

    #[test]
    fn a_number_of_batches_ahead_that_was_chosen_is_never_advised_to_be_lowered() {
        let spent = Spent { room_us: 9 * SECOND, parse_us: 90_000, ..waiting(70) };
        let advised = |prefetch, reason| {
            let reasons = Reasons { prefetch: reason, ..Reasons::default() };
            let found = found(Setup { prefetch, prefetch_asked: 0, reasons, ..setup() }, spent);
            assert_eq!(found.limit, Limit::Prefetch);
            found.change
        };
        assert_eq!(advised(2, Reason::Asked), "raise prefetch= above 2, or leave it out");
        assert_eq!(advised(16, Reason::Asked), "raise prefetch= above 16");
        assert_eq!(
            advised(16, Reason::AtMost),
            "set prefetch= to 32 or more, with a larger memory_budget= if it does not hold them, or use a larger \
             batch_size="
        );
        assert_eq!(
            advised(7, Reason::KeptWaiting),
            "ask again in a minute: more batches ahead than 7 are tried as it runs"
        );
        // The time goes to threads that wait for shared cores, not to too few batches.
        let busy = Spent { compute_us: 38 * SECOND, ..spent };
        assert_eq!(found(setup(), busy).limit, Limit::Decoding);
    }

    #[test]
    fn a_budget_that_is_too_small_is_named() {
        let base = Spent { room_us: 9 * SECOND, ..waiting(70) };
        let by_place = Setup { by_place: true, ..setup() };
        let spent = Spent { storage_us: 20 * SECOND, parse_us: SECOND, ..base };
        let by_place = Setup { hold_bytes: 3 << 30, ..by_place };
        let short = found(by_place, spent);
        assert_eq!(short.limit, Limit::MemoryBudget);
        assert_eq!(
            short.change,
            "raise memory_budget= to 3222 MB or more, or use a smaller shuffle_window="
        );
        // The budget is mentioned also if something else is the bottleneck.
        let other = found(by_place, waiting(2));
        assert_eq!(other.limit, Limit::Trainer);
        assert!(other.because.ends_with("do not fit into 1073 MB, but into 3221 MB"), "{other:?}");
        let few = Setup { prefetch: 1, ..setup() };
        assert_eq!(found(few, base).limit, Limit::MemoryBudget);
    }

    #[test]
    fn a_first_epoch_from_the_device_is_told_from_a_warm_one() {
        let recent = Spent {
            read_wait_us: 8 * SECOND,
            storage_us: 40 * SECOND,
            device_bytes: 1 << 30,
            ..waiting(70)
        };
        let account = Account {
            setup: setup(),
            is_first: true,
            recent,
            in_epoch: recent,
            ..Account::default()
        };
        let cold = finding(&account);
        assert!(cold.is_cold && cold.sentence().contains("the first epoch"), "{cold:?}");
        let warm = finding(&Account { recent: Spent { device_bytes: 0, ..recent }, ..account });
        assert!(!warm.is_cold && !warm.sentence().contains("first epoch"), "{warm:?}");
        // Storage that is slow in every epoch is not reported as cold.
        assert!(!finding(&Account { is_first: false, ..account }).is_cold);
    }

    #[test]
    fn a_first_epoch_from_a_store_is_cold_and_one_from_the_cache_is_not() {
        let recent = Spent {
            read_wait_us: 8 * SECOND,
            storage_us: 40 * SECOND,
            store_bytes: 1 << 30,
            ..waiting(70)
        };
        let remote = Setup { remote: true, cached: true, ..setup() };
        let (setup, is_first) = (remote, true);
        let account = Account { setup, is_first, recent, in_epoch: recent, ..Account::default() };
        let cold = finding(&account);
        assert!(
            cold.is_cold && cold.sentence().contains("as far as this host keeps them"),
            "{cold:?}"
        );
        let setup = Setup { cached: false, ..remote };
        assert!(
            finding(&Account { setup, ..account }).sentence().contains("cache_bytes= keeps them")
        );
        let kept = Spent { store_bytes: 0, cached_bytes: 1 << 30, ..recent };
        assert!(!finding(&Account { recent: kept, ..account }).is_cold);
    }

    /// No batch for 95 s, of which the trainer has waited 94 s for one.
    fn stuck(spent: Spent) -> Account {
        let recent = Spent { wall_us: 95 * SECOND, wait_us: 94 * SECOND, work_us: 0, ..spent };
        let waiting_us = Some(94 * SECOND);
        Account { setup: setup(), recent, idle_us: 95 * SECOND, waiting_us, ..Account::default() }
    }

    #[test]
    fn a_batch_that_does_not_come_is_told_by_what_it_lacks() {
        let none = Spent::default();
        for (spent, limit) in [
            (Spent { read_wait_us: 93 * SECOND, ..none }, Limit::Storage),
            (
                Spent { read_wait_us: 93 * SECOND, stored_bytes: 9, inflate_us: 5, ..none },
                Limit::Inflating,
            ),
            (Spent { fill_us: 93 * SECOND, ..none }, Limit::Storage),
            (Spent { fill_us: 93 * SECOND, stored_bytes: 9, ..none }, Limit::WindowFill),
            (Spent { grant_us: 93 * SECOND, ..none }, Limit::Coordinator),
            (Spent { room_us: 94 * SECOND, confirm_us: 93 * SECOND, ..none }, Limit::Coordinator),
            (Spent { room_us: 93 * SECOND, ..none }, Limit::Decoding),
        ] {
            let found = finding(&stuck(spent));
            assert_eq!((found.limit, found.wait_percent), (limit, 100), "{spent:?}");
            let known =
                found.because.starts_with("the trainer has waited 94.0 s for its next batch")
                    || limit == Limit::WindowFill;
            assert!(known, "{found:?}");
        }
        let account = stuck(Spent { read_wait_us: 93 * SECOND, ..none });
        assert_eq!(
            finding(&account.aged(30 * SECOND)).sentence(),
            "storage limits this rank: the trainer has waited 94.0 s for its next batch, and 0 \
             bytes of shards came in that time; see whether the storage answers; requests that a \
             store refuses or leaves open are tried again for SHARDFEED_STORE_RETRY_SECONDS (that \
             was 30.0 s ago)"
        );
    }

    #[test]
    fn a_trainer_that_does_not_ask_is_told_from_one_that_waits() {
        let account = |idle_us, waiting_us| {
            let recent = Spent { read_wait_us: 8 * SECOND, storage_us: 40 * SECOND, ..waiting(70) };
            Account { setup: setup(), recent, idle_us, waiting_us, ..Account::default() }
        };
        let found = finding(&account(95 * SECOND, Some(0)));
        assert_eq!(found.limit, Limit::Trainer);
        assert_eq!(
            found.because,
            "it took its last batch 95.0 s ago and has not asked for the next"
        );
        // A shorter pause, or a trainer that does not report waits: diagnosed by its last batches.
        assert_eq!(finding(&account(9 * SECOND, Some(0))).limit, Limit::Storage);
        assert_eq!(finding(&account(95 * SECOND, None)).limit, Limit::Storage);
    }

    #[test]
    fn before_the_first_batch_it_says_what_is_waited_for() {
        let filling = Spent { wall_us: SECOND, fill_us: SECOND, ..Spent::default() };
        let account = |recent| Account { recent, in_epoch: recent, ..Account::default() };
        assert_eq!(finding(&account(filling)).limit, Limit::WindowFill);
        let granting = Spent { wall_us: SECOND, grant_us: SECOND, ..Spent::default() };
        assert_eq!(finding(&account(granting)).limit, Limit::Coordinator);
        assert_eq!(finding(&account(Spent::default())).limit, Limit::Unknown);
    }

    proptest! {
        #[test]
        fn any_sums_have_a_finding(sums in prop::array::uniform26(any::<u32>()), waits in any::<Option<u32>>(), first in any::<bool>()) {
            let text = serde_json::to_value(Spent::default()).unwrap();
            let names = text.as_object().unwrap().keys().cloned();
            let spent = names.zip(sums.map(serde_json::Value::from)).collect();
            let spent: Spent = serde_json::from_value(serde_json::Value::Object(spent)).unwrap();
            let account = Account {
                setup: setup(), epoch: 3, is_first: first, recent: spent, in_epoch: spent, since_start: spent,
                idle_us: spent.wall_us, waiting_us: waits.map(u64::from), age_us: spent.wait_us,
            };
            let found = finding(&account);
            prop_assert!(found.wait_percent <= 100);
            prop_assert!(!found.sentence().contains('\n'));
        }
    }
}
