//! The decoders of JPEGs beside each other: what each is called, takes, and refuses.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;

use common::{Dice, Kind, SAMPLINGS, decoding, jpeg, whole};
use jpeg_encoder::{ColorType, SamplingFactor};
use shardfeed_image::{JpegDecoder, Size};

const SIZE: Size = Size { height: 70, width: 90 };

fn baseline(dice: &mut Dice) -> Vec<u8> {
    jpeg(SIZE, ColorType::Rgb, SamplingFactor::R_4_2_0, Kind::Baseline, dice)
}

#[test]
fn a_decoder_is_written_by_its_name() {
    for decoder in JpegDecoder::ALL {
        let name = format!("\"{}\"", decoder.name());
        assert_eq!(serde_json::to_string(&decoder).unwrap(), name);
        assert_eq!(serde_json::from_str::<JpegDecoder>(&name).unwrap(), decoder);
    }
    let built = Vec::from_iter(JpegDecoder::built());
    assert_eq!(built[0], JpegDecoder::default(), "what nothing said means is in every build");
    assert_eq!(JpegDecoder::Turbo.is_built(), cfg!(feature = "turbojpeg"));
}

#[cfg(not(feature = "turbojpeg"))]
#[test]
fn a_decoder_that_was_not_built_is_refused_by_name() {
    let photo = baseline(&mut Dice(4));
    let error = whole(&photo, decoding(JpegDecoder::Turbo, 3)).unwrap_err().to_string();
    assert_eq!(
        error,
        "this build has no JPEG decoder `turbojpeg`, only zune-jpeg; build shardfeed with the cargo feature \
         `turbojpeg`, as its README says"
    );
}

/// Far from each other would mean that one of them took the colours for something else.
#[test]
fn each_makes_much_the_same_of_every_kind() {
    let mut dice = Dice(5);
    for decoder in JpegDecoder::built() {
        for kind in [Kind::Baseline, Kind::Restarts(3), Kind::Progressive] {
            for channels in [1, 3, 4] {
                let grey = jpeg(SIZE, ColorType::Luma, SamplingFactor::R_4_4_4, kind, &mut dice);
                let colors = jpeg(SIZE, ColorType::Rgb, SamplingFactor::R_4_4_4, kind, &mut dice);
                for bytes in [grey, colors] {
                    let (size, ours) = whole(&bytes, decoding(decoder, channels)).unwrap();
                    let (_, first) = whole(&bytes, decoding(JpegDecoder::Zune, channels)).unwrap();
                    assert_eq!((size, ours.len()), (SIZE, SIZE.pixels() * channels));
                    let apart = ours.iter().zip(&first).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
                    assert!(apart <= 4, "{apart} apart in {kind:?} to {channels}");
                }
            }
        }
        // Between pixels of coarse colours each may go its own way; they are whole images for both.
        for sampling in SAMPLINGS {
            let bytes = jpeg(SIZE, ColorType::Rgb, sampling, Kind::Baseline, &mut dice);
            if let Err(error) = whole(&bytes, decoding(decoder, 3)) {
                panic!("{sampling:?} by {}: {error}", decoder.name());
            }
        }
    }
}

#[test]
fn four_colors_are_the_first_ones_work() {
    let mut dice = Dice(6);
    for (color, adobe) in [(ColorType::Cmyk, 0), (ColorType::CmykAsYcck, 2)] {
        let mut pixels = vec![0; SIZE.pixels() * 4];
        pixels.iter_mut().for_each(|byte| *byte = dice.roll(256) as u8);
        let mut bytes = vec![];
        let encoder = jpeg_encoder::Encoder::new(&mut bytes, 90);
        encoder.encode(&pixels, SIZE.width as u16, SIZE.height as u16, color).unwrap();
        assert!(bytes.windows(6).any(|window| window == b"Adobe\0"), "marked as {adobe}");
        let wanted = whole(&bytes, decoding(JpegDecoder::Zune, 3)).unwrap();
        for decoder in JpegDecoder::built() {
            assert!(whole(&bytes, decoding(decoder, 3)).unwrap() == wanted, "{}", decoder.name());
        }
    }
}

/// Rare ways to store an image, by their marker: none of them is guessed at.
#[test]
fn what_neither_takes_is_refused() {
    let photo = baseline(&mut Dice(7));
    let frame = photo.windows(2).position(|window| window == [0xff, 0xc0]).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = photo.clone();
        bytes[frame + at] = byte;
        bytes
    };
    let cases = [
        (with(1, 0xc3), "JPEG of a kind that is not supported: lossless"),
        (with(1, 0xc9), "JPEG of a kind that is not supported: arithmetic coding"),
        (with(4, 12), "JPEG of a kind that is not supported: 12 bits a sample"),
        (photo[..photo.len() * 3 / 4].to_vec(), "damaged JPEG of"),
        (photo[..frame + 3].to_vec(), "damaged JPEG of"),
    ];
    for decoder in JpegDecoder::built() {
        for (bytes, said) in &cases {
            let error = whole(bytes, decoding(decoder, 3)).unwrap_err().to_string();
            if decoder == JpegDecoder::Turbo {
                assert!(error.starts_with(said), "{error}");
            }
        }
    }
}
