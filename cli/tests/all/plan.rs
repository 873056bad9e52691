//! `plan show`.

use std::collections::BTreeSet;

use expect_test::expect;
use serde_json::json;
use shardfeed_embedded::{LoaderOptions, interleave_default};
use shardfeed_plan::Tail;

use crate::fixture::Place;

const COUNTS: [usize; 6] = [5, 0, 17, 40, 1, 20];

#[test]
fn agrees_with_the_loader() {
    let place = Place::with_shards(&COUNTS);
    for (tail, name) in [(Tail::Drop, "drop"), (Tail::Pad, "pad"), (Tail::Uneven, "uneven")] {
        let options = LoaderOptions {
            tail,
            world_size: 4,
            batch_size: 3,
            seed: 5,
            limit: Some(70),
            ..place.loader("*.tfrecord")
        };
        let loader = shardfeed_embedded::open(options, &mut |_| true).unwrap();
        let plan = loader.plan_of(2).unwrap();
        let args = ["--tail", name, "--world-size", "4", "--batch-size", "3", "--seed", "5"];
        let more = ["--limit", "70", "--epoch", "2"];
        let show = ["plan", "show", "*.tfrecord"];
        let found = place.json(&[&show[..], &args, &more].concat());
        assert_eq!(found["samples"], 83);
        assert_eq!(found["steps"], plan.steps());
        assert_eq!(found["dropped"], plan.dropped());
        let ranks: Vec<_> = (0..4).map(|rank| plan.rank_steps(rank)).collect();
        assert_eq!(found["rank_steps_min"], *ranks.iter().min().unwrap());
        assert_eq!(found["rank_steps_max"], *ranks.iter().max().unwrap());
        let padded: usize = (0..plan.steps() * u64::from(tail == Tail::Pad))
            .flat_map(|step| (0..4).map(move |rank| (step, rank)))
            .map(|(step, rank)| plan.batch(step, rank).unwrap())
            .map(|batch| batch.iter().filter(|planned| !planned.valid).count())
            .sum();
        assert_eq!(found["padded"], padded);
        let lanes = found["lanes"].as_array().unwrap();
        for (lane, report) in lanes.iter().enumerate() {
            let lane = plan.lane(lane as u64);
            assert_eq!(report["samples"], lane.samples());
            // The shard inside which the epoch begins may have two.
            let mut runs = lane.inputs_from(0);
            let runs = std::iter::from_fn(|| runs.next_run(1));
            let mut splits: Vec<_> = runs.map(|run| run.split).collect();
            splits.sort_unstable();
            splits.dedup();
            assert_eq!(report["splits"], splits.len());
            let first = format!("s-{}.tfrecord", lane.input(0).shard);
            assert_eq!(report["first_shards"][0], first);
        }
    }
}

#[test]
fn defaults_are_the_loaders() {
    let place = Place::with_shards(&COUNTS);
    let found = place.json(&["plan", "show", "*.tfrecord"]);
    let defaults = LoaderOptions::default();
    let order = &found["order"];
    assert_eq!(order["seed"], defaults.seed);
    assert_eq!(order["shuffle"], defaults.shuffle);
    assert_eq!(order["shuffle_window"], defaults.shuffle_window);
    assert_eq!(order["interleave"], interleave_default(true));
    assert_eq!(order["block_length"], defaults.block_length);
    assert_eq!(order["lanes"], defaults.world_size);
    assert_eq!(order["tail"], json!(defaults.tail));
    assert_eq!(order["limit"], json!(defaults.limit));
    assert_eq!(found["batch_size"], defaults.batch_size);
    assert_eq!(found["world_size"], defaults.world_size);
    let inspected = place.json(&["dataset", "inspect", "*.tfrecord"]);
    assert_eq!(order["content_digest"], inspected["content_digest"]);
}

