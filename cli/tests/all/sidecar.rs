//! Use of `.idx` files and `dataset_info.json` beside shards.

use std::fs;

use expect_test::expect;
use serde_json::json;

use crate::fixture::Place;

/// Shards of 3, 4 and 5 records, named as TFDS names them, with an index of the first.
fn place() -> Place {
    let place = Place::with_shards(&[3, 4, 5]);
    for shard in 0..3 {
        let new = place.path(&name(shard));
        fs::rename(place.path(&format!("s-{shard}.tfrecord")), new).unwrap();
    }
    // A record is `record N of M`: 13 bytes, and framing adds 16.
    place.file(&format!("{}.idx", name(0)), "0 29\n29 29\n58 29\n");
    place.file("dataset_info.json", info(["3", "4", "5"]));
    place
}

fn name(shard: usize) -> String {
    format!("d-train.tfrecord-0000{shard}-of-00003")
}

fn info(lengths: [&str; 3]) -> String {
    json!({
        "name": "d",
        "fileFormat": "tfrecord",
        "splits": [{"name": "train", "shardLengths": lengths}],
    })
    .to_string()
}

const FILES: &str = "d-train.tfrecord-*-of-00003";

#[test]
fn numbers_are_known_without_a_scan() {
    let place = place();
    let told = place.ok(&["dataset", "inspect", "--unscanned", FILES]);
    expect![[r#"
        root            $DIR
        shards          3
        records         12, as is said beside them
        stored          348 bytes
        content digest  not known without a scan

        SHARD                            RECORDS  STORED BYTES  SAID BY
        d-train.tfrecord-00000-of-00003        3            87  d-train.tfrecord-00000-of-00003.idx, dataset_info.json
        d-train.tfrecord-00001-of-00003        4           116  dataset_info.json
        d-train.tfrecord-00002-of-00003        5           145  dataset_info.json
    "#]].assert_eq(&place.portable(&told));
    assert!(!place.path("cache").exists());
    let found = place.json(&["dataset", "inspect", "--unscanned", FILES]);
    assert_eq!((&found["records"], &found["sidecar_faults"]), (&json!(12), &json!([])));
    // Missing information stays unknown.
    fs::remove_file(place.path("dataset_info.json")).unwrap();
    let found = place.json(&["dataset", "inspect", "--unscanned", FILES]);
    assert_eq!((&found["records"], &found["shards"][0]["records"]), (&json!(null), &json!(3)));
    let told = place.ok(&["dataset", "inspect", "--unscanned", FILES]);
    assert!(told.contains("records         not known: 3 of 1 shard\n"), "{told}");
}

#[test]
fn what_agrees_with_the_shards_is_not_mentioned() {
    let place = place();
    let found = place.json(&["dataset", "inspect", FILES]);
    assert_eq!((&found["records"], &found["sidecar_faults"]), (&json!(12), &json!([])));
    let found = place.json(&["dataset", "verify", FILES]);
    assert_eq!(found["sidecar_faults"], json!([]));
}

#[test]
fn a_shard_that_ends_too_early_between_two_records_is_found() {
    let place = place();
    place.truncate(&name(1), 3 * 29);
    // The file alone looks complete, and its content is used.
    let ran = place.run(&["dataset", "inspect", FILES]);
    assert_eq!(ran.code, 0);
    assert!(ran.stdout.contains("records         11\n"), "{}", ran.stdout);
    let note = "note: $DIR/dataset_info.json says 4 records of d-train.tfrecord-00001-of-00003, which has 3\n";
    assert!(place.portable(&ran.stdout).ends_with(note), "{}", ran.stdout);
    assert!(ran.stderr.contains("says 4 records"), "{}", ran.stderr);
    // The scan is cached, so stderr is empty; the note is repeated.
    let again = place.run(&["dataset", "inspect", FILES]);
    assert!(again.stderr.is_empty() && place.portable(&again.stdout).ends_with(note));
    let ran = place.run(&["dataset", "verify", FILES]);
    assert_eq!(ran.code, 1);
    assert!(place.portable(&ran.stdout).ends_with(note), "{}", ran.stdout);
    expect![[r#"
        error: no damage, but the metadata beside the files contradicts them: 1 fault
        hint: a file may end too early, between two records: copy it again from its source; or regenerate the .idx files
    "#]].assert_eq(&ran.stderr);
}

#[test]
fn an_index_of_another_file_is_a_fault_and_counts_for_nothing() {
    let place = place();
    place.file(&format!("{}.idx", name(0)), "0 29\n29 29\n");
    let found = place.json(&["dataset", "inspect", "--unscanned", FILES]);
    // The other file shows which number is correct.
    assert_eq!(found["records"], 12);
    let fault = &found["sidecar_faults"][0];
    assert_eq!(fault["file"], place.path(&format!("{}.idx", name(0))).to_str().unwrap());
    assert_eq!(
        fault["what"],
        "the frames end at byte 58, but the shard has 87 bytes: it is of another file, or of this one as it was once"
    );
    assert_eq!(place.run(&["dataset", "verify", FILES]).code, 1);
    // The index has the right size, but wrong frames.
    place.file(&format!("{}.idx", name(0)), "0 30\n30 28\n58 29\n");
    let found = place.json(&["dataset", "inspect", "--unscanned", FILES]);
    assert_eq!(
        found["sidecar_faults"][0]["what"],
        "no frame of 30 bytes is at byte 0 of the shard"
    );
}

#[test]
fn shards_of_a_split_that_are_not_there_are_named() {
    let place = place();
    fs::remove_file(place.path(&name(2))).unwrap();
    let found = place.run(&["dataset", "verify", FILES]);
    assert_eq!(found.code, 1);
    let said =
        "names files of the split `train` that are not there: d-train.tfrecord-00002-of-00003";
    assert!(found.stdout.contains(said), "{}", found.stdout);
    // If only some of the existing files are read, there is no note.
    let place = self::place();
    place.ok(&["dataset", "verify", &name(1)]);
}

#[test]
fn files_of_others_with_these_names_are_passed_over() {
    let place = Place::with_shards(&[2]);
    place.file("dataset_info.json", "{\"splits\": {\"train\": {\"num_examples\": 7}}}");
    let found = place.json(&["dataset", "verify", "s-0.tfrecord"]);
    assert_eq!(found["sidecar_faults"], json!([]));
}
