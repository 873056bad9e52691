//! The frame that is being received, and its descriptor. No system calls.
//!
//! Linux returns the descriptors of a `sendmsg` from the `recvmsg` that reads its first byte, and
//! that call ends with the bytes of the same `sendmsg` at the latest. No call reads beyond the end
//! of a header or of a frame, so a frame's own descriptor is received with its first byte.

use std::os::fd::OwnedFd;

use crate::error::SocketError;
use crate::frame::{BUFFER_BYTES, FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES};

#[derive(Debug)]
pub(crate) struct Inbox {
    header: [u8; HEADER_BYTES],
    /// Fully initialized. Once the header is complete, its length is that of the frame's body.
    body: Vec<u8>,
    /// Received bytes of the frame, those of its header included.
    filled: usize,
    descriptor: Option<OwnedFd>,
}

#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) descriptor: Option<OwnedFd>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { header: [0; HEADER_BYTES], body: vec![], filled: 0, descriptor: None }
    }

    /// Returns the buffer to receive into: the rest of the header, then that of the body.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        match self.filled.checked_sub(HEADER_BYTES) {
            None => &mut self.header[self.filled..],
            Some(filled) => &mut self.body[filled..],
        }
    }

    /// Records that one call received `count` bytes into the buffer, with this descriptor.
    ///
    /// # Errors  The header announces too many bytes; the descriptor is not the one that it
    /// announces.
    pub(crate) fn received(
        &mut self,
        count: usize,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), SocketError> {
        if self.filled == 0 {
            self.descriptor = descriptor;
        } else if descriptor.is_some() {
            // A peer that sends one with each byte cannot exhaust this process's descriptors.
            return Err(SocketError::SurplusDescriptor);
        }
        let had_header = self.filled >= HEADER_BYTES;
        self.filled += count;
        if had_header || self.filled < HEADER_BYTES {
            return Ok(());
        }
        let header = FrameHeader::decode(self.header);
        if header.body_bytes > FRAME_BYTES_MAX {
            return Err(SocketError::Oversize { bytes: header.body_bytes });
        }
        match (header.descriptor, &self.descriptor) {
            (true, None) => return Err(SocketError::NoDescriptor),
            (false, Some(_)) => return Err(SocketError::SurplusDescriptor),
            _ => {}
        }
        if header.body_bytes <= BUFFER_BYTES && self.body.capacity() > BUFFER_BYTES {
            self.body = vec![];
        }
        self.body.resize(header.body_bytes, 0);
        Ok(())
    }

    /// Returns the frame if it is complete; the next bytes are of another one.
    pub(crate) fn take(&mut self) -> Option<Frame<'_>> {
        // Before the header is complete, the body is the previous frame's.
        if self.filled < HEADER_BYTES + self.body.len() {
            return None;
        }
        self.filled = 0;
        Some(Frame { body: &self.body, descriptor: self.descriptor.take() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    fn descriptor() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn frame(body: &[u8], descriptor: bool) -> Vec<u8> {
        let header = FrameHeader { body_bytes: body.len(), descriptor }.encode();
        [&header, body].concat()
    }

    fn put(
        inbox: &mut Inbox,
        bytes: &[u8],
        descriptor: Option<OwnedFd>,
    ) -> Result<(), SocketError> {
        inbox.room()[..bytes.len()].copy_from_slice(bytes);
        inbox.received(bytes.len(), descriptor)
    }

    /// Simulates one `recvmsg` of Linux: at most `room` bytes of `sent`.
    fn call(
        sent: &mut VecDeque<(Vec<u8>, Option<OwnedFd>)>,
        room: usize,
    ) -> (Vec<u8>, Option<OwnedFd>) {
        let mut bytes = Vec::new();
        while bytes.len() < room {
            let Some((message, descriptor)) = sent.front_mut() else {
                break;
            };
            let descriptor = descriptor.take();
            let count = message.len().min(room - bytes.len());
            bytes.extend(message.drain(..count));
            if message.is_empty() {
                sent.pop_front();
            }
            if descriptor.is_some() {
                return (bytes, descriptor);
            }
        }
        (bytes, None)
    }

    #[test]
    fn descriptors_stay_with_their_frames_however_the_stream_is_cut() {
        for most in [1, 2, 3, 4, 5, 7, 11, 64, 1000, BUFFER_BYTES] {
            let mut sent = VecDeque::new();
            let mut expected = VecDeque::new();
            for index in 0_usize..300 {
                let body = vec![index as u8; index * 7 % 61];
                let own = (index % 3 == 0 || index % 7 == 0).then(descriptor);
                expected.push_back((body.clone(), own.as_ref().map(AsRawFd::as_raw_fd)));
                sent.push_back((frame(&body, own.is_some()), own));
            }
            let mut inbox = Inbox::new();
            let mut kept = Vec::new();
            while !sent.is_empty() {
                let room = inbox.room().len();
                assert!(room > 0);
                let (bytes, own) = call(&mut sent, room.min(most));
                put(&mut inbox, &bytes, own).unwrap();
                if let Some(frame) = inbox.take() {
                    let number = frame.descriptor.as_ref().map(AsRawFd::as_raw_fd);
                    assert_eq!(expected.pop_front().unwrap(), (frame.body.to_vec(), number));
                    kept.extend(frame.descriptor);
                }
            }
            assert!(expected.is_empty());
        }
    }

    #[test]
    fn a_large_frame_gets_a_larger_buffer_until_the_next_one() {
        let mut inbox = Inbox::new();
        let mut receive = |body: &[u8]| {
            let bytes = frame(body, false);
            let (header, rest) = bytes.split_at(HEADER_BYTES);
            put(&mut inbox, header, None).unwrap();
            for part in rest.chunks(40_000) {
                assert!(inbox.take().is_none());
                put(&mut inbox, part, None).unwrap();
            }
            assert_eq!(inbox.take().unwrap().body, body);
            inbox.body.capacity()
        };
        assert!(receive(&vec![7; 3 * BUFFER_BYTES]) >= 3 * BUFFER_BYTES);
        assert!(receive(&[7; 100]) <= BUFFER_BYTES);
    }

    #[test]
    fn a_length_over_the_bound_is_refused_before_anything_is_allocated() {
        let mut inbox = Inbox::new();
        let length = (FRAME_BYTES_MAX as u32 + 1).to_le_bytes();
        let error = put(&mut inbox, &length, None).unwrap_err();
        assert!(matches!(error, SocketError::Oversize { bytes } if bytes == FRAME_BYTES_MAX + 1));
        assert_eq!(inbox.body.capacity(), 0);
    }

    #[test]
    fn a_descriptor_that_is_announced_and_does_not_come_is_missed() {
        let mut inbox = Inbox::new();
        let header = &frame(b"a", true)[..HEADER_BYTES];
        assert!(matches!(put(&mut inbox, header, None), Err(SocketError::NoDescriptor)));
    }

    #[test]
    fn a_descriptor_that_is_not_announced_is_refused() {
        let surplus = |inbox: &mut Inbox, bytes: &[u8]| {
            let put = put(inbox, bytes, Some(descriptor()));
            matches!(put, Err(SocketError::SurplusDescriptor))
        };
        // With a frame that announces none.
        assert!(surplus(&mut Inbox::new(), &frame(b"a", false)[..HEADER_BYTES]));
        // After the header of an incomplete frame, with or without a descriptor of this frame.
        for (announced, own) in [(false, None), (true, Some(descriptor()))] {
            let bytes = frame(b"abcdef", announced);
            let mut inbox = Inbox::new();
            put(&mut inbox, &bytes[..HEADER_BYTES], own).unwrap();
            assert!(inbox.take().is_none());
            assert!(surplus(&mut inbox, &bytes[HEADER_BYTES..6]));
        }
        // In the middle of a header.
        let mut inbox = Inbox::new();
        put(&mut inbox, &[1], None).unwrap();
        assert!(surplus(&mut inbox, &[0]));
    }
}
