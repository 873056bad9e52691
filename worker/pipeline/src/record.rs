//! A record that was read, and its row in a batch.

use shardfeed_plan::Sample;
use shardfeed_tfrecord::FOOTER_BYTES;

/// One row of a batch: a record in the memory that it was read into.
///
/// Its length was checked; its data is checked where it is used, while it is in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Sample of the row.
    pub sample: Sample,
    /// Offset of the record's header in the uncompressed shard, in bytes.
    pub offset: u64,
    /// Data of the record, followed by the stored checksum.
    pub stored: &'a [u8],
    /// `false` for padding.
    pub valid: bool,
    /// Occurrence of this sample in the epoch: 0, or 1 as padding. Keys the draws of random
    /// operators.
    pub occurrence: u32,
}

impl<'a> Row<'a> {
    /// Data of the record, unchecked.
    pub fn data(&self) -> &'a [u8] {
        &self.stored[..self.len()]
    }

    /// Length of the data in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a record without data is one like any other")]
    pub fn len(&self) -> usize {
        self.stored.len() - FOOTER_BYTES
    }

    /// Stored masked CRC-32C of the data.
    pub fn stored_crc(&self) -> u32 {
        let footer = self.stored.last_chunk().expect("a record was read with its checksum");
        u32::from_le_bytes(*footer)
    }
}
