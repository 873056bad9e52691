use serde::{Deserialize, Serialize};

/// Height and width in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub height: usize,
    pub width: usize,
}

impl Size {
    pub fn pixels(self) -> usize {
        self.height.saturating_mul(self.width)
    }
}

/// A rectangular part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First row.
    pub top: usize,
    /// First pixel in a row.
    pub left: usize,
    pub size: Size,
}

impl Region {
    /// Region of an entire image of `size`.
    pub fn all(size: Size) -> Self {
        Self { top: 0, left: 0, size }
    }

    /// True if the region is within an image of `size`.
    pub fn lies_in(self, size: Size) -> bool {
        let fits = |from: usize, len: usize, all: usize| from <= all && len <= all - from;
        fits(self.top, self.size.height, size.height)
            && fits(self.left, self.size.width, size.width)
    }

    /// Returns the smallest region that contains both.
    pub fn around(self, other: Self) -> Self {
        let end = |start: usize, len: usize, other: usize, other_len: usize| {
            (start + len).max(other + other_len)
        };
        let (top, left) = (self.top.min(other.top), self.left.min(other.left));
        let (one, two) = (self.size, other.size);
        let height = end(self.top, one.height, other.top, two.height) - top;
        let width = end(self.left, one.width, other.left, two.width) - left;
        Self { top, left, size: Size { height, width } }
    }

    /// Returns the region `inner` of this region, relative to the image.
    pub fn within(self, inner: Self) -> Self {
        Self { top: self.top + inner.top, left: self.left + inner.left, size: inner.size }
    }
}

/// A region of an image in memory, row-major, channels last.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Pixels of the whole image.
    pub bytes: &'a [u8],
    pub size: Size,
    pub pixel_bytes: usize,
    pub region: Region,
}

impl<'a> View<'a> {
    /// Rows of the region, in order.
    pub fn rows(self) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        let Region { top, left, size } = self.region;
        let (stride, from) = (self.size.width * self.pixel_bytes, left * self.pixel_bytes);
        let len = size.width * self.pixel_bytes;
        (top..top + size.height).map(move |row| &self.bytes[row * stride + from..][..len])
    }

    /// Copies the region to `out`, which has exactly its size.
    pub fn copy_to(self, out: &mut [u8]) {
        let len = self.region.size.width * self.pixel_bytes;
        if len > 0 {
            out.chunks_exact_mut(len)
                .zip(self.rows())
                .for_each(|(out, row)| out.copy_from_slice(row));
        }
    }
}
