//! A region of a JPEG, decoded alone, has the same pixels as in the whole image.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;

use std::path::PathBuf;

use common::{Dice, Kind, SAMPLINGS, cut, decoding, jpeg, part, whole, with_scans_missing};
use jpeg_encoder::{ColorType, SamplingFactor};
use shardfeed_image::{Region, Size};

const SIDES: [[usize; 2]; 10] = [
    [1, 1],
    [3, 5],
    [8, 17],
    [16, 16],
    [17, 33],
    [31, 100],
    [48, 64],
    [65, 47],
    [90, 131],
    [200, 66],
];

/// Returns the whole image, single pixels at the corners, and random regions.
fn regions(size: Size, dice: &mut Dice) -> Vec<Region> {
    let Size { height, width } = size;
    let one = Size { height: 1, width: 1 };
    let mut regions = vec![Region::all(size)];
    for (top, left) in [(0, 0), (0, width - 1), (height - 1, 0), (height - 1, width - 1)] {
        regions.push(Region { top, left, size: one });
    }
    for _ in 0..12 {
        let size = Size { height: 1 + dice.roll(height), width: 1 + dice.roll(width) };
        let (top, left) = (dice.roll(height - size.height + 1), dice.roll(width - size.width + 1));
        regions.push(Region { top, left, size });
    }
    regions
}

#[derive(Default)]
struct Seen {
    parts: usize,
    smaller: usize,
}

/// Compares regions of one file, for every number of channels.
fn check(bytes: &[u8], what: &str, dice: &mut Dice, seen: &mut Seen) {
    for channels in [1, 3, 4] {
        let decoding = decoding(channels);
        let (size, pixels) =
            whole(bytes, decoding).unwrap_or_else(|error| panic!("{what}: {error}"));
        for region in regions(size, dice) {
            let (found, decoded) = part(bytes, decoding, region)
                .unwrap_or_else(|error| panic!("{what}: {region:?}: {error}"));
            let wanted = cut(&pixels, size, decoding.pixel_bytes(), region);
            assert!(found == wanted, "{what} of {size:?} to {channels}: {region:?} differs");
            seen.parts += 1;
            seen.smaller += usize::from(decoded < size.pixels());
        }
    }
}

#[test]
fn parts_have_the_pixels_of_the_whole() {
    let mut dice = Dice(1);
    let kinds = [Kind::Baseline, Kind::Restarts(1), Kind::Restarts(7), Kind::Progressive];
    let mut seen = Seen::default();
    for sampling in SAMPLINGS {
        for [height, width] in SIDES {
            for kind in kinds {
                let size = Size { height, width };
                let bytes = jpeg(size, ColorType::Rgb, sampling, kind, &mut dice);
                check(&bytes, &format!("{kind:?} {sampling:?}"), &mut dice, &mut seen);
            }
        }
    }
    for [height, width] in SIDES {
        for kind in kinds {
            let size = Size { height, width };
            let bytes = jpeg(size, ColorType::Luma, SamplingFactor::R_4_4_4, kind, &mut dice);
            check(&bytes, &format!("{kind:?} grey"), &mut dice, &mut seen);
        }
    }
    let Seen { parts, smaller } = seen;
    assert!(parts > 10_000 && 2 * smaller > parts, "{smaller} of {parts} left something out");
}

/// Missing scans are estimated from surrounding pixels, further away than colour smoothing reaches.
#[test]
fn parts_of_progressive_files_that_lack_scans_too() {
    let mut dice = Dice(2);
    let mut seen = Seen::default();
    for sampling in SAMPLINGS {
        for [height, width] in [[17, 33], [65, 147], [40, 400]] {
            let size = Size { height, width };
            let bytes = jpeg(size, ColorType::Rgb, sampling, Kind::Progressive, &mut dice);
            let files = with_scans_missing(&bytes);
            assert!(files.len() > 2, "{} scans", files.len());
            for (scans, bytes) in files.iter().enumerate() {
                let what = format!("{} scans of {sampling:?}", scans + 1);
                check(bytes, &what, &mut dice, &mut seen);
            }
        }
    }
    assert!(2 * seen.smaller > seen.parts / 2, "{} of {}", seen.smaller, seen.parts);
}

/// Photographs in the folder `SHARDFEED_PHOTOS`, if it is set.
#[test]
fn parts_of_photographs() {
    let Some(folder) = std::env::var_os("SHARDFEED_PHOTOS").map(PathBuf::from) else { return };
    let (mut dice, mut seen, mut photos) = (Dice(3), Seen::default(), 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "jpeg") {
            check(
                &std::fs::read(&path).unwrap(),
                &path.display().to_string(),
                &mut dice,
                &mut seen,
            );
            photos += 1;
        }
    }
    assert!(photos > 0 && seen.smaller > 0, "{photos} photographs, {} parts", seen.parts);
}
