//! `dataset verify`.

use std::fs;

use expect_test::expect;
use serde_json::{Value, json};
use shardfeed_tfrecord::Compression;

use crate::fixture::Place;

/// Size of a record with framing, bytes: 84 bytes of data.
const FRAME: usize = 100;

fn place(files: usize, records: usize) -> Place {
    let place = Place::new();
    for file in 0..files {
        let data: Vec<_> = (0..records).map(|i| format!("{file} {i:>82}")).collect();
        place.shard(&format!("f-{file}.tfrecord"), Compression::None, &data);
    }
    place
}

/// Runs a command that must find damage; returns the JSON and stderr.
fn damaged(place: &Place, args: &[&str]) -> (Value, String) {
    let ran = place.run(&[&["dataset", "verify", "-o", "json"], args].concat());
    assert_eq!(ran.code, 1);
    (serde_json::from_str(&ran.stdout).unwrap(), place.portable(&ran.stderr))
}

fn places(file: &Value) -> Vec<(u64, u64, &str)> {
    let damage = file["damage"].as_array().unwrap().iter();
    damage
        .map(|damage| {
            let number = |field: &str| damage[field].as_u64().unwrap();
            (number("ordinal"), number("offset"), damage["kind"].as_str().unwrap())
        })
        .collect()
}

#[test]
fn a_whole_dataset_is_said_to_be_whole() {
    let place = place(3, 50);
    let found = place.json(&["dataset", "verify", "*.tfrecord"]);
    assert_eq!((&found["file_count"], &found["files_damaged"]), (&json!(3), &json!(0)));
    assert_eq!((&found["records_ok"], &found["records_damaged"]), (&json!(150), &json!(0)));
    assert_eq!(found["stored_bytes"], 150 * FRAME);
    assert!(found["files"].as_array().unwrap().iter().all(|file| file["complete"] == true));
    assert!(!place.path("cache").exists(), "it must not use the cache");
}

