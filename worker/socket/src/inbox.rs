//! Received bytes and descriptors, and the frames made of them. No system calls.
//!
//! Linux returns the descriptors of a `sendmsg` from the `recvmsg` that reads its first byte. That
//! call may begin with bytes sent before, but ends with those of the same `sendmsg` at the latest.
//! So one call returns the descriptors of one `sendmsg`, and a frame's own descriptor is received
//! by the same call as its first byte.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;

use crate::error::SocketError;
use crate::frame::{FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES};

/// Bytes requested at a time: some hundred small frames. A larger frame gets its own buffer.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Inbox {
    /// Fully initialized; the range `unread` was received and not taken yet.
    buffer: Vec<u8>,
    unread: Range<usize>,
    /// Position of the first unread byte in the stream.
    at: u64,
    /// Descriptors not taken yet, in order. At most two: see [`Inbox::check_descriptors`].
    descriptors: VecDeque<Arrival>,
}

/// A descriptor, and the stream positions of the bytes received by the same call.
#[derive(Debug)]
struct Arrival {
    descriptor: OwnedFd,
    came_with: Range<u64>,
}

#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) descriptor: Option<OwnedFd>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES],
            unread: 0..0,
            at: 0,
            descriptors: VecDeque::with_capacity(2),
        }
    }

    /// Returns the buffer to receive into, at least up to the end of the incomplete frame.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        // The length was checked when the header was found incomplete.
        let wanted = self.header().map_or(HEADER_BYTES, FrameHeader::frame_bytes).max(BUFFER_BYTES);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        } else if self.buffer.len() > wanted && self.unread.len() < wanted {
            self.buffer.truncate(wanted);
            self.buffer.shrink_to_fit();
        }
        &mut self.buffer[self.unread.end..]
    }

    /// Records that one call received `count` bytes into the buffer, with this descriptor.
    pub(crate) fn received(&mut self, count: usize, descriptor: Option<OwnedFd>) {
        let from = self.at + self.unread.len() as u64;
        self.unread.end += count;
        let came_with = from..from + count as u64;
        self.descriptors.extend(descriptor.map(|descriptor| Arrival { descriptor, came_with }));
    }

    pub(crate) fn take(&mut self) -> Result<Option<Frame<'_>>, SocketError> {
        let Some(header) = self.header() else {
            self.check_descriptors(None)?;
            return Ok(None);
        };
        if header.body_bytes > FRAME_BYTES_MAX {
            return Err(SocketError::Oversize { bytes: header.body_bytes });
        }
        if self.unread.len() < header.frame_bytes() {
            self.check_descriptors(Some(header))?;
            return Ok(None);
        }
        let descriptor = self.take_descriptor(header)?;
        let end = self.unread.start + header.frame_bytes();
        let body = self.unread.start + HEADER_BYTES..end;
        self.unread.start = end;
        self.at += header.frame_bytes() as u64;
        Ok(Some(Frame { body: &self.buffer[body], descriptor }))
    }

    fn header(&self) -> Option<FrameHeader> {
        let bytes = self.buffer[self.unread.clone()].first_chunk()?;
        Some(FrameHeader::decode(*bytes))
    }

    /// Takes the descriptor of the frame that begins at `at`.
    fn take_descriptor(&mut self, header: FrameHeader) -> Result<Option<OwnedFd>, SocketError> {
        let own = match self.descriptors.front() {
            _ if !header.descriptor => None,
            Some(arrival) if arrival.came_with.contains(&self.at) => self.descriptors.pop_front(),
            _ => return Err(SocketError::NoDescriptor),
        };
        // A descriptor received before the next frame begins belongs to this frame or to none.
        let next = self.at + header.frame_bytes() as u64;
        match self.descriptors.front() {
            Some(arrival) if arrival.came_with.end <= next => Err(SocketError::SurplusDescriptor),
            _ => Ok(own.map(|arrival| arrival.descriptor)),
        }
    }

    /// Rejects descriptors that cannot belong to the incomplete frame, so that a peer that sends
    /// one with each byte cannot exhaust this process's descriptors.
    fn check_descriptors(&self, header: Option<FrameHeader>) -> Result<(), SocketError> {
        let announced = header.is_none_or(|header| header.descriptor);
        let fine = |arrival: &Arrival| announced && arrival.came_with.contains(&self.at);
        match self.descriptors.iter().all(fine) {
            true => Ok(()),
            false => Err(SocketError::SurplusDescriptor),
        }
    }
}

