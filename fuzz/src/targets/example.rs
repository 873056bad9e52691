//! Records: columns or an error, the same for a single record, in a batch, and when only checked.

use std::sync::{Arc, OnceLock};

use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{Assembler, Batch, ColumnKind, DrawKey, Dtype, ParseSpec, Row, Schema};
use shardfeed_plan::{OrderDigest, Sample};
use shardfeed_tfrecord::encode_footer;
use shardfeed_tfrecord::example::{
    DType, DefaultValue, Feature, FeatureSpec, Partition, Value, encode_example,
    encode_sequence_example, features_of,
};

use crate::{Target, gist, size};

pub(crate) const EXAMPLE: Target =
    Target { name: "example", run: |input| run(&EXAMPLES, examples, input), seeds: example_seeds };

pub(crate) const SEQUENCE: Target = Target {
    name: "sequence",
    run: |input| run(&SEQUENCES, sequences, input),
    seeds: sequence_seeds,
};

static EXAMPLES: OnceLock<Vec<Assembler>> = OnceLock::new();
static SEQUENCES: OnceLock<Vec<Assembler>> = OnceLock::new();

fn feature(name: &str, feature: Feature) -> FeatureSpec {
    FeatureSpec { name: name.to_owned(), feature }
}

fn fixed(dtype: DType, shape: &[usize], default: Option<DefaultValue>) -> Feature {
    Feature::FixedLen { shape: shape.to_vec(), dtype, default }
}

fn examples() -> Vec<ParseSpec> {
    let sequence = |dtype| Feature::FixedLenSequence {
        shape: vec![2],
        dtype,
        allow_missing: true,
        default: None,
    };
    let ragged = |partitions| Feature::Ragged {
        dtype: DType::Float32,
        value_key: Some("floats".to_owned()),
        partitions,
    };
    let sparse = |already_sorted| Feature::Sparse {
        dtype: DType::Int64,
        index_keys: vec!["row".to_owned(), "place".to_owned()],
        value_key: "ints".to_owned(),
        size: vec![10, 20],
        already_sorted,
    };
    vec![
        ParseSpec::Example(vec![
            feature("id", fixed(DType::Int64, &[], Some(DefaultValue::Int64(vec![-1])))),
            feature(
                "pair",
                fixed(DType::Float32, &[2], Some(DefaultValue::Float32(vec![0.5, 1.0]))),
            ),
            feature("name", fixed(DType::Bytes, &[], Some(DefaultValue::Bytes(vec![vec![]])))),
        ]),
        ParseSpec::Example(vec![
            feature("ints", Feature::VarLen { dtype: DType::Int64 }),
            feature("floats", sequence(DType::Float32)),
            feature("texts", Feature::VarLen { dtype: DType::Bytes }),
        ]),
        ParseSpec::Example(vec![
            feature("ragged", ragged(vec![Partition::RowLengths("lengths".to_owned())])),
            feature("even", ragged(vec![Partition::UniformRowLength(2)])),
        ]),
        ParseSpec::Example(vec![feature("sparse", sparse(false)), feature("sorted", sparse(true))]),
    ]
}

fn sequences() -> Vec<ParseSpec> {
    let id = || feature("id", fixed(DType::Int64, &[], Some(DefaultValue::Int64(vec![-1]))));
    let steps = |shape: &[usize], dtype| Feature::FixedLenSequence {
        shape: shape.to_vec(),
        dtype,
        allow_missing: true,
        default: None,
    };
    vec![
        ParseSpec::Sequence {
            context: vec![id()],
            lists: vec![
                feature("ints", steps(&[], DType::Int64)),
                feature("floats", steps(&[2], DType::Float32)),
            ],
        },
        ParseSpec::Sequence {
            context: vec![],
            lists: vec![
                feature("texts", Feature::VarLen { dtype: DType::Bytes }),
                feature("ints", Feature::VarLen { dtype: DType::Int64 }),
            ],
        },
    ]
}

fn example_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![]];
    let mut add = |features: &[(&str, Value<'_>)]| {
        let mut record = vec![];
        encode_example(features, &mut record);
        seeds.push(record);
    };
    add(&[
        ("id", Value::Int64(&[7])),
        ("pair", Value::Float32(&[1.0, 2.0])),
        ("name", Value::Bytes(&[b"n"])),
    ]);
    add(&[
        ("ints", Value::Int64(&[1, -2, i64::MAX])),
        ("floats", Value::Float32(&[0.5; 4])),
        ("texts", Value::Bytes(&[b"", b"two"])),
        ("lengths", Value::Int64(&[1, 0, 3])),
        ("row", Value::Int64(&[0, 0, 9])),
        ("place", Value::Int64(&[3, 5, 19])),
    ]);
    add(&[
        ("ints", Value::Int64(&[])),
        ("other", Value::Float32(&[])),
        ("lengths", Value::Int64(&[4])),
    ]);
    seeds
}

