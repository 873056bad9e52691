//! Mirrored images.

use serde::{Deserialize, Serialize};
use shardfeed_image::{Region, Size, View};

/// Axis along which an image is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Left and right are swapped.
    Horizontal,
    /// Top and bottom are swapped.
    Vertical,
}

/// Axes on which an image is flipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turned {
    left_right: bool,
    up_down: bool,
}

impl Turned {
    pub(super) fn turn(&mut self, axis: Axis) {
        match axis {
            Axis::Horizontal => self.left_right = !self.left_right,
            Axis::Vertical => self.up_down = !self.up_down,
        }
    }

    /// Converts a region of the flipped image to the image itself, of size `all`.
    pub(super) fn seen_from_behind(self, part: Region, all: Size) -> Region {
        let Region { mut top, mut left, size } = part;
        if self.up_down {
            top = all.height - top - size.height;
        }
        if self.left_right {
            left = all.width - left - size.width;
        }
        Region { top, left, size }
    }

    pub(super) fn copy(self, view: View<'_>, out: &mut [u8]) {
        let pixel = view.pixel_bytes;
        let len = view.region.size.width * pixel;
        if len == 0 || out.is_empty() {
            return;
        }
        let write = |(out, row): (&mut [u8], &[u8])| match (self.left_right, pixel) {
            (false, _) => out.copy_from_slice(row),
            (true, 1) => out.iter_mut().zip(row.iter().rev()).for_each(|(to, from)| *to = *from),
            (true, 3) => {
                let pixels = out.as_chunks_mut::<3>().0.iter_mut();
                pixels.zip(row.as_chunks::<3>().0.iter().rev()).for_each(|(to, from)| *to = *from);
            }
            (true, _) => {
                let pixels = out.chunks_exact_mut(pixel).zip(row.chunks_exact(pixel).rev());
                pixels.for_each(|(to, from)| to.copy_from_slice(from));
            }
        };
        let rows = out.chunks_exact_mut(len);
        match self.up_down {
            false => rows.zip(view.rows()).for_each(write),
            true => rows.zip(view.rows().rev()).for_each(write),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Crops of flipped crops give the same pixels as applying them one after the other.
        #[test]
        fn parts_and_mirrors_go_in_any_order(turns in prop::collection::vec((0..3_u8, 0..3_usize), 0..8)) {
            let size = Size { height: 20, width: 20 };
            let bytes: Vec<u8> = (0..400_usize).flat_map(|at| [(at / 20) as u8, (at % 20) as u8]).collect();
            let whole = View { bytes: &bytes, size, pixel_bytes: 2, region: Region::all(size) };
            let (mut region, mut turned) = (Region::all(size), Turned::default());
            let (mut step, mut at) = (bytes.clone(), size);
            for (kind, from) in turns {
                let view = View { bytes: &step, size: at, pixel_bytes: 2, region: Region::all(at) };
                let (mut next, mut by) = (view, Turned::default());
                match kind {
                    0 => by.turn(Axis::Horizontal),
                    1 => by.turn(Axis::Vertical),
                    _ => {
                        let left = from.min(2);
                        let size = Size { height: at.height - 2, width: at.width - 2 };
                        next.region = Region { top: from, left, size };
                        region = region.within(turned.seen_from_behind(next.region, at));
                        at = size;
                    }
                }
                turned = Turned {
                    left_right: turned.left_right != by.left_right,
                    up_down: turned.up_down != by.up_down,
                };
                let mut out = vec![0; at.pixels() * 2];
                by.copy(next, &mut out);
                step = out;
            }
            let mut out = vec![0; at.pixels() * 2];
            turned.copy(View { region, ..whole }, &mut out);
            prop_assert_eq!(out, step);
        }
    }
}
