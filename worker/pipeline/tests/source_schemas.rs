//! Batches of a mixture whose sources make the same columns in different ways.

#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

mod common;

use std::sync::Arc;

use common::{key, stored};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{
    Assembler, Batch, ColumnKind, RecordSpec, Schema, SchemaError, ShardSchemas,
};
use shardfeed_tfrecord::example::{Value, encode_example};

/// Values of a record.
#[derive(Clone, Debug)]
struct Fields {
    pair: [i64; 2],
    any: Vec<f32>,
    padded: Vec<i64>,
    rows: Vec<Vec<i64>>,
    sparse: Vec<i64>,
    text: Vec<u8>,
    texts: Vec<Vec<u8>>,
}

fn fields() -> impl Strategy<Value = Fields> {
    let texts = || prop::collection::vec(any::<u8>(), 0..5);
    (
        any::<[i64; 2]>(),
        prop::collection::vec(-9_f32..9.0, 0..4),
        prop::collection::vec(any::<i64>(), 0..4),
        prop::collection::vec(prop::collection::vec(any::<i64>(), 0..3), 0..3),
        prop::collection::btree_set(0_i64..10, 0..4),
        texts(),
        prop::collection::vec(texts(), 0..3),
    )
        .prop_map(|(pair, any, padded, rows, sparse, text, texts)| {
            let sparse = sparse.into_iter().rev().collect();
            Fields { pair, any, padded, rows, sparse, text, texts }
        })
}

impl Fields {
    /// Returns the record, with a prefix before the name of each feature.
    fn record(&self, prefix: &str) -> Vec<u8> {
        let text = [self.text.as_slice()];
        let texts: Vec<&[u8]> = self.texts.iter().map(Vec::as_slice).collect();
        let lengths: Vec<i64> = self.rows.iter().map(|row| row.len() as i64).collect();
        let (flat, name) = (self.rows.concat(), |name: &str| format!("{prefix}{name}"));
        let features = [
            (name("pair"), Value::Int64(&self.pair)),
            (name("any"), Value::Float32(&self.any)),
            (name("padded"), Value::Int64(&self.padded)),
            (name("rows"), Value::Int64(&flat)),
            (name("lengths"), Value::Int64(&lengths)),
            (name("places"), Value::Int64(&self.sparse)),
            (name("values"), Value::Int64(&self.sparse)),
            (name("text"), Value::Bytes(&text)),
            (name("texts"), Value::Bytes(&texts)),
        ];
        let features: Vec<_> =
            features.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let mut bytes = vec![];
        encode_example(&features, &mut bytes);
        bytes
    }
}

/// Returns the schema of records whose features have a prefix: it gives columns the names without it.
fn schema(prefix: &str) -> Schema {
    let name = |name: &str| format!("{prefix}{name}");
    let feature = |of: &str, feature: Json| json!({"name": name(of), "feature": feature});
    let parse = json!([
        feature("pair", json!({"fixed_len": {"shape": [2], "dtype": "int64", "default": null}})),
        feature("any", json!({"var_len": {"dtype": "float32"}})),
        feature(
            "padded",
            json!({"fixed_len_sequence":
            {"shape": [], "dtype": "int64", "allow_missing": true}})
        ),
        feature(
            "rows",
            json!({"ragged":
            {"dtype": "int64", "partitions": [{"row_lengths": name("lengths")}]}})
        ),
        feature(
            "sparse",
            json!({"sparse": {"dtype": "int64", "index_keys": [name("places")],
            "value_key": name("values"), "size": [10]}})
        ),
        feature("text", json!({"fixed_len": {"shape": [], "dtype": "bytes", "default": null}})),
        feature("texts", json!({"var_len": {"dtype": "bytes"}})),
    ]);
    let columns = ["pair", "any", "padded", "rows", "sparse", "text", "texts"];
    let rename = |of: &&str| json!({"output": of, "operation": {"rename": {"input": name(of)}}});
    let renames = columns.iter().filter(|_| !prefix.is_empty()).map(rename);
    let cast = json!({"output": "small",
        "operation": {"cast": {"input": "pair", "dtype": "int32"}}});
    let operators: Vec<Json> = renames.chain([cast]).collect();
    let outputs = ["small", "pair", "any", "padded", "rows", "sparse", "text", "texts"];
    let spec = json!({"parse": parse, "operators": operators, "outputs": outputs});
    Schema::new(serde_json::from_value::<RecordSpec>(spec).unwrap()).unwrap()
}

