//! `--state`: plans from a loader's state.

use std::time::Duration;

use expect_test::expect;
use serde_json::Value;
use shardfeed_embedded::{Delivery, Loader, LoaderOptions};
use shardfeed_plan::{LoaderState, Tail};

use crate::fixture::{Place, rows_of};

const COUNTS: [usize; 4] = [25, 0, 17, 29];
const SHOW: [&str; 3] = ["batch", "show", "*.tfrecord"];

fn next(loader: &mut Loader) -> Option<Vec<(u32, u64, bool)>> {
    loop {
        match loader.next(Duration::from_secs(10)).unwrap() {
            Delivery::Batch(mut delivered) => return Some(rows_of(&mut delivered)),
            Delivery::EpochEnd { .. } => return None,
            Delivery::Pending => {}
        }
    }
}

fn rows(batch: &Value) -> Vec<(u32, u64, bool)> {
    let rows = batch["samples"].as_array().unwrap().iter();
    rows.map(|sample| {
        let shard = sample["shard"].as_str().unwrap();
        let shard = shard.trim_start_matches("s-").trim_end_matches(".tfrecord");
        let (ordinal, valid) = (sample["ordinal"].as_u64().unwrap(), sample["valid"] == true);
        (shard.parse().unwrap(), ordinal, valid)
    })
    .collect()
}

fn start(place: &Place, world_size: u64, batch_size: u64, tail: Tail) -> Loader {
    let options = LoaderOptions { world_size, batch_size, tail, ..place.loader("*.tfrecord") };
    shardfeed_embedded::open(options, &mut |_| true).unwrap()
}

/// Returns a loader state in epoch 1 after `steps` steps, and its loader.
fn stopped(place: &Place, steps: u64, tail: Tail) -> (LoaderState, Loader) {
    let mut loader = start(place, 2, 3, tail);
    loader.set_epoch(1).unwrap();
    for _ in 0..steps {
        next(&mut loader).unwrap();
    }
    let state = loader.cursor().state();
    place.file("state.json", state.to_json());
    (state, loader)
}

#[test]
fn a_token_says_epoch_and_batch() {
    let place = Place::with_shards(&COUNTS);
    let (_, mut loader) = stopped(&place, 4, Tail::Drop);
    let batch = place.json(
        &[&SHOW[..], &["--state", "state.json", "--world-size", "2", "--step", "4"]].concat(),
    );
    assert_eq!((&batch["epoch"], &batch["step"]), (&1.into(), &4.into()));
    assert_eq!(rows(&batch), next(&mut loader).unwrap());
    // Without a world size, the global batch is shown.
    let whole = place.json(&[&SHOW[..], &["--state", "state.json", "--step", "4"]].concat());
    assert_eq!(rows(&whole).len(), 6);
    assert_eq!(rows(&whole)[..3], rows(&batch));
}

#[test]
fn another_world_goes_on_where_the_token_stands() {
    let place = Place::with_shards(&COUNTS);
    let (state, _) = stopped(&place, 4, Tail::Pad);
    let mut loader = start(&place, 1, 10, Tail::Pad);
    loader.load(&[state], false, &mut |_| true).unwrap();
    let options = ["--state", "state.json", "--batch-size", "10", "--tail", "pad"];
    let plan = place.json(&[&["plan", "show", "*.tfrecord"], &options[..]].concat());
    assert_eq!(plan["steps"], loader.steps().unwrap());
    assert_eq!(plan["steps_taken"], 4);
    let segments = plan["segments"].as_array().unwrap();
    let numbers = |index: usize| {
        let segment = &segments[index];
        ["lanes", "global_batch", "first_step", "steps"].map(|name| segment[name].as_u64().unwrap())
    };
    assert_eq!((numbers(0), numbers(1)), ([2, 6, 0, 4], [2, 10, 4, 5]));
    assert_eq!(plan["padded"], 3);
    let mut step = 4;
    while loader.cursor().epoch() == 1 {
        let expected = next(&mut loader).unwrap();
        let at = ["--step", &step.to_string()];
        let batch = place.json(&[&SHOW, &options[..], &at].concat());
        assert_eq!(rows(&batch), expected, "step {step}");
        for (row, (shard, ordinal, valid)) in expected.into_iter().enumerate() {
            let name = format!("s-{shard}.tfrecord:{ordinal}");
            let found = place.json(&[&SHOW, &options[..], &["--find", &name]].concat());
            if valid {
                let sample = &found["samples"][0];
                assert_eq!((&sample["step"], &sample["row"]), (&step.into(), &row.into()));
            }
        }
        step += 1;
    }
    assert_eq!(step, 9);
}

