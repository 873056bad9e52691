//! Compares our results with those of TensorFlow that `goldens/make_goldens.py` recorded. The test
//! itself does not need TensorFlow.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use shardfeed_tfrecord::example::{
    DType, DefaultValue, ExampleParser, FeatureSpec, ListRef, ParseError, SpecError,
};
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, CompressionChoice, IndexOptions, ReadError,
    index_source, open_source,
};

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

fn load<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    serde_json::from_slice(&fs::read(goldens().join(name)).unwrap()).unwrap()
}

// ---- record files ---------------------------------------------------------------------------------

#[derive(Deserialize)]
struct Files {
    files: Vec<GoodFile>,
    damaged: Vec<DamagedFile>,
}

#[derive(Deserialize)]
struct GoodFile {
    file: String,
    compression: Compression,
    sizes: Vec<usize>,
    stream_bytes: u64,
    digest: String,
    tf_records: usize,
}

#[derive(Deserialize)]
struct DamagedFile {
    file: String,
    compression: Compression,
    sizes: Vec<usize>,
    /// Number of records before the damage, if it does not depend on the inflater's implementation.
    good: Option<usize>,
    tf_records: usize,
    tf_error: Option<String>,
}

/// Intact files of which TensorFlow reads nothing or stops with an error. We read them.
const TENSORFLOW_LOSES: [&str; 3] =
    ["members_empty_first.gzip", "members_padded.gzip", "streams.zlib"];

/// Truncated files for which TensorFlow reports no error. We report one.
const TENSORFLOW_IS_SILENT: [&str; 4] =
    ["cut_in_header.tfrecord", "cut_trailer.gzip", "cut.zlib", "cut_trailer.zlib"];

/// The data of a record; `make_goldens.py` has the same formula.
fn data(ordinal: usize, size: usize) -> Vec<u8> {
    (0..size).map(|j| ((ordinal * 31 + j * j % 251) % 256) as u8).collect()
}

fn read(path: &Path, choice: CompressionChoice) -> (Vec<Vec<u8>>, Option<ReadError>) {
    let source = open_source(path, choice).unwrap();
    let mut reader = ChunkReader::new(source, path.to_string_lossy(), ChunkOptions::default());
    let mut records = Vec::new();
    loop {
        match reader.next_chunk() {
            Ok(Some(chunk)) => {
                assert_eq!(chunk.first_ordinal, records.len() as u64);
                records.extend(chunk.iter().map(<[u8]>::to_vec));
            }
            Ok(None) => return (records, None),
            Err(error) => return (records, Some(error)),
        }
    }
}

#[test]
fn files_read_as_tensorflow_wrote_them() {
    let Files { files, .. } = load("files.json");
    assert!(files.len() >= 15);
    for golden in files {
        let path = goldens().join("files").join(&golden.file);
        let expected: Vec<_> =
            golden.sizes.iter().enumerate().map(|(ordinal, &size)| data(ordinal, size)).collect();
        for choice in [CompressionChoice::Auto, golden.compression.into()] {
            let (records, error) = read(&path, choice);
            assert!(error.is_none(), "{}: {error:?}", golden.file);
            assert!(records == expected, "{} as {choice}", golden.file);
        }
        let same_as_tensorflow = golden.tf_records == expected.len();
        let listed = TENSORFLOW_LOSES.contains(&golden.file.as_str());
        // TensorFlow reports an error after the last record of the padded file.
        assert!(same_as_tensorflow != listed || golden.file == "members_padded.gzip");

        for verify_data in [false, true] {
            let options = IndexOptions {
                compression: golden.compression.into(),
                verify_data,
                ..IndexOptions::default()
            };
            let mut file = fs::File::open(&path).unwrap();
            let index = index_source(&mut file, &golden.file, &options, &mut |_| {}).unwrap();
            assert_eq!(hex(&index.digest), golden.digest, "{}", golden.file);
            assert_eq!(index.records, golden.sizes.len() as u64);
            assert_eq!(index.data_bytes, golden.sizes.iter().sum::<usize>() as u64);
            assert_eq!(index.stream_bytes, golden.stream_bytes);
        }
    }
}