#[test]
fn the_table_says_it_for_people() {
    let place = Place::with_shards(&COUNTS);
    let args = ["--no-shuffle", "--lanes", "3", "--batch-size", "6", "--tail", "uneven"];
    let table =
        place.ok(&[&["plan", "show", "*.tfrecord", "--world-size", "2"][..], &args].concat());
    expect![[r#"
        order version   1
        order digest    beb7d3fcd7dfde6269af2f6a2053454f50a0c418d9b170d26a70715ee1004f14
        content digest  7064aef644e1d9ff4a5997ae71f566a66ef06984f9cf8b5fd687bab1678eeaaf
        seed            0
        shuffle         no
        shuffle window  -
        interleave      1
        block length    1
        lanes           3
        tail            uneven
        limit           -

        epoch         0
        global batch  12 = 6 x 2 ranks
        samples       83
        steps         7
        dropped       0
        padded        0
        mixing        12 samples (14.5 %) of 3 of 5 shards can meet in a step

        LANE  SAMPLES  SPLITS  FIRST SHARDS
           0       28       3  s-0.tfrecord, s-2.tfrecord, s-3.tfrecord
           1       28       1  s-3.tfrecord
           2       27       3  s-3.tfrecord, s-4.tfrecord, s-5.tfrecord
    "#]]
    .assert_eq(&table);
}

#[test]
fn without_shuffle_lanes_are_the_files_in_order() {
    let place = Place::with_shards(&COUNTS);
    let args = ["plan", "show", "*.tfrecord", "--no-shuffle", "--lanes", "2", "--batch-size", "2"];
    let found = place.json(&args);
    assert_eq!(found["order"]["shuffle_window"], json!(null));
    let lanes = &found["lanes"];
    assert_eq!(lanes[0]["samples"], 42);
    assert_eq!((&lanes[0]["splits"], &lanes[1]["splits"]), (&json!(3), &json!(3)));
    let first = json!(["s-0.tfrecord", "s-2.tfrecord", "s-3.tfrecord"]);
    assert_eq!(lanes[0]["first_shards"], first);
    let second = json!(["s-3.tfrecord", "s-4.tfrecord", "s-5.tfrecord"]);
    assert_eq!(lanes[1]["first_shards"], second);
}

#[test]
fn mixing_is_what_windows_and_lanes_allow() {
    let place = Place::with_shards(&[40; 10]);
    let mixing = |options: &[&str]| {
        let found = place.json(&[&["plan", "show", "*.tfrecord"], options].concat());
        let number = |field: &str| found["mixing"][field].as_u64().unwrap();
        assert_eq!(number("shards_total"), 10);
        (number("step"), number("samples"), number("shards"))
    };
    assert_eq!(mixing(&["--batch-size", "4"]), (50, 400, 10));
    assert_eq!(mixing(&["--batch-size", "4", "--no-shuffle"]), (50, 4, 1));
    assert_eq!(mixing(&["--batch-size", "160", "--no-shuffle"]), (1, 160, 4));
    // The middle step of two: each lane has 200 samples.
    assert_eq!(mixing(&["--batch-size", "100", "--world-size", "2"]), (1, 400, 10));
    for interleave in ["1", "3", "7"] {
        let options = LoaderOptions {
            batch_size: 4,
            shuffle_window: 20,
            interleave: interleave.parse().ok(),
            ..place.loader("*.tfrecord")
        };
        let loader = shardfeed_embedded::open(options, &mut |_| true).unwrap();
        let lane = loader.plan_of(0).unwrap().lane(0);
        // Outputs 200 to 203 are in the block of 190 to 209, of two windows of inputs.
        let shards: BTreeSet<_> = (180..220).map(|input| lane.input(input).shard).collect();
        let order = ["--batch-size", "4", "--shuffle-window", "20", "--interleave", interleave];
        assert_eq!(mixing(&order), (50, 40, shards.len() as u64), "interleave {interleave}");
    }
    let lanes = ["--batch-size", "1", "--world-size", "4", "--shuffle-window", "20"];
    assert_eq!(mixing(&lanes).1, 4 * 40);
    let none = place.json(&["plan", "show", "s-0.tfrecord", "--batch-size", "41"]);
    assert_eq!(none["mixing"], json!(null));
}

#[test]
fn many_lanes_are_cut_unless_asked() {
    let place = Place::with_shards(&[500]);
    let args = ["plan", "show", "*.tfrecord", "--world-size", "50"];
    assert!(place.ok(&args).contains("… and 30 more lanes (--all shows them)"));
    assert!(!place.ok(&[&args[..], &["--all"]].concat()).contains("more lanes"));
    let lanes = place.json(&args)["lanes"].clone();
    assert_eq!(lanes.as_array().unwrap().len(), 50);
}

#[test]
fn without_shuffle_files_take_turns_if_asked() {
    let place = Place::with_shards(&COUNTS);
    let order = ["--no-shuffle", "--batch-size", "6"];
    let turns = ["--interleave", "2", "--block-length", "2"];
    let batch = |options: &[&str]| {
        let show = [&["batch", "show", "*.tfrecord", "--step", "0"], &order[..], options].concat();
        let samples = place.json(&show)["samples"].clone();
        samples
            .as_array()
            .unwrap()
            .iter()
            .map(|sample| format!("{}:{}", sample["shard"].as_str().unwrap(), sample["ordinal"]))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let first = "s-0.tfrecord:0 s-0.tfrecord:1 ";
    let plain = "s-0.tfrecord:2 s-0.tfrecord:3 s-0.tfrecord:4 s-2.tfrecord:0";
    assert_eq!(batch(&[]), first.to_owned() + plain);
    assert_eq!(batch(&["--block-length", "2"]), first.to_owned() + plain);
    let mixed = "s-2.tfrecord:0 s-2.tfrecord:1 s-0.tfrecord:2 s-0.tfrecord:3";
    assert_eq!(batch(&turns), first.to_owned() + mixed);
    let found = place.json(&[&["plan", "show", "*.tfrecord"], &order[..], &turns].concat());
    assert_eq!(
        (&found["order"]["interleave"], &found["order"]["block_length"]),
        (&2.into(), &2.into())
    );
}

#[test]
fn epochs_have_one_bound_wherever_they_are_named() {
    let place = Place::with_shards(&COUNTS);
    let commands: [&[&str]; 7] = [
        &["plan", "show", "*.tfrecord"],
        &["batch", "show", "*.tfrecord"],
        &["epoch", "show", "--job", "x"],
        &["shard", "list", "--job", "x"],
        &["shard", "history", "--job", "x", "s-0.tfrecord"],
        &["wait", "epoch", "--job", "x"],
        &["bench", "x"],
    ];
    for epoch in ["281474976710656", "4611686018427387905", "18446744073709551615"] {
        for command in commands {
            let said = place.fails(&[command, &["--epoch", epoch]].concat());
            let expected = format!("epoch must be at least 0 and below 2**48, not {epoch}");
            assert!(
                said.starts_with("exit 2\n") && said.contains(&expected),
                "{command:?}: {said}"
            );
        }
    }
    let last = "281474976710655";
    assert_eq!(
        place.json(&["plan", "show", "*.tfrecord", "--epoch", last])["epoch"],
        (1_u64 << 48) - 1
    );
}
