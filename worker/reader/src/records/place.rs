//! Reading in plan order: positions of records instead of records, when two windows exceed the
//! budget.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shardfeed_pipeline::{Assembler, Batch, ChunkPool};
use shardfeed_plan::{Portion, Sample};
use shardfeed_source::{Files, LoadError};
use shardfeed_tfrecord::{
    FOOTER_BYTES, HEADER_BYTES, Mark, ReadError, ReadErrorKind, RecordSpan, decode_header,
};

use crate::records::gather::{PendingRow, Record, RecordLocation};
use crate::records::stream::StreamTools;

/// Maximum bytes read at once where many headers are close together.
const NEAR_BYTES: usize = 8 << 10;

/// Mean record size from which records are far enough apart that only headers are read.
const FAR_RECORD_BYTES: u64 = 16 << 10;

pub(crate) fn read_record(
    place: &RecordLocation,
    files: &Files,
    chunks: &ChunkPool,
) -> Result<Record, LoadError> {
    let RecordLocation { portion, sample, offset, len: data_bytes } = *place;
    let len = usize::try_from(data_bytes).expect("the header was within the file");
    let mut bytes = chunks.take();
    bytes.resize(len + FOOTER_BYTES, 0);
    let from = offset + HEADER_BYTES as u64;
    let read = read_full(files, sample.shard, &mut bytes, from)?;
    if read < bytes.len() {
        let kind = ReadErrorKind::TruncatedData { length: data_bytes, available: read as u64 };
        let record = Sample { ordinal: files.dataset().record_of(sample), ..sample };
        return Err(error_at(files, record, offset, kind));
    }
    let span = RecordSpan { start: 0, len, offset };
    let part = files.dataset().place_of(sample).part;
    Ok(Record { portion, sample, span, part, chunk: chunks.share(bytes) })
}

/// Reads a batch of raw records directly into its slot; `None` if that is not possible.
pub(crate) fn read_straight(
    places: &[RecordLocation],
    rows: &[PendingRow],
    assembler: &Assembler,
    tools: &StreamTools,
    has_room: impl FnOnce(usize) -> bool,
) -> Option<Batch> {
    let row = |(place, row): (&RecordLocation, &PendingRow)| {
        let len = usize::try_from(place.len).expect("the header was within the file");
        (place.sample, len, row.valid)
    };
    let rows: Vec<_> = places.iter().zip(rows).map(row).collect();
    let read = |index: usize, into: &mut [u8]| {
        let RecordLocation { sample, offset, .. } = places[index];
        let from = offset + HEADER_BYTES as u64;
        !tools.stop.load(Ordering::Relaxed)
            && read_full(&tools.files, sample.shard, into, from)
                .is_ok_and(|read| read == into.len())
    };
    let batch = assembler.assemble_straight(&rows, has_room, read)?;
    let bytes: usize = rows.iter().map(|(_, len, _)| len + FOOTER_BYTES).sum();
    tools.counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    Some(batch)
}

/// Finds positions split by split, walking headers from the previous position, a trail or a mark.
#[derive(Debug)]
pub(crate) struct RecordLocator {
    tools: StreamTools,
    /// Maximum bytes read at once where many headers are close together.
    near_bytes: usize,
    /// By split: a shard can have two in a lane.
    walks: BTreeMap<(Portion, usize), Walk>,
}

#[derive(Debug)]
struct Walk {
    ordinal: u64,
    offset: u64,
    /// Bytes of the file from `near_from` on.
    near: Vec<u8>,
    near_from: u64,
    /// The record before, whose next row may be the next sample: its ordinal, offset and length.
    last: Option<(u64, u64, u64)>,
}

impl RecordLocator {
    /// Creates a finder for a lane of `samples`: each of a million short lanes needs few bytes.
    pub(crate) fn new(tools: &StreamTools, samples: u64) -> Self {
        let near_bytes = NEAR_BYTES.min(tools.bytes_of(samples)).max(HEADER_BYTES);
        Self { tools: tools.clone(), near_bytes, walks: BTreeMap::new() }
    }

