use serde_json::json;
use shardfeed_plan::Sample;
use shardfeed_tfrecord::example::{Value, encode_example};
use shardfeed_tfrecord::masked_crc32c;

use super::*;
use crate::record::RowFault;

fn features() -> ParseSpec {
    serde_json::from_value(json!([
        {"name": "width", "feature": {"fixed_len": {"dtype": "int64", "shape": []}}},
        {"name": "score", "feature": {"fixed_len": {"dtype": "float32", "shape": [1]}}},
        {"name": "lang", "feature": {"fixed_len": {"dtype": "bytes", "shape": []}}},
        {"name": "box", "feature": {"fixed_len": {"dtype": "float32", "shape": [4]}}},
        {"name": "tags", "feature": {"var_len": {"dtype": "bytes"}}},
        {"name": "points", "feature": {"fixed_len_sequence":
            {"dtype": "float32", "shape": [2], "allow_missing": true}}},
    ]))
    .unwrap()
}

fn scope(parse: &ParseSpec) -> Scope<'_> {
    Scope { parse: Some(parse), ..Scope::default() }
}

fn of(text: &str) -> Result<Measure, String> {
    Measure::new(text, scope(&features()))
}

fn record(width: i64, score: f32, lang: &str) -> Vec<u8> {
    let mut bytes = vec![];
    let values = [
        ("width", Value::Int64(&[width])),
        ("score", Value::Float32(&[score])),
        ("lang", Value::Bytes(&[lang.as_bytes()])),
        ("tags", Value::Bytes(&[b"a", b"b", b"c"])),
        ("points", Value::Float32(&[0.0; 4])),
    ];
    encode_example(&values, &mut bytes);
    let crc = masked_crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

fn row(stored: &[u8]) -> Row<'_> {
    Row::of_record(Sample { shard: 0, ordinal: 7 }, stored)
}

fn passes(text: &str, (width, score, lang): (i64, f32, &str)) -> bool {
    let measure = of(text).unwrap();
    measure.passes(&[row(&record(width, score, lang))], "train/a-1", None).unwrap()[0]
}

fn wrong(text: &str) -> String {
    of(text).unwrap_err()
}

#[test]
fn expressions_and_values() {
    let this = (64, 0.5, "en");
    for text in [
        "width >= 64 and lang == 'en'",
        "lang in ('de', \"en\")",
        "lang not in ('de', 'fr',) and not width in (1, 2)",
        "lang < 'eo' and lang > 'e' and lang != 'En'",
        "width % 10 == 4 and -width % 10 == 6 and width % -10 == -6",
        "width // 10 == 6 and -width // 10 == -7 and width / 10 == 6.4",
        "-5.5 % 2 == 0.5 and -5.5 // 2 == -3 and 5.5 % -2 == -0.5",
        "len(lang) == 2 and len(tags) == 3 and len(points) == 2",
        "len(lang) < len(shard_path) and shard_path == 'train/a-1' and ordinal == 7",
        "score == 0.5 and score * 2 == 1 and sqrt(score * 8) == 2",
        "min(width, 70.5) == 64 and max(width, 70.5) == 70.5 and abs(-width) == 64",
        "where(lang == 'en', width, score) == 64 and where(0, 'x', lang) == 'en'",
        "floor(-score) == -1 and sign(-score) == -1 and sign(width - 64) == 0",
        "width",
        "not (score - score)",
        "1.0 // -(1e308 * 10) == -1 and -1.0 // (1e308 * 10) == -1 and 1.0 // (1e308 * 10) == 0",
        "-776717315786728.0 // 0.1 == -7767173157867281.0",
        // Nothing that is NaN is true, and nothing compares with it.
        "not (width // 0 >= 0) and not (width // 0) and width % 0 != width % 0",
        "not (width * 9223372036854775807 > 0)",
        "not (width / 0 > 1) and not (width / 0 <= 1)",
        "'it\\'s' == \"it's\"",
    ] {
        assert!(passes(text, this), "{text}");
        let printed = of(text).unwrap().to_string();
        let again = of(&printed).unwrap();
        assert_eq!(again.to_string(), printed, "{text}");
        assert!(passes(&printed, this), "{text}: {printed}");
    }
    for text in ["width > 64", "lang == 'EN'", "sqrt(-score)", "0.0 and width", "width // 0"] {
        assert!(!passes(text, this), "{text}");
    }
}

