//! Measures the limits of the machine for bench/peers: `floor FOLDER CASE...`, one line of JSON.
//!
//! FOLDER contains the folders written by bench/peers/data.py. The measurements are copying and
//! checksums in memory on one and two threads; and for each case `read()` and the checksum of its
//! files, their framing, or decoding and resizing of its photographs, per second of one thread's
//! CPU time.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use shardfeed_image::{Decoding, Depth, Encoded, Method, Region, Resizer, Sample, Size, View};
use shardfeed_tfrecord::{ChunkOptions, ChunkReader, CompressionChoice, open_source};

/// Duration of each measurement.
const WINDOW: Duration = Duration::from_millis(600);

/// Same as in bench/peers/cases.py.
const SIDE: usize = 224;
const PART: Region = Region { top: 20, left: 30, size: Size { height: 256, width: 256 } };

/// Sizes that fit into a core's own cache, and that exceed all caches.
const NEAR: usize = 256 << 10;
const FAR: usize = 64 << 20;

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Returns the amount of work of `step` per second of CPU time, after one warm-up call.
fn per_cpu_second(mut step: impl FnMut() -> usize) -> f64 {
    step();
    let (begun, cpu, mut done) = (Instant::now(), cpu_seconds(), 0);
    while begun.elapsed() < WINDOW {
        done += step();
    }
    done as f64 / (cpu_seconds() - cpu)
}

/// Returns the total amount of work of `threads` threads per second.
fn together<S: FnMut() -> usize + Send>(threads: usize, make: impl Fn() -> S) -> f64 {
    let barrier = Barrier::new(threads);
    let mut steps: Vec<S> = (0..threads).map(|_| make()).collect();
    std::thread::scope(|scope| {
        let running: Vec<_> = steps
            .iter_mut()
            .map(|step| {
                scope.spawn(|| {
                    step();
                    barrier.wait();
                    let (begun, mut done) = (Instant::now(), 0);
                    while begun.elapsed() < WINDOW {
                        done += step();
                    }
                    done as f64 / begun.elapsed().as_secs_f64()
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn copying(bytes: usize) -> impl FnMut() -> usize + Send {
    let (from, mut to) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    move || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        bytes
    }
}

fn summing(bytes: usize) -> impl FnMut() -> usize + Send {
    let data = vec![7_u8; bytes];
    move || {
        black_box(crc_fast::crc32_iscsi(black_box(&data)));
        bytes
    }
}

fn named(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == ending))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "no *.{ending} in {}", folder.display());
    found
}

/// Reads the files into one buffer, computes the checksum of all bytes, and returns the number of
/// bytes.
fn read_and_sum(files: &[PathBuf], buffer: &mut [u8]) -> usize {
    let mut bytes = 0;
    for file in files {
        let mut file = File::open(file).unwrap();
        loop {
            let read = file.read(buffer).unwrap();
            if read == 0 {
                break;
            }
            black_box(crc_fast::crc32_iscsi(&buffer[..read]));
            bytes += read;
        }
    }
    bytes
}

/// Returns the number of records of the files, with framing and checksums checked.
fn frame(files: &[PathBuf]) -> usize {
    let mut records = 0;
    for file in files {
        let source = open_source(file, CompressionChoice::Auto).unwrap();
        let mut reader = ChunkReader::new(source, "floor", ChunkOptions::default());
        while let Some(chunk) = reader.next_chunk().unwrap() {
            records += chunk.records.len();
            reader.recycle(black_box(chunk).bytes);
        }
    }
    records
}

/// Returns a step that decodes and resizes the photographs; only `part` of each if it is given.
fn resize(photos: &[Vec<u8>], part: Option<Region>) -> impl FnMut() -> usize {
    let decoding = Decoding { channels: 3, depth: Depth::Eight };
    let (mut resizer, mut pixels) = (Resizer::default(), Vec::new());
    let mut out = vec![0; SIDE * SIDE * 3];
    move || {
        for photo in photos {
            let encoded = Encoded::open(photo, decoding).unwrap();
            let wanted = part.unwrap_or(Region::all(encoded.size()));
            let needed = encoded.needed(wanted);
            pixels.resize(needed.size.pixels() * 3, 0);
            encoded.decode(needed, &mut pixels).unwrap();
            let region =
                Region { top: wanted.top - needed.top, left: wanted.left - needed.left, ..wanted };
            let view = View { bytes: &pixels, size: needed.size, pixel_bytes: 3, region };
            let size = Size { height: SIDE, width: SIDE };
            let samples = (Sample::U8, Sample::U8);
            resizer.resize(view, samples, 3, (Method::Bilinear, false), size, &mut out);
            black_box(&mut out);
        }
        photos.len()
    }
}

fn main() {
    let mut words = std::env::args().skip(1);
    let folder = PathBuf::from(words.next().expect("a folder, and cases"));
    let mut said = BTreeMap::<String, f64>::new();
    for (name, bytes) in [("near", NEAR), ("far", FAR)] {
        for threads in [1, 2] {
            let copied = together(threads, || copying(bytes));
            said.insert(format!("memcpy_{name}_{threads}"), copied);
        }
    }
    for threads in [1, 2] {
        said.insert(format!("crc_near_{threads}"), together(threads, || summing(NEAR)));
    }
    let mut buffer = vec![0; 1 << 20];
    for case in words {
        match case.as_str() {
            "photos" | "parts" => {
                let files = named(&folder.join("photos"), "jpg");
                let photos: Vec<Vec<u8>> =
                    files.iter().map(|file| fs::read(file).unwrap()).collect();
                let part = (case == "parts").then_some(PART);
                said.insert(format!("{case}_per_cpu_s"), per_cpu_second(resize(&photos, part)));
            }
            _ => {
                let of = if case == "raw_small" { "small" } else { &case };
                let files = named(&folder.join(of), "tfrecord");
                let bytes = per_cpu_second(|| read_and_sum(&files, &mut buffer));
                let records = per_cpu_second(|| frame(&files));
                said.insert(format!("{case}_read_bytes_per_cpu_s"), bytes);
                said.insert(format!("{case}_framed_per_cpu_s"), records);
            }
        }
    }
    println!("{}", serde_json::to_string(&said).unwrap());
}
