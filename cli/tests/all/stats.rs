//! `dataset stats`.

use expect_test::expect;
use serde_json::json;
use shardfeed_tfrecord::Compression;
use shardfeed_tfrecord::example::{Value, encode_example};

use crate::fixture::{Place, strings};

/// Record `index` of a small dataset: one in four has no score.
fn example(index: i64) -> Vec<u8> {
    let mut record = Vec::new();
    let text = "x".repeat(index as usize % 100);
    let label = [index % 3];
    let tokens: Vec<_> = (0..index % 5).collect();
    let class = [["cat", "dog"][index as usize % 2].as_bytes()];
    let text = [text.as_bytes()];
    let score = [index as f32 / 2.0];
    let mut features = vec![
        ("label", Value::Int64(&label)),
        ("tokens", Value::Int64(&tokens)),
        ("class", Value::Bytes(&class)),
        ("text", Value::Bytes(&text)),
    ];
    if index % 4 != 0 {
        features.push(("score", Value::Float32(&score)));
    }
    encode_example(&features, &mut record);
    record
}

/// 400 records in four shards, one of them compressed.
fn place() -> Place {
    let place = Place::new();
    for shard in 0..4 {
        let records: Vec<_> = (shard * 100..shard * 100 + 100).map(example).collect();
        let compression = if shard == 3 { Compression::Gzip } else { Compression::None };
        place.shard(&format!("s-{shard}.tfrecord"), compression, &records);
    }
    place
}

#[test]
fn json_holds_every_figure() {
    let found = place().json(&["dataset", "stats", "*.tfrecord"]);
    let sizes: Vec<_> = (0..400).map(|index| example(index).len() as u64).collect();
    let bytes: u64 = sizes.iter().sum();
    assert_eq!((&found["records"], &found["examples"]), (&json!(400), &json!(400)));
    assert_eq!(found["data_bytes"], bytes);
    assert_eq!(found["record_bytes"]["min"], *sizes.iter().min().unwrap());
    assert_eq!(found["record_bytes"]["max"], *sizes.iter().max().unwrap());
    assert_eq!(found["record_bytes"]["mean"], bytes as f64 / 400.0);
    let mut sorted = sizes;
    sorted.sort_unstable();
    // Sizes of records with fewer than 256 bytes are exact.
    assert_eq!(found["record_bytes"]["p50"], sorted[199]);
    assert_eq!(found["record_bytes"]["p99"], sorted[395]);
    assert_eq!(found["shard_records"], json!({"min": 100, "mean": 100.0, "max": 100}));
    let features = &found["features"];
    assert_eq!(strings(features, "name"), ["class", "label", "score", "text", "tokens"]);
    assert_eq!(strings(features, "dtype"), ["bytes", "int64", "float32", "bytes", "int64"]);
    assert_eq!(
        strings(features, "suggested"),
        [
            "FixedLenFeature((), \"string\")",
            "FixedLenFeature((), \"int64\")",
            "VarLenFeature(\"float32\")",
            "FixedLenFeature((), \"string\")",
            "VarLenFeature(\"int64\")"
        ]
    );
    assert_eq!(
        features[0]["labels"],
        json!([{"value": "cat", "count": 200}, {"value": "dog", "count": 200}])
    );
    assert_eq!(
        (&features[1]["distinct"], &features[1]["labels"][0]["count"]),
        (&json!(3), &json!(134))
    );
    assert_eq!(features[2]["records"], 300);
    assert_eq!(features[2]["range"], json!({"min": 0.5, "mean": 100.0, "max": 199.5}));
    assert_eq!(features[2]["distinct_unknown"], "float32");
    assert_eq!(features[3]["lengths"], json!({"min": 0, "mean": 49.5, "max": 99}));
    assert_eq!(
        (&features[3]["distinct"], &features[3]["distinct_unknown"]),
        (&json!(null), &json!("too_long"))
    );
    assert_eq!(features[4]["values"], json!({"min": 0, "mean": 2.0, "max": 4}));
    assert_eq!(strings(&found["findings"], "kind"), ["compression_mixed"]);
}