#[test]
fn damaged_files_give_what_is_good_and_an_error() {
    let Files { damaged, .. } = load("files.json");
    assert!(damaged.len() >= 14);
    for golden in damaged {
        let path = goldens().join("files").join(&golden.file);
        let (records, error) = read(&path, golden.compression.into());
        let error = error.unwrap_or_else(|| panic!("{}: no error", golden.file));
        assert_eq!(error.ordinal, records.len() as u64);
        assert!(error.to_string().contains(&golden.file));
        for (ordinal, record) in records.iter().enumerate() {
            assert!(*record == data(ordinal, golden.sizes[ordinal]));
        }
        assert!(records.len() >= golden.tf_records, "{}: {}", golden.file, records.len());
        if let Some(good) = golden.good {
            assert_eq!(records.len(), good, "{}", golden.file);
        }
        let silent = TENSORFLOW_IS_SILENT.contains(&golden.file.as_str());
        assert_eq!(golden.tf_error.is_none(), silent, "{}", golden.file);
    }
}

// ---- Examples -------------------------------------------------------------------------------------

#[derive(Deserialize)]
struct Examples {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    record: String,
    features: Vec<FeatureSpec>,
    answer: Answer,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ok(BTreeMap<String, Vec<serde_json::Value>>),
    Error(String),
}

