//! Samples by values that another program measured: those that the records have.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use shardfeed_pipeline::{
    CountedRecords, MeasuredColumn, MeasuredColumns, ParseSpec, RecordSpec, Row, RowError,
    SampleProgram, Schema,
};
use shardfeed_plan::Sample;
use shardfeed_tfrecord::example::{Value, encode_example};
use shardfeed_tfrecord::masked_crc32c;

const PATH: &str = "train/part-00.tfrecord";

/// Expressions over two features, a length and the names that no feature has.
const FILTERS: [&str; 10] = [
    "width > LIMIT",
    "len(tokens) >= LIMIT and len(tokens) == len(mask)",
    "lang == 'de' or width < LIMIT",
    "score * 2 > LIMIT",
    "ordinal % 7 < LIMIT",
    "len(lang) + width >= LIMIT and shard_path != 'x'",
    "where(score > 0, width, len(tokens)) > LIMIT",
    "score / width > LIMIT",
    "twice > LIMIT or twice < width",
    "narrow % 3 == LIMIT or hash(lang) % 2 == 0",
];

/// Expressions over the rows of a record; empty: none.
const FILTERS_OF_ROWS: [&str; 4] =
    ["", "tokens % 4 < LIMIT", "tokens + width >= LIMIT or ordinal % 5 == 0", "tokens > narrow"];

const COSTS: [&str; 4] = ["len(tokens)", "width", "score", "len(tokens) + len(mask)"];

fn spec(program: &Program) -> RecordSpec {
    let fixed = |name: &str, dtype: &str| json!({"name": name, "feature": {"fixed_len": {"dtype": dtype, "shape": []}}});
    let var =
        |name: &str, dtype: &str| json!({"name": name, "feature": {"var_len": {"dtype": dtype}}});
    let filter = program.filter.map(|(at, limit)| FILTERS[at].replace("LIMIT", &limit.to_string()));
    let mut spec = json!({
        "parse": [
            fixed("width", "int64"), fixed("score", "float32"), fixed("lang", "bytes"),
            var("tokens", "int64"), var("mask", "float32"),
        ],
        "filter": filter,
        "measured": [
            {"output": "twice", "operation": {"compute": {"expression": "width * 2", "dtype": "float64"}}},
            {"output": "narrow", "operation": {"cast": {"input": "width", "dtype": "int8"}}},
        ],
    });
    let columns = if program.has_mask { json!(["tokens", "mask"]) } else { json!(["tokens"]) };
    let then: (&str, Json) = match program.then {
        0 => return serde_json::from_value(spec).unwrap(),
        1 => (
            "pack",
            json!({
                "columns": columns, "length": 16, "block": 8, "variants": 2, "method": "fit",
                "long": "split", "append": [],
            }),
        ),
        2 => (
            "window",
            json!({
                "columns": ["width", "lang"], "size": 2, "stride": 1, "by": "lang", "partial": "drop",
            }),
        ),
        at if at < 3 + COSTS.len() => ("balance", json!({"by": COSTS[at - 3], "window": 64})),
        at => {
            let filter = FILTERS_OF_ROWS[at - 3 - COSTS.len()];
            let limit = program.filter.map_or(3, |(_, limit)| limit);
            spec["filter_rows"] = match filter {
                "" => Json::Null,
                filter => json!(filter.replace("LIMIT", &limit.to_string())),
            };
            let columns: Vec<_> =
                columns.as_array().unwrap().iter().map(|name| json!({"name": name})).collect();
            ("unbatch", json!({"columns": columns, "edge": "drop", "stride": 1 + at % 2}))
        }
    };
    spec[then.0] = then.1;
    serde_json::from_value(spec).unwrap()
}

/// A program; `filter`: index and limit; `then`: 0 nothing, 1 packs, 2 windows, then costs, then rows.
#[derive(Clone, Debug)]
struct Program {
    filter: Option<(usize, i64)>,
    then: usize,
    has_mask: bool,
}

impl Program {
    fn compiled(&self) -> Option<Arc<SampleProgram>> {
        Schema::new(spec(self)).unwrap().samples().map(Arc::clone)
    }
}

