//! Compares operators with TensorFlow's results, recorded by `goldens/make_operators.py`, and
//! checks the error messages of operators that cannot be applied.
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
use shardfeed_pipeline::{Assembler, Dtype, ParseSpec, RecordSpec, Schema};
use shardfeed_tfrecord::example::{
    DType, Feature, FeatureSpec, Value as Field, encode_example, encode_sequence_example,
};

use common::{key, stored};
use hex::unhex;
use sample::{Answer, Case, floats, ours, spec};

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
    padded: Vec<Padded>,
}

/// Rows of variable length, padded.
#[derive(Deserialize)]
struct Padded {
    dtype: Dtype,
    rows: Vec<Vec<i64>>,
    length: usize,
    value: f64,
    fits: bool,
    bytes: String,
}

/// True if equal except for the last bits of tanh, exp and log, which two libraries compute.
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

/// Runs the padding operator on Examples with these numbers.
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
        ..RecordSpec::default()
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
                let length = case.length;
                let behind = format!(
                    " numbers, more than the {length} of padded_batch; raise length, or set truncate"
                );
                assert!(!case.fits && error.ends_with(&behind), "{error}");
            }
        }
    }
}

/// Returns the error of operators on strings of eight bytes.
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
    let said = [
        json!({"scale": {"input": "x", "scale": [], "offset": [0], "dtype": "float32"}}),
        json!({"normalize": {"input": "x", "mean": [1], "std": [1e-50], "dtype": "float32"}}),
        json!({"compute": {"expression": "1 < 2 < 3", "dtype": "float32"}}),
        json!({"cast": {"input": "x", "dtype": "bytes"}}),
        json!({"reshape": {"input": "x", "shape": [3, -1]}}),
        json!({"reshape": {"input": "x", "shape": [-1, -1]}}),
        json!({"reshape": {"input": "x", "shape": [0, -1]}}),
        json!({"reshape": {"input": "x", "shape": [i64::MAX, 2]}}),
        json!({"reshape": {"input": "x", "shape": [2]}}),
        json!({"transpose": {"input": "x", "perm": [0, 0]}}),
        json!({"transpose": {"input": "x", "perm": [0, 2]}}),
        json!({"slice": {"input": "x", "begin": [0], "size": [1]}}),
        json!({"slice": {"input": "x", "begin": [0, 5], "size": [1, -1]}}),
        json!({"slice": {"input": "x", "begin": [0, 3], "size": [1, 2]}}),
        json!({"slice": {"input": "x", "begin": [0, 3], "size": [1, -2]}}),
        json!({"select": {"input": "x", "axis": 2, "indices": [0]}}),
        json!({"select": {"input": "x", "axis": 0, "indices": [2]}}),
        json!({"scale": {"input": "x", "scale": [1, 2], "offset": [0], "dtype": "float32"}}),
        json!({"scale": {"input": "x", "scale": [1], "offset": [0], "dtype": "int32"}}),
        json!({"normalize": {"input": "x", "mean": [1], "std": [0], "dtype": "float32"}}),
        json!({"one_hot": {"input": "x", "depth": 1_u64 << 60, "on": 1, "off": 0, "dtype": "uint8"}}),
        json!({"compute": {"expression": "x + 1", "dtype": "float32"}}),
        json!({"compute": {"expression": "1 +", "dtype": "float32"}}),
        json!({"transpose": {"input": "x", "perm": [0]}}),
        json!({"unpack_bits": {"input": "z"}}),
        json!({"layout": {"input": "x", "to": "chw"}}),
        json!({"padded_batch": {"input": "x", "length": 4, "value": 0, "truncate": false}}),
        json!({"lookup": {"input": "x", "table": {"digest": "ab".repeat(32)}, "column": "c",
            "dtype": "bytes", "shape": []}}),
    ]
    .map(|operation| after_uint8(&operation));
    assert_eq!(
        said,
        [
            "operator 1 (output `y`): scale has 0 values; it needs one, or one for each of the \
             last dimension's 4",
            "operator 1 (output `y`): std has \
             0.00000000000000000000000000000000000000000000000001, which is 0 as float32: nothing \
             is divided by it",
            "operator 1 (output `y`): the expression compares twice in a row before byte 7: write \
             `a < b and b < c`",
            "operator 1 (output `y`): its numbers cannot be byte strings",
            "operator 1 (output `y`): shape [2, 4] of 8 numbers cannot become [3, -1]",
            "operator 1 (output `y`): shape [2, 4] of 8 numbers cannot become [-1, -1]",
            "operator 1 (output `y`): shape [2, 4] of 8 numbers cannot become [0, -1]",
            "operator 1 (output `y`): shape [2, 4] of 8 numbers cannot become \
             [9223372036854775807, 2]",
            "operator 1 (output `y`): 8 numbers of shape [2, 4] do not fill [2]",
            "operator 1 (output `y`): perm [0, 0] must name each of the 2 dimensions of [2, 4] \
             once",
            "operator 1 (output `y`): perm [0, 2] must name each of the 2 dimensions of [2, 4] \
             once",
            "operator 1 (output `y`): a part from [0] of size [1] does not lie in [2, 4]",
            "operator 1 (output `y`): a part from [0, 5] of size [1, -1] does not lie in [2, 4]",
            "operator 1 (output `y`): a part from [0, 3] of size [1, 2] does not lie in [2, 4]",
            "operator 1 (output `y`): a part from [0, 3] of size [1, -2] does not lie in [2, 4]",
            "operator 1 (output `y`): axis 2 is none of the dimensions of [2, 4]",
            "operator 1 (output `y`): index 2 is beyond the 2 of dimension 0",
            "operator 1 (output `y`): scale has 2 values; it needs one, or one for each of the \
             last dimension's 4",
            "operator 1 (output `y`): dtype is float32 or float64, not int32; cast afterwards",
            "operator 1 (output `y`): std has 0, which is 0 as float32: nothing is divided by it",
            "operator 1 (output `y`): a row of shape [2, 4, 1152921504606846976] has more than \
             67108864 numbers; make it smaller",
            "operator 1 (output `y`): an expression takes columns of one number a row, not of \
             shape [2, 4]; select or reshape them",
            "operator 1 (output `y`): the expression needs a number, a column or a function at \
             byte 3, but it ends there",
            "operator 1 (output `y`): perm [0] must name each of the 2 dimensions of [2, 4] once",
            "operator 1 (output `y`): there is no column `z`; there are `x`",
            "operator 1 (output `y`): it takes images of three dimensions, or of four with \
             several images in a row, not shape [2, 4]",
            "operator 1 (output `y`): it takes columns of any number of values: a VarLenFeature",
            "operator 1 (output `y`): strings of a table are found by a column of the record, with a \
             fixed shape",
        ]
    );
    let said = [
        json!({"unpack_bits": {"input": "x"}}),
        json!({"decode_raw": {"input": "x", "dtype": "uint8", "shape": [4], "little_endian": true}}),
    ]
    .map(|operation| {
        wrong(json!([decode("int16", &[4]), {"output": "y", "operation": operation}]))
    });
    assert_eq!(
        said,
        [
            "operator 1 (output `y`): it takes uint8, not int16; cast or decode to uint8",
            "operator 1 (output `y`): it takes byte strings, not int16 of shape [4]",
        ]
    );
    let floats =
        json!({"one_hot": {"input": "x", "depth": 2, "on": 1, "off": 0, "dtype": "uint8"}});
    let bits = json!({"unpack_bits": {"input": "x"}});
    let shorter = json!({"decode_raw": {"input": "x", "dtype": "float32", "shape": [2],
        "little_endian": true, "fixed_length": 7}});
    let sized = json!({"decode_raw": {"input": "x", "dtype": "int16", "shape": ["x", "x", 3],
        "little_endian": false}});
    let said = [
        wrong(json!([decode("float64", &[1 << 40, 1 << 40])])),
        wrong(json!([decode("float32", &[2]), {"output": "y", "operation": floats}])),
        wrong(json!([decode("uint8", &[]), {"output": "y", "operation": bits}])),
        wrong(json!([{"output": "x", "operation": shorter}])),
        wrong(json!([{"output": "x", "operation": sized}])),
    ];
    assert_eq!(
        said,
        [
            "operator 0 (output `x`): a row of shape [1099511627776, 1099511627776] has more than \
             67108864 numbers; make it smaller",
            "operator 1 (output `y`): it takes integers, not float32; cast them",
            "operator 1 (output `y`): it takes columns with a dimension; reshape to [1] first",
            "operator 0 (output `x`): fixed_length is 7 bytes, but float32 of shape [2] is 8; make \
             them the same",
            "operator 0 (output `x`): with names of columns in its shape, bytes are little-endian \
             and no fixed_length is set",
        ]
    );
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
    let error = outputs(&[]).unwrap_err().to_string();
    assert_eq!(error, "outputs name ``, which is nothing; name a column, or leave outputs out");
}

