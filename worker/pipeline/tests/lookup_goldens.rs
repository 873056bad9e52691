//! Compares lookups with TensorFlow's tables, recorded by `goldens/make_lookups.py`, and checks the
//! errors about unusable tables.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;
mod hex;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{
    Assembler, ColumnKind, Dtype, OperatorFault, ParseSpec, RecordSpec, RowFault, Schema,
    TableCause,
};
use shardfeed_plan::Digest;
use shardfeed_table::{Column, Keys, Layout};
use shardfeed_tfrecord::example::{DType, Feature, FeatureSpec, Value as Field, encode_example};

use common::{key, stored};
use hex::unhex;

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Int64(i64),
    Bytes(String),
}

#[derive(Deserialize)]
struct Case {
    name: String,
    keys: Vec<Number>,
    dtype: Dtype,
    shape: Vec<usize>,
    values: String,
    asked_shape: Vec<usize>,
    asked: Vec<Vec<Number>>,
    missing: Option<f64>,
    answer_shape: Vec<usize>,
    answer: String,
}

/// Keys of a test, of one kind.
#[derive(Clone)]
enum Owned {
    Int64(Vec<i64>),
    Bytes(Vec<Vec<u8>>),
}

impl Owned {
    fn of(keys: &[Number]) -> Self {
        match keys[0] {
            Number::Int64(_) => {
                let number = |key: &Number| match key {
                    Number::Int64(key) => *key,
                    Number::Bytes(_) => panic!("keys of two kinds"),
                };
                Self::Int64(keys.iter().map(number).collect())
            }
            Number::Bytes(_) => {
                let string = |key: &Number| match key {
                    Number::Bytes(key) => unhex(key),
                    Number::Int64(_) => panic!("keys of two kinds"),
                };
                Self::Bytes(keys.iter().map(string).collect())
            }
        }
    }
}

fn write(path: &Path, keys: &Owned, column: Column, values: &[u8]) -> Digest {
    let bytes = column.bytes;
    let layout = match keys {
        Owned::Int64(keys) => Layout::new(Keys::Int64(keys), vec![column]),
        Owned::Bytes(keys) => {
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            Layout::new(Keys::Bytes(&keys), vec![column])
        }
    };
    let fill = |rows: &[usize], out: &mut [u8]| {
        for (out, row) in out.chunks_exact_mut(bytes).zip(rows) {
            out.copy_from_slice(&values[row * bytes..(row + 1) * bytes]);
        }
        Ok(())
    };
    layout.unwrap().write(path, fill).unwrap()
}

fn column(dtype: Dtype, shape: &[usize]) -> Column {
    let bytes = shape.iter().product::<usize>() * dtype.bytes();
    Column { name: "v".to_owned(), dtype: dtype.name().to_owned(), shape: shape.to_vec(), bytes }
}

fn schema(kind: DType, key_shape: &[usize], operators: Value) -> Result<Schema, String> {
    let feature = Feature::FixedLen { shape: key_shape.to_vec(), dtype: kind, default: None };
    let spec = RecordSpec {
        parse: Some(ParseSpec::Example(vec![FeatureSpec { name: "k".to_owned(), feature }])),
        operators: serde_json::from_value(operators).unwrap(),
        outputs: Some(vec!["y".to_owned()]),
        ..RecordSpec::default()
    };
    // Serialized and parsed, as when another process receives it.
    let spec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
    Schema::new(spec).map_err(|error| error.to_string())
}

fn lookup(path: &Path, digest: Digest, column: &Column, missing: Option<f64>) -> Value {
    let fields = json!({
        "input": "k",
        "table": {"digest": digest, "path": path},
        "column": column.name,
        "dtype": column.dtype,
        "shape": column.shape,
        "missing": missing,
    });
    json!([{"output": "y", "operation": {"lookup": fields}}])
}

