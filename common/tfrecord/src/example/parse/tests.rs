use super::super::{DefaultValue, Value, describe, encode_example, features_of};
use super::*;

fn spec(name: &str, feature: Feature) -> FeatureSpec {
    FeatureSpec { name: name.to_owned(), feature }
}

fn fixed(name: &str, shape: &[usize], dtype: DType) -> FeatureSpec {
    spec(name, Feature::FixedLen { shape: shape.to_vec(), dtype, default: None })
}

fn encode(features: &[(&str, Value<'_>)]) -> Vec<u8> {
    let mut record = Vec::new();
    encode_example(features, &mut record);
    record
}

fn locate_error(features: &[FeatureSpec], record: &[u8]) -> String {
    let parser = ExampleParser::new(features.to_vec()).unwrap();
    let mut located = vec![Located::Missing];
    let error = parser.locate(record, &mut located).unwrap_err();
    assert!(located.is_empty());
    error.to_string()
}

#[test]
fn errors_say_what_to_do() {
    let record = encode(&[("label", Value::Int64(&[1, 2]))]);
    expect_test::expect![
        "feature `label` has 2 values, shape [3] holds 3; correct the shape or make it VarLen"
    ]
    .assert_eq(&locate_error(&[fixed("label", &[3], DType::Int64)], &record));
    expect_test::expect!["feature `label` holds int64, but float32 was asked for; ask for int64"]
        .assert_eq(&locate_error(&[fixed("label", &[2], DType::Float32)], &record));
    expect_test::expect![
        "feature `image` (bytes) is not in the record; give it a default or make it VarLen"
    ]
    .assert_eq(&locate_error(&[fixed("image", &[], DType::Bytes)], &record));
    expect_test::expect![
        "not a valid tf.train.Example: the record ends before a field's value does, at byte 1 of it"
    ]
    .assert_eq(&locate_error(&[], &record[..record.len() - 1]));
}

#[test]
fn an_error_says_where_the_value_is() {
    let record = encode(&[("a", Value::Int64(&[1])), ("b", Value::Bytes(&[b"value"]))]);
    let parser = ExampleParser::new(vec![fixed("b", &[2], DType::Bytes)]).unwrap();
    let error = parser.locate(&record, &mut Vec::new()).unwrap_err();
    let ParseError::CountMismatch { at, found: 1, expected: 2, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(record[at..], *b"\x0a\x05value");
}

#[test]
fn features_are_found_in_any_order_among_any_number() {
    let names: Vec<String> = (0..300).map(|number| format!("prefix/{number}/suffix")).collect();
    let values: Vec<[i64; 1]> = (0..300).map(|number| [number]).collect();
    let features: Vec<_> =
        names.iter().zip(&values).map(|(name, value)| (&name[..], Value::Int64(value))).collect();
    let record = encode(&features);
    // Every third, backwards, and one that is not there.
    let mut wanted: Vec<i64> = (0..300).rev().step_by(3).collect();
    let mut specs: Vec<_> =
        wanted.iter().map(|&number| fixed(&names[number as usize], &[], DType::Int64)).collect();
    specs.push(spec("prefix", Feature::VarLen { dtype: DType::Int64 }));
    let parser = ExampleParser::new(specs).unwrap();
    let mut located = Vec::new();
    parser.locate(&record, &mut located).unwrap();
    assert_eq!(located.pop(), Some(Located::Missing));
    for located in located.iter().rev() {
        let Located::Present(list) = located else { panic!("{located:?}") };
        let mut value = [0];
        list.write_i64(&mut value);
        assert_eq!(Some(value[0]), wanted.pop());
    }
}

#[test]
fn specs_that_make_no_sense_are_refused() {
    let refuse = |specs: Vec<FeatureSpec>| ExampleParser::new(specs).unwrap_err().to_string();
    let x = || fixed("x", &[], DType::Int64);
    expect_test::expect!["feature `x` is asked for twice; ask once and use the column twice"]
        .assert_eq(&refuse(vec![x(), fixed("y", &[], DType::Int64), x()]));
    let huge = vec![usize::MAX, 2];
    let expected = format!("feature `x`: shape {huge:?} holds more values than fit in memory");
    assert_eq!(refuse(vec![fixed("x", &huge, DType::Int64)]), expected);
    assert!(refuse(vec![fixed("x", &[0, usize::MAX, 2], DType::Int64)]).contains("more values"));
    let with_default = |shape: &[usize], default| {
        let (shape, default) = (shape.to_vec(), Some(default));
        vec![spec("x", Feature::FixedLen { shape, dtype: DType::Int64, default })]
    };
    expect_test::expect![
        "feature `x`: the default has 1 values, the shape holds 6; give one for each (TensorFlow does not repeat a single one either)"
    ]
    .assert_eq(&refuse(with_default(&[2, 3], DefaultValue::Int64(vec![0]))));
    expect_test::expect![
        "feature `x`: the default is float32, the feature int64; make them the same"
    ]
    .assert_eq(&refuse(with_default(&[], DefaultValue::Float32(vec![0.0]))));
}

#[test]
fn a_parser_without_features_checks_that_records_are_examples() {
    let parser = ExampleParser::new(Vec::new()).unwrap();
    assert_eq!(parser.locate(&encode(&[("a", Value::Int64(&[1]))]), &mut Vec::new()), Ok(()));
    assert!(parser.locate(b"hello", &mut Vec::new()).is_err());
}

#[test]
fn writing_is_sorted_packed_and_the_same_each_time() {
    let record = encode(&[
        ("b", Value::Int64(&[1, -1])),
        ("a", Value::Bytes(&[b"x"])),
        ("c", Value::Float32(&[])),
    ]);
    let expected: &[u8] = &[
        0x0a, 46, // features
        0x0a, 10, 0x0a, 1, b'a', 0x12, 5, 0x0a, 3, 0x0a, 1, b'x', //
        0x0a, 20, 0x0a, 1, b'b', 0x12, 15, 0x1a, 13, 0x0a, 11, 1, //
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, //
        0x0a, 7, 0x0a, 1, b'c', 0x12, 2, 0x12, 0,
    ];
    assert_eq!(record[..2], [0x0a, record.len() as u8 - 2]);
    assert_eq!(record[2..], expected[2..]);
    let summary = describe(&record).unwrap();
    let shown: Vec<_> =
        summary.iter().map(|f| (&f.name[..], f.dtype, f.count, f.data_bytes)).collect();
    assert_eq!(
        shown,
        [
            ("a", Some(DType::Bytes), 1, 1),
            ("b", Some(DType::Int64), 2, 16),
            ("c", Some(DType::Float32), 0, 0)
        ]
    );
}

#[test]
fn specs_are_readable_json() {
    let specs = vec![
        spec(
            "s",
            Feature::FixedLen {
                shape: vec![],
                dtype: DType::Int64,
                default: Some(DefaultValue::Int64(vec![-1])),
            },
        ),
        spec("d", Feature::VarLen { dtype: DType::Bytes }),
    ];
    let json = serde_json::to_string(&specs).unwrap();
    expect_test::expect![[
        r#"[{"name":"s","feature":{"fixed_len":{"shape":[],"dtype":"int64","default":{"int64":[-1]}}}},{"name":"d","feature":{"var_len":{"dtype":"bytes"}}}]"#
    ]]
    .assert_eq(&json);
    assert_eq!(serde_json::from_str::<Vec<FeatureSpec>>(&json).unwrap(), specs);
}

#[test]
fn values_are_visited_as_they_are_written() {
    let record = encode(&[
        ("f", Value::Float32(&[0.5, -0.0, f32::MAX])),
        ("i", Value::Int64(&[0, -1, i64::MIN, 300])),
        // A list that is not packed, in two pieces: field 3 with 5, then with 6 and packed 7 and 300.
    ]);
    let pieces = b"\x0a\x12\x0a\x10\x0a\x01p\x12\x0b\x1a\x02\x08\x05\x1a\x05\x0a\x03\x07\xac\x02";
    for record in [&record[..], pieces] {
        for found in features_of(record).unwrap() {
            let list = found.values.unwrap();
            if list.dtype() == DType::Int64 {
                let (mut written, mut visited) = (vec![0; list.count()], Vec::new());
                list.write_i64(&mut written);
                list.for_each_i64(|value| visited.push(value));
                assert_eq!(visited, written);
                assert!(visited.ends_with(&[300]), "{visited:?}");
            } else {
                let (mut written, mut visited) = (vec![0.0; list.count()], Vec::new());
                list.write_f32(&mut written);
                list.for_each_f32(|value| visited.push(value));
                assert_eq!(visited.len(), 3);
                assert!(visited.iter().zip(&written).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }
    assert_eq!(features_of(pieces).unwrap()[0].values.unwrap().count(), 3);
}
