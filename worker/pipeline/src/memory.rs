//! Chooses the reading method for a memory budget. Source: docs/PERFORMANCE.md, Memory.

/// Maximum bytes of one read; larger reads are no faster.
const CHUNK_BYTES_MAX: u64 = 1 << 20;
/// Minimum bytes of one read; the calls of smaller ones cost more than their bytes.
const CHUNK_BYTES_MIN: u64 = 64 << 10;
/// Chunks held per split being read: current, next, and the one with its oldest records.
const CHUNKS_PER_SPLIT: u64 = 3;

/// Minimum and maximum chunk of remote files. A request costs as much as reading some megabytes, so
/// chunks are larger and several are requested concurrently for each split.
const REMOTE_CHUNK_BYTES: (u64, u64) = (256 << 10, 4 << 20);
/// Maximum chunks of a remote file that are requested ahead.
pub const REMOTE_CHUNKS_AHEAD: usize = 4;
/// Smaller records of remote files are not read individually: requests would dominate the time.
const REMOTE_RECORD_BYTES: u64 = 256 << 10;

/// Records of at least this size are read directly into their batch when they come in file order:
/// one copy less, one call each.
const STRAIGHT_RECORD_BYTES: u64 = 32 << 10;

/// Maximum shards of a lane that are opened before their turn; more are no faster.
const PRIMED_MAX: u64 = 128;
/// Labels of a lane of a mixture that are permuted together.
const LABELS_HELD: u64 = 1024;
/// Samples of each source of a mixture that are held beyond the windows.
const SAMPLES_OF_SOURCE: u64 = 4;
/// Overhead of a held record: framing, and its entries in the chunk, the window and the shuffle.
const RECORD_OVERHEAD_BYTES: u64 = 128;
/// Overhead of a row of balanced steps: its places in the steps, and its lookups.
const BALANCED_ROW_BYTES: u64 = 400;
/// Bytes of a held record position.
const PLACE_BYTES: u64 = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Lanes that the rank reads.
    pub lanes: u64,
    /// Samples of the longest of them.
    pub lane_samples: u64,
    /// Samples of a shuffle window; 1 without shuffle.
    pub window: u64,
    /// Samples of a lane that are sorted together for balanced steps; 0: none.
    pub balance: u64,
    /// Splits of a lane that are read at the same time.
    pub interleave: u64,
    /// Sources of a mixture; 0: one dataset.
    pub sources: u64,
    /// Mean bytes of a record.
    pub record_bytes: u64,
    /// Mean record bytes of the largest possible windows, because files differ.
    pub window_record_bytes: u64,
    /// Mean bytes of an uncompressed shard.
    pub shard_bytes: u64,
    /// True if records are delivered unchanged.
    pub straight: bool,
    /// True if any shard is compressed.
    pub compressed: bool,
    /// True if the shards are in an object store.
    pub remote: bool,
    /// Bytes of the records and packs of a block; 0 if samples are not packs.
    pub block_bytes: u64,
    /// Bytes of a split's records beside its smallest chunks; 0 if these are part of the windows.
    pub split_bytes: u64,
    /// Bytes of prefetched batches, of their records and of operators.
    pub batch_bytes: u64,
    pub budget_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Files are read front to back, and two windows of records are held.
    Hold {
        chunk_bytes: usize,
        /// Maximum shards of a lane that are opened before their turn.
        primed_max: usize,
    },
    /// Two windows of record *positions* are held; each record is read individually when it is due.
    Locate,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Compressed shards, and small records of remote ones, can only be read front to back.
    #[error(
        "{what} of {lanes} lane(s) need about {need_bytes} bytes, memory_budget has {have_bytes} left for \
         them, and {shards} cannot be read out of order; use {advice}memory_budget of at least \
         {budget_fits}"
    )]
    Windows {
        /// Contents of each lane.
        what: &'static str,
        /// Description of the shards.
        shards: &'static str,
        /// Lanes that the rank reads.
        lanes: u64,
        /// Bytes of that in each lane.
        need_bytes: u64,
        have_bytes: u64,
        /// Options that lower the need, each with ` or `; may be empty.
        advice: String,
        /// Smallest budget that fits.
        budget_fits: u64,
    },
    #[error(
        "{file}: has a record of {record_bytes} bytes, and memory_budget has {budget_bytes}; raise it, or leave the \
         file out"
    )]
    RecordTooLarge { file: String, record_bytes: u64, budget_bytes: u64 },
    #[error(
        "memory_budget of {budget_bytes} bytes is too small: prefetched batches need {batch_bytes} \
         and reading {reading_bytes}; raise it to {} or lower prefetch, batch_size or shuffle_window",
        .batch_bytes + .reading_bytes
    )]
    TooSmall {
        budget_bytes: u64,
        /// Bytes of the batches that are prefetched.
        batch_bytes: u64,
        /// Bytes of the smallest read buffers.
        reading_bytes: u64,
    },
}

