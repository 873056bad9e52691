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
use shardfeed_plan::{
    EPOCHS, EpochPlan, Line, Planned, Segment, Shuffle, Steps, Tail, order_digest,
};

const CASES: usize = 4_000;

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) counts: Vec<u64>,
    shuffle: Shuffle,
    epoch: u64,
    tail: Tail,
    limit: Option<u64>,
    pub(crate) segments: Vec<Segment>,
    world_size: u64,
}

/// New lanes and samples per lane; position in the previous segment and progress of its ranks, as
/// fractions.
pub(crate) type Change = (u64, u64, f64, Vec<f64>);

pub(crate) fn changes() -> impl Strategy<Value = Vec<Change>> {
    let stops = prop::collection::vec(0.0..1.0f64, 8);
    prop::collection::vec((1u64..7, 1u64..6, 0.0..1.0f64, stops), 1..5)
}

prop_compose! {
    pub(crate) fn cases()(
        counts in prop::collection::vec(prop_oneof![Just(0u64), 0u64..30], 1..14)
            .prop_filter("some samples", |c| c.iter().any(|&n| n > 0)),
        (seed, epoch) in (any::<u64>(), 0..EPOCHS),
        enabled in prop::bool::weighted(0.8),
        (window, interleave, block_length) in (prop_oneof![1u64..14, Just(500)], 1u64..7, 1u64..4),
        tail in prop_oneof![Just(Tail::Drop), Just(Tail::Pad), Just(Tail::Uneven)],
        limit in prop::option::weighted(0.25, 1u64..200),
        changes in changes(),
        even in prop::bool::weighted(0.3),
        world in any::<prop::sample::Index>(),
    ) -> Case {
        let digest = order_digest(counts.iter().copied());
        let shuffle = Shuffle { digest, seed, enabled, window, interleave, block_length };
        let mut case = Case { counts, shuffle, epoch, tail, limit, segments: vec![], world_size: 1 };
        let plan = |segments: &[Segment], world_size| {
            plan(&Case { segments: segments.to_vec(), world_size, ..case.clone() })
        };
        (case.segments, case.world_size) = history(tail, &changes, even, &world, plan);
        case
    }
}

/// Returns the segments of `changes`, each at a position inside the previous one, and a world size.
pub(crate) fn history(
    tail: Tail,
    changes: &[Change],
    even: bool,
    world: &prop::sample::Index,
    plan: impl Fn(&[Segment], u64) -> EpochPlan,
) -> (Vec<Segment>, u64) {
    let mut segments: Vec<Segment> = vec![];
    let world_of = |segment: &Segment| {
        let worlds = divisors(segment.global_batch);
        worlds[world.index(worlds.len())]
    };
    for (lanes, per_lane, part, stops) in changes {
        if let Some(open) = segments.last() {
            let world_size = world_of(open);
            let plan = plan(&segments, world_size);
            let left = |rank| plan.rank_steps(rank) - plan.first_step();
            let steps = if tail == Tail::Uneven && !even && world_size <= 8 {
                let taken = |rank: u64| (left(rank) as f64 * stops[rank as usize]).round() as u64;
                Steps::PerRank((0..world_size).map(taken).collect())
            } else {
                Steps::All(((plan.steps() - plan.first_step()) as f64 * part).ceil() as u64)
            };
            segments.last_mut().expect("as above").steps = steps;
            segments.pop_if(|open| open.steps.most() == 0);
        }
        let steps = Steps::All(0);
        segments.push(Segment { lanes: *lanes, global_batch: lanes * per_lane, steps });
    }
    let world_size = world_of(segments.last().expect("a change each"));
    (segments, world_size)
}

fn divisors(number: u64) -> Vec<u64> {
    (1..=number).filter(|d| number.is_multiple_of(*d)).collect()
}

pub(crate) fn plan(case: &Case) -> EpochPlan {
    let line = Arc::new(Line::new(&case.counts, &case.shuffle, case.epoch).unwrap());
    let rules = (case.tail, case.limit);
    let shuffle = case.shuffle.clone();
    EpochPlan::new(line, shuffle, case.epoch, rules, &case.segments, case.world_size).unwrap()
}

