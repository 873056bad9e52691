//! `dataset inspect`.

use expect_test::expect;
use serde_json::json;
use shardfeed_tfrecord::Compression;
use shardfeed_tfrecord::example::{Value, encode_example};

use crate::fixture::{Place, strings};

fn example() -> Vec<u8> {
    let mut record = Vec::new();
    let features = [
        ("text", Value::Bytes(&[b"abc", b"de"])),
        ("label", Value::Int64(&[3])),
        ("score", Value::Float32(&[0.5, 1.5])),
    ];
    encode_example(&features, &mut record);
    record
}

#[test]
fn json_holds_everything() {
    let place = Place::new();
    place.shard("b.tfrecord.gz", Compression::Gzip, &[example(), example()]);
    place.shard("a.tfrecord", Compression::None, &[""; 0]);
    let found = place.json(&["dataset", "inspect", "*.tfrecord*"]);
    assert_eq!(found["root"], place.path("").to_str().unwrap().trim_end_matches('/'));
    assert_eq!((&found["shard_count"], &found["records"]), (&json!(2), &json!(2)));
    assert_eq!(found["data_bytes"], 2 * example().len());
    assert_eq!(found["compression"], "mixed");
    assert_eq!(found["content_digest"].as_str().unwrap().len(), 64);
    assert_eq!(strings(&found["shards"], "path"), ["a.tfrecord", "b.tfrecord.gz"]);
    assert_eq!(strings(&found["shards"], "compression"), ["none", "gzip"]);
    let stored = std::fs::metadata(place.path("b.tfrecord.gz")).unwrap().len();
    assert_eq!(found["shards"][1]["stored_bytes"], stored);
    assert_eq!(found["stored_bytes"], stored);
    assert_eq!(
        found["first_record"],
        json!({
            "shard": "b.tfrecord.gz",
            "bytes": example().len(),
            "features": [
                {"name": "label", "dtype": "int64", "count": 1, "bytes": 8},
                {"name": "score", "dtype": "float32", "count": 2, "bytes": 8},
                {"name": "text", "dtype": "bytes", "count": 2, "bytes": 5},
            ],
        })
    );
}

#[test]
fn the_table_says_it_for_people() {
    let place = Place::new();
    place.shard("a.tfrecord", Compression::None, &[example(), example()]);
    let table = place.portable(&place.ok(&["dataset", "inspect", "a.tfrecord"]));
    expect![[r#"
        root            $DIR
        shards          1
        records         2
        stored          156 bytes
        record data     124 bytes
        compression     none
        content digest  6cb6df74195d037b882c3e4f08db6914c0763a164001e0c169734f29bc0a5e5d

        SHARD       RECORDS  STORED BYTES  COMPRESSION
        a.tfrecord        2           156  none

        first record, 62 bytes, of a.tfrecord: an Example

        FEATURE  DTYPE    COUNT  BYTES
        label    int64        1      8
        score    float32      2      8
        text     bytes        2      5
    "#]]
    .assert_eq(&table);
}

#[test]
fn a_long_list_is_cut_unless_asked() {
    let place = Place::with_shards(&[1; 25]);
    let shown = |args: &[&str]| place.ok(&[&["dataset", "inspect", "*.tfrecord"], args].concat());
    let (short, long) = (shown(&[]), shown(&["--all"]));
    assert_eq!(short.matches(".tfrecord  ").count(), 20, "{short}");
    assert!(short.contains("… and 5 more shards (--all shows them)"), "{short}");
    assert_eq!(long.matches(".tfrecord  ").count(), 25, "{long}");
    let found = place.json(&["dataset", "inspect", "*.tfrecord"]);
    assert_eq!(found["shards"].as_array().unwrap().len(), 25);
}

#[test]
fn records_that_are_no_examples_are_told() {
    let place = Place::with_shards(&[1]);
    let table = place.ok(&["dataset", "inspect", "s-0.tfrecord"]);
    assert!(table.contains("of s-0.tfrecord: not an Example\n"), "{table}");
    let found = place.json(&["dataset", "inspect", "s-0.tfrecord"]);
    assert_eq!(found["first_record"]["features"], json!(null));
}

#[test]
fn a_dataset_without_records_is_one() {
    let place = Place::with_shards(&[0, 0]);
    let found = place.json(&["dataset", "inspect", "*.tfrecord"]);
    assert_eq!((&found["records"], &found["first_record"]), (&json!(0), &json!(null)));
}

#[test]
fn indexes_are_kept_unless_told_not_to() {
    let place = Place::with_shards(&[3]);
    place.ok(&["dataset", "inspect", "--no-cache", "*.tfrecord"]);
    assert!(!place.path("cache").exists());
    let first = place.ok(&["dataset", "inspect", "*.tfrecord"]);
    assert!(place.path("cache").exists());
    assert_eq!(place.ok(&["dataset", "inspect", "*.tfrecord"]), first);
}

#[test]
fn a_damaged_first_record_hides_nothing_else() {
    let place = Place::with_shards(&[3]);
    place.damage("s-0.tfrecord", 14);
    let ran = place.run(&["dataset", "inspect", "*.tfrecord"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("records         3"), "{}", ran.stdout);
    expect![[r#"
        error: $DIR/s-0.tfrecord: corrupt record: its 13 bytes do not match their checksum (stored 0xca026da5, computed 0x734ad5cf), in record 0 at byte 0
        hint: copy the file again from its source; the records after this one are readable; `shardfeed dataset verify` lists all that is damaged
    "#]]
    .assert_eq(&place.portable(&ran.stderr));
}

#[test]
fn names_from_files_cannot_command_the_terminal() {
    let place = Place::new();
    let mut record = Vec::new();
    encode_example(&[("\u{1b}[2Jx", Value::Int64(&[3]))], &mut record);
    place.shard("a.tfrecord", Compression::None, &[record]);
    let table = place.ok(&["dataset", "inspect", "a.tfrecord"]);
    assert!(!table.contains('\u{1b}') && table.contains("\\u{1b}[2Jx"), "{table}");
}