impl Need {
    /// Splits being read, minimum and maximum bytes of a read, and reads held per split.
    fn chunks(&self) -> (u64, u64, u64, u64) {
        let in_lane = self.interleave.min(self.lane_samples).max(1);
        let splits = self.lanes.max(1).saturating_mul(in_lane);
        match self.remote {
            false => (splits, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX, CHUNKS_PER_SPLIT),
            // One more is held while records are cut from it.
            true => {
                let chunks = CHUNKS_PER_SPLIT + 1 + REMOTE_CHUNKS_AHEAD as u64;
                (splits, REMOTE_CHUNK_BYTES.0, REMOTE_CHUNK_BYTES.1, chunks)
            }
        }
    }

    /// Bytes of the smallest reads.
    fn reading_bytes(&self) -> u64 {
        let (splits, chunk_min, _, chunks) = self.chunks();
        // A shard smaller than a chunk is read entirely; no further chunks are requested for it.
        let whole = CHUNKS_PER_SPLIT * self.shard_bytes.saturating_add(1);
        let each = (chunks * chunk_min).min(whole).saturating_add(self.block_bytes);
        let each = each.saturating_add(self.split_bytes.min(whole));
        splits.saturating_mul(each)
    }

    /// Samples held in all lanes: two windows in each, and those of balanced steps. In a mixture three windows of all sources
    /// together, and some more; see docs/ORDER.md, section 13.
    pub fn held(&self) -> u64 {
        let (windows, more) = self.windows_held();
        let in_lane = self.window.saturating_mul(windows).saturating_add(more);
        in_lane.min(self.lane_samples).saturating_mul(self.lanes)
    }

    /// Windows held in a lane, and the samples held beyond them.
    fn windows_held(&self) -> (u64, u64) {
        let (windows, more) = match self.sources {
            0 => (2, 0),
            sources => (3, LABELS_HELD + SAMPLES_OF_SOURCE * sources),
        };
        // The next steps are read while the chunks of these are still held.
        (windows, more.saturating_add(2 * self.balance))
    }

    fn window_bytes(&self) -> u64 {
        self.held()
            .saturating_mul(self.window_record_bytes + RECORD_OVERHEAD_BYTES)
            .saturating_add(self.balanced_bytes())
    }

    /// Overhead of the rows of balanced steps.
    fn balanced_bytes(&self) -> u64 {
        let in_lane = (2 * self.balance).min(self.lane_samples);
        in_lane.saturating_mul(self.lanes).saturating_mul(BALANCED_ROW_BYTES)
    }

    /// In plan order only a few records are read at a time; their bytes are part of `batch_bytes`.
    fn places_bytes(&self) -> u64 {
        self.held()
            .saturating_mul(PLACE_BYTES)
            .saturating_add(self.balanced_bytes())
            .saturating_add(CHUNK_BYTES_MIN)
    }

    /// True if records are read individually because that is faster, not because memory is short.
    pub fn is_straight(&self) -> bool {
        let in_order = self.window <= 1 && self.balance == 0 && !self.compressed && !self.remote;
        self.straight && in_order && self.record_bytes >= STRAIGHT_RECORD_BYTES
    }

    pub fn least_bytes(&self, reading: Reading) -> u64 {
        match reading {
            Reading::Hold { .. } => self.window_bytes().saturating_add(self.reading_bytes()),
            Reading::Locate => self.places_bytes(),
        }
    }
}

impl MemoryError {
    /// Budget that fits, if the error names one.
    fn budget(&mut self) -> Option<&mut u64> {
        match self {
            Self::Windows { budget_fits, .. } => Some(budget_fits),
            _ => None,
        }
    }

    /// Returns this error with a budget that fits.
    /// - `choose`: chooses the reading method for a budget, on which the need may depend.
    pub fn with_budget(mut self, choose: impl Fn(u64) -> Result<Reading, Self>) -> Self {
        if let Some(fits) = self.budget() {
            // The need grows by a part of the budget. That of a mixture may exceed all numbers.
            while *fits < u64::MAX
                && let Err(mut error) = choose(*fits)
            {
                let Some(needed) = error.budget() else { break };
                *fits = (*needed).max(fits.saturating_add(*fits / 32 + 1));
            }
        }
        self
    }
}

