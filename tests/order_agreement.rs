//! Compares the order computed by `shardfeed-plan` with that of `order_oracle.py`, which was
//! written from docs/ORDER.md alone.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use shardfeed_plan::{Digest, EPOCHS, EpochPlan, Line, Segment, Shuffle, Steps, Tail};

const CASES: usize = 4_000;

#[derive(Clone, Debug)]
struct Case {
    counts: Vec<u64>,
    shuffle: Shuffle,
    epoch: u64,
    tail: Tail,
    limit: Option<u64>,
    segments: Vec<Segment>,
    world_size: u64,
}

/// New lanes and samples per lane; position in the previous segment and progress of its ranks, as
/// fractions.
type Change = (u64, u64, f64, Vec<f64>);

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let stops = prop::collection::vec(0.0..1.0f64, 8);
    prop::collection::vec((1u64..7, 1u64..6, 0.0..1.0f64, stops), 1..5)
}

prop_compose! {
    fn cases()(
        counts in prop::collection::vec(prop_oneof![Just(0u64), 0u64..30], 1..14)
            .prop_filter("some samples", |c| c.iter().any(|&n| n > 0)),
        content in any::<[u8; 32]>(),
        (seed, epoch) in (any::<u64>(), 0..EPOCHS),
        enabled in prop::bool::weighted(0.8),
        (window, interleave, block_length) in (prop_oneof![1u64..14, Just(500)], 1u64..7, 1u64..4),
        tail in prop_oneof![Just(Tail::Drop), Just(Tail::Pad), Just(Tail::Uneven)],
        limit in prop::option::weighted(0.25, 1u64..200),
        changes in changes(),
        even in prop::bool::weighted(0.3),
        world in any::<prop::sample::Index>(),
    ) -> Case {
        let content = Digest::from_bytes(content);
        let shuffle = Shuffle { content, seed, enabled, window, interleave, block_length };
        let case = Case { counts, shuffle, epoch, tail, limit, segments: vec![], world_size: 1 };
        with_history(case, &changes, even, &world)
    }
}

/// Applies `changes`, each at a position inside the previous segment.
fn with_history(
    mut case: Case,
    changes: &[Change],
    even: bool,
    world: &prop::sample::Index,
) -> Case {
    for (lanes, per_lane, part, stops) in changes {
        if let Some(mut open) = case.segments.pop() {
            let worlds = divisors(open.global_batch);
            case.segments.push(open.clone());
            case.world_size = worlds[world.index(worlds.len())];
            let plan = plan(&case);
            case.segments.pop();
            let left = |rank| plan.rank_steps(rank) - plan.first_step();
            open.steps = if case.tail == Tail::Uneven && !even && case.world_size <= 8 {
                let ranks = 0..case.world_size;
                let taken = |rank: u64| (left(rank) as f64 * stops[rank as usize]).round() as u64;
                Steps::PerRank(ranks.map(taken).collect())
            } else {
                Steps::All(((plan.steps() - plan.first_step()) as f64 * part).ceil() as u64)
            };
            if open.steps.most() > 0 {
                case.segments.push(open);
            }
        }
        let steps = Steps::All(0);
        case.segments.push(Segment { lanes: *lanes, global_batch: lanes * per_lane, steps });
    }
    let worlds = divisors(case.segments.last().expect("a change each").global_batch);
    case.world_size = worlds[world.index(worlds.len())];
    case
}

fn divisors(number: u64) -> Vec<u64> {
    (1..=number).filter(|d| number.is_multiple_of(*d)).collect()
}

fn plan(case: &Case) -> EpochPlan {
    let line = Arc::new(Line::new(&case.counts, &case.shuffle, case.epoch).unwrap());
    let rules = (case.tail, case.limit);
    let shuffle = case.shuffle.clone();
    EpochPlan::new(line, shuffle, case.epoch, rules, &case.segments, case.world_size).unwrap()
}

fn question(case: &Case) -> Value {
    json!({
        "counts": case.counts, "digest": case.shuffle.content, "seed": case.shuffle.seed,
        "epoch": case.epoch, "shuffle": case.shuffle.enabled, "window": case.shuffle.window,
        "interleave": case.shuffle.interleave, "block_length": case.shuffle.block_length,
        "tail": case.tail, "limit": case.limit, "segments": case.segments,
        "world_size": case.world_size,
    })
}

fn answer(case: &Case) -> Value {
    let plan = plan(case);
    let first = plan.first_step();
    let ranks = 0..case.world_size;
    let batch = |step: u64, rank: u64| -> Vec<Value> {
        if step >= plan.rank_steps(rank) {
            return vec![];
        }
        let batch = plan.batch(step, rank).unwrap();
        batch.iter().map(|p| json!([p.sample.shard, p.sample.ordinal, p.valid])).collect()
    };
    let step = |step| -> Vec<Vec<Value>> { ranks.clone().map(|rank| batch(step, rank)).collect() };
    json!({
        "steps": plan.steps() - first, "first_step": first,
        "rank_steps": ranks.clone().map(|rank| plan.rank_steps(rank) - first).collect::<Vec<_>>(),
        "batches": (first..plan.steps()).map(step).collect::<Vec<_>>(),
        "dropped": plan.dropped(),
    })
}

#[test]
fn agrees_with_the_oracle_on_thousands_of_cases() {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[42; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let cases: Vec<Case> =
        (0..CASES).map(|_| cases().new_tree(&mut runner).unwrap().current()).collect();

    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("order_oracle.py");
    let mut python = Command::new("python3")
        .arg(oracle)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut stdin = python.stdin.take().unwrap();
    let questions: String = cases.iter().map(|case| format!("{}\n", question(case))).collect();
    let writer = std::thread::spawn(move || stdin.write_all(questions.as_bytes()).unwrap());
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());

    let answers: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), CASES);
    let (mut histories, mut lists, mut plain) = (0, 0, 0);
    for (case, expected) in cases.iter().zip(&answers) {
        assert_eq!(&answer(case), expected, "case: {}", question(case));
        histories += usize::from(case.segments.len() > 1);
        plain += usize::from(!case.shuffle.enabled && case.shuffle.interleave > 1);
        lists += usize::from(case.segments.iter().any(|s| matches!(s.steps, Steps::PerRank(_))));
    }
    // The agreement means little for trivial cases only.
    assert!(histories > CASES / 3 && lists > CASES / 20, "{histories} histories, {lists} lists");
    assert!(plain > CASES / 20, "{plain} take turns without a shuffle");
}

#[test]
fn the_oracle_knows_the_published_generator() {
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("order_oracle.py");
    let status = Command::new("python3").arg(oracle).arg("--selftest").status().unwrap();
    assert!(status.success());
}
