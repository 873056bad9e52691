//! One spec has one encoding and one digest, and decoding gives the declared spec.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use serde_json::json;
use shardfeed_proto::{RECORD_SPEC_BYTES_MAX, RECORD_SPEC_ENTRIES_MAX, RECORD_SPEC_PARTS_MAX};

use super::*;

fn partition() -> impl Strategy<Value = Partition> {
    prop_oneof![
        "[a-z]{1,3}".prop_map(Partition::RowSplits),
        "[a-z]{1,3}".prop_map(Partition::RowLengths),
        "[a-z]{1,3}".prop_map(Partition::RowStarts),
        "[a-z]{1,3}".prop_map(Partition::RowLimits),
        "[a-z]{1,3}".prop_map(Partition::ValueRowIds),
        (1..9_usize).prop_map(Partition::UniformRowLength),
    ]
}

fn values(count: usize) -> impl Strategy<Value = DefaultValue> {
    prop_oneof![
        vec(any::<u32>(), count)
            .prop_map(|bits| DefaultValue::Float32(bits.into_iter().map(f32::from_bits).collect())),
        vec(any::<i64>(), count).prop_map(DefaultValue::Int64),
        vec(vec(any::<u8>(), 0..4), count).prop_map(DefaultValue::Bytes),
    ]
}

fn dtype() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::Float32), Just(DType::Int64), Just(DType::Bytes)]
}

fn feature() -> impl Strategy<Value = Feature> {
    let fixed = vec(0..4_usize, 0..3).prop_flat_map(|shape| {
        let count = shape.iter().product();
        (Just(shape), dtype(), option::of(values(count)))
    });
    let fixed = fixed.prop_map(|(shape, dtype, default)| {
        let dtype = default.as_ref().map_or(dtype, DefaultValue::dtype);
        Feature::FixedLen { shape, dtype, default }
    });
    let sequence = (vec(1..4_usize, 0..3), dtype(), any::<bool>(), option::of(values(1)));
    let sequence = sequence.prop_map(|(shape, dtype, allow_missing, default)| {
        let dtype = default.as_ref().map_or(dtype, DefaultValue::dtype);
        Feature::FixedLenSequence { shape, dtype, allow_missing, default }
    });
    let ragged = (dtype(), option::of("[a-z]{1,3}"), vec(partition(), 0..3));
    let ragged = ragged.prop_map(|(dtype, value_key, partitions)| Feature::Ragged {
        dtype,
        value_key,
        partitions,
    });
    let sparse = (dtype(), vec(("[a-z]{1,3}", 1..9_usize), 1..3), "[A-Z]{1,3}", any::<bool>());
    let sparse = sparse.prop_map(|(dtype, places, value_key, already_sorted)| {
        let (index_keys, size) = places.into_iter().unzip();
        Feature::Sparse { dtype, index_keys, value_key, size, already_sorted }
    });
    prop_oneof![
        fixed,
        sequence,
        ragged,
        sparse,
        dtype().prop_map(|dtype| Feature::VarLen { dtype })
    ]
}

fn features() -> impl Strategy<Value = Vec<FeatureSpec>> {
    let named = btree_map("[a-z/]{1,12}", feature(), 0..12);
    named.prop_map(|named| {
        named.into_iter().map(|(name, feature)| FeatureSpec { name, feature }).collect()
    })
}

proptest! {
    #[test]
    fn an_encoding_is_read_back(features in features(), lists in features(), is_sequence: bool) {
        let parse = match is_sequence {
            false => ParseSpec::Example(features),
            true => ParseSpec::Sequence { context: features, lists },
        };
        let declared = RecordSpec::from(parse);
        let bytes = message(&declared).encode_canonical().unwrap();
        let read = EncodedSpec::decode(&bytes).unwrap();
        // Compares bytes, because a default may hold a NaN.
        prop_assert_eq!(message(&read).encode_canonical().unwrap(), bytes);
        prop_assert_eq!(format!("{read:?}"), format!("{declared:?}"));
    }

    #[test]
    fn the_order_of_features_does_not_count(
        (features, shuffled) in features().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        let encoded = |features: Vec<FeatureSpec>| {
            let schema = Schema::new(RecordSpec::from(ParseSpec::Example(features))).ok()?;
            Some(EncodedSpec::of(&schema).unwrap())
        };
        prop_assert_eq!(encoded(features), encoded(shuffled));
    }

    #[test]
    fn other_bytes_are_refused_or_are_another_spec(features in features(), at: prop::sample::Index, bit in 0u8..8) {
        let bytes = message(&RecordSpec::from(ParseSpec::Example(features))).encode_canonical().unwrap();
        let mut other = bytes.clone();
        other[at.index(bytes.len())] ^= 1u8 << bit;
        if let Ok(read) = EncodedSpec::decode(&other) {
            prop_assert_eq!(message(&read).encode_canonical().unwrap(), other);
        }
    }
}

