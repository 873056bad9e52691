//! `dataset write` of a CSV file.

use expect_test::expect;
use serde_json::json;
use shardfeed_tfrecord::example::{Value, encode_example};

use crate::fixture::{Place, records};

fn record(features: &[(&str, Value<'_>)]) -> Vec<u8> {
    let mut record = Vec::new();
    encode_example(features, &mut record);
    record
}

fn written(place: &Place) -> Vec<Vec<u8>> {
    let names = place.names("out");
    let mut all: Vec<_> =
        names.iter().flat_map(|name| records(&place.path("out").join(name))).collect();
    all.sort();
    all
}

fn check(csv: &str, mut expected: Vec<Vec<u8>>) {
    let place = Place::new();
    place.file("t.csv", csv);
    let told = place.json(&["dataset", "write", "t.csv", "out"]);
    assert_eq!(told["records"], expected.len());
    expected.sort();
    assert_eq!(written(&place), expected, "{csv:?}");
}

#[test]
fn each_column_has_the_narrowest_type_that_holds_it() {
    check(
        "i,f,b,e\n1,2,x,\n-9223372036854775808, 0.5,3,\n,1e-3,,\n",
        vec![
            record(&[
                ("i", Value::Int64(&[1])),
                ("f", Value::Float32(&[2.0])),
                ("b", Value::Bytes(&[b"x"])),
            ]),
            record(&[
                ("i", Value::Int64(&[i64::MIN])),
                ("f", Value::Float32(&[0.5])),
                ("b", Value::Bytes(&[b"3"])),
            ]),
            record(&[("f", Value::Float32(&[1e-3]))]),
        ],
    );
    // One more than the maximum int64.
    let too_large = "i\n1\n9223372036854775808\n";
    let floats = [1.0, 9_223_372_036_854_775_808.0];
    check(too_large, floats.iter().map(|f| record(&[("i", Value::Float32(&[*f]))])).collect());
}

#[test]
fn quotes_line_ends_and_byte_order_marks_are_understood() {
    let one = [b"a,\"b\"\r\nc".as_slice()];
    let expected = || {
        vec![
            record(&[("t", Value::Bytes(&one)), ("n", Value::Int64(&[1]))]),
            record(&[("t", Value::Bytes(&[b"d"])), ("n", Value::Int64(&[2]))]),
        ]
    };
    check("t,n\n\"a,\"\"b\"\"\r\nc\",1\nd,2\n", expected());
    check("\u{feff}t,n\r\n\"a,\"\"b\"\"\r\nc\",1\r\n\r\nd,2", expected());
}

#[test]
fn rows_are_found_again_in_any_order_and_size() {
    let place = Place::new();
    let mut csv = "id,text\r\n".to_owned();
    let mut expected = Vec::new();
    for id in 0..3_000 {
        let text = format!("line\n{}", "x".repeat(id as usize % 700));
        csv += &format!("{id},\"{text}\"\r\n");
        let bytes = [text.as_bytes()];
        expected.push(record(&[("id", Value::Int64(&[id])), ("text", Value::Bytes(&bytes))]));
    }
    place.file("t.csv", csv);
    let told = place.json(&["dataset", "write", "t.csv", "out", "--shard-bytes", "100KiB"]);
    let shards = told["shards"].as_array().unwrap();
    assert!(shards.len() > 10);
    let share = told["stream_bytes"].as_u64().unwrap() / shards.len() as u64;
    assert!((90_000..=102_400).contains(&share), "{share}");
    for shard in shards {
        // At most one record off.
        let bytes = shard["stream_bytes"].as_u64().unwrap();
        assert!(bytes.abs_diff(share) < 800, "{bytes}");
    }
    assert_eq!(told["stream_bytes"], told["stored_bytes"]);
    let in_order = written(&place);
    expected.sort();
    assert!(in_order == expected);
    // The records are shuffled, not only partitioned.
    let first = records(&place.path("out").join(&place.names("out")[0]));
    assert!(!first.is_sorted_by_key(|record| expected.binary_search(record)));
}

#[test]
fn the_result_is_told() {
    let place = Place::new();
    place.file("prices.csv", "a\n1\n2\n3\n");
    let told = place.ok(&["dataset", "write", "prices.csv", "out", "--shard-bytes", "40"]);
    expect![[r#"
        records  3
        shards   3
        size     90 bytes
        folder   $DIR/out
        files    prices-00000-of-00003.tfrecord to prices-00002-of-00003.tfrecord
    "#]]
    .assert_eq(&place.portable(&told));
    let found = place.json(&["dataset", "inspect", "out/*"]);
    let feature = json!([{"name": "a", "dtype": "int64", "count": 1, "bytes": 8}]);
    assert_eq!(found["first_record"]["features"], feature);
}

#[test]
fn tables_that_make_no_dataset_are_refused() {
    let refused = |csv: &str| {
        let place = Place::new();
        place.file("t.csv", csv);
        let text = place.fails(&["dataset", "write", "t.csv", "out"]);
        assert!(!place.path("out").exists(), "it is removed again");
        text
    };
    expect![[r#"
        exit 1
        error: t.csv: has no rows
        hint: the first row names the columns; records are the rows after it
    "#]]
    .assert_eq(&refused("a,b\n"));
    expect![[r#"
        exit 1
        error: t.csv: has no rows
        hint: the first row names the columns; records are the rows after it
    "#]]
    .assert_eq(&refused(""));
    expect![[r#"
        exit 1
        error: t.csv: line 3: has 3 cells, the first row has 2
        hint: give every row a cell for each column; a comma in a cell needs quotes around it
    "#]]
    .assert_eq(&refused("a,b\n1,2\n1,2,3\n"));
    expect![[r#"
        exit 1
        error: t.csv: column 3 is named `a`, as one before it
        hint: the first row must give each column a unique name
    "#]]
    .assert_eq(&refused("a,b,a\n1,2,3\n"));
    expect![[r#"
        exit 1
        error: t.csv: column 2 has no name
        hint: the first row must give each column a unique name
    "#]]
    .assert_eq(&refused("a,\n1,2\n"));
    let place = Place::new();
    place.file("t.csv", b"a,\xff\n1,2\n");
    expect![[r#"
        exit 1
        error: t.csv: column 2 has a name that is not UTF-8
        hint: the first row must give each column a unique name
    "#]]
    .assert_eq(&place.fails(&["dataset", "write", "t.csv", "out"]));
    place.file("t.csv", format!("a\n{}", "1\n".repeat(200_000)));
    expect![[r#"
        exit 2
        error: --shard-bytes 1 would make 200000 shards
        hint: use --shard-bytes 61 or more, for at most 99999
    "#]]
    .assert_eq(&place.fails(&["dataset", "write", "t.csv", "out", "--shard-bytes", "1"]));
}