#[test]
fn the_table_says_it_for_people() {
    let place = place();
    let table =
        place.portable(&place.ok(&["dataset", "stats", "s-[012].tfrecord", "--world-size", "4"]));
    expect![[r#"
        root           $DIR
        shards         3
        records        300
        stored         44,358 bytes (44.36 kB)
        record data    39,558 bytes (39.56 kB)
        record bytes   64 to 189, mean 131.86, p50 132, p99 187
        shard records  100, mean 100
        shard size     14.79 kB to 14.79 kB, mean 14.79 kB

        FEATURE  DTYPE    RECORDS  VALUES          RANGE  DISTINCT
        class    bytes        300       1        3 bytes         2
        label    int64        300       1         0 to 2         3
        score    float32      225       1   0.5 to 149.5         -
        text     bytes        300       1  0 to 99 bytes         -
        tokens   int64        300  0 to 4         0 to 3         4

        values of class: `cat` 150x, `dog` 150x
        values of label: 0 100x, 1 100x, 2 100x
        values of tokens: 0 240x, 1 180x, 2 120x, 3 60x

        note: 3 shards for 4 ranks
        hint: ranks share shards and read them at offsets; write 4 or more if storage is bound to one file, or if other readers distribute whole files
    "#]].assert_eq(&table);
    let wide = place.ok(&["dataset", "stats", "s-0.tfrecord", "-o", "wide"]);
    assert!(wide.contains("SUGGESTED") && wide.contains("VarLenFeature(\"float32\")"), "{wide}");
}

#[test]
fn the_figures_do_not_depend_on_threads() {
    let place = place();
    let run = |threads: &str| {
        let mut command = place.command(&["dataset", "stats", "*.tfrecord", "-o", "json"]);
        let output = command.env("RAYON_NUM_THREADS", threads).output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    let one = run("1");
    assert!(!one.is_empty());
    assert!(one == run("2") && one == run("7"));
}

#[test]
fn a_damaged_record_is_named_with_its_place() {
    let place = place();
    let at = 16 + example(0).len() + 12;
    place.damage("s-0.tfrecord", at);
    expect![[r#"
        exit 1
        error: $DIR/s-0.tfrecord: corrupt record: its 87 bytes do not match their checksum (stored 0xbee2f786, computed 0x75f5447a), in record 1 at byte 80
        hint: copy the file again from its source; the records after this one are readable; `shardfeed dataset verify` lists all that is damaged
    "#]].assert_eq(&place.fails(&["dataset", "stats", "s-0.tfrecord"]));
    place.truncate("s-1.tfrecord", 1_000);
    // The first file is reported, regardless of the order in which they are read.
    for _ in 0..5 {
        assert!(
            place.fails(&["dataset", "stats", "*.tfrecord"]).contains("$DIR/s-0.tfrecord: corrupt")
        );
    }
}

#[test]
fn records_that_are_no_examples_are_counted() {
    let place = Place::with_shards(&[3, 0]);
    let found = place.json(&["dataset", "stats", "*.tfrecord"]);
    assert_eq!((&found["records"], &found["examples"]), (&json!(3), &json!(0)));
    assert_eq!(found["features"], json!([]));
    assert_eq!(strings(&found["findings"], "kind"), ["shards_empty"]);
    let nothing = place.json(&["dataset", "stats", "s-1.tfrecord"]);
    assert_eq!((&nothing["records"], &nothing["record_bytes"]), (&json!(0), &json!(null)));
}

#[test]
fn names_and_values_cannot_command_the_terminal() {
    let place = Place::new();
    let mut records = [Vec::new(), Vec::new()];
    encode_example(&[("\u{1b}[2Jx", Value::Bytes(&[b"\x1b[1m"]))], &mut records[0]);
    encode_example(&[("\u{1b}[2Jx", Value::Bytes(&[b"b"]))], &mut records[1]);
    place.shard("a.tfrecord", Compression::None, &records);
    let table = place.ok(&["dataset", "stats", "a.tfrecord"]);
    assert!(!table.contains('\u{1b}') && table.contains("values of \\u{1b}[2Jx: "), "{table}");
}

#[test]
fn ranks_are_at_least_one() {
    let told = place().fails(&["dataset", "stats", "*.tfrecord", "--world-size", "0"]);
    assert!(told.starts_with("exit 2\n") && told.contains("--world-size"), "{told}");
}