#[test]
fn integers_compare_exactly_with_floats() {
    let large = (1 << 53) + 1;
    assert!(passes("width != 9007199254740992.0 and width > 9007199254740992.0", (large, 0.0, "")));
    assert!(passes("width == 9007199254740993", (large, 0.0, "")));
    assert!(passes("width < 9223372036854775808.0", (i64::MAX, 0.0, "")));
    assert!(passes("width >= -9223372036854775808.0", (i64::MIN, 0.0, "")));
    assert!(passes("width < -0.5 and -0.5 > width and width > -1.5", (-1, 0.0, "")));
    assert!(passes("width == -0.0", (0, 0.0, "")));
    assert!(!passes("abs(width) > 0 or -width > 0 or width // -1 > 0", (i64::MIN, 0.0, "")));
    assert!(passes("not (score < 1 or score >= 1)", (0, f32::NAN, "")));
}

#[test]
fn the_canonical_text_has_no_needless_brackets() {
    for (text, canonical) in [
        ("((width>=64))and(lang==\"en\")", "width >= 64 and lang == 'en'"),
        ("(width and score) or width", "width and score or width"),
        ("width and (score or width)", "width and (score or width)"),
        ("(width - 1) - 2 == width - (1 - 2)", "width - 1 - 2 == width - (1 - 2)"),
        ("-(width + 1) * 2", "-(width + 1) * 2"),
        ("not(width)and not (width and score)", "not width and not (width and score)"),
        ("(width == 1) == (score == 1)", "(width == 1) == (score == 1)"),
        ("not lang in ('a',)", "lang not in ('a')"),
        ("lang not in ('a',)", "lang not in ('a')"),
        ("`width` + 1.50 > 1e3", "width + 1.5 > 1000.0"),
        ("min( width,2 )==len( tags )", "min(width, 2) == len(tags)"),
    ] {
        let measure = of(text).unwrap();
        assert_eq!(measure.to_string(), canonical);
    }
    // Neither the text nor its canonical form is too deep.
    let deep = format!("{}width not in (1,){}", "abs(".repeat(48), ")".repeat(48));
    let printed = of(&deep).unwrap().to_string();
    assert_eq!(of(&printed).unwrap().to_string(), printed);
    for deep in ["(", "-", "not ", "len(", "abs(", "width in ("] {
        assert!(wrong(&deep.repeat(100_000)).contains("50 deep"), "{deep}");
    }
    let long = format!("width{}", " + 1".repeat(400));
    assert_eq!(of(&long).unwrap().to_string(), long);
}

/// Returns the values of an expression over the column `a` in `compute` and in a filter.
fn both(text: &str, a: i64) -> [String; 2] {
    let compute = Expression::parse(text, Dialect::Compute).unwrap();
    let float = compute.root().values(&|node: &Node| match node {
        Node::Integer(integer) => vec![*integer as f64],
        Node::Number(number) => vec![*number],
        Node::Leaf(_) => vec![a as f64],
        _ => unreachable!("{node:?}"),
    });
    let filter = Expression::parse(text, Dialect::Filter).unwrap();
    let exact = filter.root().values(&|node: &Node| match node {
        Node::Integer(integer) => vec![value::Value::Integer(*integer)],
        Node::Number(number) => vec![value::Value::Float(*number)],
        Node::Leaf(_) => vec![value::Value::Integer(a)],
        _ => unreachable!("{node:?}"),
    });
    [format!("{:?}", float[0]), format!("{:?}", exact[0])]
}

