//! A frame: four bytes of header, then the message.

/// Maximum bytes of a message. The largest sent ones describe a batch or a job, some kilobytes; the
/// limit bounds the memory that a broken peer can make this side allocate.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// Maximum bytes of a buffer that is kept for the next frame; a larger frame gets its own.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;

/// Bytes of a header: the body's length, u32 little-endian, and a flag in its top bit.
pub(crate) const HEADER_BYTES: usize = 4;

const DESCRIPTOR_FLAG: u32 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) body_bytes: usize,
    /// True if a descriptor is sent with the first byte of the header.
    pub(crate) descriptor: bool,
}

impl FrameHeader {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        debug_assert!(self.body_bytes <= FRAME_BYTES_MAX, "senders check");
        let flag = if self.descriptor { DESCRIPTOR_FLAG } else { 0 };
        (self.body_bytes as u32 | flag).to_le_bytes()
    }

    pub(crate) fn decode(bytes: [u8; HEADER_BYTES]) -> Self {
        let word = u32::from_le_bytes(bytes);
        Self {
            body_bytes: (word & !DESCRIPTOR_FLAG) as usize,
            descriptor: word & DESCRIPTOR_FLAG != 0,
        }
    }

    /// Bytes of header and body.
    pub(crate) fn frame_bytes(self) -> usize {
        HEADER_BYTES + self.body_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_what_the_protocol_says() {
        let header = FrameHeader { body_bytes: 0x0001_0203, descriptor: true };
        assert_eq!(header.encode(), [0x03, 0x02, 0x01, 0x80]);
        for body_bytes in [0, 1, FRAME_BYTES_MAX] {
            for descriptor in [false, true] {
                let header = FrameHeader { body_bytes, descriptor };
                assert_eq!(FrameHeader::decode(header.encode()), header);
            }
        }
    }
}