#[test]
fn operators_take_columns_of_the_right_kind() {
    let strings = json!({"name": "s", "feature": {"var_len": {"dtype": "bytes"}}});
    let padded = json!({"name": "p", "feature": {"fixed_len_sequence":
        {"shape": [], "dtype": "int64", "allow_missing": true}}});
    let one = json!({"name": "x", "feature": {"fixed_len": {"shape": [], "dtype": "int64"}}});
    let pad = |input: &str| json!({"padded_batch": {"input": input, "length": 4, "value": 0, "truncate": false}});
    let said =
        [json!({"cast": {"input": "p", "dtype": "int32"}}), pad("x"), pad("s")].map(|operation| {
            let spec = json!({
                "parse": [strings, padded, one],
                "operators": [{"output": "y", "operation": operation}],
            });
            Schema::new(serde_json::from_value(spec).unwrap()).unwrap_err().to_string()
        });
    assert_eq!(
        said,
        [
            "operator 0 (output `y`): it takes columns of a fixed shape (a FixedLenFeature, or an \
             operator's output) or ragged ones (a VarLenFeature or RaggedFeature)",
            "operator 0 (output `y`): it takes columns of any number of values: a VarLenFeature",
            "operator 0 (output `y`): it takes a VarLenFeature of int64 or float32",
        ]
    );
}

