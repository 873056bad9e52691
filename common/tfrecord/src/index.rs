//! One pass over a file that says all that planning needs to know about it.

mod plain;
mod stream;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::compression::{Compression, CompressionChoice};
use crate::error::ReadError;
use crate::frame::{FOOTER_BYTES, HEADER_BYTES};

pub use plain::{ReadAt, index_file, index_source};
pub use stream::index_records;

/// Digest items (12 bytes each) hashed at a time.
const DIGEST_BUFFER_BYTES: usize = 12 * 256;

/// How a file is indexed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexOptions {
    /// How the file is compressed; default: find out.
    pub compression: CompressionChoice,
    /// Check each record's data too, default false: then large records of plain files are not read.
    pub verify_data: bool,
    /// Default false: any damage is an error. True: a break in the framing ends the index at the last
    /// good record and is told in [`ShardIndex::broken`]; bad data (with `verify_data`) is counted, and the
    /// first of it told.
    pub keep_going: bool,
    /// Marks kept at most, default 64.
    pub marks_max: usize,
    /// A longer record is an error, default 1 GiB.
    pub record_bytes_max: u64,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self {
            compression: CompressionChoice::Auto,
            verify_data: false,
            keep_going: false,
            marks_max: 64,
            record_bytes_max: 1 << 30,
        }
    }
}

/// What one pass over a file finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardIndex {
    /// How the file is compressed.
    pub compression: Compression,
    /// Records in the file.
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
    /// Starts of records, evenly spread, in order; the first is record 0.
    pub marks: Vec<Mark>,
    /// Whether each record's data was checked.
    pub data_verified: bool,
    /// Records whose data does not match its checksum; 0 if that was not checked.
    pub corrupt_records: u64,
    /// The first of them.
    pub first_corrupt: Option<Break>,
    /// Where the framing breaks, if it does and the pass was told to keep going.
    pub broken: Option<Break>,
}

/// Where a record starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The record's number in the file.
    pub ordinal: u64,
    /// Where its header is in the uncompressed stream.
    pub offset: u64,
}

/// Where something is wrong: a record that is damaged, or behind which no further one can be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Break {
    /// The record's number, or the one that a lost record would have had.
    pub ordinal: u64,
    /// Where its header is, or would be, in the uncompressed stream.
    pub offset: u64,
    /// The error, as it would have been shown.
    pub message: String,
}

impl ShardIndex {
    /// The index of a file without records.
    pub fn empty(compression: Compression) -> Self {
        Builder::new(compression, &IndexOptions::default()).finish()
    }
}

/// A [`ShardIndex`] in the making.
struct Builder {
    index: ShardIndex,
    marks_max: usize,
    /// Ordinals that are multiples of this have a mark.
    mark_stride: u64,
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
            mark_stride: 1,
            hasher: Sha256::new(),
            hash_next: Vec::with_capacity(DIGEST_BUFFER_BYTES),
        }
    }

    /// Adds the next record: `length` bytes of data with the checksum that is stored behind them.
    fn push(&mut self, length: u64, stored_crc: u32) {
        let index = &mut self.index;
        if index.records.is_multiple_of(self.mark_stride) {
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

    /// Marks the next record; when there are too many marks, every second one goes first.
    fn mark(&mut self) {
        let next = Mark { ordinal: self.index.records, offset: self.index.stream_bytes };
        let marks = &mut self.index.marks;
        if marks.len() >= self.marks_max {
            self.mark_stride *= 2;
            marks.retain(|mark| mark.ordinal.is_multiple_of(self.mark_stride));
        }
        if marks.len() < self.marks_max && next.ordinal.is_multiple_of(self.mark_stride) {
            marks.push(next);
        }
    }

    fn finish(mut self) -> ShardIndex {
        self.hasher.update(&self.hash_next);
        self.index.digest = self.hasher.finalize().into();
        self.index
    }

    /// Ends the pass at an error: with the records before it, if that was asked for.
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
