//! Numbers of the records of shards, and of the samples that are made of them.

use std::ops::AddAssign;

use shardfeed_plan::{PartialWindows, Windows};

use super::{SampleMap, SampleMaps};
use crate::dataset::grouping::Grouping;

/// Numbers of records and of samples, rows, tokens and windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleTally {
    pub records: u64,
    pub samples: u64,
    /// Records that are no sample and in none.
    pub records_left_out: u64,
    /// Rows of all records, if rows are samples.
    pub rows: u64,
    /// Rows that are no samples and in none.
    pub rows_left_out: u64,
    /// Places for tokens in packs.
    pub places: u64,
    /// Tokens in packs, with the appended ones.
    pub tokens: u64,
    /// Tokens of dropped and truncated records, or rows.
    pub tokens_left_out: u64,
    /// Records, or rows, that are dropped because they are longer than a pack.
    pub records_too_long: u64,
    /// Records, or rows, without tokens.
    pub records_empty: u64,
    /// Records, or rows, that filters leave to windows, and that are in none.
    pub records_in_none: u64,
    /// Records, or rows, that are in windows, counted once for each window.
    pub members: u64,
    /// Places of windows that repeat the last one.
    pub members_repeated: u64,
}

impl AddAssign for SampleTally {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.samples += other.samples;
        self.records_left_out += other.records_left_out;
        self.rows += other.rows;
        self.rows_left_out += other.rows_left_out;
        self.places += other.places;
        self.tokens += other.tokens;
        self.tokens_left_out += other.tokens_left_out;
        self.records_too_long += other.records_too_long;
        self.records_empty += other.records_empty;
        self.records_in_none += other.records_in_none;
        self.members += other.members;
        self.members_repeated += other.members_repeated;
    }
}

impl SampleMaps {
    /// Returns the numbers of all shards. Takes a pass over each map.
    pub fn tally(&self) -> SampleTally {
        let mut all = SampleTally::default();
        self.maps().iter().for_each(|map| all += map.get().tally());
        all
    }
}

impl SampleMap {
    /// Returns the numbers of the shard. Takes a pass over the map.
    pub fn tally(&self) -> SampleTally {
        let (records, samples) = (self.records, self.samples());
        let counted = SampleTally { records, samples, ..SampleTally::default() };
        let rows = self.rows.as_ref().map_or(records, |rows| rows.ones);
        // Records or rows that pass the filters, of which packs and windows are made.
        let sequences = self.passes.as_ref().map_or(rows, |passes| passes.ones);
        let left_out = |used: u64, counted| match &self.rows {
            None => SampleTally { records_left_out: records - used, ..counted },
            Some(_) => SampleTally {
                records_left_out: records - self.records_with_rows(),
                rows,
                rows_left_out: rows - used,
                ..counted
            },
        };
        match self.grouping() {
            Some(Grouping::Packs(packing)) => {
                let losses = packing.losses();
                let none = losses.empty + losses.dropped;
                let counted = SampleTally {
                    places: packing.packs() * packing.settings().length,
                    tokens: packing.tokens_packed(),
                    tokens_left_out: losses.tokens,
                    records_too_long: losses.dropped,
                    records_empty: losses.empty,
                    ..counted
                };
                left_out(sequences - none, counted)
            }
            Some(Grouping::Windows(windows)) => {
                let (within, members) = members_of(windows);
                let places = match windows.settings().partial {
                    PartialWindows::Keep => members,
                    PartialWindows::Drop | PartialWindows::Pad => {
                        windows.windows() * windows.settings().size
                    }
                };
                let counted = SampleTally {
                    records_in_none: sequences - within,
                    members,
                    members_repeated: places - members,
                    ..counted
                };
                left_out(within, counted)
            }
            None => left_out(samples, counted),
        }
    }

    /// Returns the number of records of which a row is a sample or in one.
    fn records_with_rows(&self) -> u64 {
        let Some(rows) = &self.rows else {
            return 0;
        };
        let samples_before = |row| self.passes.as_ref().map_or(row, |passes| passes.rank(row));
        let (mut records, mut before) = (0, 0);
        for (record, at) in (0..).zip(rows.zeros()) {
            let samples = samples_before(at - record);
            records += u64::from(samples > before);
            before = samples;
        }
        records
    }
}

/// Returns the number of records that are in a window, and that of all windows' records.
fn members_of(windows: &Windows) -> (u64, u64) {
    let (mut within, mut members, mut end) = (0, 0, 0);
    for window in (0..windows.windows()).map(|window| windows.window(window)) {
        within += window.end.saturating_sub(window.start.max(end));
        members += window.end - window.start;
        end = end.max(window.end);
    }
    (within, members)
}