fn records(asked: &[Owned]) -> Vec<Vec<u8>> {
    let record = |keys: &Owned| {
        let mut bytes = vec![];
        match keys {
            Owned::Int64(keys) => encode_example(&[("k", Field::Int64(keys))], &mut bytes),
            Owned::Bytes(keys) => {
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                encode_example(&[("k", Field::Bytes(&keys))], &mut bytes);
            }
        }
        bytes
    };
    asked.iter().map(record).collect()
}

/// Returns type, shape and bytes of the lookup's output.
fn found(schema: Schema, asked: &[Owned]) -> Result<(Dtype, Vec<usize>, Vec<u8>), RowFault> {
    let assembler = Assembler::new(Arc::new(schema), SlotPool::new(1));
    let mut batch =
        assembler.assemble(&stored(records(asked)).rows(), &key()).map_err(|error| error.fault)?;
    let column = batch.columns[0].clone();
    let ColumnKind::Dense { dtype, shape } = column.kind else {
        panic!("operators make columns of a fixed shape")
    };
    Ok((dtype, [&[batch.rows][..], &shape].concat(), batch.slot.read(&column.values)))
}

#[test]
fn lookups_give_what_tensorflow_gives() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/lookups.json");
    let Goldens { cases } = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert!(cases.len() >= 80, "{}", cases.len());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sft");
    for case in cases {
        let Case { name, dtype, .. } = &case;
        let column = column(*dtype, &case.shape);
        let keys = Owned::of(&case.keys);
        let digest = write(&path, &keys, column.clone(), &unhex(&case.values));
        let kind = if matches!(keys, Owned::Int64(_)) { DType::Int64 } else { DType::Bytes };
        let operators = lookup(&path, digest, &column, case.missing);
        let schema = schema(kind, &case.asked_shape, operators).unwrap();
        schema.open_tables().unwrap();
        let asked: Vec<_> = case.asked.iter().map(|keys| Owned::of(keys)).collect();
        let (of, shape, bytes) = found(schema, &asked).unwrap();
        assert_eq!((of, &shape), (*dtype, &case.answer_shape), "{name}");
        assert_eq!(bytes, unhex(&case.answer), "{name}");
    }
}

/// Returns the text of an error, with the folder's name replaced.
fn told(error: &dyn std::fmt::Display, folder: &Path) -> String {
    error.to_string().replace(folder.to_str().unwrap(), "DIR")
}

#[test]
fn a_key_that_is_not_there_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sft");
    let column = column(Dtype::Float32, &[]);
    let digest = write(&path, &Owned::Int64(vec![1, 2]), column.clone(), &[0; 8]);
    let schema = |kind| schema(kind, &[2], lookup(&path, digest, &column, None)).unwrap();
    let asked = [Owned::Int64(vec![1, 2]), Owned::Int64(vec![2, 77])];
    let fault = found(schema(DType::Int64), &asked).unwrap_err();
    assert!(fault.is_of_record());
    assert_eq!(
        told(&fault, folder.path()),
        "column `y`: DIR/t.sft has no key 77; write the table with it, or give missing a value"
    );
    let digest = write(&path, &Owned::Bytes(vec![b"a".to_vec()]), column.clone(), &[0; 4]);
    let schema = self::schema(DType::Bytes, &[], lookup(&path, digest, &column, None)).unwrap();
    let fault =
        found(schema, &[Owned::Bytes(vec![[b"\0", &[b'x'; 400][..]].concat()])]).unwrap_err();
    let key = format!("\\x00{}", "x".repeat(76));
    let said = told(&fault, folder.path()).replace(&key, "KEY");
    assert_eq!(
        said,
        "column `y`: DIR/t.sft has no key \
         \"\\x00xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\" ...; write the table \
         with it, or give missing a value"
    );
}