#[test]
fn every_operator_is_read_back() {
    let table = json!({"digest": "5".repeat(64), "path": "/data/scores.sft"});
    let operations = json!([
        {"decode_raw": {"input": "record", "dtype": "uint8", "shape": ["height", 3], "little_endian": true, "fixed_length": 9}},
        {"cast": {"input": "a", "dtype": "int64"}},
        {"reshape": {"input": "a", "shape": [-1, "width"]}},
        {"unpack_bits": {"input": "a", "bit_order": "little"}},
        {"scale": {"input": "a", "scale": [1.0, -0.0], "offset": [0.1], "dtype": "float32"}},
        {"normalize": {"input": "a", "mean": [116.28], "std": [57.0], "dtype": "float64"}},
        {"transpose": {"input": "a", "perm": [1, 0]}},
        {"slice": {"input": "a", "begin": [0, 18446744073709551615_u64], "size": [-1, 2]}},
        {"select": {"input": "a", "axis": 0, "indices": [2, 2]}},
        {"one_hot": {"input": "a", "depth": 4, "on": 1.0, "off": 0.0, "dtype": "uint8"}},
        {"padded_batch": {"input": "a", "length": 5, "value": 0.0, "truncate": true}},
        {"decode_image": {"input": "a", "channels": 3, "dtype": "uint8", "size": [2, 3]}},
        {"crop": {"input": "a", "size": [2, 3], "offset": [0, 1]}},
        {"random_crop": {"input": "a", "size": [2, 3]}},
        {"random_resized_crop": {"input": "a", "scale": [0.08, 1.0], "ratio": [0.75, 1.25]}},
        {"resize": {"input": "a", "size": [2, 3], "method": "bicubic", "antialias": true, "dtype": "float32"}},
        {"flip": {"input": "a", "axis": "vertical", "probability": 0.5}},
        {"layout": {"input": "a", "to": "hwc"}},
        {"lookup": {"input": "a", "table": table, "column": "x", "dtype": "float32", "shape": [4], "missing": -1.0}},
        {"compute": {"expression": "where(a > 0, tanh(a / 4), -1)", "dtype": "float32"}},
        {"crop": {"input": "a", "box": {"column": "b", "format": "xywh", "normalized": false}}},
        {"pad": {"input": "a", "size": [3, 4], "value": -1.5, "side": "both", "truncate": true}},
        {"rename": {"input": "a"}},
        {"concat": {"inputs": ["a", "b"], "axis": 1}},
        {"constant": {"value": [1, -2], "shape": [2, 1], "dtype": "int64"}},
        {"constant": {"value": [1.0, -0.5], "shape": [2], "dtype": "float32"}},
        {"constant": {"value": ["a", ""], "shape": [2], "dtype": "bytes"}},
        {"color_jitter": {"input": "a", "brightness": [0.6, 1.4], "hue": [-0.1, 0.1]}},
    ]);
    let operations: Vec<Operation> = serde_json::from_value(operations).unwrap();
    let operators: Vec<Operator> = operations
        .into_iter()
        .map(|operation| Operator { output: "made".into(), operation })
        .collect();
    let declared =
        RecordSpec { operators, outputs: Some(vec!["made".into()]), ..RecordSpec::default() };
    let bytes = message(&declared).encode_canonical().unwrap();
    let mut read = EncodedSpec::decode(&bytes).unwrap();
    assert_ne!(read, declared, "the path of a table is not part of it");
    assert!(read.place_table(&"5".repeat(64), "/data/scores.sft"));
    assert_eq!(read, declared);
    let text = wire::RecordSpec::decode(&bytes[..]).unwrap().to_string();
    assert!(
        text.starts_with("raw; made = decode_raw/1(dtype=\"uint8\", fixed_length=9, "),
        "{text}"
    );
    assert!(!text.contains("/data/"), "{text}");
}

