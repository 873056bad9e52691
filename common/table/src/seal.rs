//! Checksums of pages and blocks: of the bytes, of the table that they belong to, and of their place in it.

use crate::header::Digest;

/// What a part of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Page,
    Block,
}

/// The checksum of part `number`, whose bytes are `bytes` one after the other.
pub(crate) fn seal(digest: &Digest, part: Part, number: u64, bytes: [&[u8]; 2]) -> u32 {
    let mut place = [0; 9];
    place[0] = match part {
        Part::Page => 1,
        Part::Block => 2,
    };
    place[1..].copy_from_slice(&number.to_le_bytes());
    let mut sum = crc32c::crc32c(digest.bytes());
    for bytes in [&place[..], bytes[0], bytes[1]] {
        sum = crc32c::crc32c_append(sum, bytes);
    }
    sum
}