#[test]
fn a_table_that_is_not_the_declared_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sft");
    let keys = Owned::Int64(vec![1, 2]);
    let column = column(Dtype::Float32, &[]);
    let digest = write(&path, &keys, column.clone(), &[0; 8]);
    let open = |kind, column: &Column| {
        schema(kind, &[], lookup(&path, digest, column, None)).unwrap().open_tables().unwrap_err()
    };
    let other = Column { dtype: "int32".to_owned(), ..column.clone() };
    let mut said = vec![
        told(&open(DType::Int64, &other), folder.path()),
        told(&open(DType::Bytes, &column), folder.path()),
    ];
    // Replaced by one with different content, before it is opened.
    write(&path, &keys, column.clone(), &[1; 8]);
    let fault = open(DType::Int64, &column);
    assert_eq!(fault.cause, TableCause::Another);
    said.push(told(&fault, folder.path()));
    fs::remove_file(&path).unwrap();
    let fault = open(DType::Int64, &column);
    assert_eq!(fault.cause, TableCause::NotFound);
    said.push(told(&fault, folder.path()));
    assert_eq!(
        said,
        [
            "DIR/t.sft: has no column `v` int32 []; it has `v` float32 []",
            "DIR/t.sft: its keys are int64, but they are looked up with byte strings",
            "DIR/t.sft: is the table \
             19e8a7ff21f0d9926305cd552b0df554d479481334a850f24cb269bd531ffe0f, but the job was \
             declared with 14824f5921070a90bfa39e23942ea1062290aad5101ba8b89a02e153e55b3c0c; give \
             all hosts the same table, under a new name if its content is new",
            "DIR/t.sft: cannot open the table: No such file or directory (os error 2); workers \
             open tables under the same path as trainers do",
        ]
    );
}

#[test]
fn a_damaged_table_is_nobodys_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.sft");
    let column = column(Dtype::Float32, &[]);
    let digest = write(&path, &Owned::Int64(vec![1, 2]), column.clone(), &[0; 8]);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 4000;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let schema = schema(DType::Int64, &[], lookup(&path, digest, &column, Some(0.0))).unwrap();
    schema.open_tables().unwrap();
    let fault = found(schema, &[Owned::Int64(vec![1])]).unwrap_err();
    assert!(!fault.is_of_record());
    let RowFault::Operator { fault: OperatorFault::Table(fault), .. } = fault else {
        panic!("{fault}");
    };
    assert_eq!((fault.cause, fault.offset), (TableCause::Unreadable, Some(8192)));
}

#[test]
fn what_cannot_be_looked_up_is_said_beforehand() {
    let column = column(Dtype::Uint8, &[2]);
    let digest = "0".repeat(64).parse().unwrap();
    let path = Path::new("/none");
    let refused = |kind, key_shape: &[usize], column: &Column, missing| {
        schema(kind, key_shape, lookup(path, digest, column, missing)).unwrap_err()
    };
    let huge = self::column(Dtype::Float32, &[1 << 20]);
    let empty = self::column(Dtype::Float32, &[0]);
    let said = [
        refused(DType::Float32, &[], &column, None),
        refused(DType::Int64, &[], &column, Some(-1.0)),
        refused(DType::Int64, &[], &column, Some(0.5)),
        refused(DType::Int64, &[], &column, Some(256.0)),
        refused(DType::Int64, &[1 << 10], &huge, None),
        refused(DType::Int64, &[], &empty, None),
    ];
    assert_eq!(
        said,
        [
            "operator 0 (output `y`): keys are int64 or byte strings, not float32; cast them",
            "operator 0 (output `y`): missing is -1, which uint8 cannot hold",
            "operator 0 (output `y`): missing is 0.5, which uint8 cannot hold",
            "operator 0 (output `y`): missing is 256, which uint8 cannot hold",
            "operator 0 (output `y`): a row of shape [1024, 1048576] has more than 67108864 \
             numbers; make it smaller",
            "operator 0 (output `y`): no table has columns of float32 [0]",
        ]
    );
}
