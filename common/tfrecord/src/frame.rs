//! Framing: `length u64 | masked CRC of the length | data | masked CRC of the data`, all little
//! endian. There is no magic, no index and no end marker.

use crate::error::ReadErrorKind;

/// Bytes before a record's data: its length and the length's checksum.
pub const HEADER_BYTES: usize = 12;

/// Bytes after a record's data: the data's checksum.
pub const FOOTER_BYTES: usize = 4;

const MASK_DELTA: u32 = 0xa282_ead8;

/// The length in a header does not match its checksum: later records cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the length does not match its checksum (stored {stored:#010x}, computed {computed:#010x}); copy \
     the file again from its source"
)]
pub struct LengthCrcMismatch {
    pub stored: u32,
    pub computed: u32,
}

/// A record's data does not match its checksum. The next record can still be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the data does not match its checksum (stored {stored:#010x}, computed {computed:#010x}); copy the \
     file again from its source"
)]
pub struct DataCrcMismatch {
    pub stored: u32,
    pub computed: u32,
}

/// Returns the CRC-32C (Castagnoli) of `bytes`, masked as TFRecord stores it.
///
/// The mask rotates right by 15 bits and adds a constant, so that checksums of data that contains
/// checksums remain effective.
pub fn masked_crc32c(bytes: &[u8]) -> u32 {
    mask(crc_fast::crc32_iscsi(bytes))
}

/// Masks a CRC-32C as TFRecord stores it.
pub(crate) fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(MASK_DELTA)
}

/// Encodes the header of a record with `length` bytes of data.
pub fn encode_header(length: u64) -> [u8; HEADER_BYTES] {
    let length = length.to_le_bytes();
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&length);
    header[8..].copy_from_slice(&masked_crc32c(&length).to_le_bytes());
    header
}

/// Encodes the footer of a record that holds `data`.
pub fn encode_footer(data: &[u8]) -> [u8; FOOTER_BYTES] {
    masked_crc32c(data).to_le_bytes()
}

/// Returns the data length from a header, after checking its checksum.
///
/// # Errors
/// [`LengthCrcMismatch`]; the length must then not be trusted, nor memory allocated for it.
pub fn decode_header(header: &[u8; HEADER_BYTES]) -> Result<u64, LengthCrcMismatch> {
    let [a, b, c, d, e, f, g, h, crc @ ..] = *header;
    let length = [a, b, c, d, e, f, g, h];
    let (stored, computed) = (u32::from_le_bytes(crc), masked_crc32c(&length));
    if stored == computed {
        Ok(u64::from_le_bytes(length))
    } else {
        Err(LengthCrcMismatch { stored, computed })
    }
}

/// Checks `data` against the masked checksum stored after it.
///
/// # Errors
/// [`DataCrcMismatch`] if any byte of either differs from what was written.
pub fn check_data(data: &[u8], stored: u32) -> Result<(), DataCrcMismatch> {
    let computed = masked_crc32c(data);
    if stored == computed { Ok(()) } else { Err(DataCrcMismatch { stored, computed }) }
}

/// Returns the checksum after a record's data; `bytes` start at the end of the data.
pub(crate) fn stored_crc(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_le_bytes)
}

/// Classification of the start of a buffer.
#[derive(Debug)]
pub(crate) enum Cut {
    /// A whole frame with this many bytes of data and a valid length checksum.
    Frame(usize),
    /// The header is incomplete.
    PartOfHeader,
    /// The header is valid; the frame with `length` bytes of data is incomplete.
    PartOfData { length: u64 },
    /// The header is invalid, or its length exceeds the limit.
    Bad(ReadErrorKind),
}

/// Classifies the frame at the start of `bytes` without examining its data.
pub(crate) fn cut(bytes: &[u8], record_bytes_max: u64) -> Cut {
    let Some((header, rest)) = bytes.split_first_chunk() else {
        return Cut::PartOfHeader;
    };
    match decode_header(header) {
        Err(mismatch) => Cut::Bad(mismatch.into()),
        Ok(length) if length > record_bytes_max => {
            Cut::Bad(ReadErrorKind::TooLarge { length, limit: record_bytes_max })
        }
        Ok(length) => match usize::try_from(length) {
            Ok(data_bytes)
                if rest.len().checked_sub(FOOTER_BYTES).is_some_and(|room| room >= data_bytes) =>
            {
                Cut::Frame(data_bytes)
            }
            _ => Cut::PartOfData { length },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        // RFC 3720 B.4 gives the plain CRC-32C of these as 8a9136aa, 62a8ab43 and e3069283.
        let mask = |crc: u32| crc.rotate_right(15).wrapping_add(MASK_DELTA);
        assert_eq!(masked_crc32c(&[0; 32]), mask(0x8a91_36aa));
        assert_eq!(masked_crc32c(&[0xff; 32]), mask(0x62a8_ab43));
        assert_eq!(masked_crc32c(b"123456789"), mask(0xe306_9283));
        assert_eq!(masked_crc32c(b""), 0xa282_ead8);
    }

    #[test]
    fn checksums_of_all_lengths_are_those_of_another_implementation() {
        let bytes: Vec<u8> =
            (0..70_000_u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for length in (0..1100).chain([4095, 4096, 65_537, 69_000]) {
            for start in [0, 1, 7, 63] {
                let bytes = &bytes[start..start + length];
                assert_eq!(
                    crc_fast::crc32_iscsi(bytes),
                    crc32c::crc32c(bytes),
                    "{length} at {start}"
                );
            }
        }
    }

    #[test]
    fn headers_round_trip_and_refuse_every_flipped_bit() {
        for length in [0, 1, 255, 1 << 20, u64::MAX] {
            let header = encode_header(length);
            assert_eq!(decode_header(&header), Ok(length));
            for bit in 0..HEADER_BYTES * 8 {
                let mut bad = header;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(decode_header(&bad).is_err(), "bit {bit} of {length}");
            }
        }
    }

    #[test]
    fn a_huge_length_is_refused_or_incomplete_but_never_a_frame() {
        let mut bytes = encode_header(1 << 60).to_vec();
        bytes.extend([0; 100]);
        assert!(matches!(cut(&bytes, 1 << 30), Cut::Bad(ReadErrorKind::TooLarge { .. })));
        assert!(matches!(cut(&bytes, u64::MAX), Cut::PartOfData { length } if length == 1 << 60));
        let max = encode_header(u64::MAX);
        assert!(matches!(cut(&max, u64::MAX), Cut::PartOfData { .. }));
    }

    #[test]
    fn a_wrong_checksum_is_shown_with_the_right_one() {
        let mut header = encode_header(5);
        header[11] ^= 1;
        let length = decode_header(&header).unwrap_err().to_string();
        assert_eq!(
            length,
            "the length does not match its checksum (stored 0x3f04b2ea, computed 0x3e04b2ea); copy \
             the file again from its source"
        );
        let data = check_data(b"hello", 7).unwrap_err().to_string();
        assert_eq!(
            data,
            "the data does not match its checksum (stored 0x00000007, computed 0x191c1fbb); copy the \
             file again from its source"
        );
    }
}
