//! Operators on records of byte strings.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use shardfeed_handoff::SlotPool;
use shardfeed_pipeline::{Assembler, ColumnKind, Dtype, Operator, ParseSpec, RecordSpec, Schema};
use shardfeed_tfrecord::example::{DType, Feature, FeatureSpec, Value as Field, encode_example};

use crate::common::{key, stored};

/// Recorded operators on columns of byte strings, and their result.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) columns: BTreeMap<String, Vec<String>>,
    pub(crate) operators: Vec<Operator>,
    pub(crate) answer: Answer,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Ok { dtype: Dtype, shape: Vec<usize>, bytes: String },
    Error(String),
}

pub(crate) fn floats(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
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

/// Encodes Examples with these strings.
pub(crate) fn examples(columns: &BTreeMap<String, Vec<Vec<u8>>>) -> Vec<Vec<u8>> {
    let count = columns.values().next().unwrap().len();
    let example = |number: usize| {
        let strings: Vec<[&[u8]; 1]> =
            columns.values().map(|strings| [strings[number].as_slice()]).collect();
        let names = columns.keys().zip(&strings);
        let features: Vec<_> =
            names.map(|(name, string)| (name.as_str(), Field::Bytes(string))).collect();
        let mut bytes = vec![];
        encode_example(&features, &mut bytes);
        bytes
    };
    (0..count).map(example).collect()
}

pub(crate) fn spec<'a>(
    names: impl Iterator<Item = &'a String>,
    operators: Vec<Operator>,
) -> RecordSpec {
    let feature = || Feature::FixedLen { shape: vec![], dtype: DType::Bytes, default: None };
    let features = names.map(|name| FeatureSpec { name: name.clone(), feature: feature() });
    let outputs = operators.last().map(|last| vec![last.output.clone()]);
    let parse = Some(ParseSpec::Example(features.collect()));
    RecordSpec { parse, operators, outputs, ..RecordSpec::default() }
}

/// Returns type, shape and bytes of the last operator's output.
pub(crate) fn ours(
    columns: &BTreeMap<String, Vec<Vec<u8>>>,
    operators: Vec<Operator>,
) -> Result<(Dtype, Vec<usize>, Vec<u8>), String> {
    let spec = spec(columns.keys(), operators);
    // Serialized and parsed, as when another process receives it.
    let spec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
    let schema = Schema::new(spec).map_err(|error| error.to_string())?;
    let assembler = Assembler::new(Arc::new(schema), SlotPool::new(1));
    let mut batch = assembler
        .assemble(&stored(examples(columns)).rows(), &key())
        .map_err(|error| error.fault.to_string())?;
    let column = batch.columns[0].clone();
    let ColumnKind::Dense { dtype, shape } = column.kind else {
        panic!("operators make columns of a fixed shape")
    };
    Ok((dtype, [&[batch.rows][..], &shape].concat(), batch.slot.read(&column.values)))
}
