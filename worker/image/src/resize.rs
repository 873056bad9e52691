use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions};
use serde::{Deserialize, Serialize};

use crate::region::{Region, Size, View};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    Nearest,
    /// Average of two pixels in each direction, weighted by distance.
    #[default]
    Bilinear,
    /// Cubic curve through four pixels in each direction. Source: Keys 1981, a = -0.5.
    Bicubic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    U8,
    U16,
    F32,
}

impl Sample {
    fn pixel(self, channels: usize) -> Option<PixelType> {
        Some(match (self, channels) {
            (Self::U8, 1) => PixelType::U8,
            (Self::U8, 2) => PixelType::U8x2,
            (Self::U8, 3) => PixelType::U8x3,
            (Self::U8, 4) => PixelType::U8x4,
            (Self::U16, 1) => PixelType::U16,
            (Self::U16, 2) => PixelType::U16x2,
            (Self::U16, 3) => PixelType::U16x3,
            (Self::U16, 4) => PixelType::U16x4,
            (Self::F32, 1) => PixelType::F32,
            (Self::F32, 2) => PixelType::F32x2,
            (Self::F32, 3) => PixelType::F32x3,
            (Self::F32, 4) => PixelType::F32x4,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::F32 => 4,
        }
    }
}

#[derive(Debug, Default)]
pub struct Resizer {
    inner: fast_image_resize::Resizer,
    floats: Vec<f32>,
}

impl Resizer {
    /// Bytes of the memory kept for reuse.
    pub fn bytes(&self) -> usize {
        self.inner.size_of_internal_buffers() + 4 * self.floats.capacity()
    }

    /// Writes the region of `from`, resized to `size`, to `out`, which is aligned for its samples.
    /// - `antialias`: averages over all pixels that a smaller image's pixel covers.
    /// - `to`: the samples' own type, or `F32`, which is not rounded. `channels`: 1 to 4.
    ///
    /// Source: `tf.image.resize`, half-pixel centres.
    pub fn resize(
        &mut self,
        from: View<'_>,
        samples: (Sample, Sample),
        channels: usize,
        how: (Method, bool),
        size: Size,
        out: &mut [u8],
    ) {
        let (sample, to) = samples;
        if sample != to {
            // A result that is not rounded at the end is computed in float32 throughout.
            let mut floats = std::mem::take(&mut self.floats);
            floats.clear();
            for row in from.rows() {
                match sample {
                    Sample::U8 => floats.extend(row.iter().map(|&value| f32::from(value))),
                    Sample::U16 => floats.extend(
                        bytemuck::cast_slice::<u8, u16>(row).iter().map(|&value| f32::from(value)),
                    ),
                    Sample::F32 => floats.extend_from_slice(bytemuck::cast_slice(row)),
                }
            }
            let view = View {
                bytes: bytemuck::cast_slice(&floats),
                size: from.region.size,
                pixel_bytes: channels * Sample::F32.bytes(),
                region: Region::all(from.region.size),
            };
            self.resize(view, (Sample::F32, Sample::F32), channels, how, size, out);
            self.floats = floats;
            return;
        }
        let (method, antialias) = how;
        let filter = match method {
            Method::Nearest => return nearest(from, size, out),
            Method::Bilinear => FilterType::Bilinear,
            Method::Bicubic => FilterType::CatmullRom,
        };
        if from.region.size == size {
            return from.copy_to(out);
        }
        let algorithm = match antialias {
            true => ResizeAlg::Convolution(filter),
            false => ResizeAlg::Interpolation(filter),
        };
        let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false);
        let pixel = sample.pixel(channels).expect("1 to 4 channels");
        let (height, width) = (from.size.height as u32, from.size.width as u32);
        let source =
            ImageRef::new(width, height, from.bytes, pixel).expect("a whole image, aligned");
        let Region { top, left, size: part } = from.region;
        let part = (left as u32, top as u32, part.width as u32, part.height as u32);
        let source = CroppedImage::new(&source, part.0, part.1, part.2, part.3)
            .expect("a part lies in its image");
        let mut made = Image::from_slice_u8(size.width as u32, size.height as u32, out, pixel)
            .expect("the output has the new size, aligned");
        self.inner.resize(&source, &mut made, &options).expect("both have the same kind of pixels");
    }
}

fn nearest(from: View<'_>, size: Size, out: &mut [u8]) {
    let part = from.region.size;
    let places = |to: usize, of: usize| -> Vec<usize> {
        let scale = of as f32 / to as f32;
        let place = |at: usize| ((at as f32 + 0.5) * scale).floor() as usize;
        (0..to).map(|at| place(at).min(of - 1)).collect()
    };
    let (rows, columns) = (places(size.height, part.height), places(size.width, part.width));
    let pixel = from.pixel_bytes;
    let sources: Vec<&[u8]> = from.rows().collect();
    for (out, &row) in out.chunks_exact_mut(size.width * pixel).zip(&rows) {
        let row = sources[row];
        for (out, &column) in out.chunks_exact_mut(pixel).zip(&columns) {
            out.copy_from_slice(&row[column * pixel..][..pixel]);
        }
    }
}
