//! Reading of packs and windows: a block of a shard's records at a time, written as records of their
//! own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shardfeed_pipeline::{ChunkBuffer, RecordPart, Row, RowFault, Sequence};
use shardfeed_plan::Sample;
use shardfeed_source::{LoadError, SampleMap, SamplePart};
use shardfeed_tfrecord::{FOOTER_BYTES, RecordSpan};

use crate::records::stream::{Read, ShardReader, StreamTools};

const GROUPED: &str = "packs or windows are samples";

/// The blocks of a shard that come next.
#[derive(Debug)]
pub(crate) struct Blocks {
    variant: u64,
    /// Number of the next block.
    next: u64,
    /// Ordinal of the record after those that were read.
    end: u64,
    /// Chunks that were read and that the next blocks may need.
    chunks: VecDeque<RecordChunk>,
}

/// Records of a shard that were read together and are needed.
#[derive(Debug)]
struct RecordChunk {
    bytes: Arc<ChunkBuffer>,
    /// Ordinal and position of each, in ascending order; at least one.
    records: Vec<(u64, RecordSpan)>,
}

/// A record of the block, or a row of it.
enum FoundSequence<'a> {
    Sequence(Sequence<'a>),
    /// Its data or its features are damaged.
    Damaged,
}

impl Blocks {
    /// Begins with the block that a sample is in. Returns the record to read from.
    pub(crate) fn at(tools: &StreamTools, sample: Sample, variant: u64) -> (Self, u64) {
        let maps = tools.files.dataset().samples().expect(GROUPED);
        let map = maps.of(sample.shard);
        let grouping = map.grouping().expect(GROUPED);
        let next = grouping.block_of(sample.ordinal);
        let first = map.record_of_sequence(grouping.first_sequence(next));
        (Self { variant, next, end: 0, chunks: VecDeque::new() }, first)
    }

    /// Reads the next block; `None` at the end of the shard.
    pub(crate) fn read(
        &mut self,
        tools: &StreamTools,
        reader: &mut ShardReader,
        shard: u32,
    ) -> Result<Option<Read>, LoadError> {
        let maps = tools.files.dataset().samples().expect(GROUPED);
        let map = maps.of(shard);
        let grouping = map.grouping().expect(GROUPED);
        if self.next >= grouping.blocks() {
            return Ok(None);
        }
        let block = self.next;
        let packs = maps.open(shard, block, self.variant);
        let mut needed: Vec<u64> = packs.iter().flatten().map(|part| part.record).collect();
        needed.sort_unstable();
        needed.dedup();
        // The first record of the next block, which may come before the last one of this block.
        let next = (block + 1 < grouping.blocks())
            .then(|| map.record_of_sequence(grouping.first_sequence(block + 1)));
        while needed.last().is_some_and(|last| self.end <= *last) {
            if tools.stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
            let spare = tools.chunks.take();
            reader.recycle(spare);
            let Some(chunk) = reader.next_chunk()? else {
                return Err(tools.files.ended(shard));
            };
            tools.counters.bytes.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
            self.end = chunk.first_ordinal + chunk.records.len() as u64;
            let is_needed = |ordinal: u64| {
                next.is_some_and(|next| ordinal >= next) || needed.binary_search(&ordinal).is_ok()
            };
            let records = (chunk.first_ordinal..).zip(chunk.records);
            let records: Vec<_> = records.filter(|(ordinal, _)| is_needed(*ordinal)).collect();
            match records.is_empty() {
                true => reader.recycle(chunk.bytes),
                false => self.chunks.push_back(RecordChunk::new(chunk.bytes, records, tools)),
            }
        }
        let read = self.write(tools, (shard, &map), &packs, grouping.samples_of(block).start)?;
        self.next += 1;
        if let Some(next) = next {
            self.chunks.retain(|chunk| chunk.last() >= next);
        }
        Ok(Some(read))
    }

