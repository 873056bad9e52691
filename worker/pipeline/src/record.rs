//! A record that was read, and its place in a batch.

use std::sync::Arc;

use shardfeed_plan::Sample;

use crate::chunk::ChunkBuffer;

/// Stored bytes of one record inside the chunk that they were read with. Its length was checked,
/// its data was not: that happens where the data is used, while it is in the cache.
#[derive(Clone, Debug)]
pub struct RawRecord {
    /// Which sample it is.
    pub sample: Sample,
    /// Offset of its header in the uncompressed shard, in bytes.
    pub offset: u64,
    /// Bytes it is in.
    pub chunk: Arc<ChunkBuffer>,
    /// Where its data starts in `chunk`.
    pub start: usize,
    /// Bytes of data; the stored checksum follows them in `chunk`.
    pub len: usize,
}

impl RawRecord {
    /// The record's data, unchecked.
    pub fn data(&self) -> &[u8] {
        &self.chunk[self.start..self.start + self.len]
    }

    /// The masked CRC-32C that is stored for the data.
    pub fn stored_crc(&self) -> u32 {
        let end = self.start + self.len;
        let footer = self.chunk[end..].first_chunk::<4>().expect("a chunk holds whole frames");
        u32::from_le_bytes(*footer)
    }
}

/// One row of a batch.
#[derive(Clone, Debug)]
pub struct Row {
    /// What stands in it.
    pub record: RawRecord,
    /// `false` for padding.
    pub valid: bool,
    /// Which time this sample stands in the epoch: 0, or 1 where it pads. Random operators draw by it.
    pub occurrence: u32,
}
