//! Checksums of pages and blocks over the bytes, the table's digest, and the location in the table.

use crc_fast::{CrcAlgorithm, Digest as Checksum};
use shardfeed_plan::Digest;

/// Kind of a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealedPart {
    Page,
    Block,
}

/// Returns the checksum of part `number`, whose bytes are the concatenation of `bytes`.
pub(crate) fn seal(digest: &Digest, part: SealedPart, number: u64, bytes: [&[u8]; 2]) -> u32 {
    let mut place = [0; 9];
    place[0] = match part {
        SealedPart::Page => 1,
        SealedPart::Block => 2,
    };
    place[1..].copy_from_slice(&number.to_le_bytes());
    let mut sum = Checksum::new(CrcAlgorithm::Crc32Iscsi);
    for bytes in [digest.as_bytes(), &place[..], bytes[0], bytes[1]] {
        sum.update(bytes);
    }
    sum.finalize() as u32
}
