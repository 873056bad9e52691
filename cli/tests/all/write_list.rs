//! `dataset write` of a list of files.

use std::fs;

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

#[test]
fn every_line_is_a_record_with_its_label() {
    let place = Place::new();
    for name in ["a", "b c"] {
        place.file(&format!("in/{name}"), format!("<{name}>"));
    }
    place.file("in/list.txt", "a 7\nb c -1\na 8\n");
    let told = place.json(&["dataset", "write", "in/list.txt", "out"]);
    assert_eq!((&told["records"], &told["classes"]), (&json!(3), &json!(null)));
    let entry = |path: &str, label| {
        let data = format!("<{path}>");
        record(&[
            ("data", Value::Bytes(&[data.as_bytes()])),
            ("path", Value::Bytes(&[path.as_bytes()])),
            ("label", Value::Int64(&[label])),
        ])
    };
    let mut expected = [entry("a", 7), entry("b c", -1), entry("a", 8)];
    expected.sort();
    assert_eq!(written(&place), expected);
}

#[test]
fn names_behind_tabs_are_classes() {
    let place = Place::new();
    place.file("a", "1");
    place.file("list.txt", format!("a\tdog\n{}\tcat\n", place.path("a").display()));
    let told = place.json(&["dataset", "write", "list.txt", "out"]);
    assert_eq!(told["classes"], json!({"first_label": 0, "names": ["cat", "dog"]}));
    let mut features = vec![("data", Value::Bytes(&[b"1"])), ("path", Value::Bytes(&[b"a"]))];
    features.push(("class", Value::Bytes(&[b"dog"])));
    features.push(("label", Value::Int64(&[1])));
    assert!(written(&place).contains(&record(&features)));
}

#[test]
fn lists_that_make_no_dataset_are_refused() {
    let place = || {
        let place = Place::new();
        place.file("in/a.png", "a");
        place.file("in/more/b.png", "b");
        place
    };
    let refused = |list: &str| {
        let place = place();
        place.file("in/list.txt", list);
        place.fails(&["dataset", "write", "in/list.txt", "out"])
    };
    expect![[r#"
        exit 1
        error: in/list.txt: names no files
        hint: write one path a line, and behind it nothing, or in every line a label; behind a tab any text is one
    "#]].assert_eq(&refused("\n"));
    expect![[r#"
        exit 1
        error: in/list.txt: line 2: has no label, as line 1 has
        hint: write one path a line, and behind it nothing, or in every line a label; behind a tab any text is one
    "#]].assert_eq(&refused("a.png 1\nmore/b.png\n"));
    expect![[r#"
        exit 1
        error: in/list.txt: line 2: cannot read in/none.png
          cause: No such file or directory (os error 2)
        hint: check the path
    "#]]
    .assert_eq(&refused("a.png\nnone.png\n"));
    expect![[r#"
        exit 1
        error: in/list.txt: line 2: has no path before its label
        hint: write one path a line, and behind it nothing, or in every line a label; behind a tab any text is one
    "#]].assert_eq(&refused("a.png\t1\n\t2\n"));
    // A list one byte longer than the maximum, as a sparse file.
    let place = place();
    fs::File::create(place.path("in/list.txt")).unwrap().set_len((1 << 30) + 1).unwrap();
    expect![[r#"
        exit 1
        error: in/list.txt: more than 1073741824 bytes
        hint: write the list in parts
    "#]]
    .assert_eq(&place.fails(&["dataset", "write", "in/list.txt", "out"]));
    expect![[r#"
        exit 1
        error: in/list.txt: line 1: in/more is a folder
        hint: write the paths of its files
    "#]]
    .assert_eq(&refused("more\n"));
}