/// Cases in which our result differs on purpose, and our result.
///
/// TensorFlow reads packed or unpacked values, whichever comes first, and stops at the first of the
/// other kind: later values are lost, or fail. It examines only the first field of a Feature.
/// Protobuf reads all of these, and so do we.
const AS_PROTOBUF: [(&str, &str); 21] = [
    ("ints packed in two pieces", r#"{"i":[1,2,3]}"#),
    ("floats packed in two pieces", r#"{"f":[1065353216,1073741824,1077936128]}"#),
    ("ints packed then unpacked", r#"{"i":[1,2]}"#),
    ("ints unpacked then packed", r#"{"i":[1,2]}"#),
    ("floats packed then unpacked", r#"{"f":[1065353216,1073741824]}"#),
    ("floats unpacked then packed", r#"{"f":[1065353216,1073741824]}"#),
    ("oneof twice, same kind", r#"{"i":[1,2]}"#),
    ("oneof twice, other kind, asked last", r#"{"i":[1073741824]}"#),
    ("oneof there and back", r#"{"i":[3]}"#),
    ("entry without value", r#"{"i":[3]}"#),
    ("entry without key", r#"{"i":[]}"#),
    ("entry without key, empty name", r#"{"":[5]}"#),
    ("empty entry", r#"{"i":[5]}"#),
    ("unknown varint in features", r#"{"i":[5]}"#),
    ("unknown varint in entry", r#"{"i":[5]}"#),
    ("unknown varint before kind", r#"{"i":[5]}"#),
    ("unknown varint before values", r#"{"i":[5]}"#),
    ("unknown bytes in features", r#"{"i":[5]}"#),
    ("unknown bytes in entry", r#"{"i":[5]}"#),
    ("unknown bytes before kind", r#"{"i":[5]}"#),
    ("unknown bytes before values", r#"{"i":[5]}"#),
];

/// Cases that TensorFlow accepts and we reject: floats packed in 6 bytes, of which TensorFlow
/// ignores the last two, a field number that protobuf forbids, a length over the end, and the first
/// of two kinds.
const REFUSED: [&str; 4] =
    ["packed floats of 6 bytes", "field 0", "length over the end", "oneof twice, other kind"];

#[test]
fn examples_parse_as_tensorflow_parses_them() {
    let Examples { cases } = load("examples.json");
    assert!(cases.len() > 150);
    let mut differences = 0;
    for case in &cases {
        let ours = parse(&unhex(&case.record), &case.features);
        // Unknown fixed-width fields behave like unknown varints.
        let name = case.name.replace("fixed64 in", "varint in").replace("fixed32 in", "varint in");
        let name = name.replace("unknown fixed64", "unknown varint");
        let name = name.replace("unknown fixed32", "unknown varint");
        let listed = AS_PROTOBUF.iter().find(|(listed, _)| *listed == name);
        let refused = REFUSED.contains(&name.as_str());
        differences += usize::from(listed.is_some() || refused);
        let agrees = match (&ours, &case.answer) {
            (Ok(ours), Answer::Ok(theirs)) => ours == theirs,
            (Err(ours), Answer::Error(theirs)) => same_complaint(ours, theirs),
            _ => false,
        };
        assert_eq!(agrees, listed.is_none() && !refused, "{}: {ours:?}", case.name);
        if let Some((_, expected)) = listed {
            assert_eq!(ours.as_ref().unwrap(), &serde_json::from_str(expected).unwrap(), "{name}");
        }
        assert!(!refused || ours.is_err(), "{name}");
    }
    assert_eq!(differences, AS_PROTOBUF.len() + REFUSED.len() + 8);
}

#[derive(Debug)]
enum Complaint {
    Spec(SpecError),
    Parse(ParseError),
}

type Columns = BTreeMap<String, Vec<serde_json::Value>>;

fn parse(record: &[u8], features: &[FeatureSpec]) -> Result<Columns, Complaint> {
    let parser = ExampleParser::new(features.to_vec()).map_err(Complaint::Spec)?;
    let mut located = Vec::new();
    parser.locate(record, &mut located).map_err(Complaint::Parse)?;
    let columns = parser.features().iter().zip(&located).map(|(spec, located)| {
        let values = match located {
            Some(list) => list_values(list),
            None => spec.default().map_or_else(Vec::new, default_values),
        };
        (spec.name.clone(), values)
    });
    Ok(columns.collect())
}

fn list_values(list: &ListRef<'_>) -> Vec<serde_json::Value> {
    match list.dtype() {
        DType::Int64 => {
            let mut values = vec![0; list.count()];
            list.write_i64(&mut values);
            default_values(&DefaultValue::Int64(values))
        }
        DType::Float32 => {
            let mut values = vec![0.0; list.count()];
            list.write_f32(&mut values);
            default_values(&DefaultValue::Float32(values))
        }
        DType::Bytes => {
            let mut values = Vec::new();
            list.for_each_bytes(|value| values.push(value.to_vec()));
            assert_eq!(values.len(), list.count());
            assert_eq!(values.iter().map(Vec::len).sum::<usize>(), list.data_bytes());
            default_values(&DefaultValue::Bytes(values))
        }
    }
}

/// Returns values in the format of `make_goldens.py`: floats as bits, bytes as hex.
fn default_values(values: &DefaultValue) -> Vec<serde_json::Value> {
    match values {
        DefaultValue::Int64(values) => values.iter().map(|&value| value.into()).collect(),
        DefaultValue::Float32(values) => {
            values.iter().map(|value| value.to_bits().into()).collect()
        }
        DefaultValue::Bytes(values) => values.iter().map(|value| hex(value).into()).collect(),
    }
}

fn same_complaint(ours: &Complaint, theirs: &str) -> bool {
    match ours {
        Complaint::Spec(SpecError::DefaultCount { .. }) => theirs.contains("Input to reshape"),
        Complaint::Spec(_) => false,
        // TensorFlow rejects a map entry without a value; for us it is a feature without a list.
        Complaint::Parse(ParseError::Required { .. }) => {
            theirs.contains("is required but") || theirs.contains("Could not parse")
        }
        Complaint::Parse(ParseError::DTypeMismatch { .. }) => theirs.contains("types don't match"),
        // TensorFlow stops writing strings when there are too many, and reports a parse error.
        Complaint::Parse(ParseError::CountMismatch { .. }) => {
            theirs.contains("values != expected") || theirs.contains("Can't parse")
        }
        Complaint::Parse(_) => theirs.contains("Can't parse") || theirs.contains("Could not parse"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let nibble = |digit: u8| (digit as char).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])).collect()
}
