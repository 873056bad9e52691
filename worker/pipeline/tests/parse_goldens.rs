//! Compares batches with TensorFlow's, recorded by `goldens/make_goldens.py`. TensorFlow is not
//! needed here. All permitted differences are listed in docs/GUARANTEES.md and below.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;
mod dice;
mod hex;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{Assembler, Batch, ColumnData, ColumnKind, Dtype, ParseSpec, Schema};
use shardfeed_tfrecord::example::{Feature, FeatureSpec};

use common::{key, stored};
use dice::{Dice, disturb, rounds};
use hex::unhex;

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    records: Vec<String>,
    parse: ParseSpec,
    answer: Answer,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ok(BTreeMap<String, Value>),
    Error(String),
}

fn numbers(batch: &mut Batch, range: &shardfeed_handoff::BufferRange) -> Vec<i64> {
    let bytes = batch.slot.read(range);
    bytes.chunks_exact(8).map(|eight| i64::from_le_bytes(eight.try_into().unwrap())).collect()
}

/// Values as `make_goldens.py` writes them: floats as bits, strings as hex.
fn values(batch: &mut Batch, column: &ColumnData) -> Vec<Value> {
    let bytes = batch.slot.read(&column.values);
    match column.kind.dtype() {
        Dtype::Int64 => {
            let eight = |eight: &[u8]| json!(i64::from_le_bytes(eight.try_into().unwrap()));
            bytes.chunks_exact(8).map(eight).collect()
        }
        Dtype::Float32 => {
            let four = |four: &[u8]| json!(u32::from_le_bytes(four.try_into().unwrap()));
            bytes.chunks_exact(4).map(four).collect()
        }
        Dtype::Bytes => {
            let offsets = numbers(batch, column.offsets.as_ref().unwrap());
            assert_eq!(offsets[0], 0);
            let string = |pair: &[i64]| {
                let string = &bytes[pair[0] as usize..pair[1] as usize];
                json!(string.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            };
            assert_eq!(*offsets.last().unwrap(), bytes.len() as i64);
            offsets.windows(2).map(string).collect()
        }
        other => panic!("no record holds {other}"),
    }
}

/// Position of each value, and the enclosing shape, as in TensorFlow's SparseTensor.
fn places(splits: &[Vec<i64>]) -> (Vec<Vec<i64>>, Vec<i64>) {
    let rows = splits[0].len() as i64 - 1;
    let mut places: Vec<Vec<i64>> = (0..rows).map(|row| vec![row]).collect();
    let mut shape = vec![rows];
    for ends in splits {
        assert_eq!(places.len() + 1, ends.len());
        let mut inner = vec![];
        let mut longest = 0;
        for (place, pair) in places.iter().zip(ends.windows(2)) {
            longest = longest.max(pair[1] - pair[0]);
            inner.extend((0..pair[1] - pair[0]).map(|at| [place.as_slice(), &[at]].concat()));
        }
        shape.push(longest);
        places = inner;
    }
    (places, shape)
}

fn column(batch: &mut Batch, column: &ColumnData, spec: &Feature, is_list: bool) -> Value {
    let values = values(batch, column);
    let splits: Vec<Vec<i64>> = column.splits.iter().map(|range| numbers(batch, range)).collect();
    let shape = |before: &[usize], shape: &[usize]| [before, shape].concat();
    match &column.kind {
        ColumnKind::Dense { shape: inner, .. } => {
            json!({"values": values, "shape": shape(&[batch.rows], inner)})
        }
        ColumnKind::Padded { shape: inner, .. } => {
            let longest = splits[0].iter().max().copied().unwrap_or(0) as usize;
            let shape = shape(&[batch.rows, longest], inner);
            match is_list {
                true => json!({"values": values, "shape": shape, "lengths": splits[0]}),
                false => json!({"values": values, "shape": shape}),
            }
        }
        ColumnKind::Ragged { .. } if matches!(spec, Feature::VarLen { .. }) => {
            let (places, shape) = places(&splits);
            json!({"values": values, "indices": places, "shape": shape})
        }
        ColumnKind::Ragged { shape, .. } => {
            json!({"values": values, "splits": splits, "shape": shape})
        }
        ColumnKind::Sparse { size, .. } => {
            let indices: Vec<_> = splits[0].chunks(1 + size.len()).collect();
            json!({"values": values, "indices": indices, "shape": shape(&[batch.rows], size)})
        }
    }
}

fn ours(case: &Case) -> Result<BTreeMap<String, Value>, String> {
    let (features, lists): (Vec<FeatureSpec>, Vec<FeatureSpec>) = match case.parse.clone() {
        ParseSpec::Example(features) => (features, vec![]),
        ParseSpec::Sequence { context, lists } => (context, lists),
    };
    let schema = Schema::new(case.parse.clone().into()).map_err(|error| error.to_string())?;
    let assembler = Assembler::new(Arc::new(schema), SlotPool::new(4));
    let mut batch = assembler
        .assemble(&stored(case.records.iter().map(|record| unhex(record))).rows(), &key())
        .map_err(|error| error.fault.to_string())?;
    let specs: BTreeMap<_, _> = features.iter().map(|spec| (spec, false)).map(named).collect();
    let lists: BTreeMap<_, _> = lists.iter().map(|spec| (spec, true)).map(named).collect();
    let columns = batch.columns.clone();
    let answer = columns.iter().map(|data| {
        let (spec, is_list) = specs.get(&*data.name).or(lists.get(&*data.name)).unwrap();
        (data.name.to_string(), column(&mut batch, data, spec, *is_list))
    });
    Ok(answer.collect())
}

fn named((spec, is_list): (&FeatureSpec, bool)) -> (String, (Feature, bool)) {
    (spec.name.clone(), (spec.feature.clone(), is_list))
}

/// Intended difference from TensorFlow; docs/GUARANTEES.md has the reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    /// TensorFlow accepts the record, shardfeed rejects it.
    Refused,
    /// TensorFlow fails; shardfeed returns the result of this condition's case, if there is one.
    Read(Option<&'static str>),
}

fn difference(name: &str) -> Option<Difference> {
    let is_place = name.ends_with("sparse, outside") || name.ends_with("sparse, negative");
    // A length that extends beyond the end.
    const CUTS: [&str; 4] = ["cut at 2", "cut at 24", "sequence cut at 2", "sequence cut at 16"];
    if is_place || CUTS.contains(&name) {
        return Some(Difference::Refused);
    }
    if name.ends_with("unknown field in list") {
        return Some(Difference::Read(Some("present")));
    }
    if name.ends_with("unknown field in step") {
        return Some(Difference::Read(None));
    }
    let is_context = name.contains(" context ") && name.contains("default");
    (is_context && name.ends_with(": kindless")).then_some(Difference::Read(Some("missing")))
}

/// True if the two errors have the same cause. TensorFlow's errors on SequenceExamples are vague.
fn same_complaint(ours: &str, theirs: &str) -> bool {
    const ANY: &[&str] = &[""];
    let counts: &[&str] = &[
        "Number of",
        "Inconsistent max number",
        "unexpected number",
        "Unexpected number",
        "Can't parse",
    ];
    let missing: &[&str] = &["is required but", "cannot be missing", "Unexpected number", "Name: "];
    let pairs: [(&str, &[&str]); 8] = [
        ("not a valid", ANY),
        ("cannot be parted", ANY),
        ("values, but index", ANY),
        ("is not in the record", missing),
        ("was asked for; ask for", &["types don't match", "Unexpected number"]),
        ("no multiple of", &["is not a multiple"]),
        ("set allow_missing", &["allow_missing"]),
        ("holds", counts),
    ];
    let known = pairs.iter().find(|(mark, _)| ours.contains(mark));
    known.is_some_and(|(_, marks)| marks.iter().any(|mark| theirs.contains(mark)))
}

#[test]
fn batches_are_tensorflows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/parse.json");
    let Goldens { cases } = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(cases.len() > 1000);
    let mut differences = 0;
    for case in &cases {
        let (ours, name) = (ours(case), &case.name);
        let agrees = match (&ours, &case.answer) {
            (Ok(ours), Answer::Ok(theirs)) => ours == theirs,
            (Err(ours), Answer::Error(theirs)) => same_complaint(ours, theirs),
            _ => false,
        };
        let difference = difference(name);
        differences += usize::from(difference.is_some());
        let theirs = &case.answer;
        assert_eq!(agrees, difference.is_none(), "{name}: {ours:#?} but {theirs:#?}");
        match difference {
            None => {}
            Some(Difference::Refused) => assert!(ours.is_err(), "{name}"),
            Some(Difference::Read(same)) => {
                let columns = ours.unwrap_or_else(|error| panic!("{name}: {error}"));
                let condition = name.rsplit_once(": ").map_or("", |(what, _)| what);
                let Some(same) = same.map(|same| format!("{condition}: {same}")) else { continue };
                let twin = cases.iter().find(|case| case.name == same).unwrap();
                let Answer::Ok(twin) = &twin.answer else { panic!("{same} is no twin") };
                assert_eq!(columns, *twin, "{name}");
            }
        }
    }
    assert_eq!(differences, 58);
}

