//! Record files: three readers and a simple reference agree on all inputs.

use std::io::{self, Read};

use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, IndexOptions, ReadAt, ReadErrorKind, RecordWriter,
    ShardIndex, index_records, index_source,
};

use crate::{Target, gist, size};

pub(crate) const TARGET: Target = Target { name: "framing", run, seeds };

fn seeds() -> Vec<Vec<u8>> {
    let file = |mode: u8, records: &[&[u8]]| {
        let mut writer = RecordWriter::new(vec![mode], Compression::None);
        for record in records {
            writer.write(record).expect("memory takes all");
        }
        writer.finish().expect("memory takes all")
    };
    let large = vec![7; 70_000];
    vec![
        file(0, &[]),
        file(0, &[b"a", b"", b"hello"]),
        file(3, &[b"one", b"two", b"three"]),
        file(1, &[&[0; 300], b"x"]),
        file(6, &[&large, b"y"]),
    ]
}

/// Result of reading a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read4 {
    /// Offset and data of valid records; `None` for those with an invalid checksum.
    records: Vec<(u64, Option<Vec<u8>>)>,
    /// Offset at which the framing breaks, if it does.
    broken: Option<u64>,
}

impl Read4 {
    fn bad(&self) -> usize {
        self.records.iter().filter(|(_, data)| data.is_none()).count()
    }
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(number)
}

/// Reference reader: the format as TensorFlow documents it.
fn reference(file: &[u8]) -> Read4 {
    let (mut read, mut at) = (Read4::default(), 0);
    while at < file.len() {
        let rest = &file[at..];
        let offset = at as u64;
        read.broken = Some(offset);
        if rest.len() < 12 || number(&rest[8..12]) != u64::from(masked(&rest[..8])) {
            return read;
        }
        let len = number(&rest[..8]);
        if len > rest.len() as u64 || (rest.len() as u64) < len + 16 {
            return read;
        }
        read.broken = None;
        let (data, footer) = (&rest[12..12 + len as usize], &rest[12 + len as usize..]);
        let is_good = number(&footer[..4]) == u64::from(masked(data));
        read.records.push((offset, is_good.then(|| data.to_vec())));
        at += 16 + len as usize;
    }
    read
}

/// Fixes checksums: of lengths with the first bit of `mode`, of data with the second.
fn repair(file: &mut [u8], mode: u8) {
    let mut at = 0;
    while mode & 3 != 0 && file.len() - at >= 12 {
        if mode & 1 != 0 {
            let sum = masked(&file[at..at + 8]);
            file[at + 8..at + 12].copy_from_slice(&sum.to_le_bytes());
        }
        let len = number(&file[at..at + 8]);
        let left = (file.len() - at - 12) as u64;
        if len >= left || left - len < 4 {
            return;
        }
        let end = at + 12 + len as usize;
        if mode & 2 != 0 {
            let sum = masked(&file[at + 12..end]);
            file[end..end + 4].copy_from_slice(&sum.to_le_bytes());
        }
        at = end + 4;
    }
}

/// Reader that returns few bytes at a time.
struct Slowly<'a>(&'a [u8], usize);

impl Read for Slowly<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(out.len()).min(self.0.len());
        let (first, rest) = self.0.split_at(count);
        out[..count].copy_from_slice(first);
        self.0 = rest;
        Ok(count)
    }
}

fn by_chunks(file: &[u8], chunk_bytes: usize, step: usize) -> Read4 {
    let options = ChunkOptions { chunk_bytes, ..ChunkOptions::default() };
    let mut reader = ChunkReader::new(Slowly(file, step), "x", options);
    let mut read = Read4::default();
    loop {
        match reader.next_chunk() {
            Ok(None) => return read,
            Ok(Some(chunk)) => {
                assert_eq!(chunk.first_ordinal, read.records.len() as u64);
                let records = chunk.records.iter();
                let records =
                    records.map(|span| (span.offset, Some(span.of(&chunk.bytes).to_vec())));
                read.records.extend(records);
            }
            Err(error) => {
                assert_eq!(error.ordinal, read.records.len() as u64);
                match error.kind {
                    ReadErrorKind::DataCrc { .. } => {
                        read.records.push((error.offset, None));
                        assert!(reader.resume_after_error());
                    }
                    _ => read.broken = Some(error.offset),
                }
                if read.broken.is_some() {
                    return read;
                }
            }
        }
    }
}

struct InMemory<'a>(&'a [u8]);

impl ReadAt for InMemory<'_> {
    fn read_at(&mut self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let count = out.len().min(self.0.len() - from);
        out[..count].copy_from_slice(&self.0[from..from + count]);
        Ok(count)
    }

    fn size_bytes(&mut self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn step_over_bytes(&self) -> u64 {
        1 << 10
    }
}

fn check_index(index: &ShardIndex, read: &Read4) {
    assert_eq!(index.records, read.records.len() as u64, "records of {index:?}");
    assert_eq!(index.broken.as_ref().map(|broken| broken.offset), read.broken, "{index:?}");
    let offset = |ordinal: u64| read.records[ordinal as usize].0;
    assert!(index.marks.iter().all(|mark| mark.offset == offset(mark.ordinal)), "{index:?}");
}

fn run(input: &[u8]) -> String {
    let Some((&mode, file)) = input.split_first() else {
        return "empty".to_owned();
    };
    let mut file = file.to_vec();
    repair(&mut file, mode);
    let read = reference(&file);
    for (chunk_bytes, step) in [(1, 3), (64, 1000), (1 << 16, usize::MAX)] {
        assert_eq!(by_chunks(&file, chunk_bytes, step), read, "chunks of {chunk_bytes}");
    }
    let options = |verify_data| IndexOptions {
        compression: Compression::None.into(),
        keep_going: true,
        verify_data,
        ..IndexOptions::default()
    };
    let whole = index_records(&file[..], "x", &options(true), &mut |_| ());
    let whole = whole.unwrap_or_else(|error| panic!("keep_going gave {error}"));
    check_index(&whole, &read);
    assert_eq!(whole.corrupt_records, read.bad() as u64);
    let stepped = index_source(&mut InMemory(&file), "x", &options(false), &mut |_| ());
    let stepped = stepped.unwrap_or_else(|error| panic!("keep_going gave {error}"));
    check_index(&stepped, &read);
    assert_eq!(stepped.digest, whole.digest);
    let broken = whole.broken.map_or(String::new(), |broken| gist(broken.message));
    let (records, bad) = (size(read.records.len()), size(read.bad()));
    format!("{records} {bad} {} {broken}", mode & 3)
}
