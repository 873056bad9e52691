use std::io::Write;

use flate2::write::{GzEncoder, ZlibEncoder};

use super::*;
use crate::frame::encode_header;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn decode(bytes: &[u8], compression: Compression) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut decoder = Decoder::new(bytes, compression.into()).unwrap();
    decoder.read_to_end(&mut out).map(|_| out).map_err(|error| error.to_string())
}

#[test]
fn schemes_are_told_by_their_first_bytes() {
    assert_eq!(detect(&gzip(b"x")), Compression::Gzip);
    for level in 0..10 {
        assert_eq!(detect(&zlib(b"", level)), Compression::Zlib);
    }
    assert_eq!(detect(b""), Compression::None);
    assert_eq!(detect(b"\x1f"), Compression::None);
    assert_eq!(detect(b"some text that is no record"), Compression::None);
    // A plain file whose first length looks like the magic bytes of gzip or zlib.
    for length in [0x8b1f, 0x9c78] {
        assert_eq!(detect(&encode_header(length)), Compression::None);
        assert_ne!(detect(&encode_header(length)[..11]), Compression::None);
    }
}

#[test]
fn detection_loses_no_byte() {
    for bytes in [&b""[..], b"short", b"twelve bytes", b"rather more than twelve bytes"] {
        for (stored, compression) in [
            (bytes.to_vec(), Compression::None),
            (gzip(bytes), Compression::Gzip),
            (zlib(bytes, 6), Compression::Zlib),
        ] {
            let mut decoder = Decoder::new(&stored[..], CompressionChoice::Auto).unwrap();
            assert_eq!(decoder.compression(), compression);
            let mut out = Vec::new();
            decoder.read_to_end(&mut out).unwrap();
            assert_eq!(out, bytes);
        }
    }
}

#[test]
fn a_cut_anywhere_is_an_error() {
    let text = b"some text, some text, some more text".repeat(10);
    for (stored, compression) in
        [(gzip(&text), Compression::Gzip), (zlib(&text, 6), Compression::Zlib)]
    {
        assert_eq!(decode(b"", compression), Ok(Vec::new()));
        for cut in 1..stored.len() {
            let error = decode(&stored[..cut], compression).unwrap_err();
            assert!(error.ends_with("the file ends in the middle of it"), "{cut}: {error}");
            let doubled = [&stored[..], &stored[..cut]].concat();
            assert!(decode(&doubled, compression).is_err(), "{cut} of the second");
        }
        assert_eq!(decode(&stored.repeat(3), compression), Ok(text.repeat(3)));
    }
}

#[test]
fn what_comes_before_damage_is_the_same_for_every_size_of_reads() {
    let text = b"some text, some other text, some more text, ".repeat(40);
    let mut compared = 0;
    for (stored, compression) in
        [(gzip(&text), Compression::Gzip), (zlib(&text, 6), Compression::Zlib)]
    {
        for bit in 0..stored.len() * 8 {
            let mut damaged = stored.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let read = |step: usize| {
                let mut decoder = Decoder::new(&damaged[..], compression.into()).unwrap();
                let (mut out, mut buffer) = (vec![], vec![0; step]);
                loop {
                    match decoder.read(&mut buffer) {
                        Ok(0) => return (out, None),
                        Ok(count) => out.extend_from_slice(&buffer[..count]),
                        Err(error) => return (out, Some(error.kind())),
                    }
                }
            };
            let whole = read(1 << 20);
            for step in [1, 7, 300] {
                assert_eq!(read(step), whole, "bit {bit} in reads of {step}");
            }
            compared += usize::from(whole.1.is_some() && !whole.0.is_empty());
        }
    }
    assert!(compared > 100, "{compared} streams were damaged behind their beginning");
}

#[test]
fn what_follows_a_stream() {
    let stored = gzip(b"text");
    let padded = [&stored[..], &[0; 100]].concat();
    assert_eq!(decode(&padded, Compression::Gzip), Ok(b"text".to_vec()));
    // Members after padding are read, as gzip does.
    let padded = [&padded[..], &stored].concat();
    assert_eq!(decode(&padded, Compression::Gzip), Ok(b"texttext".to_vec()));
    let followed = [&stored[..], b"garbage"].concat();
    assert_eq!(
        decode(&followed, Compression::Gzip).unwrap_err(),
        "cannot decompress the gzip stream: after its end come bytes that are not another one"
    );
    let padded = [&zlib(b"text", 6)[..], &[0; 9]].concat();
    assert!(decode(&padded, Compression::Zlib).is_err());
    assert_eq!(
        decode(b"plain", Compression::Zlib).unwrap_err(),
        "cannot decompress the zlib stream: it does not start like one"
    );
}

#[test]
fn names_are_ours_and_tensorflows() {
    for (name, compression) in [
        ("", Compression::None),
        ("none", Compression::None),
        ("GZIP", Compression::Gzip),
        ("gzip", Compression::Gzip),
        ("ZLIB", Compression::Zlib),
    ] {
        assert_eq!(name.parse(), Ok(compression));
        assert_eq!(name.parse(), Ok(CompressionChoice::Fixed(compression)));
        assert_eq!(compression.to_string().parse(), Ok(compression));
        let json = serde_json::to_string(&CompressionChoice::Fixed(compression)).unwrap();
        assert_eq!(json, format!("\"{compression}\""));
        assert_eq!(
            serde_json::from_str::<CompressionChoice>(&json).unwrap(),
            CompressionChoice::Fixed(compression)
        );
    }
    assert_eq!("auto".parse(), Ok(CompressionChoice::Auto));
    assert_eq!(
        serde_json::from_str::<CompressionChoice>("\"auto\"").unwrap(),
        CompressionChoice::Auto
    );
    assert_eq!(
        "snappy".parse::<CompressionChoice>().unwrap_err().to_string(),
        "unknown compression \"snappy\"; use one of none, gzip, zlib, auto"
    );
    assert_eq!(
        "snappy".parse::<Compression>().unwrap_err().to_string(),
        "unknown compression \"snappy\"; use one of none, gzip, zlib"
    );
}