fn sequence_seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![]];
    let ints = [Some(Value::Int64(&[1])), Some(Value::Int64(&[2]))];
    let floats = [Some(Value::Float32(&[1.0, 2.0]))];
    let texts = [Some(Value::Bytes(&[b"a", b"bc"])), None, Some(Value::Bytes(&[]))];
    for lists in [
        &[("ints", &ints[..]), ("floats", &floats[..])][..],
        &[("texts", &texts[..]), ("ints", &ints[..])],
        &[("ints", &[][..])],
    ] {
        let mut record = vec![];
        encode_sequence_example(&[("id", Value::Int64(&[3]))], lists, &mut record);
        seeds.push(record);
    }
    seeds
}

fn key() -> DrawKey {
    let digest = OrderDigest::of_parts([b"fuzz".as_slice()]);
    DrawKey { digest, seed: 7, epoch: 0, sources: [].into() }
}

/// Returns a record followed by its checksum.
fn stored(record: &[u8]) -> Vec<u8> {
    [record, &encode_footer(record)].concat()
}

fn row(stored: &[u8], ordinal: u64) -> Row<'_> {
    Row::of_record(Sample { shard: 0, ordinal }, stored)
}

fn assemblers(specs: fn() -> Vec<ParseSpec>) -> Vec<Assembler> {
    let assembler = |spec: ParseSpec| {
        let schema = Schema::new(spec.into()).expect("the features make sense");
        Assembler::new(Arc::new(schema), SlotPool::new(4))
    };
    specs().into_iter().map(assembler).collect()
}

/// Checks that offsets and splits refer to existing values; returns the number of values.
fn checked(mut batch: Batch) -> usize {
    let mut values = 0;
    for column in batch.columns.clone() {
        let numbers = |bytes: Vec<u8>| -> Vec<i64> {
            let numbers = bytes.chunks_exact(8);
            numbers.map(|eight| i64::from_le_bytes(eight.try_into().expect("eight"))).collect()
        };
        let bytes = batch.slot.read(&column.values).len();
        let dtype = column.kind.dtype();
        let mut items = bytes / dtype.bytes();
        if let Some(offsets) = &column.offsets {
            let offsets = numbers(batch.slot.read(offsets));
            assert_eq!((offsets[0], offsets.last().copied()), (0, Some(bytes as i64)));
            assert!(offsets.is_sorted(), "{}: {offsets:?}", column.name);
            items = offsets.len() - 1;
        }
        values += items;
        let splits: Vec<Vec<i64>> =
            column.splits.iter().map(|split| numbers(batch.slot.read(split))).collect();
        match &column.kind {
            ColumnKind::Ragged { shape, .. } => {
                let inner: usize = shape.iter().product();
                let mut rows = batch.rows;
                for split in &splits {
                    assert!(split.is_sorted() && split.len() == rows + 1, "{}", column.name);
                    rows = split[rows] as usize;
                }
                assert_eq!(rows * inner, items, "{}", column.name);
            }
            ColumnKind::Dense { dtype, shape } => {
                assert!(
                    *dtype == Dtype::Bytes || items == batch.rows * shape.iter().product::<usize>()
                );
            }
            ColumnKind::Sparse { size, .. } => {
                assert_eq!(splits[0].len(), items * (1 + size.len()));
            }
            _ => {}
        }
    }
    values
}

fn run(known: &OnceLock<Vec<Assembler>>, specs: fn() -> Vec<ParseSpec>, input: &[u8]) -> String {
    let mut outcome = String::new();
    let (stored, empty) = (stored(input), stored(&[]));
    for assembler in known.get_or_init(|| assemblers(specs)) {
        let key = key();
        let one = row(&stored, 1);
        let alone = assembler.assemble(std::slice::from_ref(&one), &key);
        let check = assembler.check(&one, &key);
        assert_eq!(alone.is_ok(), check.is_ok(), "assembled and checked");
        let among = assembler.assemble(&[row(&empty, 0), one, row(&empty, 2)], &key);
        assert_eq!(alone.is_ok(), among.is_ok(), "alone and among others");
        match (alone, among) {
            (Ok(alone), Ok(among)) => {
                checked(among);
                outcome.push_str(&format!("{} ", size(checked(alone))));
            }
            (Err(alone), Err(among)) => {
                assert_eq!(alone.fault.to_string(), among.fault.to_string());
                assert_eq!(among.sample.ordinal, 1, "another record is blamed");
                outcome.push_str(&gist(alone.fault));
            }
            _ => unreachable!("compared above"),
        }
    }
    let features = features_of(input).map_or(0, |features| 1 + features.len());
    format!("{outcome} {}", size(features))
}
