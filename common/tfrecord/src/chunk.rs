//! The hot path: reads many records at once and checks them in place.

mod reader;

pub use reader::ChunkReader;

/// Options of a [`ChunkReader`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkOptions {
    /// Bytes requested at a time, default 1 MiB. A larger record makes its own chunk larger.
    pub chunk_bytes: usize,
    /// Offset of the source's start in the uncompressed stream, in bytes. Default 0.
    pub first_offset: u64,
    /// Ordinal of the source's first record. Default 0.
    pub first_ordinal: u64,
    /// Maximum record size, default 1 GiB; a longer record is an error.
    ///
    /// Memory is allocated as bytes arrive, not according to the header, so this limits the memory
    /// that a file can occupy, not the length that it can claim.
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
    /// Buffer contents. Only the ranges in `records` are meaningful.
    pub bytes: Vec<u8>,
    /// Locations of the records, at least one, in file order.
    pub records: Vec<RecordSpan>,
    /// Ordinal in the file of the first record.
    pub first_ordinal: u64,
}

/// Location of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSpan {
    /// Start of the data in the chunk's bytes.
    pub start: usize,
    pub len: usize,
    /// Offset of the record's header in the uncompressed stream.
    pub offset: u64,
}

impl Chunk {
    /// Returns the data of record `index` of this chunk.
    ///
    /// # Panics
    /// If `index` is not below `records.len()`.
    pub fn data(&self, index: usize) -> &[u8] {
        self.records[index].of(&self.bytes)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.records.iter().map(|span| span.of(&self.bytes))
    }
}

impl RecordSpan {
    /// Returns the record's data from the bytes of its chunk.
    ///
    /// # Panics
    /// If `bytes` are shorter than the chunk's.
    pub fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start..self.start + self.len]
    }
}