#[test]
fn compute_is_in_float64_and_a_filter_exact() {
    let large = (1 << 53) + 1;
    for (text, a, compute, filter) in [
        ("not sqrt(-1)", 0, "0.0", "Integer(1)"),
        ("sqrt(-1) and 1", 0, "1.0", "Integer(0)"),
        ("sqrt(-1) or 0", 0, "1.0", "Integer(0)"),
        ("where(sqrt(-1), 5, 6)", 0, "5.0", "Integer(6)"),
        ("a == 9007199254740992", large, "1.0", "Integer(0)"),
        ("a * 1", large, "9007199254740992.0", "Integer(9007199254740993)"),
        ("a + 1", i64::MAX, "9.223372036854776e18", "Float(NaN)"),
        ("-a", i64::MIN, "9.223372036854776e18", "Float(NaN)"),
        ("abs(a)", i64::MIN, "9.223372036854776e18", "Float(NaN)"),
        ("a / 0", 1, "inf", "Float(NaN)"),
        ("a / 0", -1, "-inf", "Float(NaN)"),
        ("a / 2", 3, "1.5", "Float(1.5)"),
        ("-a", 0, "-0.0", "Integer(0)"),
        ("-(a < 0)", 2, "-0.0", "Integer(0)"),
        ("(a > 1) / (a < 0)", 2, "inf", "Float(NaN)"),
        ("sign(a) + floor(a)", -3, "-4.0", "Integer(-4)"),
        ("min(a, 2.5) * max(a, 2.5)", 2, "5.0", "Float(5.0)"),
        ("min(sqrt(-1), a)", 2, "NaN", "Float(NaN)"),
        // Of equal numbers the first one.
        ("min(0.0, -0.0)", 0, "0.0", "Float(0.0)"),
        ("min(-0.0, 0.0)", 0, "-0.0", "Float(-0.0)"),
        ("max(0.0, -0.0)", 0, "0.0", "Float(0.0)"),
        ("max(-0.0, 0.0)", 0, "-0.0", "Float(-0.0)"),
    ] {
        assert_eq!(both(text, a), [compute, filter], "{text} of {a}");
    }
    // A filter returns the operand, compute the quiet NaN.
    let of = |two, a: f64, b: f64| value::Value::Float(a).combine(two, value::Value::Float(b));
    for (a, b) in [(-f64::NAN, 1.0), (1.0, -f64::NAN), (-f64::NAN, f64::NAN)] {
        for two in [Two::Min, Two::Max] {
            assert_eq!(a.combine(two, b).to_bits(), f64::NAN.to_bits());
            let value::Value::Float(exact) = of(two, a, b) else { panic!("a float") };
            assert_eq!(exact.to_bits(), (-f64::NAN).to_bits());
        }
    }
}

#[test]
fn an_operator_makes_no_filter_deeper() {
    let parse = features();
    let operators: Vec<Operator> = serde_json::from_value(json!([
        {"output": "n", "operation": {"cast": {"input": "width", "dtype": "int8"}}},
    ]))
    .unwrap();
    let scope = Scope { operators: &operators, ..scope(&parse) };
    let deep = format!("{}width{}", "abs(".repeat(49), ")".repeat(49));
    let or = format!("({}width{} or width)", "abs(".repeat(48), ")".repeat(48));
    let too_deep = format!("abs({deep})");
    assert!(Measure::new(&too_deep, scope).unwrap_err().contains("50 deep"));
    for text in [
        deep.clone(),
        format!("{deep} and n > 0"),
        format!("n > 0 and {deep} and {or} and width > 0"),
        format!("(n > 0 and len(tags) == 3) and {deep} and (n < 100 and width == 64)"),
    ] {
        let measure = Measure::new(&text, scope).unwrap();
        let passes = |width| {
            let stored = record(width, 0.5, "en");
            measure.passes(&[row(&stored)], "train/a-1", None).unwrap()[0]
        };
        assert!(passes(64) && !passes(0), "{text}");
    }
    let first = format!("{deep} and n > 0");
    let joined = Measure::joined(&first, "width > 1 and len(tags) > len(lang)").unwrap();
    assert_eq!(joined, format!("{first} and (width > 1 and len(tags) > len(lang))"));
    Measure::new(&joined, scope).unwrap();
}

