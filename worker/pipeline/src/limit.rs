//! Finds a run's bottleneck from its time breakdown. Source: docs/PERFORMANCE.md, Where time goes.

use serde::Serialize;

use crate::account::{Account, Reason, Setup, Spent};

/// A trainer that waits for at most this percentage of its time is not limited by reading.
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
    Storage,
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
    pub limit: Limit,
    /// Fraction of the trainer's time spent waiting, in percent.
    pub wait_percent: u64,
    /// True if shards are read for the first time, from storage devices or a store.
    pub is_cold: bool,
    /// Age of the figures.
    pub age_us: u64,
    /// Figures behind it, in words.
    pub because: String,
    /// Recommended change, in words.
    pub change: String,
}

impl Finding {
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
/// before or after it, so the bottleneck is the activity during the trainer's waits.
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
        return if passes_records(spent) { Limit::Inflating } else { Limit::WindowFill };
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

/// True if an epoch's first batch waited mainly for compressed shards to be inflated up to the first
/// record needed, which no smaller window changes.
fn passes_records(spent: &Spent) -> bool {
    spent.pass_us > spent.fill_us / 2
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
        () if fill_us == most && passes_records(spent) => Limit::Inflating,
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

/// True if the trainer reports its waits, and has been busy with other work much longer than usual.
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
        Limit::Inflating if spent.fill_us > spent.read_wait_us => format!(
            "{waits}, and compressed shards were inflated for {} up to the first record that an epoch needs",
            time(spent.pass_us)
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
        Limit::WindowFill => {
            "use a smaller shuffle_window=, with balance() a smaller window=, with pack() a smaller \
             block=, or faster storage"
        }
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

pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    (part.saturating_mul(100)).checked_div(whole).unwrap_or(0)
}

fn per_second(count: u64, us: u64) -> u64 {
    count.saturating_mul(1_000_000).checked_div(us).unwrap_or(0)
}

fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{}.{} ms", us / 1_000, us / 100 % 10),
        _ => format!("{}.{} s", us / 1_000_000, us / 100_000 % 10),
    }
}

/// Added to a recommended size, because formatting truncates it.
const SIZE_STEP_BYTES: u64 = 1_000_000;

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{} kB", bytes / 1_000),
        1_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests;
