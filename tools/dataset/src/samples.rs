//! Report of the samples that a source makes of its records.

use serde::Serialize;
use shardfeed_source::{Dataset, SampleMaps, SampleTally};

use crate::output;

/// Records, and the samples that are made of them.
#[derive(Debug, Serialize)]
pub struct CountedReport {
    pub records: u64,
    /// Samples of one pass over the records.
    pub samples: u64,
    /// Records that are no sample and in none.
    pub records_left_out: u64,
    /// Damaged records among them.
    pub records_damaged: u64,
    /// Counts of rows; `null` if rows are not samples.
    pub rows: Option<RowsReport>,
    /// Counts of packs; `null` if packs are not samples.
    pub packs: Option<PacksReport>,
    /// Counts of windows; `null` if windows are not samples.
    pub windows: Option<WindowsReport>,
}

#[derive(Debug, Serialize)]
pub struct RowsReport {
    /// Rows of all records that pass the filter.
    pub rows: u64,
    /// Rows that are no samples.
    pub rows_left_out: u64,
}

#[derive(Debug, Serialize)]
pub struct PacksReport {
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

#[derive(Debug, Serialize)]
pub struct WindowsReport {
    /// Records, or rows, that pass the filters and are in no window, as their group is too short.
    pub records_in_none: u64,
    /// Records of all windows; a record counts once for each window.
    pub members: u64,
    /// Places of windows that repeat the last record.
    pub members_repeated: u64,
}

impl CountedReport {
    /// Returns the numbers of all shards; `None` if every record is a sample.
    pub fn of(dataset: &Dataset) -> Option<Self> {
        dataset.samples().map(|maps| Self::of_maps(maps))
    }

    /// Returns the numbers of the shards of these maps.
    pub fn of_maps(maps: &SampleMaps) -> Self {
        let tally = maps.tally();
        let SampleTally { records, samples, records_left_out, rows, rows_left_out, .. } = tally;
        let SampleTally { places, tokens, tokens_left_out, .. } = tally;
        let SampleTally { records_too_long, records_empty, .. } = tally;
        let SampleTally { records_in_none, members, members_repeated, .. } = tally;
        let windows = WindowsReport { records_in_none, members, members_repeated };
        let packs = PacksReport {
            places,
            tokens,
            padding: places - tokens,
            tokens_left_out,
            records_too_long,
            records_empty,
        };
        Self {
            records,
            samples,
            records_left_out,
            records_damaged: maps.damaged_total,
            rows: (rows > 0).then_some(RowsReport { rows, rows_left_out }),
            packs: (places > 0).then_some(packs),
            windows: (members > 0).then_some(windows),
        }
    }

    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let part = |part, whole| format!("{} ({})", output::count(part), percent(part, whole));
        let mut facts = vec![
            ("records", output::count(self.records)),
            ("left out", part(self.records_left_out, self.records)),
        ];
        if self.records_damaged > 0 {
            facts.push(("damaged", output::count(self.records_damaged)));
        }
        if let Some(RowsReport { rows, rows_left_out }) = self.rows {
            facts.push(("rows", output::count(rows)));
            facts.push(("rows left out", part(rows_left_out, rows)));
        }
        if let Some(packs) = &self.packs {
            let reasons =
                [("too long", packs.records_too_long), ("without tokens", packs.records_empty)];
            let reasons = reasons.into_iter().filter(|(_, records)| *records > 0);
            facts.extend(reasons.map(|(reason, records)| (reason, output::count(records))));
            facts.push(("tokens", output::count(packs.tokens)));
            let of = format!("of {} places", output::count(packs.places));
            facts.push(("padding", format!("{} {of}", part(packs.padding, packs.places))));
            let all = packs.tokens + packs.tokens_left_out;
            facts.push(("tokens left out", part(packs.tokens_left_out, all)));
        }
        if let Some(WindowsReport { records_in_none, members, members_repeated }) = self.windows {
            facts.push(("in no window", output::count(records_in_none)));
            facts.push(("in windows", output::counted(members, "record")));
            facts.push(("repeated", output::counted(members_repeated, "record")));
        }
        facts
    }
}

/// Returns the path of a shard; in a mixture `SOURCE:PATH`.
pub fn shard_name(dataset: &Dataset, shard: u32) -> String {
    let path = &dataset.manifest().shards()[shard as usize].path;
    match dataset.mixed() {
        Some(mixed) => format!("{}:{path}", mixed.version(shard).order.name()),
        None => path.clone(),
    }
}

pub fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}
