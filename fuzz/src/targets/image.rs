//! Images: pixels or an error, and no more memory than the header states, which is limited.

use std::io::Read;

use flate2::Compression;
use flate2::read::ZlibEncoder;
use shardfeed_image::{Decoding, Depth, Encoded, PIXELS_MAX, Region};

use crate::{Target, gist, size};

pub(crate) const TARGET: Target = Target { name: "image", run, seeds };

/// Larger images are not decoded: they reach no other code, only more slowly.
const FUZZED_PIXELS_MAX: usize = 1 << 16;

fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let body = [kind, data].concat();
    let mut crc = flate2::Crc::new();
    crc.update(&body);
    [&(data.len() as u32).to_be_bytes()[..], &body, &crc.sum().to_be_bytes()].concat()
}

/// Returns a PNG of 3 x 2 pixels.
fn png(depth: u8, colour: u8, row_bytes: usize, more: &[Vec<u8>]) -> Vec<u8> {
    let mut header = [&3_u32.to_be_bytes()[..], &2_u32.to_be_bytes()].concat();
    header.extend_from_slice(&[depth, colour, 0, 0, 0]);
    let rows: Vec<u8> = (0..2)
        .flat_map(|row| [row + 1].into_iter().chain((0..row_bytes as u8).map(|x| x * 11)))
        .collect();
    let mut data = vec![];
    ZlibEncoder::new(&rows[..], Compression::default()).read_to_end(&mut data).expect("memory");
    let parts = [
        vec![0x89, b'P', b'N', b'G', 13, 10, 26, 10],
        chunk(b"IHDR", &header),
        more.concat(),
        chunk(b"IDAT", &data),
        chunk(b"IEND", &[]),
    ];
    parts.concat()
}

/// Returns a baseline JPEG of 8 x 8 grey pixels, encoded according to the standard.
fn jpeg(frame: u8) -> Vec<u8> {
    let segment = |marker: u8, data: &[u8]| {
        let len = (data.len() as u16 + 2).to_be_bytes();
        [&[0xff, marker], &len[..], data].concat()
    };
    // One code of one bit, for the value 0, in each table.
    let table = |class: u8| [&[class, 1][..], &[0; 15], &[0]].concat();
    let parts = [
        vec![0xff, 0xd8],
        segment(0xdb, &[&[0][..], &[16; 64]].concat()),
        segment(frame, &[8, 0, 8, 0, 8, 1, 1, 0x11, 0]),
        segment(0xc4, &table(0)),
        segment(0xc4, &table(0x10)),
        segment(0xda, &[1, 1, 0, 0, 63, 0]),
        vec![0b0011_1111, 0xff, 0xd9],
    ];
    parts.concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let palette = [chunk(b"PLTE", &[1, 2, 3, 4, 5, 6]), chunk(b"tRNS", &[9, 200])];
    let palette_of = |bytes: usize| [chunk(b"PLTE", &vec![7; bytes])];
    let images = [
        png(8, 2, 9, &[]),
        png(8, 6, 12, &[chunk(b"gAMA", &[0, 0, 0xb1, 0x8f])]),
        png(16, 0, 6, &[]),
        png(1, 3, 1, &palette),
        png(8, 3, 3, &palette_of(1)),
        png(8, 3, 3, &palette_of(3 * 257)),
        png(8, 4, 6, &[]),
        jpeg(0xc0),
        jpeg(0xc2),
    ];
    let with_mode = |(mode, image): (usize, Vec<u8>)| [vec![mode as u8], image].concat();
    images.into_iter().enumerate().map(with_mode).collect()
}

/// Fixes the checksums of a PNG's chunks.
fn repair(file: &mut [u8]) {
    let mut at = 8;
    while file.starts_with(&[0x89, b'P', b'N', b'G']) && at + 12 <= file.len() {
        let len = u32::from_be_bytes(file[at..at + 4].try_into().expect("four bytes")) as usize;
        if len > file.len() - at - 12 {
            return;
        }
        let mut crc = flate2::Crc::new();
        crc.update(&file[at + 4..at + 8 + len]);
        file[at + 8 + len..at + 12 + len].copy_from_slice(&crc.sum().to_be_bytes());
        at += 12 + len;
    }
}

fn run(input: &[u8]) -> String {
    let Some((&mode, file)) = input.split_first() else {
        return "empty".to_owned();
    };
    let mut file = file.to_vec();
    if mode & 0x80 == 0 {
        repair(&mut file);
    }
    let depth = if mode & 4 == 0 { Depth::Eight } else { Depth::Sixteen };
    let decoding = Decoding { channels: [1, 3, 4][mode as usize % 3], depth };
    let image = match Encoded::open(&file, decoding) {
        Ok(image) => image,
        Err(error) => return gist(error),
    };
    let whole = image.size();
    assert!(whole.pixels() <= PIXELS_MAX, "{whole:?} is over the limit");
    if whole.pixels() > FUZZED_PIXELS_MAX {
        return "large".to_owned();
    }
    let needed = image.needed(Region::all(whole));
    let mut pixels = vec![0; needed.size.pixels() * decoding.pixel_bytes()];
    let done = image.decode(needed, &mut pixels);
    let what = done.map_or_else(gist, |health| format!("{health:?}"));
    format!("{what} {} {} {}", decoding.channels, size(whole.height), size(whole.width))
}
