//! The hot path: many records by one read, checked where they lie.

mod reader;

pub use reader::ChunkReader;

/// How a [`ChunkReader`] reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkOptions {
    /// Bytes asked for at a time, default 1 MiB. A larger record makes its own chunk larger.
    pub chunk_bytes: usize,
    /// Where the source starts, in bytes of the uncompressed stream. Default 0.
    pub first_offset: u64,
    /// The number of the record that the source starts with. Default 0.
    pub first_ordinal: u64,
    /// A longer record is an error, default 1 GiB. Memory is taken as bytes arrive, not on a
    /// header's word, so this bounds what a file can make us hold, not what it can claim.
    pub record_bytes_max: u64,
    /// Check each record's data, default true. Headers are always checked.
    pub verify_data: bool,
}

impl Default for ChunkOptions {
    fn default() -> Self {
        Self {
            chunk_bytes: 1 << 20,
            first_offset: 0,
            first_ordinal: 0,
            record_bytes_max: 1 << 30,
            verify_data: true,
        }
    }
}

/// Consecutive records in one buffer.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// What was read. Only the places that `records` name mean anything.
    pub bytes: Vec<u8>,
    /// Where the records are, at least one, in file order.
    pub records: Vec<RecordSpan>,
    /// The number in the file of the first record.
    pub first_ordinal: u64,
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSpan {
    /// Start of the data in the chunk's bytes.
    pub start: usize,
    /// Bytes of data.
    pub len: usize,
    /// Where the record's header is in the uncompressed stream.
    pub offset: u64,
}

impl Chunk {
    /// The data of record `index` of this chunk.
    ///
    /// # Panics
    /// If `index` is not below `records.len()`.
    #[must_use]
    pub fn data(&self, index: usize) -> &[u8] {
        self.records[index].of(&self.bytes)
    }

    /// The data of all records, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.records.iter().map(|span| span.of(&self.bytes))
    }
}

impl RecordSpan {
    /// The record's data, in the bytes of its chunk.
    ///
    /// # Panics
    /// If `bytes` are shorter than the chunk's.
    #[must_use]
    pub fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start..self.start + self.len]
    }
}
