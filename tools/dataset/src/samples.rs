//! Report of the samples that a source makes of its records.

use serde::Serialize;
use shardfeed_source::{Dataset, PackTally, RowTally, SampleMaps, SampleTally, WindowTally};

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
    pub rows: Option<RowTally>,
    /// Counts of packs; `null` if packs are not samples.
    pub packs: Option<PackTally>,
    /// Counts of windows; `null` if windows are not samples.
    pub windows: Option<WindowTally>,
}

impl CountedReport {
    /// Returns the numbers of all shards; `None` if every record is a sample.
    pub fn of(dataset: &Dataset) -> Option<Self> {
        dataset.samples().map(|maps| Self::of_maps(maps))
    }

    /// Returns the numbers of the shards of these maps.
    pub fn of_maps(maps: &SampleMaps) -> Self {
        let SampleTally { records, samples, records_left_out, rows, packs, windows } = maps.tally();
        Self {
            records,
            samples,
            records_left_out,
            records_damaged: maps.damaged_total,
            rows: rows.filter(|tally| tally.rows > 0),
            packs: packs.filter(|tally| tally.places > 0),
            windows: windows.filter(|tally| tally.members > 0),
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
        if let Some(RowTally { rows, rows_left_out }) = self.rows {
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
        if let Some(WindowTally { records_in_none, members, members_repeated }) = self.windows {
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
