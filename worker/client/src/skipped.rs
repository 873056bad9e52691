//! Corrupt records and files that a rank skipped: counted, listed and limited by a budget.

use std::collections::{BTreeSet, VecDeque};

use shardfeed_plan::SkipCount;
use shardfeed_reader::Skipped;
use shardfeed_source::{DamagedRecord, LeftOut, LoadError};

use crate::contents::Contents;
use crate::head::Head;

/// Maximum number of corrupt records that are listed and logged individually.
const LISTED_MAX: usize = 1000;

/// Number of records that an error about the budget names.
const NAMED_MAX: usize = 3;

/// Default budget: this fraction of a rank's samples, and at least this many.
const DEFAULT_BUDGET: (f64, u64) = (0.01, 16);

/// Maximum number of records that a rank may skip in one epoch.
///
/// A file that is left out, entirely or in part, counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum CorruptBudget {
    /// 1% of the rank's samples of an epoch, at least 16.
    #[default]
    Usual,
    Records(u64),
    /// This fraction of the rank's samples of an epoch.
    Part(f64),
}

impl CorruptBudget {
    /// Returns the budget in records for an epoch of this many samples.
    fn of(self, samples: u64) -> u64 {
        match self {
            Self::Records(records) => records,
            Self::Part(part) => (samples as f64 * part) as u64,
            Self::Usual => {
                let (part, least) = DEFAULT_BUDGET;
                Self::Part(part).of(samples).max(least)
            }
        }
    }
}

/// A corrupt record or file that was skipped, as shown to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedRecord {
    /// Absolute path of the file.
    pub file: String,
    /// Offset of the record's header in the uncompressed file, in bytes.
    pub offset: u64,
    /// Index of the record in the file.
    pub ordinal: u64,
    pub reason: String,
    pub what: What,
}

/// Extent of a file that is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Record,
    /// This record and all after it, because no later record can be located.
    Rest,
    File,
}

/// Log of everything that a loader has skipped.
#[derive(Debug)]
pub(crate) struct SkipLog {
    budget: CorruptBudget,
    count: SkipCount,
    listed: VecDeque<SkippedRecord>,
    /// Files and ordinals of the records in `listed`: a mixture may read a file for two sources.
    known: BTreeSet<(String, u64)>,
    total: u64,
    /// Files that indexing left out, entirely or in part.
    files: u64,
}

impl SkipLog {
    /// Creates the log with the damaged files and records that indexing and filters left out.
    /// - `samples`: of this rank in the first epoch.
    ///
    /// # Errors  `Budget`: more files were left out than the budget allows.
    pub(crate) fn new(
        budget: CorruptBudget,
        samples: u64,
        contents: &Contents,
    ) -> Result<Self, LoadError> {
        let (allowed, files) = (budget.of(samples), contents.left_out_total);
        let (damaged, records) = match &contents.samples {
            Some(maps) => (&maps.damaged[..], maps.damaged_total),
            None => (&[][..], 0),
        };
        let listed = contents.left_out.iter().map(|left| left_out(left, contents));
        let listed = listed.chain(damaged.iter().map(|one| no_sample(one, contents)));
        let mut known = BTreeSet::new();
        let listed = listed.filter(|one| known.insert((one.file.clone(), one.ordinal)));
        let listed: VecDeque<_> = listed.take(LISTED_MAX).collect();
        for SkippedRecord { file, offset, ordinal, reason, what } in &listed {
            tracing::warn!(file, offset, ordinal, reason, ?what, "damaged data is left out");
        }
        let all = files.saturating_add(records);
        let log = Self { budget, count: SkipCount::new(all), listed, known, total: records, files };
        let what = if records == 0 { "damaged files were" } else { "damaged data was" };
        match all > allowed {
            true => Err(log.over(&format!("{what} left out"), (all, allowed), log.listed.iter())),
            false => Ok(log),
        }
    }

    /// Checks that the budget allows the records skipped in a batch.
    /// - `samples`: of this rank in the batch's epoch.
    ///
    /// # Errors  `Budget`.
    pub(crate) fn admit(
        &self,
        head: &Head,
        samples: u64,
        contents: &Contents,
    ) -> Result<(), LoadError> {
        let allowed = self.budget.of(samples);
        let admitted = self.count.admit(head.epoch, head.skipped.len() as u64, allowed);
        let Err(skipped) = admitted else {
            return Ok(());
        };
        let fresh: Vec<_> = head.skipped.iter().map(|skipped| record(skipped, contents)).collect();
        let what = format!("corrupt records of epoch {} were skipped", head.epoch);
        Err(self.over(&what, (skipped, allowed), self.listed.iter().chain(&fresh)))
    }

    /// Records that a batch was handed out.
    pub(crate) fn add(&mut self, head: &Head, contents: &Contents) {
        let more = head.skipped.len() as u64;
        self.count.add(head.epoch, more);
        self.total += more;
        for skipped in &head.skipped {
            if self.listed.len() >= LISTED_MAX {
                continue;
            }
            let one = record(skipped, contents);
            if !self.known.insert((one.file.clone(), one.ordinal)) {
                continue;
            }
            let SkippedRecord { file, offset, ordinal, reason, .. } = &one;
            tracing::warn!(file, offset, ordinal, reason, "a corrupt record was skipped");
            self.listed.push_back(one);
            if self.listed.len() == LISTED_MAX {
                tracing::warn!(listed = LISTED_MAX, "further corrupt records are only counted");
            }
        }
    }

    /// The rank moves to another position; skipped records are counted from there on.
    pub(crate) fn moved(&mut self) {
        self.count.moved();
    }

    fn over<'a>(
        &self,
        what: &str,
        (skipped, allowed): (u64, u64),
        all: impl Iterator<Item = &'a SkippedRecord>,
    ) -> LoadError {
        let name = |one: &SkippedRecord| {
            let SkippedRecord { file, offset, ordinal, reason, .. } = one;
            format!("{file}: record {ordinal} at offset {offset}: {reason}")
        };
        let first = all.take(NAMED_MAX).map(name).collect();
        LoadError::Budget { what: what.to_owned(), skipped, allowed, first }
    }

    /// Skipped records and files, each once, at most [`LISTED_MAX`].
    pub(crate) fn listed(&self) -> impl ExactSizeIterator<Item = &SkippedRecord> {
        self.listed.iter()
    }

    /// Returns the records skipped in all epochs, those of the current one, and the files left out.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        (self.total, self.count.in_epoch(), self.files)
    }
}

fn file(shard: u32, contents: &Contents) -> String {
    contents.file(shard).display().to_string()
}

fn record(skipped: &Skipped, contents: &Contents) -> SkippedRecord {
    let Skipped { sample, record: ordinal, offset, reason } = skipped.clone();
    let file = file(sample.shard, contents);
    SkippedRecord { file, offset, ordinal, reason, what: What::Record }
}

fn no_sample(damaged: &DamagedRecord, contents: &Contents) -> SkippedRecord {
    let DamagedRecord { shard, ordinal, offset, reason } = damaged.clone();
    SkippedRecord { file: file(shard, contents), offset, ordinal, reason, what: What::Record }
}

fn left_out(left: &LeftOut, contents: &Contents) -> SkippedRecord {
    let LeftOut { shard, ordinal, offset, is_whole, reason } = left.clone();
    let what = if is_whole { What::File } else { What::Rest };
    SkippedRecord { file: file(shard, contents), offset, ordinal, reason, what }
}