fn program() -> impl Strategy<Value = Program> {
    let filter = prop::option::weighted(0.8, (0..FILTERS.len(), -2_i64..6));
    (filter, 0..3 + COSTS.len() + FILTERS_OF_ROWS.len(), any::<bool>())
        .prop_map(|(filter, then, has_mask)| Program { filter, then, has_mask })
}

type Known = std::collections::BTreeMap<String, MeasuredColumn>;

/// Width, score, language, and numbers of tokens and masks.
type Fields = (i64, f32, String, usize, usize);

fn stored(fields: &Fields) -> Vec<u8> {
    let (width, score, lang, tokens, mask) = fields;
    let tokens: Vec<i64> = (0..*tokens as i64).map(|token| (token * 7 + *width) % 5).collect();
    let mask = vec![0.5_f32; *mask];
    let (width, score, lang) = ([*width], [*score], [lang.as_bytes()]);
    let values = [
        ("width", Value::Int64(&width)),
        ("score", Value::Float32(&score)),
        ("lang", Value::Bytes(&lang)),
        ("tokens", Value::Int64(&tokens)),
        ("mask", Value::Float32(&mask)),
    ];
    let mut bytes = vec![];
    encode_example(&values, &mut bytes);
    let crc = masked_crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

fn row(ordinal: usize, stored: &[u8]) -> Row<'_> {
    Row::of_record(Sample { shard: 0, ordinal: ordinal as u64 }, stored)
}

/// Adds the samples of the records that follow.
fn extend(all: &mut CountedRecords, more: CountedRecords) {
    fn add<T>(all: &mut Option<Vec<T>>, more: Option<Vec<T>>) {
        if let Some(more) = more {
            all.get_or_insert_default().extend(more);
        }
    }
    all.bytes.extend(more.bytes);
    add(&mut all.rows, more.rows);
    add(&mut all.passes, more.passes);
    add(&mut all.tokens, more.tokens);
    add(&mut all.keys, more.keys);
    add(&mut all.costs, more.costs);
}

/// Counts all records, in groups, and measures them.
fn counted(
    program: &SampleProgram,
    records: &[Vec<u8>],
    group: usize,
) -> Result<(CountedRecords, MeasuredColumns), RowError> {
    let mut columns = MeasuredColumns::default();
    let mut all = CountedRecords::default();
    let rows: Vec<_> = records.iter().enumerate().map(|(at, stored)| row(at, stored)).collect();
    for rows in rows.chunks(group) {
        let counted = program.count(rows, PATH, Some(&mut columns))?;
        assert_eq!(counted, program.count(rows, PATH, None).unwrap(), "kept or not");
        extend(&mut all, counted);
    }
    Ok((all, columns))
}

/// Returns the columns that were measured for all records, as stored ones.
fn kept(program: &SampleProgram, columns: &MeasuredColumns) -> MeasuredColumns {
    let stored = columns.whole().map(|(key, column)| {
        let bytes = postcard::to_stdvec(column).unwrap();
        (key.to_owned(), postcard::from_bytes::<MeasuredColumn>(&bytes).unwrap())
    });
    columns_of(program, &stored.collect())
}

/// Returns the columns that a program needs, of those that are known.
fn columns_of(program: &SampleProgram, known: &Known) -> MeasuredColumns {
    let of = |keys: Vec<String>| -> Known {
        let known = |key: String| known.get(&key).map(|column| (key, column.clone()));
        keys.into_iter().filter_map(known).collect()
    };
    let mut columns = MeasuredColumns::new(of(program.columns().unwrap()));
    if let Some((counts, keys)) = program.row_columns() {
        columns.add_rows(counts, of(keys));
    }
    columns
}

/// Returns the keys of all columns that a program needs.
fn needs_of(program: &SampleProgram) -> Vec<String> {
    let of_rows = program.row_columns().map(|(_, keys)| keys).unwrap_or_default();
    [program.columns().unwrap(), of_rows].concat()
}

