//! Index of a file, built in one pass, with all that planning needs.

mod chunks;
mod plain;
mod stream;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::compression::{Compression, CompressionChoice};
use crate::error::ReadError;
use crate::frame::{FOOTER_BYTES, HEADER_BYTES};

pub use chunks::index_chunks;
pub use plain::{ReadAt, index_source};
pub use stream::index_records;

/// Digest items (12 bytes each) hashed at a time.
const DIGEST_BUFFER_BYTES: usize = 12 * 256;

/// Options of indexing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexOptions {
    /// Compression of the file; default: detect.
    pub compression: CompressionChoice,
    /// Also check each record's data. Default false: then large records of plain files are not
    /// read.
    pub verify_data: bool,
    /// Continue after damage. Default false: any damage is an error.
    ///
    /// If true, a break in the framing ends the index at the last valid record and is reported in
    /// [`ShardIndex::broken`]; damaged data (with `verify_data`) is counted, and the first such
    /// record is reported.
    pub keep_going: bool,
    /// Maximum number of marks, default 64.
    pub marks_max: usize,
    /// Minimum bytes from the start to the first mark and between marks, default 64 KiB: small files,
    /// of which a dataset may have a million, have none.
    pub mark_bytes: u64,
    /// Maximum record size in bytes, default 1 GiB; a longer record is an error.
    pub record_bytes_max: u64,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self {
            compression: CompressionChoice::Auto,
            verify_data: false,
            keep_going: false,
            marks_max: 64,
            mark_bytes: 64 << 10,
            record_bytes_max: 1 << 30,
        }
    }
}

/// Result of one pass over a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardIndex {
    pub compression: Compression,
    pub records: u64,
    /// Bytes of data of all records, without framing.
    pub data_bytes: u64,
    /// Bytes of data of the largest record.
    pub record_bytes_max: u64,
    /// Bytes of the uncompressed stream up to the end of the last record, framing included.
    pub stream_bytes: u64,
    /// SHA-256 over all records in order: the length as u64 and the stored masked data checksum as
    /// u32, both little endian. Moving, touching or recompressing a file does not change it.
    pub digest: [u8; 32],
    /// Evenly spaced starts of records, in order; the first is record 0.
    pub marks: Vec<Mark>,
    /// True if each record's data was checked.
    pub data_verified: bool,
    /// Records whose data does not match its checksum; 0 if the data was not checked.
    pub corrupt_records: u64,
    /// First of these records.
    pub first_corrupt: Option<Break>,
    /// Break in the framing, if there is one and `keep_going` is set.
    pub broken: Option<Break>,
}

/// Start of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub ordinal: u64,
    /// Offset of its header in the uncompressed stream.
    pub offset: u64,
}

/// Location of damage: a damaged record, or a point after which no record can be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Break {
    /// Ordinal of the record, or the ordinal that the lost record would have.
    pub ordinal: u64,
    /// Offset of its header, actual or expected, in the uncompressed stream.
    pub offset: u64,
    pub message: String,
}

impl ShardIndex {
    /// Returns the index of a file without records.
    pub fn empty(compression: Compression) -> Self {
        Builder::new(compression, &IndexOptions::default()).finish()
    }
}

/// Incomplete [`ShardIndex`].
struct Builder {
    index: ShardIndex,
    marks_max: usize,
    mark_bytes: u64,
    /// Offset from which on a record is marked.
    next_mark: u64,
    hasher: Sha256,
    hash_next: Vec<u8>,
}

impl Builder {
    fn new(compression: Compression, options: &IndexOptions) -> Self {
        Self {
            index: ShardIndex {
                compression,
                records: 0,
                data_bytes: 0,
                record_bytes_max: 0,
                stream_bytes: 0,
                digest: [0; 32],
                marks: Vec::new(),
                data_verified: options.verify_data,
                corrupt_records: 0,
                first_corrupt: None,
                broken: None,
            },
            marks_max: options.marks_max,
            mark_bytes: options.mark_bytes,
            next_mark: options.mark_bytes,
            hasher: Sha256::new(),
            hash_next: Vec::with_capacity(DIGEST_BUFFER_BYTES),
        }
    }

    /// Adds the next record: `length` bytes of data with this stored checksum.
    fn push(&mut self, length: u64, stored_crc: u32) {
        if self.index.stream_bytes >= self.next_mark {
            self.mark();
        }
        let index = &mut self.index;
        index.records += 1;
        index.data_bytes += length;
        index.record_bytes_max = index.record_bytes_max.max(length);
        index.stream_bytes += length + (HEADER_BYTES + FOOTER_BYTES) as u64;
        self.hash_next.extend_from_slice(&length.to_le_bytes());
        self.hash_next.extend_from_slice(&stored_crc.to_le_bytes());
        if self.hash_next.len() >= DIGEST_BUFFER_BYTES {
            self.hasher.update(&self.hash_next);
            self.hash_next.clear();
        }
    }

    /// Marks the next record; if there are too many marks, removes those that are too near to others.
    fn mark(&mut self) {
        let next = Mark { ordinal: self.index.records, offset: self.index.stream_bytes };
        let marks = &mut self.index.marks;
        marks.push(next);
        while marks.len() > self.marks_max {
            self.mark_bytes = self.mark_bytes.saturating_mul(2);
            let mut from = self.mark_bytes;
            marks.retain(|mark| {
                let is_far = mark.offset >= from;
                from = if is_far { mark.offset + self.mark_bytes } else { from };
                is_far
            });
        }
        self.next_mark = marks.last().map_or(0, |last| last.offset) + self.mark_bytes;
    }

    fn finish(mut self) -> ShardIndex {
        self.hasher.update(&self.hash_next);
        self.index.digest = self.hasher.finalize().into();
        self.index
    }

    /// Ends the pass at an error; returns the index so far if `keep_going` is set.
    fn end_at(mut self, error: ReadError, options: &IndexOptions) -> Result<ShardIndex, ReadError> {
        if !options.keep_going || error.is_io() {
            return Err(error);
        }
        self.index.broken = Some(Break::of(&error));
        Ok(self.finish())
    }
}

impl Break {
    fn of(error: &ReadError) -> Self {
        let message = error.to_string();
        Self { ordinal: error.ordinal, offset: error.offset, message }
    }
}

#[cfg(test)]
mod tests;
