use shardfeed_plan::{ContentDigest, Digest, PackSegment, Sample, content_digest};

use super::held::{HeldMap, MapRef};
use super::{SamplePart, SamplePlace};

const COUNTED: &str = "plans are made of the counts of these maps";

/// A record that a filter could not be evaluated for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRecord {
    /// Shard ordinal.
    pub shard: u32,
    /// Index of the record in its shard.
    pub ordinal: u64,
    /// Offset of its header in the uncompressed file, in bytes.
    pub offset: u64,
    pub reason: String,
}

/// The maps of a dataset's shards, in manifest order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleMaps {
    maps: Vec<HeldMap>,
    has_rows: bool,
    /// Damaged records that are no samples under a skipping policy; truncated if there are many.
    pub damaged: Vec<DamagedRecord>,
    /// Total number of such records.
    pub damaged_total: u64,
}

impl SampleMaps {
    /// Returns the maps of a dataset's shards, of which this many damaged records are no samples.
    /// - `damaged`: the first of them.
    pub fn new(maps: Vec<HeldMap>, damaged: Vec<DamagedRecord>, damaged_total: u64) -> Self {
        let has_rows = maps.iter().any(HeldMap::has_rows);
        Self { maps, has_rows, damaged, damaged_total }
    }

    pub fn extend(&mut self, more: Self) {
        let first = self.maps.len() as u32;
        let shifted = |one: DamagedRecord| DamagedRecord { shard: one.shard + first, ..one };
        self.damaged.extend(more.damaged.into_iter().map(shifted));
        self.damaged_total = self.damaged_total.saturating_add(more.damaged_total);
        self.maps.extend(more.maps);
        self.has_rows |= more.has_rows;
    }

    /// Returns the map of each shard, in manifest order.
    pub fn maps(&self) -> &[HeldMap] {
        &self.maps
    }

    pub fn counts(&self) -> Vec<u64> {
        self.maps.iter().map(HeldMap::samples).collect()
    }

    /// Returns the content digest of the samples. Source: docs/ORDER.md, "Input".
    /// - `digests`: of the shards.
    pub fn content(&self, digests: impl Iterator<Item = Digest>) -> ContentDigest {
        let shards = self.maps.iter().zip(digests);
        content_digest(shards.map(|(map, shard)| (map.samples(), map.digest(shard))))
    }

    pub fn of(&self, shard: u32) -> MapRef<'_> {
        self.maps[shard as usize].get()
    }

    pub fn has_rows(&self) -> bool {
        self.has_rows
    }

    /// Returns a sample's number in batches: that of its record; of packs and windows their own.
    ///
    /// # Panics  As [`SampleMaps::place_of`].
    pub fn named_record(&self, sample: Sample) -> u64 {
        match self.maps[sample.shard as usize].is_grouped() {
            true => sample.ordinal,
            false => self.place_of(sample).record,
        }
    }

    /// Returns the packs or windows of a block of a shard: the parts of each, in order.
    /// - `variant`: of the epoch.
    pub fn open(&self, shard: u32, block: u64, variant: u64) -> Vec<Vec<SamplePart>> {
        let map = self.of(shard);
        let grouping = map.grouping().expect("packs or windows are samples");
        let part = |segment: PackSegment| {
            let PackSegment { sequence, first, tokens } = segment;
            let place = map.place_of_row(sequence).expect("sequences are counted in the map");
            SamplePart { record: place.record, row: place.part, first, tokens }
        };
        let samples = grouping.open(block, variant).into_iter();
        samples.map(|parts| parts.into_iter().map(part).collect()).collect()
    }

    /// Returns the place of a sample in its shard.
    ///
    /// # Panics  The shard has no such sample: a plan over other counts.
    pub fn place_of(&self, sample: Sample) -> SamplePlace {
        self.of(sample.shard).place_of(sample.ordinal).expect(COUNTED)
    }

    /// Returns the samples that a record or a part of it is in, in ascending order.
    /// - `variant`: as of [`SampleMaps::open`].
    pub fn of_record(&self, shard: u32, record: u64, variant: u64) -> Vec<u64> {
        let map = self.of(shard);
        let taken = map.samples_before(record)..map.samples_before(record + 1);
        let Some(grouping) = map.grouping() else { return taken.collect() };
        if taken.is_empty() {
            return vec![];
        }
        let mut found = vec![];
        let blocks = (0..grouping.blocks()).rev();
        for block in blocks.skip_while(|block| grouping.first_sequence(*block) >= taken.end) {
            let samples = grouping.open(block, variant);
            let numbered = samples.iter().zip(grouping.samples_of(block).start..);
            let has_some =
                |parts: &[PackSegment]| parts.iter().any(|part| taken.contains(&part.sequence));
            found.extend(numbered.filter(|(parts, _)| has_some(parts)).map(|(_, sample)| sample));
            let is_before = |part: &PackSegment| part.sequence < taken.start;
            if !samples.is_empty() && samples.iter().flatten().all(is_before) {
                break;
            }
        }
        found.sort_unstable();
        found
    }

    /// Returns the samples of a sample's record, with their rows; none if more than `most`.
    ///
    /// # Panics  As [`SampleMaps::place_of`].
    pub fn rows_of(&self, sample: Sample, most: u64) -> Vec<(u64, u32)> {
        let map = self.of(sample.shard);
        let record = map.place_of(sample.ordinal).expect(COUNTED).record;
        let samples = map.samples_before(record)..map.samples_before(record + 1);
        if samples.end - samples.start > most {
            return vec![];
        }
        samples.zip(map.parts(record)).collect()
    }
}