#[test]
fn the_token_of_one_uneven_rank_shows_all_ranks() {
    let place = Place::with_shards(&COUNTS);
    let (_, mut loader) = stopped(&place, 2, Tail::Uneven);
    let options = ["--state", "state.json", "--tail", "uneven", "--step", "2", "--rank"];
    let batch = |rank| rows(&place.json(&[&SHOW, &options[..], &[rank]].concat()));
    assert_eq!(batch("0"), next(&mut loader).unwrap());
    assert_eq!(batch("1").len(), 3);
    let other = [&SHOW[..], &options[..], &["0", "--world-size", "1"]].concat();
    expect![[r#"
        exit 2
        error: a state of a job with tail="uneven" speaks for one rank and its world size only
        hint: leave out --world-size, --batch-size and --lanes: they are in the state
    "#]]
    .assert_eq(&place.fails(&other));
}

#[test]
fn features_are_no_part_of_it_but_the_order_is() {
    let place = Place::with_shards(&COUNTS);
    let (state, _) = stopped(&place, 4, Tail::Drop);
    // The same job with another decoder has another digest.
    let mut other = state;
    other.job = "0".repeat(64).parse().unwrap();
    other.checks = other.checks.replace(",none", ",other");
    place.file("state.json", other.to_json());
    let show = [&SHOW[..], &["--state", "state.json", "--step", "4"]].concat();
    place.ok(&show);
    let differs = [&show[..], &["--seed", "7", "--no-shuffle"]].concat();
    expect![[r#"
        exit 1
        error: the state belongs to another job: seed is 0 in the state and 7 here, shuffle is true in the state and false here, window is 10000 in the state and 0 here, interleave is 16 in the state and 0 here, block_length is 1 in the state and 0 here
        hint: give the files and the options of the loader that made the state; a source with filter, unbatch, pack, window or balance, and a mixture, are named with --source
    "#]].assert_eq(&place.fails(&differs));
}

#[test]
fn files_without_a_state_are_rejected() {
    let place = Place::with_shards(&COUNTS);
    let (state, _) = stopped(&place, 4, Tail::Drop);
    let json = state.to_json();
    let refused = |text: &str| {
        place.file("state.json", text);
        place.fails(&[&SHOW[..], &["--state", "state.json", "--step", "0"]].concat())
    };
    expect![[r#"
        exit 1
        error: cannot read the state state.json
          cause: this is not a whole shardfeed state: EOF while parsing a string at line 1 column 123
        hint: pass the result of state_dict()
    "#]].assert_eq(&refused(&json[..json.len() / 2]));
    expect![[r#"
        exit 1
        error: cannot read the state state.json
          cause: this is not a whole shardfeed state: it has no field `shardfeed_state`
        hint: pass the result of state_dict()
    "#]]
    .assert_eq(&refused("{\"epoch\": 3}"));
    expect![[r#"
        exit 1
        error: cannot read the state state.json
          cause: the state has format 2, this shardfeed knows up to 1
        hint: upgrade shardfeed to the version that wrote it
    "#]]
    .assert_eq(&refused(&json.replace("_state\":1,", "_state\":2,")));
    expect![[r#"
        exit 1
        error: cannot read the state state.json
          cause: the state is of a job with mode="dynamic" and tail="drop", but mode="dynamic" has tail="uneven" only
        hint: start over without a state, with tail="uneven", or with mode="deterministic" for tail="drop"
    "#]]
    .assert_eq(&refused(&json.replace("drop,deterministic", "drop,dynamic")));
    expect![[r#"
        exit 1
        error: state.json: 2097152 bytes are too many for a state
        hint: give a file that holds only the result of state_dict(), as JSON
    "#]]
    .assert_eq(&refused(&" ".repeat(2 << 20)));
    expect![[r#"
        exit 1
        error: the position is beyond the epoch: 400 steps were taken with lanes=2 and a global batch of 6, but only 11 exist
        hint: it belongs to another dataset or job
    "#]].assert_eq(&refused(&json.replace("[[2,6,4]]", "[[2,6,400]]")));
    for end in 0..json.len() {
        if end % 40 == 0 {
            let text = refused(&json[..end]);
            assert!(text.starts_with("exit 1\nerror: cannot read the state state.json"), "{text}");
        }
    }
    let missing = [&SHOW[..], &["--state", "nowhere", "--step", "0"]].concat();
    expect![[r#"
        exit 1
        error: cannot read the state nowhere
          cause: No such file or directory (os error 2)
        hint: check the path
    "#]]
    .assert_eq(&place.fails(&missing));
}

#[test]
fn a_world_that_does_not_divide_the_tokens_batch_is_refused() {
    let place = Place::with_shards(&COUNTS);
    stopped(&place, 4, Tail::Drop);
    let args = ["--state", "state.json", "--world-size", "5", "--step", "4"];
    expect![[r#"
        exit 2
        error: world_size=5 does not divide the global batch of 6
        hint: use a --world-size that divides it
    "#]]
    .assert_eq(&place.fails(&[&SHOW[..], &args].concat()));
}
