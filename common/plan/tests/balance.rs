//! Costs of balanced steps, beside those of steps that are not balanced.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use shardfeed_plan::{
    BALANCE_WINDOW_MAX, BalancedPlan, Draws, EpochPlan, Line, Portion, Sample, Segment, Shuffle,
    Steps, Tail, order_digest,
};

const PER_LANE: u64 = 8;

fn plan(lanes: u64, samples: u64) -> EpochPlan {
    let counts = vec![samples / 16; 16];
    let digest = order_digest(counts.iter().copied());
    let (window, interleave, block_length) = (256, 16, 1);
    let shuffle = Shuffle { digest, seed: 3, enabled: true, window, interleave, block_length };
    let line = Arc::new(Line::new(&counts, &shuffle, 0).unwrap());
    let segment = Segment { lanes, global_batch: lanes * PER_LANE, steps: Steps::All(0) };
    EpochPlan::new(line, shuffle, 0, (Tail::Drop, None), &[segment], lanes).unwrap()
}

/// Returns the sum over the steps of the costliest rank's cost, in parts of that of the mean rank.
/// Ranks are asked one after the other, because each reads its own lane.
fn imbalance(steps: u64, ranks: u64, mut cost: impl FnMut(u64, u64) -> u64) -> f64 {
    let (mut most, mut all) = (vec![0; steps as usize], 0);
    for rank in 0..ranks {
        for (step, most) in (0..).zip(&mut most) {
            let cost = cost(step, rank);
            *most = cost.max(*most);
            all += cost;
        }
    }
    (most.iter().sum::<u64>() * ranks) as f64 / all as f64
}

/// Returns a length whose logarithm is normal, a function of the sample.
fn length(sample: Sample, (mean, deviation): (f64, f64), most: f64) -> u64 {
    let mut draws = Draws::new(u64::from(sample.shard), sample.ordinal);
    let mut unit = || ((draws.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let normal = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
    (mean + deviation * normal).exp().round().clamp(1.0, most) as u64
}

#[test]
fn the_costliest_rank_of_a_step_is_near_the_mean() {
    const LANES: u64 = 64;
    for (name, power, most, bound) in [("lengths", 1, 2_048.0, 1.06), ("squares", 2, 8_192.0, 1.22)]
    {
        let plan = plan(LANES, LANES * 4_096 + 64 * 1_600);
        let cost = |_: Portion, sample| length(sample, (6.2, 1.1), most).pow(power);
        let mut balanced = BalancedPlan::new(Arc::new(plan.clone()), 4_096, cost).unwrap();
        let before = imbalance(plan.steps(), LANES, |step, rank| {
            let batch = plan.batch(step, rank).unwrap();
            batch.iter().map(|p| cost(p.portion, p.sample)).sum()
        });
        let after = imbalance(plan.steps(), LANES, |step, rank| {
            let batch = balanced.batch(step, rank).unwrap();
            batch.iter().map(|p| cost(p.portion, p.sample)).sum()
        });
        println!("{name} to {most}: max/mean {after:.3} balanced, {before:.3} before");
        assert!(after < bound && before > 1.5, "{name}: {after} balanced, {before} before");
    }
}

#[test]
fn windows_out_of_range_are_refused() {
    let refused = |window| {
        let cost = |_: Portion, _: Sample| 0;
        BalancedPlan::new(Arc::new(plan(2, 64)), window, cost).err().unwrap().to_string()
    };
    assert_eq!(refused(0), "`balance window` must be at least 1");
    assert_eq!(
        refused(BALANCE_WINDOW_MAX + 1),
        "`balance window` is 1048577, but may be at most 1048576"
    );
}
