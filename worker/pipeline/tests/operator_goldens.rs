//! Our operators beside TensorFlow's operations, as `goldens/make_operators.py` recorded them, and what
//! they say when they cannot do what is asked.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;
mod hex;
mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{Assembler, Dtype, Operator, ParseSpec, RecordSpec, Schema};
use shardfeed_tfrecord::example::{DType, Feature, FeatureSpec, Value as Field, encode_example};

use common::{key, stored};
use hex::unhex;
use sample::{ours, spec};

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
    padded: Vec<Padded>,
}

/// Rows of any length, filled up.
#[derive(Deserialize)]
struct Padded {
    dtype: Dtype,
    rows: Vec<Vec<i64>>,
    length: usize,
    value: f64,
    fits: bool,
    bytes: String,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    columns: BTreeMap<String, Vec<String>>,
    operators: Vec<Operator>,
    answer: Answer,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ok { dtype: Dtype, shape: Vec<usize>, bytes: String },
    Error(String),
}

fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::Float32 => {
            bytes.as_chunks().0.iter().map(|four| f64::from(f32::from_le_bytes(*four))).collect()
        }
        Dtype::Float64 => {
            bytes.as_chunks().0.iter().map(|&eight| f64::from_le_bytes(eight)).collect()
        }
        other => panic!("{other} is no float"),
    }
}

/// Equal but for the last bits of tanh, exp and log, which two libraries compute.
fn is_near(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-14 * a.abs().max(b.abs())
}

#[test]
fn operators_give_what_tensorflow_gives() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/operators.json");
    let Goldens { cases, .. } = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(cases.len() > 300);
    let mut kinds = BTreeSet::new();
    for Case { name, columns, operators, answer } in cases {
        kinds.insert(name.split([' ', ':']).next().unwrap().to_owned());
        let strings = |(name, rows): (String, Vec<String>)| {
            (name, rows.iter().map(|row| unhex(row)).collect())
        };
        let columns = columns.into_iter().map(strings).collect();
        match (ours(&columns, operators), answer) {
            (
                Ok((dtype, shape, bytes)),
                Answer::Ok { dtype: wanted, shape: like, bytes: theirs },
            ) => {
                assert_eq!((dtype, shape), (wanted, like), "{name}");
                let theirs = unhex(&theirs);
                if name.starts_with("compute") {
                    let pairs = floats(dtype, &bytes).into_iter().zip(floats(dtype, &theirs));
                    let pairs: Vec<_> = pairs.collect();
                    assert!(pairs.iter().all(|(a, b)| is_near(*a, *b)), "{name}: {pairs:?}");
                } else {
                    assert_eq!(bytes, theirs, "{name}");
                }
            }
            (Err(error), Answer::Error(theirs)) => {
                assert!(theirs.contains("to all be the same size"), "{name}: {theirs}");
                assert!(error.contains("the string has"), "{name}: {error}");
            }
            (ours, _) => panic!("{name}: ours is {ours:?}"),
        }
    }
    let all = "cast compute decode_raw normalize one_hot reshape scale select slice transpose unpack_bits";
    assert_eq!(kinds.into_iter().collect::<Vec<_>>().join(" "), all);
}

/// Examples with these numbers, filled up by the operator.
fn filled(case: &Padded, truncate: bool) -> Result<Vec<u8>, String> {
    let dtype = if case.dtype == Dtype::Int64 { DType::Int64 } else { DType::Float32 };
    let records = case.rows.iter().map(|row| {
        let floats: Vec<f32> = row.iter().map(|&number| number as f32).collect();
        let field = match dtype {
            DType::Int64 => Field::Int64(row),
            _ => Field::Float32(&floats),
        };
        let mut bytes = vec![];
        encode_example(&[("v", field)], &mut bytes);
        bytes
    });
    let (length, value) = (case.length, case.value);
    let fields = json!({"input": "v", "length": length, "value": value, "truncate": truncate});
    let operators = json!([{"output": "y", "operation": {"padded_batch": fields}}]);
    let features = vec![FeatureSpec { name: "v".to_owned(), feature: Feature::VarLen { dtype } }];
    let spec = RecordSpec {
        parse: Some(ParseSpec::Example(features)),
        operators: serde_json::from_value(operators).unwrap(),
        outputs: Some(vec!["y".to_owned()]),
    };
    let assembler = Assembler::new(Arc::new(Schema::new(spec).unwrap()), SlotPool::new(1));
    let mut batch = assembler
        .assemble(&stored(records).rows(), &key())
        .map_err(|error| error.fault.to_string())?;
    Ok(batch.slot.read(&batch.columns[0].values.clone()))
}

