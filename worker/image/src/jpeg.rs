//! JPEG, by zune-jpeg.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder as Decoder;
use zune_jpeg::errors::DecodeErrors;

use crate::encoded::{Decoding, Depth, check_size};
use crate::error::ImageError;
use crate::region::Size;

const FORMAT: &str = "JPEG";
/// Sides that its header can say; the pixels are what is limited.
const SIDE_MAX: usize = 1 << 16;
/// Progressive scans at most: each is a pass over all coefficients. Encoders make some ten.
const SCANS_MAX: usize = 100;

pub(crate) struct Jpeg<'a> {
    decoder: Decoder<ZCursor<&'a [u8]>>,
    size: Size,
    len: usize,
    /// Colours that grey is made of; else the decoder gives what is asked for.
    is_grey_of_rgb: bool,
}

impl<'a> Jpeg<'a> {
    pub(crate) fn open(bytes: &'a [u8], decoding: Decoding) -> Result<Self, ImageError> {
        let Decoding { channels, depth, .. } = decoding;
        if depth != Depth::Eight {
            return Err(ImageError::Depth);
        }
        let space = match channels {
            1 => ColorSpace::Luma,
            3 => ColorSpace::RGB,
            _ => ColorSpace::RGBA,
        };
        let options = DecoderOptions::default()
            .set_strict_mode(true)
            .set_max_width(SIDE_MAX)
            .set_max_height(SIDE_MAX)
            .jpeg_set_max_scans(SCANS_MAX)
            .jpeg_set_out_colorspace(space);
        let len = bytes.len();
        let open = |options| -> Result<_, ImageError> {
            let mut decoder = Decoder::new_with_options(ZCursor::new(bytes), options);
            decoder.decode_headers().map_err(|error| damaged(len, error))?;
            Ok(decoder)
        };
        let mut decoder = open(options)?;
        let is_grey_of_rgb = channels == 1 && decoder.input_colorspace() == Some(ColorSpace::RGB);
        if is_grey_of_rgb {
            decoder = open(options.jpeg_set_out_colorspace(ColorSpace::RGB))?;
        }
        let info = decoder.info().expect("the header was read");
        let size = Size { height: info.height.into(), width: info.width.into() };
        check_size(size)?;
        Ok(Self { decoder, size, len, is_grey_of_rgb })
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    pub(crate) fn decode(mut self, out: &mut [u8]) -> Result<(), ImageError> {
        if !self.is_grey_of_rgb {
            return self.decoder.decode_into(out).map_err(|error| damaged(self.len, error));
        }
        let mut colors = vec![0; 3 * out.len()];
        self.decoder.decode_into(&mut colors).map_err(|error| damaged(self.len, error))?;
        let pixels = colors.as_chunks::<3>().0;
        out.iter_mut().zip(pixels).for_each(|(grey, pixel)| *grey = luma(*pixel));
        Ok(())
    }
}

/// Source: ITU-R BT.601, as the JPEG file format has it.
fn luma(pixel: [u8; 3]) -> u8 {
    let [red, green, blue] = pixel.map(u32::from);
    ((19_595 * red + 38_470 * green + 7_471 * blue + (1 << 15)) >> 16) as u8
}

fn damaged(len: usize, error: DecodeErrors) -> ImageError {
    match error {
        DecodeErrors::Unsupported(what) => {
            ImageError::Unsupported { format: FORMAT, what: format!("{what:?}") }
        }
        DecodeErrors::ExhaustedData => {
            ImageError::Damaged { format: FORMAT, len, what: "it ends too early".to_owned() }
        }
        other => {
            let what = format!("{other:?}");
            ImageError::Damaged { format: FORMAT, len, what: what.trim().to_owned() }
        }
    }
}
