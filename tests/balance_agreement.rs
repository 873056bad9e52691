//! Compares balanced steps with those of `balance_oracle.py`, which was written from docs/ORDER.md,
//! section 15, alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use shardfeed_plan::{BalancedPlan, Permutations, Planned, Portion, Sample, Steps};

use crate::order_agreement::{self, ask, deliveries_by, plan, random_cases};

const CASES: usize = 4_000;

#[derive(Clone, Debug)]
struct Case {
    order: order_agreement::Case,
    window: u64,
    /// Costs, of which samples take turns; many are equal.
    costs: Vec<u64>,
}

prop_compose! {
    fn cases()(
        order in order_agreement::cases(),
        window in prop_oneof![3 => 1u64..30, 1 => Just(4_096)],
        costs in prop::collection::vec(prop_oneof![4 => 0u64..9, 1 => any::<u64>()], 1..30),
    ) -> Case {
        Case { order, window, costs }
    }
}

fn cost(case: &Case, sample: Sample) -> u64 {
    case.costs[(u64::from(sample.shard) * 5 + sample.ordinal) as usize % case.costs.len()]
}

fn question(case: &Case) -> Value {
    let shard = |(shard, &count): (u32, &u64)| -> Vec<u64> {
        (0..count).map(|ordinal| cost(case, Sample { shard, ordinal })).collect()
    };
    let mut question = order_agreement::question(&case.order);
    question["balance_window"] = json!(case.window);
    question["costs"] = json!((0..).zip(&case.order.counts).map(shard).collect::<Vec<_>>());
    question
}

/// Returns the deliveries, of which the inverse lookup finds each.
fn answer(case: &Case) -> Value {
    let cost = |_: Portion, sample| cost(case, sample);
    let balanced = || BalancedPlan::new(Arc::new(plan(&case.order)), case.window, cost).unwrap();
    let (mut forward, mut inverse, mut known) = (balanced(), balanced(), Permutations::default());
    let row = |p: &Planned| json!([p.sample.shard, p.sample.ordinal, p.valid]);
    deliveries_by(&plan(&case.order), row, |step, rank| {
        let batch = forward.batch(step, rank).unwrap();
        let entries = forward.slots(step, rank).unwrap().into_iter().map(|slot| slot.entry);
        for (planned, entry) in batch.iter().zip(entries).filter(|(planned, _)| planned.valid) {
            let found = inverse.place_with(planned.portion, planned.sample, &mut known).unwrap();
            let found = found.unwrap();
            assert_eq!((found.step, found.rank, found.entry), (step, rank, entry));
        }
        batch
    })
}

#[test]
fn balanced_steps_agree_with_the_oracle_on_thousands_of_cases() {
    let cases = random_cases(CASES, &cases());
    let questions: Vec<Value> = cases.iter().map(question).collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (case, expected) in cases.iter().zip(ask("balance_oracle.py", &questions)) {
        assert_eq!(answer(case), expected, "case: {}", question(case));
        let mut is = |what, holds: bool| *seen.entry(what).or_default() += usize::from(holds);
        let segments = &case.order.segments;
        is("history", segments.len() > 1);
        is("apart", segments.iter().any(|s| matches!(s.steps, Steps::PerRank(_))));
        let first = &segments[0];
        let lane = case.order.counts.iter().sum::<u64>() / first.lanes;
        is("megablocks", lane > 2 * case.window.max(first.per_lane()));
        is("moved", expected != order_agreement::answer(&case.order));
    }
    // The agreement means little for trivial cases only.
    for (what, share) in [("history", 3), ("apart", 20), ("megablocks", 8), ("moved", 2)] {
        assert!(seen[what] > CASES / share, "{what}: {seen:?}");
    }
}
