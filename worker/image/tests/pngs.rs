//! Palettes of every length: libpng decodes indexed pixels with 1 to 256 complete colours and
//! rejects the rest.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;

use png::{BitDepth, ColorType, Encoder};
use shardfeed_image::ImageError;

fn png(color: ColorType, palette: Vec<u8>) -> Vec<u8> {
    let mut file = vec![];
    let mut encoder = Encoder::new(&mut file, 4, 2);
    encoder.set_color(color);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_palette(palette);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&vec![1; 8 * color.samples()]).unwrap();
    writer.finish().unwrap();
    file
}

#[test]
fn an_indexed_png_needs_whole_colours() {
    for len in 0..=3 * 256 + 6 {
        let palette: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let file = png(ColorType::Indexed, palette);
        let is_whole = len > 0 && len % 3 == 0 && len <= 3 * 256;
        match common::whole(&file, common::decoding(3)) {
            Ok((_, pixels)) => {
                assert!(is_whole, "{len} bytes of palette were decoded");
                let colour = if len > 3 { [3, 4, 5] } else { [0; 3] };
                assert_eq!(pixels[..3], colour, "{len} bytes of palette");
            }
            Err(error) => {
                assert!(!is_whole, "{len} bytes of palette: {error}");
                assert!(matches!(error, ImageError::Damaged { .. }), "{error}");
            }
        }
    }
}

#[test]
fn a_png_of_colours_needs_no_palette() {
    for len in [3, 7, 768] {
        let file = png(ColorType::Rgb, vec![9; len]);
        let (_, pixels) = common::whole(&file, common::decoding(3)).unwrap();
        assert_eq!(pixels, [1; 24], "{len} bytes of palette");
    }
}
