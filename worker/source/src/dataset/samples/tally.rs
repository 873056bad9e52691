//! Numbers of the records of shards, and of the samples that are made of them.

use std::ops::AddAssign;

use serde::Serialize;
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
    /// `None`: rows are not samples.
    pub rows: Option<RowTally>,
    /// `None`: packs are not samples.
    pub packs: Option<PackTally>,
    /// `None`: windows are not samples.
    pub windows: Option<WindowTally>,
}

/// Numbers of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowTally {
    /// Rows of all records that pass the filter.
    pub rows: u64,
    /// Rows that are no samples.
    pub rows_left_out: u64,
}

/// Numbers of tokens in packs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PackTally {
    /// Places for tokens in all packs.
    pub places: u64,
    /// Tokens in packs, with the appended ones.
    pub tokens: u64,
    /// Places without a token.
    pub padding: u64,
    /// Tokens of records that were dropped or truncated because of their length.
    pub tokens_left_out: u64,
    /// Records, or rows, that were dropped because of their length.
    pub records_too_long: u64,
    /// Records, or rows, without tokens.
    pub records_empty: u64,
}

/// Numbers of records in windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WindowTally {
    /// Records, or rows, that pass the filters and are in no window, as their group is too short.
    pub records_in_none: u64,
    /// Records of all windows; a record counts once for each window.
    pub members: u64,
    /// Places of windows that repeat the last record.
    pub members_repeated: u64,
}

impl AddAssign for SampleTally {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.samples += other.samples;
        self.records_left_out += other.records_left_out;
        add_part(&mut self.rows, other.rows);
        add_part(&mut self.packs, other.packs);
        add_part(&mut self.windows, other.windows);
    }
}

fn add_part<T: AddAssign + Default>(all: &mut Option<T>, other: Option<T>) {
    if let Some(other) = other {
        *all.get_or_insert_default() += other;
    }
}

impl AddAssign for RowTally {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.rows_left_out += other.rows_left_out;
    }
}

impl AddAssign for PackTally {
    fn add_assign(&mut self, other: Self) {
        self.places += other.places;
        self.tokens += other.tokens;
        self.padding += other.padding;
        self.tokens_left_out += other.tokens_left_out;
        self.records_too_long += other.records_too_long;
        self.records_empty += other.records_empty;
    }
}

impl AddAssign for WindowTally {
    fn add_assign(&mut self, other: Self) {
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
        let rows = self.rows.as_ref().map_or(records, |rows| rows.ones);
        // Records or rows that pass the filters, of which packs and windows are made.
        let sequences = self.passes.as_ref().map_or(rows, |passes| passes.ones);
        let (mut packs, mut windows) = (None, None);
        // Records or rows that are samples or in one.
        let used = match self.grouping() {
            Some(Grouping::Packs(packing)) => {
                let losses = packing.losses();
                let places = packing.packs() * packing.settings().length;
                let tokens = packing.tokens_packed();
                packs = Some(PackTally {
                    places,
                    tokens,
                    padding: places - tokens,
                    tokens_left_out: losses.tokens,
                    records_too_long: losses.dropped,
                    records_empty: losses.empty,
                });
                sequences - losses.empty - losses.dropped
            }
            Some(Grouping::Windows(found)) => {
                let (within, members) = members_of(found);
                let places = match found.settings().partial {
                    PartialWindows::Keep => members,
                    PartialWindows::Drop | PartialWindows::Pad => {
                        found.windows() * found.settings().size
                    }
                };
                windows = Some(WindowTally {
                    records_in_none: sequences - within,
                    members,
                    members_repeated: places - members,
                });
                within
            }
            None => samples,
        };
        let in_samples = self.rows.as_ref().map_or(used, |_| self.records_with_rows());
        let records_left_out = records - in_samples;
        let rows = self.rows.is_some().then(|| RowTally { rows, rows_left_out: rows - used });
        SampleTally { records, samples, records_left_out, rows, packs, windows }
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