    /// Returns the position of `sample`; cheap if it is the next one of its split.
    pub(crate) fn find(
        &mut self,
        split: (Portion, usize),
        sample: Sample,
    ) -> Result<RecordLocation, LoadError> {
        let (portion, _) = split;
        if portion.epoch > 0 {
            // As for streams: earlier source epochs of the source are read.
            self.walks
                .retain(|(of, _), _| of.source != portion.source || of.epoch >= portion.epoch);
        }
        let (sample, files) =
            (self.tools.samples.in_dataset(portion, sample), Arc::clone(&self.tools.files));
        let file = &files.dataset().files()[sample.shard as usize];
        let record = Sample { ordinal: files.dataset().record_of(sample), ..sample };
        let ahead = self.walks.remove(&split);
        if let Some((_, offset, len)) =
            ahead.as_ref().and_then(|walk| walk.last).filter(|last| last.0 == record.ordinal)
        {
            self.walks.extend(ahead.map(|walk| (split, walk)));
            return Ok(RecordLocation { portion, sample, offset, len });
        }
        let ahead = ahead.filter(|walk| walk.ordinal <= record.ordinal);
        let mut walk = ahead.unwrap_or_else(|| {
            let mark = self.tools.trails.before(file, record);
            let (ordinal, offset) = (mark.ordinal, mark.offset);
            Walk { ordinal, offset, near: vec![], near_from: 0, last: None }
        });
        let far = file.data_bytes / file.records.max(1) >= FAR_RECORD_BYTES;
        let window = if far { HEADER_BYTES } else { self.near_bytes };
        loop {
            let len = self.length_at(&mut walk, sample.shard, window)?;
            let place = RecordLocation { portion, sample, offset: walk.offset, len };
            let found = walk.ordinal == record.ordinal;
            let has_rows = files.dataset().samples().is_some_and(|maps| maps.has_rows());
            walk.last = has_rows.then_some((walk.ordinal, walk.offset, len));
            walk.ordinal += 1;
            walk.offset += len + (HEADER_BYTES + FOOTER_BYTES) as u64;
            if found {
                self.tools
                    .trails
                    .leave(sample.shard, Mark { ordinal: walk.ordinal, offset: walk.offset });
                if walk.ordinal < file.records || has_rows {
                    self.walks.insert(split, walk);
                }
                return Ok(place);
            }
        }
    }

    /// Returns the length in the header at the walk's offset.
    fn length_at(&self, walk: &mut Walk, shard: u32, window: usize) -> Result<u64, LoadError> {
        let near = |walk: &Walk| {
            let from = usize::try_from(walk.offset.checked_sub(walk.near_from)?).ok()?;
            walk.near.get(from..)?.first_chunk::<HEADER_BYTES>().copied()
        };
        let sample = Sample { shard, ordinal: walk.ordinal };
        let header = match near(walk) {
            Some(header) => header,
            None => {
                walk.near.resize(window, 0);
                let read = read_full(&self.tools.files, shard, &mut walk.near, walk.offset)?;
                walk.near.truncate(read);
                walk.near_from = walk.offset;
                near(walk).ok_or_else(|| {
                    let missing = HEADER_BYTES.saturating_sub(read) as u64;
                    let kind = ReadErrorKind::TruncatedHeader { missing };
                    error_at(&self.tools.files, sample, walk.offset, kind)
                })?
            }
        };
        let length = decode_header(&header)
            .map_err(|crc| error_at(&self.tools.files, sample, walk.offset, crc.into()))?;
        let size = self.tools.files.dataset().files()[shard as usize].stamp.size_bytes;
        let behind = walk.offset + (HEADER_BYTES + FOOTER_BYTES) as u64;
        if length > size.saturating_sub(behind) {
            let available = size.saturating_sub(walk.offset + HEADER_BYTES as u64);
            let kind = ReadErrorKind::TruncatedData { length, available };
            return Err(error_at(&self.tools.files, sample, walk.offset, kind));
        }
        Ok(length)
    }
}

/// - `record`: by its index in its shard, also where fewer records are samples.
fn error_at(files: &Files, record: Sample, offset: u64, kind: ReadErrorKind) -> LoadError {
    let file = files.name(record.shard);
    ReadError { file, offset, ordinal: record.ordinal, kind }.into()
}

/// Fills `buffer` up to the end of the file.
fn read_full(
    files: &Files,
    shard: u32,
    buffer: &mut [u8],
    offset: u64,
) -> Result<usize, LoadError> {
    let mut filled = 0;
    while filled < buffer.len() {
        let read = files.read_at(shard, &mut buffer[filled..], offset + filled as u64)?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    Ok(filled)
}
