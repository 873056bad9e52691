use std::io::{self, Read};

use super::*;
use crate::frame::{encode_footer, encode_header};

fn frame(data: &[u8]) -> Vec<u8> {
    [&encode_header(data.len() as u64)[..], data, &encode_footer(data)].concat()
}

fn stream(records: &[&[u8]]) -> Vec<u8> {
    records.iter().flat_map(|data| frame(data)).collect()
}

fn reader(bytes: &[u8], chunk_bytes: usize) -> ChunkReader<&[u8]> {
    ChunkReader::new(bytes, "f", ChunkOptions { chunk_bytes, ..ChunkOptions::default() })
}

/// Reads all records, checks their ordinals and offsets, and returns them with the error that ends
/// them.
fn read_all<R: Read>(reader: &mut ChunkReader<R>) -> (Vec<Vec<u8>>, Option<ReadError>) {
    let (mut records, mut offset) = (Vec::new(), 0);
    loop {
        match reader.next_chunk() {
            Ok(None) => return (records, None),
            Err(error) => return (records, Some(error)),
            Ok(Some(chunk)) => {
                assert_eq!(chunk.first_ordinal, records.len() as u64);
                for (span, data) in chunk.records.iter().zip(chunk.iter()) {
                    assert_eq!(span.offset, offset);
                    offset += frame_bytes(span.len as u64);
                    records.push(data.to_vec());
                }
                reader.recycle(chunk.bytes);
            }
        }
    }
}

/// Returns the message and the hint of an error.
fn told(error: &Option<ReadError>) -> String {
    let error = error.as_ref().unwrap();
    format!("{error}; {}", error.hint())
}

#[test]
fn records_come_whole_at_any_chunk_size() {
    let records: [&[u8]; 5] = [b"one", b"", &[7; 300], b"x", &[9; 40]];
    let bytes = stream(&records);
    for chunk_bytes in 0..bytes.len() + 20 {
        let (read, error) = read_all(&mut reader(&bytes, chunk_bytes));
        assert!(error.is_none(), "{error:?}");
        assert_eq!(read, records, "chunk_bytes {chunk_bytes}");
    }
}

#[test]
fn a_cut_at_every_byte_gives_the_records_before_it_and_an_error() {
    let records: [&[u8]; 4] = [b"one", b"", &[7; 30], b"x"];
    let bytes = stream(&records);
    let ends: Vec<usize> = (0..=4).map(|count| stream(&records[..count]).len()).collect();
    for cut in 0..bytes.len() {
        for chunk_bytes in [16, 50, 1 << 20] {
            let (read, error) = read_all(&mut reader(&bytes[..cut], chunk_bytes));
            let whole = ends.iter().filter(|&&end| end <= cut).count() - 1;
            assert_eq!(read, records[..whole], "cut at {cut}");
            let Some(error) = error else {
                assert!(ends.contains(&cut), "no error for a cut at {cut}");
                continue;
            };
            let behind = (cut - ends[whole]) as u64;
            assert_eq!((error.offset, error.ordinal), (ends[whole] as u64, whole as u64));
            match error.kind {
                ReadErrorKind::TruncatedHeader { missing } => assert_eq!(missing + behind, 12),
                ReadErrorKind::TruncatedData { length, available } => {
                    assert_eq!(length, records[whole].len() as u64);
                    assert_eq!(available + 12, behind);
                }
                kind => panic!("{kind:?}"),
            }
        }
    }
}

#[test]
fn every_flipped_byte_is_found_and_costs_no_other_record() {
    let records: [&[u8]; 3] = [b"first", &[7; 30], b"last"];
    let bytes = stream(&records);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x40;
        let mut reader = reader(&bad, 64);
        let (read, error) = read_all(&mut reader);
        let error = error.expect("a flipped byte is an error");
        assert_eq!(read, records[..error.ordinal as usize], "flipped {at}");
        let in_frame = at as u64 - error.offset;
        match error.kind {
            ReadErrorKind::NotATfrecord { .. } => assert!(at < HEADER_BYTES),
            ReadErrorKind::LengthCrc { .. } => assert!(in_frame < 12 && error.offset > 0),
            ReadErrorKind::DataCrc { length, .. } => assert!((12..16 + length).contains(&in_frame)),
            kind => panic!("{kind:?}"),
        }
        assert!(reader.next_chunk().unwrap().is_none());
        let resumed = reader.resume_after_error();
        assert_eq!(resumed, in_frame >= 12);
        let mut behind = Vec::new();
        while let Some(chunk) = reader.next_chunk().unwrap() {
            assert_eq!(chunk.first_ordinal, error.ordinal + 1 + behind.len() as u64);
            behind.extend(chunk.iter().map(<[u8]>::to_vec));
        }
        let expected = if resumed { &records[error.ordinal as usize + 1..] } else { &[] };
        assert_eq!(behind, expected);
    }
}

