use std::ops::Range;

/// Alignment of every buffer: dlpack.h requires 256, JAX and TensorFlow 64 on the CPU.
pub const SLOT_ALIGN_BYTES: usize = 256;

/// Position of a buffer in its slot, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferRange {
    /// First byte; a multiple of [`SLOT_ALIGN_BYTES`].
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl BufferRange {
    /// Returns the bytes as a range of the slot.
    pub fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// Lays out buffers in sequence, each aligned.
#[derive(Clone, Debug, Default)]
pub struct BufferLayout {
    end: usize,
    ranges: Vec<BufferRange>,
}

impl BufferLayout {
    /// Appends a buffer of `len` bytes.
    pub fn push(&mut self, len: usize) -> BufferRange {
        let range = BufferRange { start: self.end.next_multiple_of(SLOT_ALIGN_BYTES), len };
        self.end = range.start + len;
        self.ranges.push(range);
        range
    }

    /// Bytes of all buffers and the gaps between them.
    pub fn bytes(&self) -> usize {
        self.end
    }

    /// Splits `slot` into the buffers in the order they were added, for concurrent writing.
    pub fn split<'a>(&self, mut slot: &'a mut [u8]) -> Vec<&'a mut [u8]> {
        let mut at = 0;
        let mut buffers = Vec::with_capacity(self.ranges.len());
        for range in &self.ranges {
            let (_, rest) = slot.split_at_mut(range.start - at);
            let (buffer, rest) = rest.split_at_mut(range.len);
            buffers.push(buffer);
            slot = rest;
            at = range.start + range.len;
        }
        buffers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_apart() {
        let mut layout = BufferLayout::default();
        let ranges: Vec<_> = [3, 0, 256, 1].map(|len| layout.push(len)).to_vec();
        let starts: Vec<_> = ranges.iter().map(|range| range.start).collect();
        assert_eq!(starts, [0, 256, 256, 512]);
        assert_eq!(layout.bytes(), 513);
        let mut slot = vec![0; 600];
        for (index, buffer) in layout.split(&mut slot).into_iter().enumerate() {
            assert_eq!(buffer.len(), ranges[index].len);
            buffer.fill(index as u8 + 1);
        }
        assert_eq!((slot[2], slot[3], slot[256], slot[511], slot[512]), (1, 0, 3, 3, 4));
    }
}
