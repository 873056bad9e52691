//! Parts of records that samples consist of.

use std::collections::BTreeMap;

use shardfeed_plan::{Planned, Sample};
use shardfeed_source::{SamplePart, SamplePlace};

use crate::contents::Contents;

/// Maximum number of blocks of packs or windows that are kept open.
const OPEN_BLOCKS_MAX: usize = 256;

/// Finds the parts of samples; keeps the blocks of packs or windows that it opened last.
#[derive(Debug)]
pub(crate) struct RecordParts {
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
    /// Row of the batch.
    pub row: u64,
    /// Shard of the record.
    pub shard: u32,
    /// Index of the record in the shard.
    pub record: u64,
    /// First row or token of the record.
    pub first: u64,
    /// Number of its rows or tokens; 1 for a whole record.
    pub count: u64,
}

impl RecordParts {
    pub(crate) fn new(is_shuffled: bool) -> Self {
        let one = [SamplePart { record: 0, first: 0, tokens: 1 }];
        Self { blocks: BTreeMap::new(), is_shuffled, one }
    }

    /// Returns the parts of a sample.
    /// - `source_epoch`: epoch of its source, in a mixture; otherwise the epoch.
    pub(crate) fn of(
        &mut self,
        sample: Sample,
        source_epoch: u64,
        contents: &Contents,
    ) -> &[SamplePart] {
        let grouping = contents.samples.as_ref().and_then(|maps| maps.of(sample.shard).grouping());
        let (Some(grouping), Some(maps)) = (grouping, &contents.samples) else {
            let SamplePlace { record, part } = contents.place_of(sample);
            self.one = [SamplePart { record, first: part.into(), tokens: 1 }];
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

    /// Returns the parts of all rows of a batch.
    pub(crate) fn of_rows(
        &mut self,
        rows: &[Planned],
        epoch: u64,
        contents: &Contents,
    ) -> Vec<RowPart> {
        let mut parts = vec![];
        for (row, &Planned { portion, sample, .. }) in (0..).zip(rows) {
            let source_epoch = if contents.mixed.is_some() { portion.epoch } else { epoch };
            let of_row = self.of(sample, source_epoch, contents).iter();
            parts.extend(of_row.map(|part| RowPart {
                row,
                shard: sample.shard,
                record: part.record,
                first: part.first,
                count: part.tokens,
            }));
        }
        parts
    }
}