/// Returns everything that a batch has, but the shards of its rows.
fn contents(mut batch: Batch) -> Vec<Vec<u8>> {
    let columns = batch.columns.clone();
    let buffers = columns.iter().flat_map(|column| {
        let ranges = [&column.values].into_iter().chain(&column.offsets).chain(&column.splits);
        ranges.copied().collect::<Vec<_>>()
    });
    let buffers: Vec<_> = buffers.chain([batch.valid, batch.ordinals]).collect();
    buffers.iter().map(|range| batch.slot.read(range)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn rows_of_sources_have_the_values_of_their_records(
        records in prop::collection::vec((fields(), 0_usize..3), 1..60),
    ) {
        let prefixes = ["", "other/", "third/"];
        let schemas: Vec<_> = prefixes.map(|prefix| Arc::new(schema(prefix))).into();
        let alone = Assembler::new(Arc::clone(&schemas[0]), SlotPool::new(1));
        // The first and the last source have the same features.
        let sources = (0..).zip([0, 1, 2, 0].map(|at| Arc::clone(&schemas[at]))).collect();
        let mixed = Assembler::new(ShardSchemas::new(sources).unwrap(), SlotPool::new(1));

        let plain = stored(records.iter().map(|(fields, _)| fields.record("")));
        let other = stored(records.iter().map(|(fields, of)| fields.record(prefixes[*of])));
        let mut rows = other.rows();
        for (number, (row, (_, of))) in rows.iter_mut().zip(&records).enumerate() {
            row.sample.shard = if *of == 0 && number % 2 == 0 { 3 } else { *of as u32 };
        }
        let expected = contents(alone.assemble(&plain.rows(), &key()).unwrap());
        prop_assert_eq!(contents(mixed.assemble(&rows, &key()).unwrap()), expected);
        rows.iter().for_each(|row| mixed.check(row, &key()).unwrap());

        // A record of another source has none of the features of this one.
        let last = rows.len() - 1;
        rows[last].sample.shard = (rows[last].sample.shard + 1) % 3;
        let error = mixed.assemble(&rows, &key()).unwrap_err();
        prop_assert_eq!(error.sample, rows[last].sample);
    }
}

#[test]
fn sources_make_the_same_columns_in_the_same_order() {
    let of = |spec: Json| Arc::new(Schema::new(serde_json::from_value(spec).unwrap()).unwrap());
    let feature = |name: &str, shape: Json| {
        json!({"name": name, "feature":
            {"fixed_len": {"shape": shape, "dtype": "int64", "default": null}}})
    };
    let ragged = |length: usize| {
        json!({"name": "r", "feature": {"ragged": {"dtype": "int64",
            "partitions": [{"uniform_row_length": length}, {"row_lengths": "n"}]}}})
    };
    let schema = |parse: Vec<Json>| of(json!({ "parse": parse }));
    let one = json!([]);
    let first = schema(vec![feature("a", one.clone()), feature("b", one.clone())]);
    let others = [
        (schema(vec![feature("a", one.clone())]), "no further column"),
        (schema(vec![feature("a", one.clone()), feature("c", one.clone())]), "`c`"),
        (schema(vec![feature("a", one), feature("b", json!([3]))]), "[3]"),
    ];
    for (other, named) in others {
        let error = ShardSchemas::new(vec![(0, Arc::clone(&first)), (1, other)]).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
    let (pairs, triples) = (schema(vec![ragged(2)]), schema(vec![ragged(3)]));
    assert!(pairs.columns() == triples.columns());
    assert!(matches!(pairs.columns()[0].1, ColumnKind::Ragged { .. }));
    let error = ShardSchemas::new(vec![(0, pairs), (1, triples)]).unwrap_err();
    assert!(matches!(error, SchemaError::OtherColumns { .. }), "{error}");

    let balanced = |dtype: &str| {
        of(json!({
            "parse": [{"name": "cost", "feature":
                {"fixed_len": {"shape": [], "dtype": dtype, "default": null}}}],
            "operators": [{"output": "cost",
                "operation": {"cast": {"input": "cost", "dtype": "float32"}}}],
            "balance": {"by": "cost", "window": 64},
        }))
    };
    let costs = ShardSchemas::new(vec![(0, balanced("int64")), (1, balanced("float32"))]);
    assert!(matches!(costs.unwrap_err(), SchemaError::OtherCosts { cost } if cost == "cost"));
}

#[test]
fn each_shard_has_the_schema_of_its_source() {
    let schemas: Vec<_> = ["", "x/", "y/"].map(|prefix| Arc::new(schema(prefix))).into();
    let sources = [(0, 0), (2, 1), (5, 0), (5, 2), (9, 2)];
    let sources = sources.map(|(first, at): (u32, usize)| (first, Arc::clone(&schemas[at])));
    let of = ShardSchemas::new(sources.into()).unwrap();
    let found = (0..12)
        .map(|shard| schemas.iter().position(|schema| Arc::ptr_eq(schema, of.of(shard))).unwrap());
    assert_eq!(found.collect::<Vec<_>>(), [0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(of.all().len(), 3);
}
