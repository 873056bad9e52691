//! Parts of records that samples consist of.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardfeed_plan::{Planned, Sample};
use shardfeed_source::{SampleMaps, SamplePart, SamplePlace};

use crate::contents::Contents;

/// Maximum number of blocks of packs or windows that are kept open.
const OPEN_BLOCKS_MAX: usize = 256;

/// Finds the parts of samples; keeps the blocks of packs or windows that it opened last.
#[derive(Debug)]
pub struct RecordParts {
    /// By shard, block and variant.
    blocks: BTreeMap<(u32, u64, u64), Vec<Vec<SamplePart>>>,
    /// True if the order is shuffled, so that packs differ from epoch to epoch.
    is_shuffled: bool,
    /// The last sample that is no pack or window.
    one: [SamplePart; 1],
}

/// A part of a row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPart {
    pub row: u64,
    pub shard: u32,
    /// Index of the record in the shard.
    pub record: u64,
    /// Row of the record; 0 if the record has no rows.
    pub record_row: u64,
    /// First token; 0 without tokens.
    pub first: u64,
    /// Number of tokens; 1 without tokens.
    pub count: u64,
}

impl RecordParts {
    /// - `is_shuffled`: true if the order is, so that packs differ from epoch to epoch.
    pub fn new(is_shuffled: bool) -> Self {
        let one = [SamplePart { record: 0, row: 0, first: 0, tokens: 1 }];
        Self { blocks: BTreeMap::new(), is_shuffled, one }
    }

    /// Returns the parts of a sample.
    /// - `source_epoch`: epoch of its source, in a mixture; otherwise the epoch.
    /// - `maps`: `None`: each record is a sample.
    pub fn of(
        &mut self,
        sample: Sample,
        source_epoch: u64,
        maps: Option<&SampleMaps>,
    ) -> &[SamplePart] {
        let map = maps.map(|maps| maps.of(sample.shard));
        let grouping = map.as_ref().and_then(|map| map.grouping());
        let (Some(grouping), Some(maps)) = (grouping, maps) else {
            let whole = SamplePlace { record: sample.ordinal, part: 0 };
            let SamplePlace { record, part } = maps.map_or(whole, |maps| maps.place_of(sample));
            self.one = [SamplePart { record, row: part, first: 0, tokens: 1 }];
            return &self.one;
        };
        let variant = if self.is_shuffled { source_epoch } else { 0 };
        let block = grouping.block_of(sample.ordinal);
        if self.blocks.len() >= OPEN_BLOCKS_MAX {
            self.blocks.clear();
        }
        let packs = self.blocks.entry((sample.shard, block, variant));
        let packs = packs.or_insert_with(|| maps.open(sample.shard, block, variant));
        &packs[(sample.ordinal - grouping.samples_of(block).start) as usize]
    }
}

/// The rows of a batch, whose parts are found on request: that packs a block for each row.
#[derive(Debug)]
pub struct BatchParts {
    rows: Vec<Planned>,
    epoch: u64,
    is_shuffled: bool,
    contents: Arc<Contents>,
}

impl BatchParts {
    /// - `rows`: with shard ordinals among those of all sources. `epoch`: and whether it is shuffled.
    pub fn new(
        rows: &[Planned],
        (epoch, is_shuffled): (u64, bool),
        contents: &Arc<Contents>,
    ) -> Self {
        Self { rows: rows.to_vec(), epoch, is_shuffled, contents: Arc::clone(contents) }
    }

    /// Returns the parts of all rows, in order.
    pub fn list(&self) -> Vec<RowPart> {
        let (mut of, mut parts) = (RecordParts::new(self.is_shuffled), vec![]);
        for (row, &Planned { portion, sample, .. }) in (0..).zip(&self.rows) {
            let is_mixed = self.contents.mixed.is_some();
            let source_epoch = if is_mixed { portion.epoch } else { self.epoch };
            let maps = self.contents.samples.as_deref();
            let of_row = of.of(sample, source_epoch, maps).iter();
            parts.extend(of_row.map(|part| RowPart {
                row,
                shard: sample.shard,
                record: part.record,
                record_row: part.row.into(),
                first: part.first,
                count: part.tokens,
            }));
        }
        parts
    }
}
