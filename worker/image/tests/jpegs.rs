//! Compares JPEGs of every kind, intact and damaged, with TensorFlow's results, recorded by
//! `goldens/make_jpegs.py`.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;

use std::io::Read;

use common::{Dice, Kind, decoding, jpeg, part, whole};
use flate2::read::ZlibDecoder;
use jpeg_encoder::{ColorType, SamplingFactor};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use shardfeed_image::{Encoded, Health, ImageError, Region, Size};

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    jpeg: String,
    grey: Option<Answer>,
    rgb: Option<Answer>,
}

/// TensorFlow's pixels.
#[derive(Deserialize)]
struct Answer {
    size: [usize; 2],
    sha256: String,
    warned: bool,
    /// Digest with libjpeg-turbo since 2.1.5, for a file that lacks scans.
    newer: Option<String>,
}

impl Case {
    fn bytes(&self) -> Vec<u8> {
        let pairs = self.jpeg.as_bytes().as_chunks::<2>().0;
        let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        pairs.iter().map(byte).collect()
    }
}

fn goldens() -> Vec<Case> {
    let mut text = String::new();
    let stored = include_bytes!("goldens/jpegs.json.zlib");
    ZlibDecoder::new(stored.as_slice()).read_to_string(&mut text).unwrap();
    serde_json::from_str::<Goldens>(&text).unwrap().cases
}

/// Returns all pixels, and whether the library issued a warning.
fn decoded(bytes: &[u8], channels: usize) -> Result<(Size, Vec<u8>, Health), ImageError> {
    let encoded = Encoded::open(bytes, decoding(channels))?;
    let size = encoded.size();
    let mut pixels = vec![0; size.pixels() * channels];
    let health = encoded.decode(Region::all(size), &mut pixels)?;
    Ok((size, pixels, health))
}

fn digest(pixels: &[u8]) -> String {
    Sha256::digest(pixels).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Compares one decoded image with TensorFlow's answer.
fn compared(bytes: &[u8], channels: usize, answer: Option<&Answer>) -> Result<(), String> {
    let (size, pixels, health) = match (decoded(bytes, channels), answer) {
        (Err(_), None) => return Ok(()),
        (Ok(_), None) => return Err("TensorFlow refuses it".to_owned()),
        (Err(error), Some(_)) => return Err(format!("TensorFlow decodes it; ours: {error}")),
        (Ok(decoded), Some(_)) => decoded,
    };
    let Answer { size: [height, width], sha256, warned, newer } = answer.unwrap();
    if size != (Size { height: *height, width: *width }) {
        return Err(format!("{size:?}"));
    }
    if digest(&pixels) != *newer.as_ref().unwrap_or(sha256) {
        return Err("its pixels differ".to_owned());
    }
    if (health == Health::Suspect) != *warned {
        return Err(format!("{health:?}, but warned is {warned}"));
    }
    Ok(())
}

#[test]
fn every_jpeg_has_tensorflows_pixels_or_is_refused_as_there() {
    let cases = goldens();
    let (mut wrong, mut refused, mut warned, mut newer) = (vec![], 0, 0, 0);
    for case in &cases {
        let bytes = case.bytes();
        for (channels, answer) in [(1, &case.grey), (3, &case.rgb)] {
            if let Err(error) = compared(&bytes, channels, answer.as_ref()) {
                wrong.push(format!("{} to {channels}: {error}", case.name));
            }
            refused += usize::from(answer.is_none());
            warned += usize::from(answer.as_ref().is_some_and(|answer| answer.warned));
            newer += usize::from(answer.as_ref().is_some_and(|answer| answer.newer.is_some()));
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    let counts = (cases.len() > 1300, refused > 500, warned > 300, newer);
    assert_eq!(counts, (true, true, true, 16), "{refused} refused, {warned} with a warning");
}

#[test]
fn alpha_is_opaque_and_changes_no_color() {
    for case in goldens() {
        let bytes = case.bytes();
        match (decoded(&bytes, 3), decoded(&bytes, 4)) {
            (Ok((.., colors, _)), Ok((.., with_alpha, _))) => {
                let pairs = colors.as_chunks::<3>().0.iter().zip(with_alpha.as_chunks::<4>().0);
                let is_same =
                    |(rgb, rgba): (&[u8; 3], &[u8; 4])| *rgba == [rgb[0], rgb[1], rgb[2], 255];
                assert!(pairs.into_iter().all(is_same), "{}", case.name);
            }
            (three, four) => assert!(three.is_err() && four.is_err(), "{}", case.name),
        }
    }
}

/// Also for a file with damaged data, if both are decoded: only damage below a region may go
/// unnoticed.
#[test]
fn parts_of_every_jpeg_have_the_pixels_of_the_whole() {
    let (mut dice, mut parts, mut smaller) = (Dice(8), 0, 0);
    for case in goldens() {
        let bytes = case.bytes();
        for channels in [1, 3] {
            let Ok((size, pixels, _)) = decoded(&bytes, channels) else { continue };
            for _ in 0..3 {
                let height = 1 + dice.roll(size.height);
                let width = 1 + dice.roll(size.width);
                let (top, left) =
                    (dice.roll(size.height - height + 1), dice.roll(size.width - width + 1));
                let region = Region { top, left, size: Size { height, width } };
                let (found, count) = part(&bytes, decoding(channels), region)
                    .unwrap_or_else(|error| panic!("{}: {region:?}: {error}", case.name));
                let wanted = common::cut(&pixels, size, channels, region);
                assert!(found == wanted, "{}: {region:?} to {channels} differs", case.name);
                parts += 1;
                smaller += usize::from(count < size.pixels());
            }
        }
    }
    assert!(parts > 6000 && 2 * smaller > parts, "{smaller} of {parts} left something out");
}

/// Rare kinds of images, made by changing a marker: all are rejected instead of guessed.
#[test]
fn refusals_say_why() {
    let size = Size { height: 70, width: 90 };
    let photo = jpeg(size, ColorType::Rgb, SamplingFactor::R_4_2_0, Kind::Baseline, &mut Dice(7));
    let frame = photo.windows(2).position(|window| window == [0xff, 0xc0]).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = photo.clone();
        bytes[frame + at] = byte;
        bytes
    };
    let pixels = vec![9; size.pixels() * 4];
    let mut cmyk = vec![];
    let encoder = jpeg_encoder::Encoder::new(&mut cmyk, 90);
    encoder.encode(&pixels, size.width as u16, size.height as u16, ColorType::Cmyk).unwrap();
    let of_len =
        |bytes: &[u8], what: &str| format!("damaged JPEG of {} bytes: {what}", bytes.len());
    let cut = &photo[..photo.len() * 3 / 4];
    let cases = [
        (with(1, 0xc3), 3, "JPEG of a kind that is not supported: lossless".to_owned()),
        (with(4, 12), 3, "JPEG of a kind that is not supported: 12 bits a sample".to_owned()),
        (
            cmyk,
            1,
            "JPEG of a kind that is not supported: grey of four colours (CMYK, YCCK); decode \
                   it to 3 channels"
                .to_owned(),
        ),
        (cut.to_vec(), 3, of_len(cut, "it ends too early")),
        (photo[..frame + 3].to_vec(), 3, of_len(&photo[..frame + 3], "it ends too early")),
    ];
    for (bytes, channels, said) in cases {
        assert_eq!(whole(&bytes, decoding(channels)).unwrap_err().to_string(), said);
    }
}
