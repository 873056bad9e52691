//! `batch show`, by step and by record.

use std::collections::BTreeMap;
use std::time::Duration;

use expect_test::expect;
use serde_json::{Value, json};
use shardfeed_embedded::{Delivery, LoaderOptions};
use shardfeed_plan::Tail;

use crate::fixture::{Place, rows_of};

const COUNTS: [usize; 4] = [5, 0, 17, 9];
const RECORDS: usize = 31;
const SHOW: [&str; 3] = ["batch", "show", "*.tfrecord"];

/// Options of the tested orders.
const ORDERS: [&[&str]; 5] = [
    &["--world-size", "2", "--batch-size", "2", "--tail", "pad", "--epoch", "3"],
    &["--world-size", "3", "--batch-size", "2", "--lanes", "2", "--tail", "uneven"],
    &["--world-size", "2", "--batch-size", "4", "--seed", "9", "--shuffle-window", "4"],
    &["--batch-size", "3", "--limit", "20", "--no-shuffle"],
    &["--batch-size", "4", "--no-shuffle", "--interleave", "2", "--block-length", "3"],
];

fn show(place: &Place, order: &[&str], more: &[&str]) -> Value {
    place.json(&[&SHOW, order, more].concat())
}

/// (shard, ordinal, valid) of each row.
fn rows(batch: &Value) -> Vec<(String, u64, bool)> {
    let rows = batch["samples"].as_array().unwrap().iter().enumerate();
    rows.map(|(row, sample)| {
        assert_eq!(sample["row"], row);
        let shard = sample["shard"].as_str().unwrap().to_owned();
        (shard, sample["ordinal"].as_u64().unwrap(), sample["valid"] == true)
    })
    .collect()
}

#[test]
fn every_record_is_in_one_batch_and_found_there() {
    let place = Place::with_shards(&COUNTS);
    for order in ORDERS {
        let plan = place.json(&[&["plan", "show", "*.tfrecord"], order].concat());
        let number = |field: &str| plan[field].as_u64().unwrap();
        let mut delivered = BTreeMap::new();
        let mut padded = 0;
        for step in 0..number("steps") {
            for rank in 0..number("world_size") {
                let at = ["--step", &step.to_string(), "--rank", &rank.to_string()];
                if step >= number("rank_steps_min") {
                    // Not every rank has this step.
                    let ran = place.run(&[&SHOW, order, &at].concat());
                    if ran.stderr.contains("there is no step") {
                        continue;
                    }
                }
                let batch = show(&place, order, &at);
                for (row, (shard, ordinal, valid)) in rows(&batch).into_iter().enumerate() {
                    if valid {
                        let twice = delivered.insert((shard, ordinal), (step, rank, row));
                        assert_eq!(twice, None, "{order:?}");
                    } else {
                        padded += 1;
                    }
                }
            }
        }
        assert_eq!(padded, number("padded"), "{order:?}");
        let expected = RECORDS as u64 - number("dropped");
        assert_eq!(delivered.len() as u64, expected, "{order:?}");
        for (shard, &count) in COUNTS.iter().enumerate() {
            for ordinal in 0..count as u64 {
                let name = format!("s-{shard}.tfrecord");
                let found = show(&place, order, &["--find", &format!("{name}:{ordinal}")]);
                let expected = delivered.get(&(name, ordinal));
                let expected: Vec<_> =
                    expected.iter().map(|(step, rank, row)| json!([step, rank, row])).collect();
                let sample = |sample: &Value| json!(["step", "rank", "row"].map(|of| &sample[of]));
                let samples: Vec<_> =
                    found["samples"].as_array().unwrap().iter().map(sample).collect();
                assert_eq!(samples, expected, "{order:?}");
                assert_eq!(found["delivered"], !expected.is_empty());
            }
        }
    }
}

#[test]
fn says_what_the_loader_delivers() {
    let place = Place::with_shards(&COUNTS);
    for rank in 0..2 {
        let options = LoaderOptions {
            rank,
            world_size: 2,
            batch_size: 3,
            seed: 4,
            tail: Tail::Pad,
            ..place.loader("*.tfrecord")
        };
        let mut loader = shardfeed_embedded::open(options, &mut |_| true).unwrap();
        // Until the second epoch.
        for _ in 0..8 {
            let mut delivered = loop {
                match loader.next(Duration::from_secs(10)).unwrap() {
                    Delivery::Batch(delivered) => break delivered,
                    Delivery::EpochEnd { .. } | Delivery::Pending => {}
                }
            };
            let samples = rows_of(&mut delivered).into_iter();
            let samples = samples
                .map(|(shard, ordinal, valid)| (format!("s-{shard}.tfrecord"), ordinal, valid));
            let (epoch, step) = (delivered.epoch.to_string(), delivered.step.to_string());
            let rank = rank.to_string();
            let order = ["--world-size", "2", "--batch-size", "3", "--seed", "4", "--tail", "pad"];
            let at = ["--epoch", &epoch, "--step", &step, "--rank", &rank];
            assert_eq!(rows(&show(&place, &order, &at)), samples.collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_record_is_named_by_any_path_to_it() {
    let place = Place::with_shards(&COUNTS);
    let absolute = format!("{}:3", place.path("s-2.tfrecord").display());
    let found = ["s-2.tfrecord:3", "./s-2.tfrecord:3", &absolute]
        .map(|name| show(&place, &[], &["--find", name]));
    assert!(found.iter().all(|other| *other == found[0]));
    assert_eq!(found[0]["shard"], "s-2.tfrecord");
}

#[test]
fn the_tables_say_it_for_people() {
    let place = Place::with_shards(&COUNTS);
    let order = ["--no-shuffle", "--batch-size", "4", "--tail", "pad"];
    let batch = place.ok(&[&SHOW[..], &order, &["--step", "7"]].concat());
    expect![[r#"
        ROW  SHARD         ORDINAL  VALID
          0  s-3.tfrecord        6  yes
          1  s-3.tfrecord        7  yes
          2  s-3.tfrecord        8  yes
          3  s-0.tfrecord        0  no
    "#]]
    .assert_eq(&batch);
    let found = place.ok(&[&SHOW[..], &order, &["--find", "s-3.tfrecord:8"]].concat());
    expect![[r#"
        record  s-3.tfrecord:8
        epoch   0
        step    7
        rank    0 of 1
        row     2
    "#]]
    .assert_eq(&found);
    let order = ["--no-shuffle", "--batch-size", "4", "--find", "s-3.tfrecord:8"];
    let dropped = place.ok(&[&SHOW[..], &order].concat());
    expect![[r#"
        record     s-3.tfrecord:8
        epoch      0
        delivered  no, this epoch leaves it out
    "#]]
    .assert_eq(&dropped);
}
