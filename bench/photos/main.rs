//! Decodes and resizes photographs with one thread, as a baseline for the pipeline.
//!
//! `cargo run --release -p shardfeed-bench --example photos -- FOLDER [SECONDS]`
#![allow(clippy::disallowed_methods)] // A measurement needs clocks.
#![allow(clippy::print_stdout)] // Prints the results.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use shardfeed_image::{
    Decoding, Depth, Encoded, JPEG_LIBRARY, Method, Region, Resizer, Sample, Size, View,
};

/// Sizes as in `bench/peers`.
const SIDE: Size = Size { height: 224, width: 224 };
const PART: Region = Region { top: 20, left: 30, size: Size { height: 256, width: 256 } };

/// Memory for one image at a time, as in the pipeline.
#[derive(Default)]
struct Scratch {
    resizer: Resizer,
    pixels: Vec<u8>,
}

fn decode_and_resize(jpeg: &[u8], part: Option<Region>, scratch: &mut Scratch, out: &mut [u8]) {
    let decoding = Decoding { channels: 3, depth: Depth::Eight };
    let encoded = Encoded::open(jpeg, decoding).expect("a photograph");
    let part = part.unwrap_or(Region::all(encoded.size()));
    let needed = encoded.needed(part);
    let bytes = needed.size.pixels() * decoding.pixel_bytes();
    scratch.pixels.resize(bytes.max(scratch.pixels.len()), 0);
    let pixels = &mut scratch.pixels[..bytes];
    encoded.decode(needed, pixels).expect("a whole photograph");
    let (top, left) = (part.top - needed.top, part.left - needed.left);
    let region = Region { top, left, size: part.size };
    let view = View { bytes: pixels, size: needed.size, pixel_bytes: 3, region };
    let how = (Method::Bilinear, false);
    scratch.resizer.resize(view, (Sample::U8, Sample::U8), 3, how, SIDE, out);
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("a folder of photographs"));
    let seconds = arguments.next().map_or(4.0, |text| text.parse().expect("seconds"));
    let files =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "jpeg")).collect();
    files.sort();
    let photos: Vec<_> =
        files.iter().map(|path| std::fs::read(path).expect("a photograph")).collect();
    let mut scratch = Scratch::default();
    let mut out = vec![0; SIDE.pixels() * 3];
    for (name, part) in [("whole", None), ("part", Some(PART))] {
        let (begun, used, mut count) = (Instant::now(), cpu(), 0);
        while begun.elapsed().as_secs_f64() < seconds {
            for jpeg in &photos {
                decode_and_resize(jpeg, part, &mut scratch, &mut out);
            }
            count += photos.len();
        }
        let rate = count as f64 / (cpu() - used).as_secs_f64();
        println!("{name} by {JPEG_LIBRARY}: {rate:.0} images a second of one core");
    }
}