#[test]
fn every_second_record_bad() {
    let mut bytes = Vec::new();
    for number in 0..200_u8 {
        let mut frame = frame(&[number; 50]);
        frame[20] ^= number % 2;
        bytes.extend(frame);
    }
    for chunk_bytes in [16, 100, 1 << 16] {
        let mut reader = reader(&bytes, chunk_bytes);
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        loop {
            match reader.next_chunk() {
                Ok(None) => break,
                Ok(Some(chunk)) => good.extend(chunk.iter().map(|data| data[0])),
                Err(error) => {
                    bad.push(error.ordinal as u8);
                    assert_eq!(error.offset, error.ordinal * 66);
                    assert!(reader.resume_after_error());
                }
            }
        }
        assert_eq!(good, (0..200).step_by(2).collect::<Vec<_>>());
        assert_eq!(bad, (1..200).step_by(2).collect::<Vec<_>>());
    }
}

#[test]
fn skipping_counts_records_in_and_past_the_buffer() {
    let records: Vec<Vec<u8>> = (0..20_u8).map(|n| vec![n; usize::from(n) * 13]).collect();
    let bytes: Vec<u8> = records.iter().flat_map(|data| frame(data)).collect();
    for chunk_bytes in [16, 100, 1 << 16] {
        for to in 0..=20 {
            let mut reader = reader(&bytes, chunk_bytes);
            let first = if to > 0 { reader.next_chunk().unwrap() } else { None };
            let done = first.map_or(0, |chunk| chunk.records.len() as u64);
            assert_eq!(reader.skip_to(to).unwrap(), to.max(done));
            assert_eq!(reader.ordinal(), to.max(done));
            if let Some(chunk) = reader.next_chunk().unwrap() {
                assert_eq!(chunk.first_ordinal, to.max(done));
                assert_eq!(chunk.data(0), records[to.max(done) as usize]);
            }
        }
        let mut at_end = reader(&bytes, chunk_bytes);
        assert_eq!(at_end.skip_to(99).unwrap(), 20);
        assert_eq!(at_end.offset(), bytes.len() as u64);
        let error = reader(&bytes[..bytes.len() - 1], chunk_bytes).skip_to(99).unwrap_err();
        assert_eq!(error.ordinal, 19);
        assert!(matches!(error.kind, ReadErrorKind::TruncatedData { length: 247, available: 250 }));
    }
}

#[test]
fn a_piece_in_the_middle_of_a_file_keeps_its_numbers() {
    let bytes = stream(&[b"one", b"two"]);
    let options = ChunkOptions { first_offset: 1000, first_ordinal: 40, ..ChunkOptions::default() };
    let mut reader = ChunkReader::new(&bytes[..], "f", options);
    let chunk = reader.next_chunk().unwrap().unwrap();
    assert_eq!((chunk.first_ordinal, chunk.records[1].offset), (40, 1019));
    assert_eq!((reader.ordinal(), reader.offset()), (42, 1038));
}

#[test]
fn a_huge_length_with_a_right_checksum_is_an_error_not_an_abort() {
    let mut bytes = stream(&[b"good"]);
    bytes.extend(encode_header(1 << 60));
    bytes.extend([0; 100]);
    let (read, error) = read_all(&mut reader(&bytes, 1 << 10));
    assert_eq!(read, [b"good"]);
    assert_eq!(
        told(&error),
        "f: the record has 1152921504606846976 bytes, over the limit of 1073741824, in record 1 at \
         byte 20; write it as several smaller records; a reader of your own may raise \
         `record_bytes_max`"
    );

    let options = ChunkOptions { record_bytes_max: u64::MAX, ..ChunkOptions::default() };
    let mut unlimited = ChunkReader::new(&bytes[..], "f", options);
    let (_, error) = read_all(&mut unlimited);
    assert_eq!(
        told(&error),
        "f: truncated: the record has 1152921504606846976 bytes and a 4-byte checksum, the file ends \
         after 100 of them, in record 1 at byte 20; the copy or the writer stopped early, or is still \
         writing: copy the file again; the records before this one are good"
    );
    assert!(unlimited.buffer.len() <= 2 << 20);
}