/// Mutates every case `SHARDFEED_FUZZ_ROUNDS` times, else a few times: any bytes of a record give a
/// batch with consistent buffers, or an error.
#[test]
fn disturbed_records_are_batches_or_errors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/parse.json");
    let Goldens { mut cases } = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let rounds = rounds(10);
    let records: Vec<Vec<u8>> =
        cases.iter().flat_map(|case| &case.records).map(|record| unhex(record)).collect();
    let (mut good, mut bad) = (0, 0);
    for (number, case) in cases.iter_mut().enumerate() {
        let whole = std::mem::take(&mut case.records);
        for round in 0..rounds {
            let mut dice = Dice((number as u64) << 32 | round);
            let mut disturbed: Vec<Vec<u8>> = whole.iter().map(|record| unhex(record)).collect();
            let Some(count) = disturbed.len().checked_sub(1) else { continue };
            disturb(&mut disturbed[dice.roll(count + 1)], &records, &mut dice);
            case.records = disturbed.iter().map(|record| hex(record)).collect();
            // Reading the columns checks that offsets and splits are consistent.
            match ours(case) {
                Ok(_) => good += 1,
                Err(_) => bad += 1,
            }
        }
    }
    assert!(good > 0 && bad > 0, "{good} batches, {bad} errors");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