#[test]
fn rows_of_any_length_are_filled_up_as_tensorflow_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/operators.json");
    let Goldens { padded, .. } = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(padded.len(), 8);
    for case in padded {
        assert_eq!(
            filled(&case, true).unwrap(),
            unhex(&case.bytes),
            "{:?} {}",
            case.dtype,
            case.length
        );
        match filled(&case, false) {
            Ok(bytes) => assert_eq!((case.fits, bytes), (true, unhex(&case.bytes))),
            Err(error) => {
                let said = format!("numbers, more than the {} of padded_batch", case.length);
                assert!(!case.fits && error.contains(&said), "{error}");
            }
        }
    }
}

/// What the operators say, made on strings of eight bytes.
fn wrong(operators: Value) -> String {
    let columns = BTreeMap::from([("x".to_owned(), vec![vec![7; 8]; 2])]);
    ours(&columns, serde_json::from_value(operators).unwrap()).unwrap_err()
}

fn decode(dtype: &str, shape: &[usize]) -> Value {
    let fields = json!({"input": "x", "dtype": dtype, "shape": shape, "little_endian": true});
    json!({"output": "x", "operation": {"decode_raw": fields}})
}

fn after_uint8(operation: &Value) -> String {
    wrong(json!([decode("uint8", &[2, 4]), {"output": "y", "operation": operation}]))
}

#[test]
fn what_cannot_be_done_is_told_before_anything_is_read() {
    let cast = json!({"cast": {"input": "x", "dtype": "int32"}});
    assert_eq!(
        wrong(json!([{"output": "y", "operation": cast}])),
        "operator 0 (output `y`): it takes numbers, but its input is byte strings of shape []; decode them first"
    );
    assert_eq!(
        after_uint8(&json!({"cast": {"input": "z", "dtype": "int32"}})),
        "operator 1 (output `y`): there is no column `z`; there are `x`"
    );
    for (operation, said) in [
        (
            json!({"scale": {"input": "x", "scale": [], "offset": [0], "dtype": "float32"}}),
            "scale has 0 values",
        ),
        (
            json!({"normalize": {"input": "x", "mean": [1], "std": [1e-50], "dtype": "float32"}}),
            "which is 0 as float32",
        ),
        (json!({"compute": {"expression": "1 < 2 < 3", "dtype": "float32"}}), "a < b and b < c"),
        (json!({"cast": {"input": "x", "dtype": "bytes"}}), "cannot be byte strings"),
        (json!({"reshape": {"input": "x", "shape": [3, -1]}}), "cannot become [3, -1]"),
        (json!({"reshape": {"input": "x", "shape": [-1, -1]}}), "cannot become [-1, -1]"),
        (json!({"reshape": {"input": "x", "shape": [0, -1]}}), "cannot become [0, -1]"),
        (json!({"reshape": {"input": "x", "shape": [i64::MAX, 2]}}), "cannot become"),
        (
            json!({"reshape": {"input": "x", "shape": [2]}}),
            "8 numbers of shape [2, 4] do not fill [2]",
        ),
        (
            json!({"transpose": {"input": "x", "perm": [0, 0]}}),
            "must name each of the 2 dimensions",
        ),
        (
            json!({"transpose": {"input": "x", "perm": [0, 2]}}),
            "must name each of the 2 dimensions",
        ),
        (json!({"slice": {"input": "x", "begin": [0], "size": [1]}}), "does not lie in [2, 4]"),
        (
            json!({"slice": {"input": "x", "begin": [0, 5], "size": [1, -1]}}),
            "does not lie in [2, 4]",
        ),
        (
            json!({"slice": {"input": "x", "begin": [0, 3], "size": [1, 2]}}),
            "does not lie in [2, 4]",
        ),
        (
            json!({"slice": {"input": "x", "begin": [0, 3], "size": [1, -2]}}),
            "does not lie in [2, 4]",
        ),
        (
            json!({"select": {"input": "x", "axis": 2, "indices": [0]}}),
            "axis 2 is none of the dimensions",
        ),
        (json!({"select": {"input": "x", "axis": 0, "indices": [2]}}), "index 2 is beyond the 2"),
        (
            json!({"scale": {"input": "x", "scale": [1, 2], "offset": [0], "dtype": "float32"}}),
            "scale has 2 values; it needs one, or one for each of the last dimension's 4",
        ),
        (
            json!({"scale": {"input": "x", "scale": [1], "offset": [0], "dtype": "int32"}}),
            "dtype is float32 or float64, not int32",
        ),
        (
            json!({"normalize": {"input": "x", "mean": [1], "std": [0], "dtype": "float32"}}),
            "std has 0, which is 0 as float32",
        ),
        (
            json!({"one_hot": {"input": "x", "depth": 1_u64 << 60, "on": 1, "off": 0, "dtype": "uint8"}}),
            "more than 67108864 numbers",
        ),
        (
            json!({"compute": {"expression": "x + 1", "dtype": "float32"}}),
            "columns of one number a row",
        ),
        (
            json!({"compute": {"expression": "1 +", "dtype": "float32"}}),
            "at byte 3, but there it ends",
        ),
    ] {
        let error = after_uint8(&operation);
        assert!(error.contains(said), "{error}");
    }
    for (operation, said) in [
        (json!({"unpack_bits": {"input": "x"}}), "it takes uint8, not int16"),
        (
            json!({"decode_raw": {"input": "x", "dtype": "uint8", "shape": [4], "little_endian": true}}),
            "it takes one byte string a row, not int16",
        ),
    ] {
        let error = wrong(json!([decode("int16", &[4]), {"output": "y", "operation": operation}]));
        assert!(error.contains(said), "{error}");
    }
    let error = wrong(json!([decode("float64", &[1 << 40, 1 << 40])]));
    assert!(error.contains("more than 67108864 numbers"), "{error}");
    let floats =
        json!({"one_hot": {"input": "x", "depth": 2, "on": 1, "off": 0, "dtype": "uint8"}});
    let error = wrong(json!([decode("float32", &[2]), {"output": "y", "operation": floats}]));
    assert!(error.contains("it takes integers, not float32"), "{error}");
}