    /// Writes the packs of a block, whose records were read.
    fn write(
        &self,
        tools: &StreamTools,
        (shard, map): (u32, &SampleMap),
        packs: &[Vec<SamplePart>],
        first_ordinal: u64,
    ) -> Result<Read, LoadError> {
        let combiner = tools.combiner(shard).expect(GROUPED);
        let ended = || tools.files.ended(shard);
        let parts = packs.iter().flatten().map(|part| (part.record, part.row));
        let parts: Vec<_> = parts.collect::<BTreeSet<_>>().into_iter().collect();
        let mut found: BTreeMap<(u64, u32), (FoundSequence<'_>, Row<'_>)> = BTreeMap::new();
        for of_record in parts.chunk_by(|one, other| one.0 == other.0) {
            let record = of_record[0].0;
            let row = self.row(shard, record).ok_or_else(ended)?;
            let rows: Vec<u32> = of_record.iter().map(|(_, row)| *row).collect();
            let sequences = match combiner.sequences(&row, &rows) {
                Ok(sequences) => sequences.into_iter().map(FoundSequence::Sequence).collect(),
                // Rows and their values were found when the shard was counted.
                Err(error) if map.is_of_rows() && !matches!(error.fault, RowFault::Data(_)) => {
                    return Err(ended());
                }
                Err(error) => {
                    debug_assert!(!matches!(error.fault, RowFault::Memory { .. }), "{error:?}");
                    rows.iter().map(|_| FoundSequence::Damaged).collect::<Vec<_>>()
                }
            };
            for (place, sequence) in of_record.iter().zip(sequences) {
                if let FoundSequence::Sequence(sequence) = &sequence
                    && map.tokens_of(place.0, place.1) != sequence.tokens()
                {
                    return Err(ended());
                }
                found.insert(*place, (sequence, row));
            }
        }
        let of = |part: &SamplePart| &found[&(part.record, part.row)];
        let most = map.data_bytes().div_ceil(map.samples().max(1)) as usize;
        let mut bytes = Vec::with_capacity(most.saturating_mul(packs.len()));
        let (mut records, mut firsts) = (Vec::with_capacity(packs.len()), vec![]);
        for pack in packs {
            let damaged = pack.iter().find(|part| matches!(of(part).0, FoundSequence::Damaged));
            let named =
                damaged.or(pack.first()).expect("a pack has a token, and a window a record");
            let (start, row) = (bytes.len(), &of(named).1);
            let len = match damaged {
                // In place of the pack, so that its error is that of the record.
                Some(_) => {
                    bytes.extend_from_slice(row.stored);
                    row.len()
                }
                None => {
                    let parts = pack.iter().map(|part| match &of(part).0 {
                        FoundSequence::Sequence(sequence) => {
                            RecordPart { sequence, first: part.first, tokens: part.tokens }
                        }
                        FoundSequence::Damaged => unreachable!("no record of the pack is damaged"),
                    });
                    combiner.write(&parts.collect::<Vec<_>>(), &mut bytes)
                }
            };
            debug_assert_eq!(bytes.len(), start + len + FOOTER_BYTES);
            records.push(RecordSpan { start, len, offset: row.offset });
            firsts.push(named.record as u32);
        }
        let chunk = tools.chunks.share(bytes);
        Ok(Read { chunk, records, parts: firsts, first_ordinal })
    }

    /// Returns a record that was read.
    fn row(&self, shard: u32, record: u64) -> Option<Row<'_>> {
        let at = self.chunks.partition_point(|chunk| chunk.last() < record);
        let chunk = self.chunks.get(at)?;
        let found = chunk.records.binary_search_by_key(&record, |(ordinal, _)| *ordinal).ok()?;
        let span = chunk.records[found].1;
        let stored = &chunk.bytes[span.start..span.start + span.len + FOOTER_BYTES];
        let row = Row::of_record(Sample { shard, ordinal: record }, stored);
        Some(Row { offset: span.offset, part: record as u32, ..row })
    }
}

impl RecordChunk {
    fn new(bytes: Vec<u8>, mut records: Vec<(u64, RecordSpan)>, tools: &StreamTools) -> Self {
        let stored = records.iter().map(|(_, span)| span.len + FOOTER_BYTES).sum();
        let bytes = tools.share_some(bytes, stored, records.iter_mut().map(|(_, span)| span));
        Self { bytes, records }
    }

    /// Ordinal of the last record.
    fn last(&self) -> u64 {
        self.records.last().map_or(0, |(ordinal, _)| *ordinal)
    }
}