#[test]
fn what_does_not_fit_is_told() {
    let said = [
        "widht > 3",
        "lang > 3",
        "lang + 1",
        "lang",
        "box > 0",
        "tags == 'a'",
        "len(width) > 1",
        "len(box) > 1",
        "len(ordinal) > 1",
        "len(3) > 1",
        "len(len(tags)) > 1",
        "hash(score) > 1",
        "cos(width) > 1",
        "width in ()",
        "width in (1, 'a')",
        "width not in (1, 'a')",
        "where(lang, 1, 2)",
        "lang == 'en",
        "lang == '\\n'",
        "1e999 > width",
        "1 < width < 3",
        "width < 9223372036854775809",
    ]
    .map(|text| format!("{text}: {}\n", wrong(text)))
    .concat();
    expect_test::expect![[r#"
        widht > 3: there is no column `widht`; there are `width`, `score`, `lang`, `box`, `tags`, `points`, `ordinal`, `shard_path`
        lang > 3: `lang > 3` has a number and a text; they do not compare
        lang + 1: `lang + 1` needs numbers, but has a text
        lang: the expression is a text; compare it, such as `name == 'a'`
        box > 0: column `box` has shape [4]; an expression takes one value a record
        tags == 'a': column `tags` has any number of values a record; an expression takes its length, `len(tags)`, or a column of one value
        len(width) > 1: `len(width)` is not known: len takes one byte string, a VarLenFeature, a FixedLenSequenceFeature, a RaggedFeature without partitions or of uniform row lengths, or a feature list
        len(box) > 1: `len(box)` is not known: len takes one byte string, a VarLenFeature, a FixedLenSequenceFeature, a RaggedFeature without partitions or of uniform row lengths, or a feature list
        len(ordinal) > 1: `len(ordinal)` is not known: len takes one byte string, a VarLenFeature, a FixedLenSequenceFeature, a RaggedFeature without partitions or of uniform row lengths, or a feature list
        len(3) > 1: the expression needs a column at byte 4, but it has `3) > 1` there
        len(len(tags)) > 1: the expression needs a column at byte 4, but it has `len(tags)) >` there
        hash(score) > 1: `hash(score)` has a float; `hash` takes an integer or a text
        cos(width) > 1: the expression calls `cos` at byte 0; there are abs, exp, floor, hash, len, log, max, min, sign, sqrt, tanh and where
        width in (): the expression needs a number, a column or a function at byte 10, but it has `)` there
        width in (1, 'a'): `width in (1, 'a')` has a number and a text; they do not compare
        width not in (1, 'a'): `width not in (1, 'a')` has a number and a text; they do not compare
        where(lang, 1, 2): `where(lang, 1, 2)` needs numbers, but has a text
        lang == 'en: the expression needs a text between two quotes at byte 8, but it has `'en` there
        lang == '\n': the expression needs `\\`, `\'` or `\"` at byte 9, but it has `\n'` there
        1e999 > width: the expression has a number that float64 cannot hold
        1 < width < 3: the expression compares twice in a row before byte 11: write `a < b and b < c`
        width < 9223372036854775809: the expression needs an int64, or a float such as `1e19` at byte 8, but it has `922337203685` there
    "#]].assert_eq(&said);
}

#[test]
fn a_key_has_the_features_that_are_used() {
    let key = |text: &str| of(text).unwrap().key();
    assert_eq!(key("width>1"), key("(width > 1)"));
    assert_ne!(key("width > 1"), key("width > 2"));
    let fewer: ParseSpec = serde_json::from_value(json!([
        {"name": "width", "feature": {"fixed_len": {"dtype": "int64", "shape": []}}},
    ]))
    .unwrap();
    assert_eq!(Measure::new("width > 1", scope(&fewer)).unwrap().key(), key("width > 1"));
    let other: ParseSpec = serde_json::from_value(json!([
        {"name": "width", "feature": {"fixed_len": {"dtype": "float32", "shape": []}}},
    ]))
    .unwrap();
    assert_ne!(Measure::new("width > 1", scope(&other)).unwrap().key(), key("width > 1"));
    let depends = |text: &str| Measure::new(text, Scope::default()).unwrap().depends_on_path();
    assert!(depends("shard_path == 'a'") && !depends("len(record) > 3 and ordinal > 1"));
}

#[test]
fn a_damaged_record_is_an_error_also_if_no_feature_is_used() {
    let mut bytes = record(1, 1.0, "en");
    bytes[3] ^= 1;
    for text in ["width > 0", "ordinal > 0"] {
        let measure = of(text).unwrap();
        let error = measure.passes(&[row(&bytes)], "a", None).unwrap_err();
        assert!(matches!(error.fault, RowFault::Data(_)), "{text}");
    }
    let mut without = vec![];
    encode_example(&[("width", Value::Int64(&[1]))], &mut without);
    let crc = masked_crc32c(&without);
    without.extend(crc.to_le_bytes());
    let of = |text: &str| of(text).unwrap();
    assert_eq!(of("width > 0").passes(&[row(&without)], "a", None).unwrap(), [true]);
    let error = of("lang == ''").passes(&[row(&without)], "a", None).unwrap_err();
    assert!(matches!(error.fault, RowFault::Record(what) if what.contains("`lang`")));
    let raw = Measure::new("len(record) > 3", Scope::default()).unwrap();
    assert_eq!(raw.passes(&[row(&without)], "a", None).unwrap(), [true]);
}

/// Returns the cost of a record, or the error.
fn cost(text: &str, values: (i64, f32, &str)) -> Result<u64, String> {
    let measure = of(text).unwrap();
    let stored = record(values.0, values.1, values.2);
    match measure.costs(&[row(&stored)], "train/a-1", None) {
        Ok(costs) => Ok(costs[0]),
        Err(RowError { fault: RowFault::Record(what), .. }) => Err(what),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn costs_are_integers_or_floats() {
    let of = (7, 2.5, "de");
    for (text, integer) in [
        ("width", 7),
        ("width * width // 2", 24),
        ("len(tags) + ordinal", 10),
        ("where(width > 3, width, 0)", 7),
        ("min(width, 3) * (lang == 'de')", 3),
        ("not width", 0),
        ("width > 1 and score > 1", 1),
        ("9223372036854775807", i64::MAX as u64),
    ] {
        assert_eq!(cost(text, of), Ok(integer), "{text}");
    }
    for (text, float) in [
        ("score", 2.5),
        ("width / 2", 3.5),
        ("where(width > 3, width, 0.5)", 7.0),
        ("sqrt(4)", 2.0),
        ("max(width, score)", 7.0),
        ("0 * (0 - score)", 0.0),
    ] {
        assert_eq!(cost(text, of), Ok(f64::to_bits(float)), "{text}");
    }
    for (text, value) in [
        ("0 - width", "-7"),
        ("width // 0", "NaN"),
        ("9223372036854775807 + width", "NaN"),
        ("score / 0", "inf"),
        ("sqrt(0 - score)", "NaN"),
        ("1.5 - score", "-1"),
    ] {
        let what = format!(
            "the cost `{text}` is {value}; balance takes finite numbers that are not negative"
        );
        assert_eq!(cost(text, of), Err(what));
    }
    // The order of bits is that of numbers.
    let costs =
        ["0.0", "1e-300", "0.5", "1", "3", "1e300"].map(|text| cost(&format!("{text} + 0.0"), of));
    assert!(costs.is_sorted_by_key(|cost| cost.clone().unwrap()), "{costs:?}");
}

#[test]
fn keys_are_equal_for_equal_values() {
    let key = |text: &str, values: (i64, f32, &str)| {
        let measure = Measure::of_key(text, scope(&features())).unwrap();
        measure
            .keys(&[row(&record(values.0, values.1, values.2))], "train/a-1", None)
            .unwrap()
            .remove(0)
    };
    let (one, other) = ((7, 0.0, "de"), (8, -0.0, "de"));
    for (text, equal) in [
        ("lang", true),
        ("score", true),
        ("width", false),
        ("width // 10", true),
        ("width / 2 - width / 2", true),
        ("where(width > 7, 1.0, 1)", true),
        ("shard_path", true),
    ] {
        assert_eq!(key(text, one) == key(text, other), equal, "{text}");
    }
    assert_ne!(key("lang", one), key("lang", (7, 0.0, "d")));
    // A value that is no number equals none; the record of this test has the ordinal 7.
    let place = 7 * ROWS_MAX as u64;
    assert_eq!(key("score / 0", one), [&b"n"[..], &place.to_le_bytes()].concat());
}