/// Returns the error about one record that does not match `parse`.
fn refused(parse: &Value, record: Vec<u8>) -> String {
    let spec = serde_json::from_value(json!({"parse": parse})).unwrap();
    let assembler = Assembler::new(Arc::new(Schema::new(spec).unwrap()), SlotPool::new(1));
    assembler.assemble(&stored([record]).rows(), &key()).unwrap_err().fault.to_string()
}

#[test]
fn every_record_that_does_not_fit_its_columns_says_why() {
    let sparse = |size: &[usize], already_sorted: bool| {
        json!([{"name": "x", "feature": {"sparse": {"dtype": "int64",
            "index_keys": ["i", "j"], "value_key": "v", "size": size,
            "already_sorted": already_sorted}}}])
    };
    let ragged = |partitions: Value| {
        json!([{"name": "v", "feature":
            {"ragged": {"dtype": "int64", "partitions": partitions}}}])
    };
    let record = |rows: &[i64], columns: &[i64]| {
        let mut bytes = vec![];
        let values = ("v", Field::Int64(&[5, 6]));
        encode_example(
            &[("i", Field::Int64(rows)), ("j", Field::Int64(columns)), values],
            &mut bytes,
        );
        bytes
    };
    let mut lists = vec![];
    let (one, two) = (Some(Field::Int64(&[1])), Some(Field::Int64(&[1, 1])));
    encode_sequence_example(&[], &[("v", &[one, two]), ("i", &[one])], &mut lists);
    let listed = json!({"context": [], "lists": [{"name": "v", "feature":
        {"ragged": {"dtype": "int64", "partitions": [{"row_lengths": "i"}]}}}]});
    let said = [
        refused(&sparse(&[3, 4], false), record(&[0], &[0, 1])),
        refused(&sparse(&[3, 4], false), record(&[0, 1], &[0, 4])),
        refused(&sparse(&[3, 4], false), record(&[0, -1], &[0, 1])),
        refused(&sparse(&[3, 4], true), record(&[1, 0], &[0, 1])),
        refused(&ragged(json!([{"row_lengths": "i"}])), record(&[1, 2], &[])),
        refused(&ragged(json!([{"uniform_row_length": 3}])), record(&[], &[])),
        refused(&listed, lists),
        refused(
            &json!([{"name": "w", "feature": {"fixed_len": {"shape": [], "dtype": "int64"}}}]),
            record(&[], &[]),
        ),
    ];
    assert_eq!(
        said,
        [
            "feature `x` has 2 values, but index `i` has 1; the record holds `i`, `j`, `v`",
            "feature `x`: index `j` has a 4, but that dimension's size is 4; the record holds `i`, \
             `j`, `v`",
            "feature `x`: index `i` has a -1, but that dimension's size is 3; the record holds \
             `i`, `j`, `v`",
            "feature `x`: its indices do not ascend; leave already_sorted out; the record holds \
             `i`, `j`, `v`",
            "feature `v` cannot be parted by `i`: its rows hold 3 values, but there are 2; the \
             record holds `i`, `j`, `v`",
            "feature `v` cannot be parted by `uniform_row_length`: 2 values do not fill rows of 3; \
             the record holds `i`, `j`, `v`",
            "feature list `v` has 2 steps, but `i` has 1",
            "feature `w` (int64) is not in the record; give it a default or make it VarLen; the \
             record holds `i`, `j`, `v`",
        ]
    );
}
