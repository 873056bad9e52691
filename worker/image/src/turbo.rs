//! JPEG, by libjpeg-turbo: only what is needed of an image, with the pixels that all of it would have.

mod library;

use crate::encoded::{Decoding, Depth, check_size};
use crate::error::ImageError;
use crate::region::{Region, Size};
use library::{Colors, Decompressor, Header, Pixels};

const FORMAT: &str = "JPEG";
/// Colour is stored at half or a quarter of the resolution and smoothed between its samples: pixels at
/// the border of a part depend on samples this far beyond it at most.
const MARGIN: usize = 8;
/// A progressive file may lack scans. What they would say is then guessed from blocks nearby: up to two
/// of them away, and a block of colour is at most as wide as a unit.
const MARGIN_UNITS: usize = 3;

pub(crate) struct Turbo<'a> {
    bytes: &'a [u8],
    decompressor: Decompressor,
    header: Header,
    pixels: Pixels,
}

impl<'a> Turbo<'a> {
    /// `None`: an image of four colours, which libjpeg-turbo does not turn into three.
    pub(crate) fn open(bytes: &'a [u8], decoding: Decoding) -> Result<Option<Self>, ImageError> {
        if decoding.depth != Depth::Eight {
            return Err(ImageError::Depth);
        }
        let damaged = |what| ImageError::Damaged { format: FORMAT, len: bytes.len(), what };
        let mut decompressor = Decompressor::new().map_err(damaged)?;
        let header = decompressor.header(bytes).map_err(damaged)?;
        check_size(header.size)?;
        let unsupported = |what: String| Err(ImageError::Unsupported { format: FORMAT, what });
        match header {
            Header { precision, .. } if precision != 8 => {
                return unsupported(format!("{precision} bits a sample"));
            }
            Header { is_lossless: true, .. } => return unsupported("lossless".to_owned()),
            Header { is_arithmetic: true, .. } => {
                return unsupported("arithmetic coding".to_owned());
            }
            Header { colors: Colors::Four, .. } => return Ok(None),
            Header { .. } => {}
        }
        let pixels = match decoding.channels {
            1 => Pixels::Grey,
            3 => Pixels::Rgb,
            _ => Pixels::Rgba,
        };
        Ok(Some(Self { bytes, decompressor, header, pixels }))
    }

    pub(crate) fn size(&self) -> Size {
        self.header.size
    }

    /// `region`, with what its pixels depend on, from a place where decoding may begin.
    pub(crate) fn needed(&self, region: Region) -> Region {
        let Header { size, unit_width: Some(unit_width), is_progressive, .. } = self.header else {
            return Region::all(self.header.size);
        };
        let margin = if is_progressive { MARGIN_UNITS * unit_width } else { MARGIN };
        let left = region.left.saturating_sub(margin) / unit_width * unit_width;
        let right = size.width.min(region.left + region.size.width + margin);
        // Rows come one after the other, so that those above are there when they are needed.
        let size = Size { height: region.size.height, width: right - left };
        Region { top: region.top, left, size }
    }

    pub(crate) fn decode(mut self, region: Region, out: &mut [u8]) -> Result<(), ImageError> {
        self.decompressor
            .decode(self.bytes, &self.header, region, self.pixels, out)
            .map_err(|what| ImageError::Damaged { format: FORMAT, len: self.bytes.len(), what })
    }
}
