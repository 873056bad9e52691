//! Generates JPEGs of every kind, and random numbers from a seed.
#![allow(dead_code)] // Each test program uses a part of it.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use shardfeed_image::{Decoding, Depth, Encoded, ImageError, Region, Size, View};

pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as usize % below.max(1)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Baseline,
    /// With a restart marker after this number of units.
    Restarts(u16),
    Progressive,
}

pub(crate) const SAMPLINGS: [SamplingFactor; 8] = [
    SamplingFactor::R_4_4_4,
    SamplingFactor::R_4_2_2,
    SamplingFactor::R_4_2_0,
    SamplingFactor::R_4_4_0,
    SamplingFactor::R_4_1_1,
    SamplingFactor::R_4_4_1,
    SamplingFactor::R_4_1_0,
    SamplingFactor::R_4_2_1,
];

/// Waves with noise, so that every pixel differs from its neighbours.
pub(crate) fn picture(size: Size, channels: usize, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = vec![];
    for row in 0..size.height {
        for column in 0..size.width {
            for channel in 0..channels {
                let phase = (row * (3 + channel) + column * (5 - channel)) as f64 / 9.0;
                bytes.push((128.0 + 90.0 * phase.sin()) as u8 ^ dice.roll(32) as u8);
            }
        }
    }
    bytes
}

pub(crate) fn jpeg(
    size: Size,
    color: ColorType,
    sampling: SamplingFactor,
    kind: Kind,
    dice: &mut Dice,
) -> Vec<u8> {
    let mut bytes = vec![];
    let mut encoder = Encoder::new(&mut bytes, 60 + dice.roll(40) as u8);
    encoder.set_sampling_factor(sampling);
    match kind {
        Kind::Baseline => {}
        Kind::Restarts(interval) => encoder.set_restart_interval(interval),
        Kind::Progressive => encoder.set_progressive(true),
    }
    let channels = if matches!(color, ColorType::Luma) { 1 } else { 3 };
    let pixels = picture(size, channels, dice);
    encoder.encode(&pixels, size.width as u16, size.height as u16, color).unwrap();
    bytes
}

/// Returns the end of each scan's data.
fn ends_of_scans(jpeg: &[u8]) -> Vec<usize> {
    let is_marker = |at: usize| jpeg[at] == 0xff && !matches!(jpeg[at + 1], 0 | 0xd0..=0xd7 | 0xff);
    let (mut ends, mut at, mut in_scan) = (vec![], 2, false);
    while at + 1 < jpeg.len() {
        if !is_marker(at) {
            at += 1;
            continue;
        }
        if in_scan {
            ends.push(at);
        }
        in_scan = jpeg[at + 1] == 0xda;
        if jpeg[at + 1] == 0xd9 {
            break;
        }
        at += 2 + usize::from(u16::from_be_bytes([jpeg[at + 2], jpeg[at + 3]]));
    }
    ends
}

/// Returns the file truncated after each scan except the last: valid, but with less detail.
pub(crate) fn with_scans_missing(jpeg: &[u8]) -> Vec<Vec<u8>> {
    let mut ends = ends_of_scans(jpeg);
    ends.pop();
    ends.into_iter().map(|end| [&jpeg[..end], &[0xff, 0xd9]].concat()).collect()
}

pub(crate) fn decoding(channels: usize) -> Decoding {
    Decoding { channels, depth: Depth::Eight }
}

/// Decodes an entire image.
pub(crate) fn whole(bytes: &[u8], decoding: Decoding) -> Result<(Size, Vec<u8>), ImageError> {
    let encoded = Encoded::open(bytes, decoding)?;
    let size = encoded.size();
    let mut pixels = vec![0; size.pixels() * decoding.pixel_bytes()];
    encoded.decode(Region::all(size), &mut pixels)?;
    Ok((size, pixels))
}

/// Decodes a region of an image, and returns the number of decoded pixels.
pub(crate) fn part(
    bytes: &[u8],
    decoding: Decoding,
    region: Region,
) -> Result<(Vec<u8>, usize), ImageError> {
    let encoded = Encoded::open(bytes, decoding)?;
    let needed = encoded.needed(region);
    let pixel_bytes = decoding.pixel_bytes();
    let mut pixels = vec![0xaa; needed.size.pixels() * pixel_bytes];
    encoded.decode(needed, &mut pixels)?;
    let (top, left) = (region.top - needed.top, region.left - needed.left);
    let region = Region { top, left, size: region.size };
    Ok((cut(&pixels, needed.size, pixel_bytes, region), needed.size.pixels()))
}

pub(crate) fn cut(bytes: &[u8], size: Size, pixel_bytes: usize, region: Region) -> Vec<u8> {
    let mut part = vec![0; region.size.pixels() * pixel_bytes];
    View { bytes, size, pixel_bytes, region }.copy_to(&mut part);
    part
}
