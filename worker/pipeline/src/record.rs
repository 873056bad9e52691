//! A record that was read, and its place in a batch.

use shardfeed_plan::Sample;
use shardfeed_tfrecord::FOOTER_BYTES;

/// One row of a batch: a record where it was read to. Its length was checked, its data was not: that happens
/// where the data is used, while it is in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Which sample stands in it.
    pub sample: Sample,
    /// Offset of the record's header in the uncompressed shard, in bytes.
    pub offset: u64,
    /// Its data, and behind it the stored checksum.
    pub stored: &'a [u8],
    /// `false` for padding.
    pub valid: bool,
    /// Which time this sample stands in the epoch: 0, or 1 where it pads. Random operators draw by it.
    pub occurrence: u32,
}

impl<'a> Row<'a> {
    /// The record's data, unchecked.
    pub fn data(&self) -> &'a [u8] {
        &self.stored[..self.len()]
    }

    /// Bytes of data.
    #[allow(clippy::len_without_is_empty, reason = "a record without data is one like any other")]
    pub fn len(&self) -> usize {
        self.stored.len() - FOOTER_BYTES
    }

    /// The masked CRC-32C that is stored for the data.
    pub fn stored_crc(&self) -> u32 {
        let footer = self.stored.last_chunk().expect("a record was read with its checksum");
        u32::from_le_bytes(*footer)
    }
}
