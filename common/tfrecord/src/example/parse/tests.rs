use super::super::{
    DefaultValue, Partition, SequenceParser, Value, encode_example, encode_sequence_example,
    features_of,
};
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
    let mut located = vec![None];
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
    // Every third feature, in reverse order, and one that is missing.
    let mut wanted: Vec<i64> = (0..300).rev().step_by(3).collect();
    let mut specs: Vec<_> =
        wanted.iter().map(|&number| fixed(&names[number as usize], &[], DType::Int64)).collect();
    specs.push(spec("prefix", Feature::VarLen { dtype: DType::Int64 }));
    let parser = ExampleParser::new(specs).unwrap();
    let mut located = Vec::new();
    parser.locate(&record, &mut located).unwrap();
    assert_eq!(located.pop(), Some(None));
    for located in located.iter().rev() {
        let list = located.as_ref().unwrap();
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
    let found = features_of(&record).unwrap();
    let shown: Vec<_> = found
        .iter()
        .map(|found| (found.name[0], found.values.unwrap()))
        .map(|(name, list)| (name, list.dtype(), list.count(), list.data_bytes()))
        .collect();
    assert_eq!(
        shown,
        [(b'a', DType::Bytes, 1, 1), (b'b', DType::Int64, 2, 16), (b'c', DType::Float32, 0, 0)]
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
fn values_are_written_whole_and_in_ranges() {
    let (floats, ints) = ([0.5, -0.0, f32::MAX], [0, -1, i64::MIN, 300]);
    let record = encode(&[("f", Value::Float32(&floats)), ("i", Value::Int64(&ints))]);
    // A list in two pieces: field 3 with 5, which is not packed, then with packed 7 and 300.
    let pieces = b"\x0a\x12\x0a\x10\x0a\x01p\x12\x0b\x1a\x02\x08\x05\x1a\x05\x0a\x03\x07\xac\x02";
    for (record, ints) in [(&record[..], &ints[..]), (pieces, &[5, 7, 300])] {
        for found in features_of(record).unwrap() {
            let list = found.values.unwrap();
            if list.dtype() == DType::Int64 {
                let mut written = vec![0; list.count()];
                list.write_i64(&mut written);
                assert_eq!(written, ints);
                for first in 0..=written.len() {
                    for end in first..=written.len() {
                        let range = list.range(first, end - first).unwrap();
                        let mut part = vec![0; end - first];
                        range.write_i64(&mut part);
                        assert_eq!(part, written[first..end]);
                        assert_eq!(range.data_bytes(), 8 * part.len());
                    }
                    assert_eq!(list.range(first, written.len() + 1 - first), None);
                }
            } else {
                let mut written = vec![0.0; list.count()];
                list.write_f32(&mut written);
                assert_eq!(written.len(), 3);
                assert!(floats.iter().zip(&written).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }
    assert_eq!(features_of(pieces).unwrap()[0].values.unwrap().count(), 3);
}

#[test]
fn every_refused_feature_says_why() {
    let context = |feature: Feature| ExampleParser::new(vec![spec("x", feature)]).err();
    let list = |feature: Feature| SequenceParser::new(vec![], vec![spec("x", feature)]).err();
    let (dtype, none) = (DType::Int64, None);
    let sequence = |shape: &[usize], allow_missing: bool, default: Option<DefaultValue>| {
        let shape = shape.to_vec();
        Feature::FixedLenSequence { shape, dtype, allow_missing, default }
    };
    let ragged =
        |partitions: Vec<Partition>| Feature::Ragged { dtype, value_key: None, partitions };
    let sparse = |keys: &[&str], size: &[usize]| Feature::Sparse {
        dtype,
        index_keys: keys.iter().map(ToString::to_string).collect(),
        value_key: "v".to_owned(),
        size: size.to_vec(),
        already_sorted: false,
    };
    let uniform = |lengths: [usize; 2]| ragged(lengths.map(Partition::UniformRowLength).to_vec());
    let as_strings = Feature::VarLen { dtype: DType::Bytes };
    let one_key = vec![spec("y", sparse(&["i"], &[3])), spec("i", as_strings)];
    let refusals = [
        context(sequence(&[2], false, None)),
        context(sequence(&[0], true, None)),
        context(uniform([2, 0])),
        context(uniform([usize::MAX, 2])),
        context(sparse(&["i"], &[2, 3])),
        context(sparse(&[], &[])),
        context(sparse(&["i", "j"], &[2, 0])),
        ExampleParser::new(one_key).err(),
        list(Feature::FixedLen { shape: vec![], dtype, default: none }),
        list(sparse(&["i"], &[2])),
        list(sequence(&[], true, Some(DefaultValue::Int64(vec![1])))),
    ];
    let said = refusals.map(|refused| refused.unwrap().to_string() + "\n");
    expect_test::expect![[r#"
        feature `x`: a record without the feature has none: set allow_missing
        feature `x`: its shape holds no value, so the number of values is unknown
        feature `x`: rows of no values: a uniform row length is 1 or more
        feature `x`: its rows hold more values than fit in memory
        feature `x`: it needs one size for each index key
        feature `x`: it needs an index key
        feature `x`: a dimension of size 0 holds no value
        key `i` is asked for as bytes and as int64; ask for one type
        feature `x`: FixedLen is for the context; a list is FixedLenSequence, VarLen or Ragged
        feature `x`: Sparse is for the context; a list is FixedLenSequence, VarLen or Ragged
        feature `x`: a list's steps are padded with 0 or the empty string, without a default; a list is FixedLenSequence, VarLen or Ragged
    "#]].assert_eq(&said.concat());
}

#[test]
fn every_record_that_is_no_example_says_where_it_is_wrong() {
    let entry = |key_and_value: &[u8]| {
        let entry = [&[0x0a, key_and_value.len() as u8], key_and_value].concat();
        [&[0x0a, entry.len() as u8], &entry[..]].concat()
    };
    // The value is a list message of this kind: 1 byte strings, 2 floats, 3 numbers.
    let listed = |kind: u8, body: &[u8]| {
        let value = [&[kind << 3 | 2, body.len() as u8], body].concat();
        entry(&[&[0x0a, 1, b'x', 0x12, value.len() as u8], &value[..]].concat())
    };
    let records = [
        ("a byte too few", vec![0x0a]),
        ("a number without its end", vec![0x08, 0x80]),
        ("a number without an end", [[0x08].as_slice(), &[0x80; 11]].concat()),
        ("a large field number", vec![0xff, 0xff, 0xff, 0xff, 0xff, 1, 0]),
        ("field 0", vec![0x00, 0]),
        ("half of 8 bytes", vec![0x09, 1, 2]),
        ("half of 4 bytes", vec![0x0d, 1, 2]),
        ("a group", vec![0x0b]),
        ("wire type 7", vec![0x0f]),
        ("two keys", entry(&[0x0a, 1, b'x', 0x0a, 1, b'y'])),
        ("a number for a list", entry(&[0x0a, 1, b'x', 0x12, 2, 0x18, 5])),
        ("a float and a half", listed(2, &[0x0a, 6, 0, 0, 0, 0, 0, 0])),
        ("a number among strings", listed(1, &[0x08, 5])),
    ];
    let x = spec("x", Feature::VarLen { dtype: DType::Int64 });
    let said = records.map(|(what, record)| {
        format!("{what}: {}\n", locate_error(std::slice::from_ref(&x), &record))
    });
    expect_test::expect![[r#"
        a byte too few: not a valid tf.train.Example: the record ends inside a number, at byte 1 of it
        a number without its end: not a valid tf.train.Example: the record ends inside a number, at byte 1 of it
        a number without an end: not a valid tf.train.Example: the record has a number of more than 10 bytes, at byte 1 of it
        a large field number: not a valid tf.train.Example: the record has a field number that is too large, at byte 0 of it
        field 0: not a valid tf.train.Example: the record has a field numbered 0, at byte 0 of it
        half of 8 bytes: not a valid tf.train.Example: the record ends inside a field, at byte 0 of it
        half of 4 bytes: not a valid tf.train.Example: the record ends inside a field, at byte 0 of it
        a group: not a valid tf.train.Example: the record has a group, which Examples never have, at byte 0 of it
        wire type 7: not a valid tf.train.Example: the record has a field of an unknown wire type, at byte 0 of it
        two keys: not a valid tf.train.Example: the record has a feature with two keys or two values, at byte 7 of it
        a number for a list: not a valid tf.train.Example: the record has a feature whose kind is no list, at byte 9 of it
        a float and a half: not a valid tf.train.Example: the record has packed floats whose length is no multiple of 4, at byte 11 of it
        a number among strings: not a valid tf.train.Example: the record has a value whose wire type does not suit its list, at byte 11 of it
    "#]].assert_eq(&said.concat());
}

#[test]
fn every_record_that_does_not_fit_its_features_says_what_to_change() {
    let sequence = |name: &str, shape: &[usize], allow_missing: bool| {
        let (shape, dtype) = (shape.to_vec(), DType::Int64);
        spec(name, Feature::FixedLenSequence { shape, dtype, allow_missing, default: None })
    };
    let record = encode(&[("x", Value::Int64(&[1, 2, 3]))]);
    let stride = locate_error(&[sequence("x", &[2], true)], &record);
    let mut record = Vec::new();
    let steps = [Some(Value::Int64(&[1, 2])), Some(Value::Int64(&[3]))];
    encode_sequence_example(&[], &[("x", &steps)], &mut record);
    let list_error = |list: FeatureSpec| {
        let parser = SequenceParser::new(vec![], vec![list]).unwrap();
        parser.locate(&record, &mut vec![], &mut vec![]).unwrap_err().to_string()
    };
    let said = [
        stride,
        list_error(sequence("y", &[], false)),
        list_error(sequence("x", &[2], false)),
        list_error(spec("x", Feature::VarLen { dtype: DType::Float32 })),
    ];
    expect_test::expect![[r#"
        feature `x` has 3 values, which is no multiple of the 2 that shape [2] holds; correct the shape or make it VarLen
        feature list `y` (int64) is not in the record; allow it to be missing, or ask for another one
        feature list `x` has 1 values in step 1, shape [2] holds 2; correct the shape or make it VarLen
        feature `x` holds int64, but float32 was asked for; ask for int64"#]].assert_eq(&said.join("\n"));
}