#[cfg(test)]
mod tests {
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

    fn put(inbox: &mut Inbox, bytes: &[u8], descriptor: Option<OwnedFd>) {
        inbox.room()[..bytes.len()].copy_from_slice(bytes);
        inbox.received(bytes.len(), descriptor);
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
        for room in [1, 2, 3, 4, 5, 7, 11, 64, 1000, BUFFER_BYTES] {
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
                let (bytes, own) = call(&mut sent, room);
                put(&mut inbox, &bytes, own);
                while let Some(frame) = inbox.take().unwrap() {
                    let number = frame.descriptor.as_ref().map(AsRawFd::as_raw_fd);
                    assert_eq!(expected.pop_front().unwrap(), (frame.body.to_vec(), number));
                    kept.extend(frame.descriptor);
                }
            }
            assert!(expected.is_empty());
        }
    }

    #[test]
    fn a_large_frame_gets_a_larger_buffer_until_it_is_taken() {
        let body = vec![7; 3 * BUFFER_BYTES];
        let bytes = frame(&body, false);
        let mut inbox = Inbox::new();
        for part in bytes.chunks(40_000) {
            assert!(inbox.take().unwrap().is_none());
            put(&mut inbox, part, None);
        }
        assert_eq!(inbox.take().unwrap().unwrap().body, body);
        assert_eq!(inbox.room().len(), BUFFER_BYTES);
    }

    #[test]
    fn a_length_over_the_bound_is_refused_before_anything_is_allocated() {
        let mut inbox = Inbox::new();
        put(&mut inbox, &(FRAME_BYTES_MAX as u32 + 1).to_le_bytes(), None);
        let error = inbox.take().unwrap_err();
        assert!(matches!(error, SocketError::Oversize { bytes } if bytes == FRAME_BYTES_MAX + 1));
        assert_eq!(inbox.buffer.len(), BUFFER_BYTES);
    }

    #[test]
    fn a_descriptor_that_is_announced_and_does_not_come_is_missed() {
        let mut inbox = Inbox::new();
        put(&mut inbox, &frame(b"a", true), None);
        assert!(matches!(inbox.take(), Err(SocketError::NoDescriptor)));
        // The next frame's descriptor does not count.
        let mut inbox = Inbox::new();
        put(&mut inbox, &frame(b"a", true), None);
        put(&mut inbox, &frame(b"b", true), Some(descriptor()));
        assert!(matches!(inbox.take(), Err(SocketError::NoDescriptor)));
    }

    #[test]
    fn a_descriptor_that_is_not_announced_is_refused() {
        let surplus =
            |inbox: &mut Inbox| matches!(inbox.take(), Err(SocketError::SurplusDescriptor));
        // With a frame that announces none.
        let mut inbox = Inbox::new();
        put(&mut inbox, &frame(b"a", false), Some(descriptor()));
        assert!(surplus(&mut inbox));
        // After the first byte of an incomplete frame, with or without a descriptor of this frame.
        for (announced, own) in [(false, None), (true, Some(descriptor()))] {
            let bytes = frame(b"abcdef", announced);
            let mut inbox = Inbox::new();
            put(&mut inbox, &bytes[..5], own);
            assert!(inbox.take().unwrap().is_none());
            put(&mut inbox, &bytes[5..7], Some(descriptor()));
            assert!(surplus(&mut inbox));
        }
        // In the middle of a header.
        let mut inbox = Inbox::new();
        put(&mut inbox, &[1], None);
        put(&mut inbox, &[0], Some(descriptor()));
        assert!(surplus(&mut inbox));
    }
}
