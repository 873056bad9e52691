//! Compressed streams: our decoder gives the same bytes as another loop over the same library, at
//! any read size.

use std::io::{self, Read, Write};

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use shardfeed_tfrecord::{
    Compression, CompressionChoice, Decoder, IndexOptions, RecordWriter, index_records,
};

use crate::{Target, gist, size};

pub(crate) const TARGET: Target = Target { name: "compressed", run, seeds };

/// Maximum number of decompressed bytes that are examined: an input of 64 KiB can have 64 MiB.
const INFLATED_MAX: u64 = 1 << 20;

fn seeds() -> Vec<Vec<u8>> {
    let file = |compression, data: &[u8]| {
        let mut writer = RecordWriter::new(vec![], compression);
        writer.write(data).expect("memory takes all");
        writer.write(b"x").expect("memory takes all");
        writer.finish().expect("memory takes all")
    };
    let level = flate2::Compression::none();
    let mut stored = GzEncoder::new(vec![], level);
    let mut zlib = ZlibEncoder::new(vec![], level);
    for out in [&mut stored as &mut dyn Write, &mut zlib] {
        out.write_all(b"a piece that is stored").expect("memory takes all");
    }
    let stored = stored.finish().expect("memory takes all");
    vec![
        file(Compression::Gzip, b"hello hello hello"),
        file(Compression::Zlib, b"hello hello hello"),
        [file(Compression::Gzip, &[0; 5000]), stored.clone(), vec![0; 40]].concat(),
        [stored.clone(), stored].concat(),
        zlib.finish().expect("memory takes all"),
        file(Compression::None, b"plain"),
    ]
}

fn inflated(source: impl Read, step: usize) -> (Vec<u8>, Option<io::Error>) {
    let (mut out, mut source) = (vec![], source.take(INFLATED_MAX));
    let mut buffer = vec![0; step];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return (out, None),
            Ok(count) => out.extend_from_slice(&buffer[..count]),
            Err(error) => return (out, Some(error)),
        }
    }
}

fn run(input: &[u8]) -> String {
    let open = || Decoder::new(input, CompressionChoice::Auto).expect("memory can be read");
    let compression = open().compression();
    let (bytes, error) = inflated(open(), 1 << 16);
    let (slowly, other) = inflated(open(), 7);
    assert_eq!(error.is_some(), other.is_some(), "{error:?} in large reads, {other:?} in small");
    assert!(slowly == bytes, "{} bytes in large reads, {} in small", bytes.len(), slowly.len());
    if error.is_none() && (bytes.len() as u64) < INFLATED_MAX {
        let theirs = match compression {
            Compression::None => inflated(input, 1 << 16),
            Compression::Gzip => inflated(MultiGzDecoder::new(input), 1 << 16),
            Compression::Zlib => inflated(ZlibDecoder::new(input), 1 << 16),
        };
        // The other decoders stop at zeros after the last member, or at the second zlib stream.
        assert!(bytes.starts_with(&theirs.0), "differs from another decoder's bytes");
    }
    let options = IndexOptions { keep_going: true, verify_data: true, ..IndexOptions::default() };
    let index = index_records(input.take(1 << 16), "x", &options, &mut |_| ());
    let index = index.map_or_else(gist, |index| {
        let broken = index.broken.map_or(String::new(), |broken| gist(broken.message));
        format!(
            "{} {} {broken}",
            size(index.records as usize),
            size(index.corrupt_records as usize)
        )
    });
    format!("{compression} {} {:?} {index}", size(bytes.len()), error.map(gist))
}
