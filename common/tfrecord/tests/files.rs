//! Files that are written and read again, and the errors of damaged ones.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use std::error::Error;
use std::fs;
use std::path::Path;

use shardfeed_tfrecord::example::{ExampleParser, features_of};
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder, ReadError, ReadErrorKind,
    create, open_source,
};

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn write(path: &Path, compression: Compression, records: &[&[u8]]) {
    let mut writer = create(path, compression).unwrap();
    for record in records {
        writer.write(record).unwrap();
    }
    assert_eq!(writer.records(), records.len() as u64);
    assert_eq!(writer.bytes(), records.iter().map(|record| record.len() as u64 + 16).sum::<u64>());
    writer.finish().unwrap();
}

fn open(path: &Path) -> Result<ChunkReader<Decoder<fs::File>>, ReadError> {
    let source = open_source(path, CompressionChoice::Auto)?;
    Ok(ChunkReader::new(source, path.to_string_lossy(), ChunkOptions::default()))
}

fn read_first(path: &Path) -> Result<Vec<u8>, ReadError> {
    Ok(open(path)?.next_chunk()?.expect("a record").data(0).to_vec())
}

fn read_all(path: &Path) -> Vec<Vec<u8>> {
    let (mut reader, mut records) = (open(path).unwrap(), Vec::new());
    while let Some(chunk) = reader.next_chunk().unwrap() {
        records.extend(chunk.iter().map(<[u8]>::to_vec));
    }
    records
}

#[test]
fn a_file_appears_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tfrecord");
    let mut writer = create(&path, Compression::None).unwrap();
    writer.write(b"new").unwrap();
    assert!(!path.exists());
    let mut other = create(&path, Compression::Gzip).unwrap();
    other.write(b"other").unwrap();
    assert_eq!(names(folder.path()).len(), 2);
    drop(other);
    assert_eq!(names(folder.path()).len(), 1);
    writer.finish().unwrap();
    assert_eq!(names(folder.path()), ["x.tfrecord"]);
    assert_eq!(read_first(&path).unwrap(), b"new");

    write(&path, Compression::Zlib, &[b"newer"]);
    assert_eq!(names(folder.path()), ["x.tfrecord"]);
    assert_eq!(read_first(&path).unwrap(), b"newer");
    assert!(create(folder.path().join("no/folder"), Compression::None).is_err());
    let error = create("/", Compression::None).unwrap_err();
    assert_eq!(error.to_string(), "the path ends in no file name");
}

#[test]
fn records_larger_than_any_buffer_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let large: Vec<u8> = (0..3_000_000_u64).map(|at| ((at * at) >> 7) as u8).collect();
    for compression in [Compression::None, Compression::Gzip, Compression::Zlib] {
        let path = folder.path().join(compression.to_string());
        write(&path, compression, &[b"small", &large, b"", &large[..300_000]]);
        assert!(read_all(&path) == [&b"small"[..], &large, b"", &large[..300_000]]);
    }
}

#[test]
fn errors_name_the_file_the_place_and_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let shown = |error: &ReadError| {
        assert!(error.source().is_none(), "the message says it all");
        error.to_string().replace(folder.path().to_str().unwrap(), "")
    };

    let error = read_first(&path).unwrap_err();
    assert_eq!(shown(&error), "/x: cannot open: No such file or directory (os error 2)");
    assert_eq!(error.hint(), "check the path, as seen from the machine that reads");
    assert!(matches!(error.kind, ReadErrorKind::Open(_)));

    fs::write(&path, "this is a text file").unwrap();
    let error = read_first(&path).unwrap_err();
    assert_eq!(
        shown(&error),
        "/x: not a TFRecord file: the checksum of the first record's length is wrong, in record 0 at \
         byte 0"
    );
    assert_eq!(
        error.hint(),
        "check that this is a TFRecord file; gzip and zlib are recognised, other compression must be \
         unpacked first"
    );

    let error = read_first(folder.path()).unwrap_err();
    assert_eq!(shown(&error), ": cannot read: Is a directory (os error 21), in record 0 at byte 0");
    assert_eq!(error.hint(), "check the disk, the mount and the permissions");

    write(&path, Compression::None, &[b"good", b"bad"]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[32] ^= 1;
    fs::write(&path, bytes).unwrap();
    let mut reader = open(&path).unwrap();
    reader.next_chunk().unwrap();
    let error = reader.next_chunk().unwrap_err();
    assert!(shown(&error).ends_with("in record 1 at byte 20"), "{error}");
    assert!(reader.resume_after_error());
}

#[test]
fn files_of_other_projects_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/tfrecords");
    if !folder.is_dir() {
        eprintln!("skipped: no {}", folder.display());
        return;
    }
    let records = |name: &str| {
        let records = read_all(&folder.join(name));
        assert!(!records.is_empty());
        records
    };
    for record in records("torchdata_example.tfrecord") {
        let features = features_of(&record).expect("an Example");
        assert!(!features.is_empty() && features.iter().all(|feature| feature.values.is_some()));
    }
    for record in records("torchdata_sequence_example.tfrecord") {
        assert_eq!(features_of(&record), None);
        let located = ExampleParser::new(Vec::new()).unwrap().locate(&record, &mut Vec::new());
        assert_eq!(located, Ok(()));
    }
    let lines = records("grain_morris_5_records.tfrecord");
    assert_eq!(lines.len(), 5);
    assert!(
        lines.iter().all(|line| std::str::from_utf8(line).is_ok() && features_of(line).is_none())
    );
}