pub(crate) fn question(case: &Case) -> Value {
    json!({
        "counts": case.counts, "seed": case.shuffle.seed, "epoch": case.epoch,
        "shuffle": case.shuffle.enabled, "window": case.shuffle.window,
        "interleave": case.shuffle.interleave, "block_length": case.shuffle.block_length,
        "tail": case.tail, "limit": case.limit, "segments": case.segments,
        "world_size": case.world_size,
    })
}

pub(crate) fn answer(case: &Case) -> Value {
    let row = |p: &Planned| json!([p.sample.shard, p.sample.ordinal, p.valid]);
    deliveries(&plan(case), row)
}

/// Returns the deliveries of a plan as an oracle writes them, each row by `row`.
pub(crate) fn deliveries(plan: &EpochPlan, row: impl Fn(&Planned) -> Value) -> Value {
    deliveries_by(plan, row, |step, rank| plan.batch(step, rank).unwrap())
}

/// Returns the same for other batches with the steps of the plan.
pub(crate) fn deliveries_by(
    plan: &EpochPlan,
    row: impl Fn(&Planned) -> Value,
    mut batch: impl FnMut(u64, u64) -> Vec<Planned>,
) -> Value {
    let first = plan.first_step();
    let ranks = 0..plan.world_size();
    let mut batch = |step: u64, rank: u64| -> Vec<Value> {
        if step >= plan.rank_steps(rank) {
            return vec![];
        }
        batch(step, rank).iter().map(&row).collect()
    };
    let step = |step| -> Vec<Vec<Value>> { ranks.clone().map(|rank| batch(step, rank)).collect() };
    json!({
        "steps": plan.steps() - first, "first_step": first,
        "rank_steps": ranks.clone().map(|rank| plan.rank_steps(rank) - first).collect::<Vec<_>>(),
        "batches": (first..plan.steps()).map(step).collect::<Vec<_>>(),
        "dropped": plan.dropped(),
    })
}

/// Returns random cases, the same in every run.
pub(crate) fn random_cases<C>(count: usize, cases: &impl Strategy<Value = C>) -> Vec<C> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[42; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..count).map(|_| cases.new_tree(&mut runner).unwrap().current()).collect()
}

/// Returns the answers of an oracle, a file in this folder.
pub(crate) fn ask(oracle: &str, questions: &[Value]) -> Vec<Value> {
    let mut python = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(oracle))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut stdin = python.stdin.take().unwrap();
    let lines: String = questions.iter().map(|question| format!("{question}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let answers = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<_> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), questions.len());
    answers
}

#[test]
fn agrees_with_the_oracle_on_thousands_of_cases() {
    let cases: Vec<Case> = random_cases(CASES, &cases());
    let questions: Vec<Value> = cases.iter().map(question).collect();
    let answers = ask("order_oracle.py", &questions);
    let (mut histories, mut lists, mut plain, mut inside) = (0, 0, 0, 0);
    for (case, expected) in cases.iter().zip(&answers) {
        assert_eq!(&answer(case), expected, "case: {}", question(case));
        histories += usize::from(case.segments.len() > 1);
        plain += usize::from(!case.shuffle.enabled && case.shuffle.interleave > 1);
        inside += usize::from(plan(case).sample_at(0).first.ordinal > 0);
        lists += usize::from(case.segments.iter().any(|s| matches!(s.steps, Steps::PerRank(_))));
    }
    // The agreement means little for trivial cases only.
    assert!(histories > CASES / 3 && lists > CASES / 20, "{histories} histories, {lists} lists");
    assert!(plain > CASES / 20, "{plain} take turns without a shuffle");
    assert!(inside > CASES / 2, "{inside} begin inside a shard");
}

#[test]
fn the_oracles_know_the_check_vectors() {
    for oracle in ["order_oracle.py", "mixture_oracle.py", "pack_oracle.py", "balance_oracle.py"] {
        let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join(oracle);
        let status = Command::new("python3").arg(oracle).arg("--selftest").status().unwrap();
        assert!(status.success());
    }
}