/// Chooses the reading method for the budget.
///
/// # Errors  Nothing fits; the message names a window or a budget that does.
pub fn reading(need: &Need) -> Result<Reading, MemoryError> {
    let (splits, chunk_min, chunk_max, chunks) = need.chunks();
    let (reading_bytes, window_bytes) = (need.reading_bytes(), need.window_bytes());
    let left = need.budget_bytes.saturating_sub(need.batch_bytes);
    if need.is_straight() && need.places_bytes() <= left {
        return Ok(Reading::Locate);
    }
    if window_bytes.saturating_add(reading_bytes) <= left {
        let spare = (left - window_bytes) / 2 / chunks;
        let chunk_bytes = (spare / splits).clamp(chunk_min, chunk_max);
        let each = chunk_bytes.min(need.shard_bytes.saturating_add(1)).max(1);
        let primed = (spare / need.lanes.max(1) / each)
            .clamp(need.interleave, PRIMED_MAX.max(need.interleave));
        let primed_max = usize::try_from(primed).unwrap_or(usize::MAX);
        return Ok(Reading::Hold { chunk_bytes: chunk_bytes as usize, primed_max });
    }
    let too_small = need.remote && need.record_bytes < REMOTE_RECORD_BYTES;
    if need.compressed || too_small || need.block_bytes > 0 {
        let have_bytes = left.saturating_sub(reading_bytes);
        let per_sample = need.lanes.max(1) * (need.window_record_bytes + RECORD_OVERHEAD_BYTES);
        let (windows, more) = need.windows_held();
        let shards = match need.compressed {
            _ if need.block_bytes > 0 => "shards of packs or windows",
            true => "compressed shards",
            false => "small records of remote shards",
        };
        let budget_fits =
            window_bytes.saturating_add(reading_bytes).saturating_add(need.batch_bytes);
        let (what, advice) = if need.balance > 0 {
            let without = Need { balance: 0, ..*need }.window_bytes();
            let each = 2 * (per_sample + need.lanes.max(1) * BALANCED_ROW_BYTES);
            let fits = (have_bytes.saturating_sub(without) / each).max(1);
            let advice = format!("balance(window={fits}) or less, a smaller shuffle_window, or ");
            ("the rows of balanced steps and the shuffle windows", advice)
        } else {
            let window = match (have_bytes / per_sample).saturating_sub(more) / windows {
                0 => String::new(),
                fits => format!("shuffle_window={fits} or less, or "),
            };
            let blocks = match need.block_bytes {
                0 => "",
                _ => "a smaller interleave= of the loader or block= of pack(), or ",
            };
            ("the shuffle windows", window + blocks)
        };
        return Err(MemoryError::Windows {
            what,
            shards,
            lanes: need.lanes,
            need_bytes: window_bytes,
            have_bytes,
            advice,
            budget_fits,
        });
    }
    let places_bytes = need.places_bytes();
    if left < places_bytes {
        let Need { budget_bytes, batch_bytes, .. } = *need;
        return Err(MemoryError::TooSmall {
            budget_bytes,
            batch_bytes,
            reading_bytes: places_bytes,
        });
    }
    Ok(Reading::Locate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need() -> Need {
        Need {
            lanes: 2,
            lane_samples: 1_000_000,
            window: 10_000,
            sources: 0,
            balance: 0,
            interleave: 16,
            record_bytes: 1_000,
            window_record_bytes: 1_000,
            shard_bytes: 100 << 20,
            straight: false,
            compressed: false,
            remote: false,
            block_bytes: 0,
            split_bytes: 0,
            batch_bytes: 1 << 20,
            budget_bytes: 1 << 30,
        }
    }

    #[test]
    fn holds_records_while_they_fit_and_places_when_they_do_not() {
        let roomy = Ok(Reading::Hold { chunk_bytes: 1 << 20, primed_max: 81 });
        assert_eq!(reading(&need()), roomy);
        let tight = Need { budget_bytes: 64 << 20, ..need() };
        assert!(
            matches!(reading(&tight), Ok(Reading::Hold { chunk_bytes, primed_max: 16 }) if chunk_bytes < 1 << 20)
        );
        assert_eq!(reading(&Need { budget_bytes: 20 << 20, ..need() }), Ok(Reading::Locate));
        let short = Need { lane_samples: 100, budget_bytes: 10 << 20, ..need() };
        assert!(matches!(reading(&short), Ok(Reading::Hold { .. })));
    }

    #[test]
    fn large_records_in_file_order_are_read_straight_into_their_batch() {
        let large = Need { window: 1, record_bytes: 112_000, straight: true, ..need() };
        assert_eq!(reading(&large), Ok(Reading::Locate));
        assert!(large.is_straight());
        for other in [
            Need { window: 2, ..large },
            Need { record_bytes: 1_000, ..large },
            Need { straight: false, ..large },
            Need { compressed: true, ..large },
            Need { remote: true, ..large },
        ] {
            assert!(matches!(reading(&other), Ok(Reading::Hold { .. })), "{other:?}");
        }
    }

    #[test]
    fn a_window_may_be_of_the_largest_files() {
        let need = Need { budget_bytes: 64 << 20, ..need() };
        let even = reading(&need).unwrap();
        assert!(matches!(even, Reading::Hold { .. }));
        assert!(need.least_bytes(even) < need.budget_bytes);
        let uneven = Need { window_record_bytes: 4_000, ..need };
        assert_eq!(reading(&uneven), Ok(Reading::Locate));
        assert!(uneven.least_bytes(Reading::Locate) < need.least_bytes(even));
    }

    /// Returns the window and the budget that an error names.
    fn fits(error: &MemoryError) -> (u64, u64) {
        let text = error.to_string();
        let named = |option: &str| {
            let (_, behind) = text.split_once(option).unwrap();
            behind.split(' ').next().unwrap().parse().unwrap()
        };
        (named("shuffle_window="), named("memory_budget of at least "))
    }

    #[test]
    fn compressed_shards_name_the_window_that_fits() {
        let need = Need { compressed: true, budget_bytes: 20 << 20, ..need() };
        let error = reading(&need).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the shuffle windows of 2 lane(s) need about 45120000 bytes, memory_budget has \
             13631488 left for them, and compressed shards cannot be read out of order; use \
             shuffle_window=3021 or less, or memory_budget of at least 52460032"
        );
        let (window_fits, budget_fits) = fits(&error);
        assert!(reading(&Need { window: window_fits, ..need }).is_ok());
        assert!(reading(&Need { budget_bytes: budget_fits, ..need }).is_ok());
    }

    #[test]
    fn a_mixture_holds_three_windows_and_names_the_one_that_fits() {
        let need = Need { sources: 35, compressed: true, budget_bytes: 20 << 20, ..need() };
        assert_eq!(need.held(), 2 * (3 * 10_000 + 1024 + 4 * 35));
        let error = reading(&need).unwrap_err();
        let (window_fits, budget_fits) = fits(&error);
        assert!(window_fits > 1 && reading(&Need { window: window_fits, ..need }).is_ok());
        assert!(reading(&Need { window: window_fits + 2, ..need }).is_err());
        assert!(reading(&Need { budget_bytes: budget_fits, ..need }).is_ok());
    }

    #[test]
    fn remote_shards_are_read_in_larger_chunks_and_never_record_by_record() {
        let need = Need { remote: true, ..need() };
        let large = Need { budget_bytes: 4 << 30, ..need };
        assert!(
            matches!(reading(&large), Ok(Reading::Hold { chunk_bytes, .. }) if chunk_bytes > 1 << 20)
        );
        let tight = Need { budget_bytes: 20 << 20, ..need };
        let error = reading(&tight).unwrap_err().to_string();
        assert_eq!(
            error,
            "the shuffle windows of 2 lane(s) need about 45120000 bytes, memory_budget has 0 left \
             for them, and small records of remote shards cannot be read out of order; use \
             memory_budget of at least 113277440"
        );
        let videos = Need { record_bytes: 1 << 20, ..tight };
        assert_eq!(reading(&videos), Ok(Reading::Locate));
    }

    #[test]
    fn the_search_for_a_budget_ends() {
        let endless = Need { compressed: true, record_bytes: u64::MAX / 4, ..need() };
        let endless = Need { window_record_bytes: endless.record_bytes, ..endless };
        let choose = |budget_bytes| reading(&Need { budget_bytes, ..endless });
        let error = choose(1 << 20).unwrap_err().with_budget(choose);
        assert!(matches!(error, MemoryError::Windows { budget_fits: u64::MAX, .. }));
    }

    #[test]
    fn a_budget_without_room_for_batches_is_refused() {
        let error = reading(&Need { budget_bytes: 1 << 10, ..need() }).unwrap_err().to_string();
        assert_eq!(
            error,
            "memory_budget of 1024 bytes is too small: prefetched batches need 1048576 and reading \
             3905536; raise it to 4954112 or lower prefetch, batch_size or shuffle_window"
        );
    }
}