#[test]
fn a_string_of_another_length_is_named() {
    assert_eq!(
        wrong(json!([decode("float32", &[3])])),
        "column `x`: decode_raw: the string has 8 bytes, but float32 of shape [3] takes 12; correct dtype \
         or shape, or set fixed_length"
    );
}

#[test]
fn outputs_are_the_columns_that_are_asked_for() {
    let columns = ["x".to_owned(), "z".to_owned()];
    let operators = || serde_json::from_value(json!([decode("uint8", &[8])])).unwrap();
    let outputs = |names: &[&str]| {
        let outputs = Some(names.iter().map(|name| (*name).to_owned()).collect());
        Schema::new(RecordSpec { outputs, ..spec(columns.iter(), operators()) })
    };
    let names = |schema: Schema| -> Vec<String> {
        schema.columns().iter().map(|(name, _)| name.to_string()).collect()
    };
    assert_eq!(names(outputs(&["z", "x"]).unwrap()), ["z", "x"]);
    let all = RecordSpec { outputs: None, ..spec(columns.iter(), operators()) };
    assert_eq!(names(Schema::new(all).unwrap()), ["x", "z"]);
    let error = outputs(&["y"]).unwrap_err().to_string();
    assert_eq!(error, "outputs name `y`, but there are `x`, `z`");
    let error = outputs(&["x", "x"]).unwrap_err().to_string();
    assert_eq!(error, "outputs name `x`, which they name before; once is enough");
    assert!(outputs(&[]).is_err());
    // Another operator is another job.
    let one = outputs(&["x"]).unwrap();
    let other: Vec<Operator> = serde_json::from_value(json!([decode("int8", &[8])])).unwrap();
    let other = Schema::new(spec(columns.iter().take(1), other)).unwrap();
    assert_ne!(one.operators(), other.operators());
}