#[test]
fn raw_records_have_one_spec() {
    let bytes = wire::RecordSpec::raw().encode_canonical().unwrap();
    assert_eq!(EncodedSpec::raw().bytes(), bytes);
    assert_eq!(EncodedSpec::decode(&bytes).unwrap(), RecordSpec::default());
}

#[test]
fn a_filter_is_part_of_the_spec_in_its_canonical_text() {
    let filtered = |text: &str| RecordSpec { filter: Some(text.into()), ..RecordSpec::default() };
    let of = |text: &str| EncodedSpec::of(&Schema::new(filtered(text)).unwrap()).unwrap();
    let encoded = of("( len(record)>3 )");
    assert_eq!(encoded, of("len(record) > 3"));
    assert_ne!(encoded, of("len(record) > 4"));
    assert_eq!(EncodedSpec::decode(encoded.bytes()).unwrap(), filtered("len(record) > 3"));
    let read = |encoded: &EncodedSpec| wire::RecordSpec::decode(encoded.bytes()).unwrap();
    assert_eq!(read(&encoded).to_string(), "raw; filter len(record) > 3");
    let differing = read(&encoded).differences(&read(&EncodedSpec::raw()));
    assert_eq!((differing.len(), differing[0].right.as_str()), (1, "absent"));
    // An earlier release has no such field, and refuses the encoding.
    assert_eq!(encoded.bytes()[EncodedSpec::raw().bytes().len()], 6 << 3 | 2);
}

#[test]
fn what_is_not_canonical_or_too_large_is_refused() {
    let refused = |bytes: &[u8]| EncodedSpec::decode(bytes).unwrap_err().to_string();
    let id = |name: &str| wire::Feature {
        name: name.into(),
        r#type: wire::FeatureType::Int64.into(),
        layout: Some(Layout::VarLen(wire::VarLen {})),
    };
    let of = |features: Vec<wire::Feature>| wire::RecordSpec {
        parse: Some(Parse::Example(wire::ExampleFeatures { features })),
        ..wire::RecordSpec::raw()
    };
    let twice = of(vec![id("b"), id("a")]).encode_to_vec();
    assert!(refused(&twice).contains("is not in the order of names"));
    let mut unknown = of(vec![id("a")]).encode_to_vec();
    unknown.extend([0x7a, 0]);
    assert!(refused(&unknown).contains("not canonical"));
    let later = wire::RecordSpec { version: 2, ..wire::RecordSpec::raw() }.encode_to_vec();
    assert!(refused(&later).contains("has version 2, this software knows 1"));
    let cast = |version, arguments: &[(&str, &str)]| {
        let argument = |(name, text): &(&str, &str)| wire::Argument {
            name: (*name).into(),
            value: Some(wire::ArgumentValue { kind: Some(Kind::Text((*text).into())) }),
        };
        let arguments = arguments.iter().map(argument).collect();
        let (output, kind) = ("a".into(), "cast".into());
        let operators = vec![wire::Operator { output, kind, version, arguments }];
        wire::RecordSpec { operators, ..wire::RecordSpec::raw() }.encode_to_vec()
    };
    let good = [("dtype", "int64"), ("input", "a")];
    assert!(EncodedSpec::decode(&cast(1, &good)).is_ok());
    assert!(refused(&cast(2, &good)).contains("operator `cast` has version 2"));
    assert!(refused(&cast(1, &good[..1])).contains("missing field `input`"));
    let more = [good[0], good[1], ("later", "x")];
    assert!(refused(&cast(1, &more)).contains("arguments that this software does not know"));
    let many = vec![wire::Feature::default(); RECORD_SPEC_ENTRIES_MAX + 1];
    assert!(refused(&of(many).encode_to_vec()).contains("at most 65536 features and operators"));
    let long = of(vec![id(&"x".repeat(RECORD_SPEC_BYTES_MAX))]);
    assert!(refused(&long.encode_to_vec()).contains("at most 3145728"));
    assert!(refused(&[0xff; 8]).contains("malformed"));
}

