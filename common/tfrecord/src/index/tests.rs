use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::*;
use crate::chunk::Chunk;
use crate::error::ReadErrorKind;
use crate::writer::RecordWriter;

fn frames(sizes: &[usize]) -> Vec<u8> {
    let mut writer = RecordWriter::new(Vec::new(), Compression::None);
    for (ordinal, &size) in sizes.iter().enumerate() {
        writer.write(&vec![ordinal as u8; size]).unwrap();
    }
    writer.finish().unwrap()
}

fn stored(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn index_file(
    path: &Path,
    options: &IndexOptions,
    on_progress: &mut dyn FnMut(u64),
) -> Result<ShardIndex, ReadError> {
    let mut file = File::open(path).unwrap();
    index_source(&mut file, &path.to_string_lossy(), options, on_progress)
}

fn plain(bytes: &[u8], options: &IndexOptions) -> Result<ShardIndex, ReadError> {
    let (_folder, path) = stored(bytes);
    index_file(&path, options, &mut |_| {})
}

fn streamed(bytes: &[u8], options: &IndexOptions) -> Result<ShardIndex, ReadError> {
    index_records(bytes, "shard", options, &mut |_| {})
}

#[test]
fn stepping_over_data_finds_what_reading_it_finds() {
    let mixed = [10, 70_000, 3, 200_000, 65_536, 65_537, 1_100_000, 0, 0, 5_000, 66_000];
    let many = vec![250; 10_000];
    for sizes in [&[][..], &[0], &[1 << 21], &mixed, &many, &[100_000; 30], &[65_540, 4080, 4070]] {
        let bytes = frames(sizes);
        let options = IndexOptions::default();
        let index = plain(&bytes, &options).unwrap();
        assert_eq!(index, streamed(&bytes, &options).unwrap(), "{sizes:?}");
        let (_folder, path) = stored(&bytes);
        let mut given = 0;
        let chunks = &mut |chunk: &Chunk| {
            given += chunk.records.len();
            true
        };
        let file = &mut File::open(path).unwrap();
        let of_chunks = index_chunks(file, "shard", &options, &mut |_| {}, chunks).unwrap();
        assert_eq!((of_chunks.as_ref(), given), (Some(&index), sizes.len()), "{sizes:?}");
        assert_eq!(index.stream_bytes, bytes.len() as u64);
        assert_eq!(index.records, sizes.len() as u64);
    }
}

#[test]
fn a_cut_inside_data_that_is_stepped_over_is_found() {
    let bytes = frames(&[100_000, 100_000]);
    for cut in [1, 3, 4, 5, 50_000, 100_003, 100_004, 100_005, 100_015] {
        let bytes = &bytes[..bytes.len() - cut];
        let strict = IndexOptions::default();
        let keep = IndexOptions { keep_going: true, ..IndexOptions::default() };
        for run in [plain, streamed] {
            let error = run(bytes, &strict).unwrap_err();
            assert_eq!((error.ordinal, error.offset), (1, 100_016));
            match error.kind {
                ReadErrorKind::TruncatedData { length: 100_000, available } => {
                    assert_eq!(available + cut as u64, 100_004);
                }
                ReadErrorKind::TruncatedHeader { missing } => {
                    assert_eq!(missing + 100_004, cut as u64);
                }
                kind => panic!("{kind:?}"),
            }
            let index = run(bytes, &keep).unwrap();
            assert_eq!((index.records, index.stream_bytes), (1, 100_016));
            assert_eq!(index.broken.unwrap().offset, 100_016);
        }
    }
}

#[test]
fn damage_is_an_error_or_told_in_the_index() {
    let good = frames(&[10, 20, 30, 40]);
    let whole = streamed(&good, &IndexOptions::default()).unwrap();

    let mut bad_data = good.clone();
    bad_data[26 + 12] ^= 1;
    let unverified = plain(&bad_data, &IndexOptions::default()).unwrap();
    assert_eq!(unverified, whole);
    let verify = IndexOptions { verify_data: true, ..IndexOptions::default() };
    let error = plain(&bad_data, &verify).unwrap_err();
    assert!(matches!(error.kind, ReadErrorKind::DataCrc { length: 20, .. }));
    let keep = IndexOptions { keep_going: true, ..verify };
    let index = plain(&bad_data, &keep).unwrap();
    let first = index.first_corrupt.clone().unwrap();
    assert_eq!((first.ordinal, first.offset), (1, 26));
    assert!(first.message.contains("do not match their checksum"), "{}", first.message);
    let first_corrupt = Some(first);
    let found = ShardIndex { corrupt_records: 1, data_verified: true, first_corrupt, ..whole };
    assert_eq!(index, found);

    let mut bad_length = good;
    bad_length[26 + 36] ^= 1;
    let index = plain(&bad_length, &keep).unwrap();
    let broken = index.broken.unwrap();
    assert_eq!((index.records, broken.ordinal, broken.offset), (2, 2, 62));
    assert!(broken.message.contains("record 2 at byte 62"), "{}", broken.message);
}

#[test]
fn a_hostile_length_is_an_error() {
    let mut bytes = frames(&[5]);
    for length in [1 << 60, u64::MAX, u64::MAX - 12, i64::MAX as u64] {
        bytes.truncate(21);
        bytes.extend(crate::frame::encode_header(length));
        let limited = IndexOptions::default();
        let unlimited = IndexOptions { record_bytes_max: u64::MAX, ..IndexOptions::default() };
        for run in [plain, streamed] {
            let error = run(&bytes, &limited).unwrap_err();
            assert!(matches!(error.kind, ReadErrorKind::TooLarge { .. }));
            let error = run(&bytes, &unlimited).unwrap_err();
            assert!(matches!(error.kind, ReadErrorKind::TruncatedData { available: 0, .. }));
        }
    }
}

#[test]
fn marks_are_even_and_at_record_starts() {
    for records in [0, 1, 63, 64, 65, 128, 129, 1000, 5000_usize] {
        let bytes = frames(&vec![3; records]);
        for (marks_max, mark_bytes) in
            [(0, 1), (1, 1), (2, 1), (3, 19), (7, 20), (64, 1), (64, 500)]
        {
            let options = IndexOptions { marks_max, mark_bytes, ..IndexOptions::default() };
            let ShardIndex { marks, .. } = streamed(&bytes, &options).unwrap();
            assert!(marks.len() <= marks_max);
            assert!(marks.iter().all(|mark| mark.offset == mark.ordinal * 19));
            let (ends, total) = ([0, bytes.len() as u64], bytes.len() as u64);
            let mut offsets: Vec<_> = marks.iter().map(|mark| mark.offset).chain(ends).collect();
            offsets.sort_unstable();
            let largest = offsets.windows(2).map(|two| two[1] - two[0]).max().unwrap();
            let most = (4 * total / (marks_max as u64 + 1)).max(mark_bytes) + 2 * 19;
            assert!(largest <= most, "{records} {marks_max} {mark_bytes}: {offsets:?}");
            let marked = marks.windows(2).all(|two| two[1].offset - two[0].offset >= mark_bytes);
            assert!(marked, "{records} {marks_max} {mark_bytes}: {offsets:?}");
        }
    }
    let ShardIndex { marks, .. } = streamed(&frames(&[3; 3000]), &IndexOptions::default()).unwrap();
    assert_eq!(marks, [], "a small file needs none");
}

#[test]
fn progress_counts_bytes_of_the_file() {
    let bytes = frames(&[500_000; 10]);
    for verify_data in [false, true] {
        let (_folder, path) = stored(&bytes);
        let options = IndexOptions { verify_data, ..IndexOptions::default() };
        let mut seen = vec![0];
        index_file(&path, &options, &mut |bytes| seen.push(bytes)).unwrap();
        assert!(seen.is_sorted() && seen.len() > 5);
        assert_eq!(*seen.last().unwrap(), bytes.len() as u64);
    }
}

/// Returns the peak memory use of this process so far, in bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

#[test]
fn a_record_of_any_length_is_indexed_in_a_buffer() {
    const LENGTH: u64 = 512 << 20;
    let zeros = || std::io::repeat(0).take(LENGTH);
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let mut piece = vec![0; 1 << 20];
    let mut source = zeros();
    while let count @ 1.. = source.read(&mut piece).unwrap() {
        digest.update(&piece[..count]);
    }
    let footer = crate::frame::mask(digest.finalize() as u32).to_le_bytes();
    let header = crate::frame::encode_header(LENGTH);
    for verify_data in [false, true] {
        let before = peak_bytes();
        let source = header[..].chain(zeros()).chain(&footer[..]).chain(&header[..5]);
        let options = IndexOptions { verify_data, keep_going: true, ..IndexOptions::default() };
        let index = index_records(source, "x", &options, &mut |_| {}).unwrap();
        assert_eq!((index.records, index.data_bytes, index.corrupt_records), (1, LENGTH, 0));
        assert_eq!(index.broken.unwrap().ordinal, 1, "the rest is cut off");
        let more = peak_bytes() - before;
        assert!(more < 32 << 20, "{more} bytes for one record");
    }
}