/// Returns the features that a program needs: without any of them it does not exist, or has another
/// key.
fn needed_features(spec: &RecordSpec, key: &[u8]) -> Option<ParseSpec> {
    let mut least = spec.clone();
    let Some(ParseSpec::Example(features)) = &spec.parse else { return None };
    for feature in features {
        let mut less = least.clone();
        if let Some(ParseSpec::Example(kept)) = &mut less.parse {
            kept.retain(|other| other.name != feature.name);
        }
        let same = Schema::new(less.clone()).ok().and_then(|schema| schema.samples().cloned());
        if same.is_some_and(|samples| samples.key() == key) {
            least = less;
        }
    }
    least.parse
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_spec_of_the_samples_has_the_features_that_they_need(program in program()) {
        let schema = Schema::new(spec(&program)).unwrap();
        if let Some(samples) = schema.samples() {
            let needed = needed_features(schema.spec(), &samples.key());
            prop_assert_eq!(schema.sample_spec().unwrap().parse, needed);
        }
    }

    #[test]
    fn another_program_over_the_same_values_needs_no_records(
        records in prop::collection::vec(
            (-3_i64..9, prop_oneof![Just(f32::NAN), -2_f32..6.0], "(de|en|)", 0_usize..6, 0_usize..3),
            1..40,
        ),
        programs in prop::collection::vec(program(), 1..6),
        is_even in any::<bool>(),
        group in 1_usize..12,
    ) {
        // Packs of two columns need equal numbers in both.
        let even = |mut fields: Fields| { if is_even { fields.4 = fields.3; } fields };
        let records: Vec<_> = records.into_iter().map(even).map(|fields| stored(&fields)).collect();
        let mut known = Known::new();
        for program in programs.iter().filter_map(Program::compiled) {
            let by_records = counted(&program, &records, group);
            let needs = needs_of(&program);
            let has_all = needs.iter().all(|key| known.contains_key(key));
            let by_values = program.count_kept(&columns_of(&program, &known), PATH);
            match &by_records {
                Ok((all, columns)) => {
                    if has_all {
                        prop_assert_eq!(by_values.as_ref(), Some(all));
                    } else {
                        prop_assert_eq!(by_values, None);
                    }
                    let all_columns = columns;
                    let columns = kept(&program, columns);
                    let is_whole = needs.iter().all(|key| columns.whole().any(|(one, _)| one == key));
                    // Only a record that is left out may have a value that cannot be measured.
                    prop_assert!(is_whole || !is_even, "{:?} {:?}", needs, columns);
                    if is_whole {
                        let again = program.count_kept(&columns, PATH);
                        prop_assert_eq!(again.as_ref(), Some(all));
                    }
                    known.extend(all_columns.whole().map(|(key, column)| (key.to_owned(), column.clone())));
                }
                // A cost that is none, or packs of different lengths: the records say which.
                Err(_) => prop_assert_eq!(by_values, None),
            }
        }
    }
}

#[test]
fn long_texts_are_not_kept() {
    let filter = |text: &str| {
        let spec = json!({"parse": [
            {"name": "lang", "feature": {"fixed_len": {"dtype": "bytes", "shape": []}}},
        ], "filter": text});
        let schema = Schema::new(serde_json::from_value(spec).unwrap()).unwrap();
        Arc::clone(schema.samples().unwrap())
    };
    let long: Vec<_> = (0..400).map(|at| stored(&(0, 0.0, format!("{at:040}"), 0, 0))).collect();
    for (text, is_kept) in [("lang == 'de'", false), ("len(lang) == 2", true)] {
        let program = filter(text);
        let (all, columns) = counted(&program, &long, 50).unwrap();
        let by_values = program.count_kept(&kept(&program, &columns), PATH);
        assert_eq!(by_values, is_kept.then_some(all), "{text}");
    }
}

#[test]
fn bytes_that_no_file_has_are_not_counted() {
    let program = Program { filter: Some((0, 0)), then: 0, has_mask: false }.compiled().unwrap();
    let records: Vec<_> = (1..4).map(|width| stored(&(width, 0.0, String::new(), 0, 0))).collect();
    let columns = kept(&program, &counted(&program, &records, 3).unwrap().1);
    assert!(program.count_kept(&columns, PATH).is_some());
    for bytes in [[-1, 20, 20], [i64::MAX, 1, 0], [i64::MAX; 3]] {
        let whole = columns.whole().map(|(key, column)| match key {
            "record bytes" => (key.to_owned(), MeasuredColumn::Integers(bytes.to_vec())),
            _ => (key.to_owned(), column.clone()),
        });
        assert_eq!(program.count_kept(&MeasuredColumns::new(whole.collect()), PATH), None);
    }
}
