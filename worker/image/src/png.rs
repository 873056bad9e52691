//! PNG decoding with the png crate.

use std::io::{BufRead, Cursor, Seek};

use png::{BitDepth, ColorType, DecodingError, Limits, Reader, Transformations};

use crate::encoded::{Decoding, Depth, check_size};
use crate::error::ImageError;
use crate::region::Size;

const FORMAT: &str = "PNG";
/// Memory that the decoder may allocate in addition to the pixels: rows and metadata.
const LIMITS: Limits = Limits { bytes: 64 << 20 };

pub(crate) struct Png<'a> {
    reader: Reader<Cursor<&'a [u8]>>,
    decoding: Decoding,
    size: Size,
    len: usize,
}

impl<'a> Png<'a> {
    pub(crate) fn open(bytes: &'a [u8], decoding: Decoding) -> Result<Self, ImageError> {
        let len = bytes.len();
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), LIMITS);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        // Grey is computed from colours before any rounding.
        let depth = match decoding {
            Decoding { depth: Depth::Eight, channels: 3 | 4, .. } => Transformations::STRIP_16,
            _ => Transformations::IDENTITY,
        };
        decoder.set_transformations(Transformations::EXPAND | depth);
        let info = decoder.read_header_info().map_err(|error| damaged(len, &error))?;
        let size = Size { height: info.height as usize, width: info.width as usize };
        check_size(size)?;
        let reader = decoder.read_info().map_err(|error| damaged(len, &error))?;
        check_palette(&reader, len)?;
        Ok(Self { reader, decoding, size, len })
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    pub(crate) fn decode(mut self, out: &mut [u8]) -> Result<(), ImageError> {
        let (color, bits) = self.reader.output_color_type();
        let from = PngLayout::new(color, bits);
        let Decoding { channels, depth, .. } = self.decoding;
        let to = PngLayout { channels, depth };
        let (size, len) = (self.size, self.len);
        let mut read = |bytes: &mut [u8]| match self.reader.next_frame(bytes) {
            Ok(_) => self.reader.finish().map_err(|error| damaged(len, &error)),
            Err(error) => Err(damaged(len, &error)),
        };
        if from == to {
            read(out)?;
        } else {
            let mut bytes = vec![0; size.pixels() * from.pixel_bytes()];
            read(&mut bytes)?;
            convert(&bytes, from, out, to);
        }
        if to.depth == Depth::Sixteen && cfg!(target_endian = "little") {
            out.as_chunks_mut::<2>().0.iter_mut().for_each(|sample| sample.reverse());
        }
        Ok(())
    }
}

/// Rejects a palette that ends within a colour: the png crate panics on it, libpng rejects it.
fn check_palette<R: BufRead + Seek>(reader: &Reader<R>, len: usize) -> Result<(), ImageError> {
    let info = reader.info();
    let bytes = info.palette.as_deref().map_or(0, <[u8]>::len);
    if info.color_type != ColorType::Indexed || bytes.is_multiple_of(3) {
        return Ok(());
    }
    let what = format!("its palette of {bytes} bytes ends within a colour");
    Err(ImageError::Damaged { format: FORMAT, len, what })
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct PngLayout {
    /// 1: grey, 2: grey with alpha, 3: colours, 4: colours with alpha.
    channels: usize,
    depth: Depth,
}

impl PngLayout {
    fn new(color: ColorType, bits: BitDepth) -> Self {
        let channels = match color {
            ColorType::Grayscale | ColorType::Indexed => 1,
            ColorType::GrayscaleAlpha => 2,
            ColorType::Rgb => 3,
            ColorType::Rgba => 4,
        };
        let depth = if bits == BitDepth::Sixteen { Depth::Sixteen } else { Depth::Eight };
        Self { channels, depth }
    }

    fn pixel_bytes(self) -> usize {
        self.channels * self.depth.bytes()
    }
}

/// Converts channels and depth. 8 bits become 16 by multiplication with 257, so that white stays
/// white. 16-bit samples are big-endian here.
fn convert(bytes: &[u8], from: PngLayout, out: &mut [u8], to: PngLayout) {
    let sample = |pixel: &[u8], at: usize| match from.depth {
        Depth::Eight => u32::from(pixel[at]),
        Depth::Sixteen => u32::from(u16::from_be_bytes([pixel[2 * at], pixel[2 * at + 1]])),
    };
    let white = if from.depth == Depth::Eight { 255 } else { 65535 };
    let pixels = bytes.chunks_exact(from.pixel_bytes()).zip(out.chunks_exact_mut(to.pixel_bytes()));
    for (pixel, out) in pixels {
        let colors = match from.channels {
            1 | 2 => [sample(pixel, 0); 3],
            _ => [sample(pixel, 0), sample(pixel, 1), sample(pixel, 2)],
        };
        let alpha = match from.channels {
            2 => sample(pixel, 1),
            4 => sample(pixel, 3),
            _ => white,
        };
        let is_grey = from.channels <= 2;
        let values = match to.channels {
            1 if is_grey => [colors[0], 0, 0, 0],
            1 => [luma(colors, from.depth), 0, 0, 0],
            _ => [colors[0], colors[1], colors[2], alpha],
        };
        for (at, value) in values[..to.channels].iter().enumerate() {
            match (from.depth, to.depth) {
                (Depth::Eight, Depth::Eight) => out[at] = *value as u8,
                (Depth::Sixteen, Depth::Eight) => out[at] = (*value >> 8) as u8,
                (Depth::Eight, Depth::Sixteen) => out[2 * at..2 * at + 2].fill(*value as u8),
                (Depth::Sixteen, Depth::Sixteen) => {
                    out[2 * at..2 * at + 2].copy_from_slice(&(*value as u16).to_be_bytes());
                }
            }
        }
    }
}

/// Brightness. Source: ITU-R BT.601, with the weights and the rounding of libpng, so that grey
/// equals that of other PNG readers.
fn luma([red, green, blue]: [u32; 3], depth: Depth) -> u32 {
    if red == green && green == blue {
        return red;
    }
    let sum = 9_797 * red + 19_234 * green + 3_737 * blue;
    match depth {
        Depth::Eight => sum >> 15,
        Depth::Sixteen => (sum + (1 << 14)) >> 15,
    }
}

fn damaged(len: usize, error: &DecodingError) -> ImageError {
    let what = error.to_string();
    match error {
        DecodingError::LimitsExceeded => ImageError::Unsupported {
            format: FORMAT,
            what: "its rows or metadata take more than 64 MiB".to_owned(),
        },
        _ => ImageError::Damaged { format: FORMAT, len, what },
    }
}