#[test]
fn a_spec_of_many_small_parts_is_refused_before_it_is_decoded() {
    let raw = wire::RecordSpec::raw;
    let refused = |spec: wire::RecordSpec| {
        EncodedSpec::decode(&spec.encode_to_vec()).unwrap_err().to_string()
    };
    let measured = vec![wire::Operator::default(); RECORD_SPEC_ENTRIES_MAX + 1];
    let said = refused(wire::RecordSpec { measured, ..raw() });
    assert!(said.contains("at most 65536 features and operators"), "{said}");
    let many = RECORD_SPEC_PARTS_MAX + 1;
    let texts = || vec![String::new(); many];
    let features = |layout| {
        let features = vec![wire::Feature { layout: Some(layout), ..Default::default() }];
        let parse = Parse::Example(wire::ExampleFeatures { features });
        wire::RecordSpec { parse: Some(parse), ..raw() }
    };
    let operator = |arguments| {
        let operators = vec![wire::Operator { arguments, ..Default::default() }];
        wire::RecordSpec { operators, ..raw() }
    };
    let list = wire::ArgumentList { values: vec![wire::ArgumentValue::default(); many] };
    let value = Some(wire::ArgumentValue { kind: Some(Kind::List(list)) });
    let columns = vec![wire::unbatch::Column::default(); many];
    let append = vec![wire::FeatureValues::default(); many];
    let partitions = vec![wire::Partition::default(); many];
    let specs = [
        operator(vec![wire::Argument::default(); many]),
        operator(vec![wire::Argument { value, ..Default::default() }]),
        features(Layout::Ragged(wire::Ragged { partitions, ..Default::default() })),
        features(Layout::Sparse(wire::Sparse { index_keys: texts(), ..Default::default() })),
        wire::RecordSpec { outputs: Some(wire::Outputs { columns: texts() }), ..raw() },
        wire::RecordSpec {
            unbatch: Some(wire::Unbatch { columns, ..Default::default() }),
            ..raw()
        },
        wire::RecordSpec {
            pack: Some(wire::Pack { columns: texts(), ..Default::default() }),
            ..raw()
        },
        wire::RecordSpec { pack: Some(wire::Pack { append, ..Default::default() }), ..raw() },
        wire::RecordSpec {
            window: Some(wire::Window { columns: texts(), ..Default::default() }),
            ..raw()
        },
    ];
    for (number, spec) in specs.into_iter().enumerate() {
        let said = refused(spec);
        assert!(said.contains("at most 524288 layouts"), "{number}: {said}");
    }
}

#[test]
fn each_method_of_samples_is_decoded_as_it_was_declared() {
    let parse = json!([
        {"name": "n", "feature": {"fixed_len": {"dtype": "int64", "shape": []}}},
        {"name": "tokens", "feature": {"var_len": {"dtype": "int64"}}},
    ]);
    let unbatch =
        json!({"columns": [{"name": "tokens", "offsets": [-1, 2]}], "edge": "zero", "stride": 3});
    let pack = json!({"columns": ["tokens"], "length": 8, "block": 4, "variants": 2, "method": "fit",
        "long": "split", "append": [{"int64": [1]}]});
    let window =
        json!({"columns": ["n"], "size": 4, "stride": 2, "by": "n // 2", "partial": "pad"});
    let balance = |by: &str| json!({"by": by, "window": 9});
    for spec in [
        json!({"filter": "n > 1", "balance": balance("len(tokens)")}),
        json!({"unbatch": unbatch, "filter_rows": "n > 0"}),
        json!({"pack": pack, "balance": balance("sum_squares")}),
        json!({"filter": "n > 1", "window": window}),
    ] {
        let Value::Object(mut fields) = spec else { unreachable!("it is an object") };
        fields.insert("parse".to_owned(), parse.clone());
        let spec: RecordSpec = serde_json::from_value(Value::Object(fields)).unwrap();
        let schema = Schema::new(spec).unwrap();
        let encoded = EncodedSpec::of(&schema).unwrap();
        assert_eq!(&EncodedSpec::decode(encoded.bytes()).unwrap(), schema.spec());
        let samples = EncodedSpec::of_samples(&schema).unwrap().unwrap();
        let program = Schema::new(EncodedSpec::decode(samples.bytes()).unwrap()).unwrap();
        let key = |schema: &Schema| schema.samples().unwrap().key();
        assert_eq!(key(&program), key(&schema));
    }
}