#[test]
fn finds_exactly_the_records_that_were_damaged() {
    let place = place(4, 30_000);
    let hit = [(1, vec![0, 7, 8, 29_999]), (3, (0..30_000).step_by(997).collect::<Vec<_>>())];
    for (file, records) in &hit {
        for record in records {
            // The data, or its checksum.
            let at = if record % 2 == 0 { 40 } else { FRAME - 1 };
            place.damage(&format!("f-{file}.tfrecord"), record * FRAME + at);
        }
    }
    let (found, stderr) = damaged(&place, &["*.tfrecord"]);
    for (file, records) in &hit {
        let expected: Vec<_> =
            records.iter().map(|&r| (r as u64, (r * FRAME) as u64, "data")).collect();
        assert_eq!(places(&found["files"][file]), expected);
        assert_eq!(found["files"][file]["records_ok"], 30_000 - records.len());
        assert_eq!(found["files"][file]["complete"], true);
    }
    assert_eq!(found["files_damaged"], 2);
    assert_eq!(found["records_damaged"], hit[0].1.len() + hit[1].1.len());
    assert_eq!(found["files"][0]["damage"], json!([]));
    expect![[r#"
        error: 2 of 4 files damaged or unreadable, with 35 damaged records found
        hint: copy these files again from their source, or rewrite them
    "#]]
    .assert_eq(&stderr);
}

#[test]
fn what_ends_a_file_ends_only_that_file() {
    let place = place(5, 10);
    place.damage("f-0.tfrecord", 3 * FRAME + 2); // The length of record 3.
    place.truncate("f-1.tfrecord", 5 * FRAME + 6);
    place.truncate("f-2.tfrecord", 5 * FRAME + 50);
    place.file("f-3.tfrecord", "this was never a TFRecord file");
    let (found, _) = damaged(&place, &["*.tfrecord"]);
    let file = |index: usize| {
        let file = &found["files"][index];
        (file["records_ok"].as_u64().unwrap(), places(file), file["complete"] == true)
    };
    assert_eq!(file(0), (3, vec![(3, 300, "length")], false));
    assert_eq!(file(1), (5, vec![(5, 500, "truncated")], false));
    assert_eq!(file(2), (5, vec![(5, 500, "truncated")], false));
    assert_eq!(file(3), (0, vec![(0, 0, "not_a_tfrecord")], false));
    assert_eq!(file(4), (10, vec![], true));
}

#[test]
fn compressed_files_are_read_to_the_last_byte() {
    let place = Place::new();
    let data: Vec<_> = (0..500_u32).map(|i| i.wrapping_mul(2_654_435_761).to_string()).collect();
    for (name, scheme) in [("a.gz", Compression::Gzip), ("b.zlib", Compression::Zlib)] {
        place.shard(name, scheme, &data);
        let found = place.json(&["dataset", "verify", name]);
        assert_eq!((&found["records_ok"], &found["files_damaged"]), (&json!(500), &json!(0)));
        assert_eq!(found["files"][0]["compression"], scheme.to_string());
    }
    let len = fs::metadata(place.path("a.gz")).unwrap().len() as usize;
    place.truncate("a.gz", len - 4);
    let (found, _) = damaged(&place, &["a.gz", "b.zlib"]);
    assert_eq!(places(&found["files"][0]).len(), 1);
    assert_eq!(found["files"][0]["damage"][0]["kind"], "decompress");
    assert_eq!(found["files_damaged"], 1);
}

#[test]
fn a_file_that_cannot_be_read_is_no_damaged_record() {
    let place = place(2, 3);
    place.damage("f-0.tfrecord", 20);
    std::os::unix::fs::symlink("nowhere", place.path("f-2.tfrecord")).unwrap();
    let (found, _) = damaged(&place, &["*.tfrecord"]);
    assert_eq!((&found["files_damaged"], &found["records_damaged"]), (&json!(2), &json!(1)));
    assert_eq!(found["files"][2]["damage"][0]["kind"], "unreadable");
    assert_eq!(found["files"][2]["compression"], json!(null));
}

#[test]
fn the_table_says_it_for_people() {
    let place = place(2, 10);
    place.damage("f-1.tfrecord", 4 * FRAME + 30);
    let ran = place.run(&["dataset", "verify", "f-0.tfrecord", "f-1.tfrecord"]);
    expect![[r#"
        root             $DIR
        files            2
        files damaged    1
        records ok       19
        records damaged  1
        stored           2,000 bytes (2.00 kB)

        FILE          OK  DAMAGED  STORED BYTES  READ
        f-0.tfrecord  10        0          1000  whole
        f-1.tfrecord   9        1          1000  whole

        DAMAGED FILE  RECORD  OFFSET  REASON
        f-1.tfrecord       4     400  corrupt record: its 84 bytes do not match their checksum (stored 0xc66ff677, computed 0xeeb98bbe)
    "#]]
    .assert_eq(&place.portable(&ran.stdout));
}

#[test]
fn damaged_files_are_shown_among_many_good_ones() {
    let place = Place::with_shards(&[1; 30]);
    place.damage("s-9.tfrecord", 14); // The last file by name.
    let ran = place.run(&["dataset", "verify", "*.tfrecord"]);
    assert!(ran.stdout.contains("… and 9 more good files"), "{}", ran.stdout);
    assert!(ran.stdout.contains("\ns-9.tfrecord    0        1"), "{}", ran.stdout);
}

#[test]
fn a_list_of_whole_files_cannot_hold_a_name_of_two_lines() {
    let place = place(1, 3);
    fs::copy(place.path("f-0.tfrecord"), place.path("two\nlines.tfrecord")).unwrap();
    let ran = place.run(&["dataset", "verify", "--exclude", "whole.txt", "*.tfrecord"]);
    expect![[r#"
        exit 1
        error: write whole.txt
          cause: "$DIR/two\nlines.tfrecord" has an end of line in its name
        hint: rename it: the list has a path a line
    "#]]
    .assert_eq(&format!("exit {}\n{}", ran.code, place.portable(&ran.stderr)));
    assert_eq!(place.names(".").iter().filter(|name| *name == "whole.txt").count(), 0);
}