#[test]
fn a_record_over_the_limit_can_be_passed_over() {
    let bytes = stream(&[b"a", &[1; 5000], b"b"]);
    let options = ChunkOptions { record_bytes_max: 100, chunk_bytes: 64, ..Default::default() };
    let mut reader = ChunkReader::new(&bytes[..], "f", options);
    let (read, error) = read_all(&mut reader);
    assert_eq!(read, [b"a"]);
    assert_eq!(
        told(&error),
        "f: the record has 5000 bytes, over the limit of 100, in record 1 at byte 17; write it as \
         several smaller records; a reader of your own may raise `record_bytes_max`"
    );
    assert!(reader.resume_after_error());
    let chunk = reader.next_chunk().unwrap().unwrap();
    assert_eq!((chunk.data(0), chunk.first_ordinal), (&b"b"[..], 2));
    assert_eq!(reader.buffer.len().max(chunk.bytes.len()), 64);
}

/// Source that returns one byte at a time, is interrupted, and fails at the end.
struct Flaky<'a> {
    bytes: &'a [u8],
    calls: u32,
}

impl Read for Flaky<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let Some((&byte, rest)) = self.bytes.split_first() else {
            return Err(io::Error::other("the cable is out"));
        };
        out[0] = byte;
        self.bytes = rest;
        Ok(1)
    }
}

#[test]
fn a_failing_source_loses_no_record_before_it() {
    let mut bytes = stream(&[b"one", b"two"]);
    bytes.extend([1, 2, 3]);
    let source = Flaky { bytes: &bytes, calls: 0 };
    let mut reader = ChunkReader::new(source, "f", ChunkOptions::default());
    let (read, error) = read_all(&mut reader);
    assert_eq!(read, [b"one", b"two"]);
    let error = error.unwrap();
    assert_eq!(error.to_string(), "f: cannot read: the cable is out, in record 2 at byte 38");
    assert!(!reader.resume_after_error());
    assert!(reader.next_chunk().unwrap().is_none());
}

#[test]
fn buffers_go_round() {
    let bytes = stream(&[&[1_u8; 100][..]; 100]);
    let mut reader = reader(&bytes, 1000);
    let mut seen = std::collections::BTreeSet::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        seen.insert(chunk.bytes.as_ptr().addr());
        reader.recycle(chunk.bytes);
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn unchecked_data_is_returned_as_it_is() {
    let mut bytes = stream(&[b"one"]);
    bytes[12] ^= 1;
    let options = ChunkOptions { verify_data: false, ..ChunkOptions::default() };
    let (read, error) = read_all(&mut ChunkReader::new(&bytes[..], "f", options));
    assert!(error.is_none());
    assert_eq!(read, [b"nne"]);
}

#[test]
fn every_bad_part_of_a_file_is_told_with_what_to_do() {
    let good = stream(&[b"one", b"three"]);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let said = [
        changed(&|bytes| bytes[0] ^= 1),
        changed(&|bytes| bytes[19] ^= 1),
        changed(&|bytes| bytes[31] ^= 1),
        changed(&|bytes| bytes.truncate(24)),
        changed(&|bytes| bytes.truncate(35)),
    ]
    .map(|bytes| told(&read_all(&mut reader(&bytes, 100)).1));
    assert_eq!(
        said,
        [
            "f: not a TFRecord file: the checksum of the first record's length is wrong, in record 0 \
             at byte 0; check that this is a TFRecord file; gzip and zlib are recognised, other \
             compression must be unpacked first",
            "f: corrupt record: its length does not match its checksum (stored 0x3e04b2ea, computed \
             0x04524542), in record 1 at byte 19; copy the file again from its source; the records \
             before this one are good, nothing after it can be found",
            "f: corrupt record: its 5 bytes do not match their checksum (stored 0x45fb2360, computed \
             0x1ea33382), in record 1 at byte 19; copy the file again from its source; the records \
             after this one are readable",
            "f: truncated: the file ends 7 bytes before the end of a record's 12-byte header, in \
             record 1 at byte 19; the copy or the writer stopped early, or is still writing: copy the \
             file again; the records before this one are good",
            "f: truncated: the record has 5 bytes and a 4-byte checksum, the file ends after 4 of \
             them, in record 1 at byte 19; the copy or the writer stopped early, or is still writing: \
             copy the file again; the records before this one are good",
        ]
    );
}
