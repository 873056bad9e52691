//! JPEG decoding with libjpeg-turbo: the same pixels and errors as TensorFlow's `INTEGER_ACCURATE`.
//! A region is decoded without the rest of the image where possible.

mod library;

use crate::encoded::{Decoding, Depth, Health, check_size};
use crate::error::ImageError;
use crate::region::{Region, Size};
use library::{Colors, Decompressor, JpegHeader};

const FORMAT: &str = "JPEG";
/// Pixels around a region that its border pixels depend on: colour is stored at half or a quarter
/// of the resolution and smoothed between samples.
const MARGIN: usize = 8;
/// Units around a region of a progressive file. Missing scans are estimated from nearby blocks, up
/// to two blocks away, and a block of colour is at most as wide as a unit.
const MARGIN_UNITS: usize = 3;

pub(crate) struct Jpeg<'a> {
    bytes: &'a [u8],
    decompressor: Decompressor<'a>,
    header: JpegHeader,
    channels: usize,
}

impl<'a> Jpeg<'a> {
    pub(crate) fn open(bytes: &'a [u8], decoding: Decoding) -> Result<Self, ImageError> {
        let Decoding { channels, depth } = decoding;
        if depth != Depth::Eight {
            return Err(ImageError::Depth);
        }
        let damaged = |what| ImageError::Damaged { format: FORMAT, len: bytes.len(), what };
        let mut decompressor = Decompressor::new(bytes).map_err(damaged)?;
        let header = decompressor.header().map_err(damaged)?;
        check_size(header.size)?;
        let unsupported = |what: String| Err(ImageError::Unsupported { format: FORMAT, what });
        match header {
            JpegHeader { precision, .. } if precision != 8 => {
                unsupported(format!("{precision} bits a sample"))
            }
            JpegHeader { is_lossless: true, .. } => unsupported("lossless".to_owned()),
            JpegHeader { colors: Colors::Unknown, components, .. } => {
                unsupported(format!("{components} components that are no colours"))
            }
            JpegHeader { colors: Colors::Four, .. } if channels == 1 => {
                unsupported("grey of four colours (CMYK, YCCK); decode it to 3 channels".to_owned())
            }
            JpegHeader { .. } => Ok(Self { bytes, decompressor, header, channels }),
        }
    }

    pub(crate) fn size(&self) -> Size {
        self.header.size
    }

    /// Bytes that the decoder holds in addition to the pixels.
    pub(crate) fn held_bytes(&self) -> usize {
        let JpegHeader { size, components, is_multi_scan, .. } = self.header;
        if is_multi_scan { size_of::<i16>() * components * size.pixels() } else { 0 }
    }

    /// Returns `region` with the pixels it depends on, to a position where decoding may begin.
    pub(crate) fn needed(&self, region: Region) -> Region {
        let JpegHeader { size, unit_width: Some(unit_width), is_progressive, .. } = self.header
        else {
            return Region::all(self.header.size);
        };
        let margin = if is_progressive { MARGIN_UNITS * unit_width } else { MARGIN };
        let left = region.left.saturating_sub(margin) / unit_width * unit_width;
        let right = size.width.min(region.left + region.size.width + margin);
        // Rows are decoded in sequence, so those above are available.
        let size = Size { height: region.size.height, width: right - left };
        Region { top: region.top, left, size }
    }

    pub(crate) fn decode(mut self, region: Region, out: &mut [u8]) -> Result<Health, ImageError> {
        let warnings = self.decompressor.decode(&self.header, region, self.channels, out);
        let damaged = |what| ImageError::Damaged { format: FORMAT, len: self.bytes.len(), what };
        let is_sound = warnings.map_err(damaged)? == 0;
        Ok(if is_sound { Health::Sound } else { Health::Suspect })
    }
}
