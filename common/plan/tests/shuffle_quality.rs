//! Statistical tests of the shuffle and the rotation. They are exactly repeatable: keys are the numbers 0, 1,
//! 2, ..., so a test that passes once always passes.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardfeed_plan::{Digest, EpochPlan, Line, Planned, Portion, Sample, Segment, Shuffle, Tail};

fn shuffle(seed: u64, window: u64, interleave: u64) -> Shuffle {
    let digest = Digest::from_bytes([1; 32]);
    Shuffle { digest, seed, enabled: true, window, interleave, block_length: 1 }
}

fn plan(counts: &[u64], shuffle: &Shuffle, epoch: u64, (lanes, batch): (u64, u64)) -> EpochPlan {
    let line = Arc::new(Line::new(counts, shuffle, epoch).unwrap());
    let segment = Segment::start(lanes, batch, 1).unwrap();
    EpochPlan::new(line, shuffle.clone(), epoch, (Tail::Drop, None), &[segment], 1).unwrap()
}

fn lane_order(counts: &[u64], shuffle: &Shuffle) -> Vec<Sample> {
    let lane = plan(counts, shuffle, 0, (1, 1)).lane(0);
    let blocks = lane.blocks_from(0).map(|block| block.unwrap());
    blocks.flat_map(|block| block.sources).map(|input| lane.input(input)).collect()
}

/// Upper tail of the normal distribution.
fn upper_tail(z: f64) -> f64 {
    // Abramowitz and Stegun 26.2.17, error below 7.5e-8.
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly;
    if z >= 0.0 { tail } else { 1.0 - tail }
}

/// p-value of a chi-square statistic, by Wilson and Hilferty's cube root (1931): accurate enough
/// for thousands of degrees of freedom.
fn chi_square_p(statistic: f64, degrees: f64) -> f64 {
    let scale = 2.0 / (9.0 * degrees);
    upper_tail(((statistic / degrees).cbrt() - (1.0 - scale)) / scale.sqrt())
}

#[test]
fn all_40320_orders_of_8_samples_are_equally_likely_over_400000_keys() {
    const KEYS: u64 = 400_000;
    const ORDERS: usize = 40_320;
    let mut seen = vec![0u32; ORDERS];
    for seed in 0..KEYS {
        // One shard of eight: window >= n, so the order is one uniform permutation.
        let order: Vec<u64> =
            lane_order(&[8], &shuffle(seed, 8, 1)).iter().map(|sample| sample.ordinal).collect();
        let mut rank = 0;
        for (index, item) in order.iter().enumerate() {
            let smaller = order[index + 1..].iter().filter(|other| *other < item).count();
            rank = rank * (8 - index) + smaller;
        }
        seen[rank] += 1;
    }
    let reached = seen.iter().filter(|&&times| times > 0).count();
    let expected = KEYS as f64 / ORDERS as f64;
    let statistic: f64 =
        seen.iter().map(|&times| (f64::from(times) - expected).powi(2) / expected).sum();
    let p = chi_square_p(statistic, (ORDERS - 1) as f64);
    // 40,320 * exp(-9.92) = 2 orders are missed by chance.
    assert!(reached >= ORDERS - 12, "only {reached} of {ORDERS} orders were reached");
    assert!(p > 1e-6 && p < 1.0 - 1e-6, "chi-square {statistic:.0}, p = {p:e}");
}

#[test]
fn displacement_in_a_small_window_is_that_of_two_uniform_passes() {
    // A sample is moved uniformly inside its block, then uniformly inside the block that is half a
    // window further. From input x in [0, w) of an inner block the output is uniform over one of
    // two windows, each with probability 1/2. So with y = output - block start: density 1/(2w) on
    // [-w/2, 3w/2), for every x; the displacement y - x follows.
    const WINDOW: u64 = 64;
    const SAMPLES: u64 = 64 * 4_000;
    let shuffle = shuffle(11, WINDOW, 1);
    let order = lane_order(&[SAMPLES], &shuffle);
    let line = Line::new(&[SAMPLES], &shuffle, 0).unwrap();
    let mut seen: BTreeMap<i64, u32> = BTreeMap::new();
    let mut counted = 0u32;
    for (output, sample) in order.iter().enumerate() {
        let input = line.position(*sample).unwrap();
        if !(WINDOW..SAMPLES - 2 * WINDOW).contains(&input) {
            continue;
        }
        *seen.entry(output as i64 - input as i64).or_default() += 1;
        counted += 1;
    }
    let (w, reach) = (WINDOW as i64, WINDOW as i64 + WINDOW as i64 / 2);
    let (mut statistic, mut degrees, mut total) = (0.0, 0.0, 0.0);
    for displacement in -reach..reach {
        // Number of x in [0, w) with x + displacement in [-w/2, 3w/2).
        let ways = (0..w).filter(|x| (-w / 2..w + w / 2).contains(&(x + displacement))).count();
        let expected = f64::from(counted) * ways as f64 / (2 * w * w) as f64;
        total += expected;
        let got = f64::from(seen.remove(&displacement).unwrap_or(0));
        if expected >= 5.0 {
            statistic += (got - expected).powi(2) / expected;
            degrees += 1.0;
        }
    }
    assert!(seen.is_empty(), "displaced by 1.5 windows or more: {seen:?}");
    assert!((total - f64::from(counted)).abs() < 1.0);
    let p = chi_square_p(statistic, degrees - 1.0);
    assert!(p > 1e-6, "chi-square {statistic:.0} with {degrees} degrees, p = {p:e}");
}

#[test]
fn neighbours_in_a_file_are_no_likelier_adjacent_than_chance() {
    // 32 shards of 250 samples, 16 read in turn, one window of everything that is in a group:
    // in a uniform order each of the n - 1 adjacent pairs is one of the 2 * 249 * 32 ordered pairs
    // of file neighbours among n (n - 1) with the same probability.
    let (shards, per_shard) = (32usize, 250u64);
    let samples = shards as f64 * per_shard as f64;
    let expected = 2.0 * (per_shard - 1) as f64 * shards as f64 / samples;
    const KEYS: u64 = 300;
    let mut adjacent = 0u64;
    for seed in 0..KEYS {
        let order = lane_order(&vec![per_shard; shards], &shuffle(seed, 10_000, 16));
        let neighbours = |pair: &&[Sample]| {
            pair[0].shard == pair[1].shard && pair[0].ordinal.abs_diff(pair[1].ordinal) == 1
        };
        adjacent += order.windows(2).filter(neighbours).count() as u64;
    }
    let mean = expected * KEYS as f64;
    // The number of such pairs is close to Poisson.
    let z = (adjacent as f64 - mean) / mean.sqrt();
    assert!(
        upper_tail(z) > 1e-6,
        "{adjacent} adjacent neighbours, {mean:.0} by chance (z = {z:.1})"
    );
}

#[test]
fn drop_leaves_out_every_sample_equally_often_however_small_the_window() {
    // 105 samples in steps of 10 leave out 5. Without rotation these would be the last ones of the
    // last shard, displaced by less than a window and a half.
    const EPOCHS: u64 = 20_000;
    for (counts, interleave) in [(vec![105], 1), (vec![105], 16), (vec![40, 0, 65], 1)] {
        let shuffle = shuffle(3, 4, interleave);
        let mut dropped: BTreeMap<Sample, u32> = BTreeMap::new();
        for epoch in 0..EPOCHS {
            let plan = plan(&counts, &shuffle, epoch, (1, 10));
            assert_eq!((plan.steps(), plan.dropped()), (10, 5));
            for Planned { sample, .. } in plan.lane(0).planned(100..105).unwrap() {
                assert_eq!(plan.place(Portion::default(), sample).unwrap(), None);
                *dropped.entry(sample).or_default() += 1;
            }
        }
        assert_eq!(dropped.len(), 105, "some samples were never left out");
        let expected = (EPOCHS * 5) as f64 / 105.0;
        let statistic: f64 =
            dropped.values().map(|&times| (f64::from(times) - expected).powi(2) / expected).sum();
        // The five of one epoch are close to each other, so at least 21 groups are independent.
        let p = chi_square_p(statistic / 5.0, 20.0);
        assert!(p > 1e-6, "chi-square {statistic:.0}, p = {p:e}");
    }
}

#[test]
fn drop_leaves_out_samples_of_all_places_of_files_that_are_read_in_turn() {
    // 2,100 samples in steps of 32 leave out 20. If the last part of a file took turns with whole
    // files, it would end before them, and only their last samples would be left out.
    const EPOCHS: u64 = 4_000;
    let counts = vec![105; 20];
    let shuffle = shuffle(3, 4, 16);
    let mut dropped: BTreeMap<Sample, u32> = BTreeMap::new();
    for epoch in 0..EPOCHS {
        let plan = plan(&counts, &shuffle, epoch, (1, 32));
        for Planned { sample, .. } in plan.lane(0).planned(2_080..2_100).unwrap() {
            *dropped.entry(sample).or_default() += 1;
        }
    }
    assert_eq!(dropped.len(), 2_100, "some samples were never left out");
    let expected = (EPOCHS * 20) as f64 / 2_100.0;
    let parts = dropped.values().map(|&times| f64::from(times) / expected);
    let near = parts.clone().filter(|part| (0.5..2.0).contains(part)).count();
    // If its part is short, the last samples of the whole files before it are left out, too.
    let most = parts.fold(0.0, f64::max);
    assert!(near > 1_800 && most < 8.0, "{near} are near the mean, one is at {most:.1} times it");
}

#[test]
fn lanes_and_ranks_see_all_of_a_few_shards_within_epochs() {
    // Without rotation a lane of one shard is always the same eighth of it.
    const LANES: u64 = 8;
    const SAMPLES: u64 = 4_000;
    for counts in [vec![SAMPLES], vec![SAMPLES / 2, SAMPLES / 2]] {
        let shuffle = shuffle(7, 25, 16);
        let mut seen = vec![BTreeSet::new(); LANES as usize];
        for epoch in 0..20 {
            let plan = plan(&counts, &shuffle, epoch, (LANES, LANES));
            for lane in 0..LANES {
                seen[lane as usize].extend(plan.lane(lane).inputs_from(0));
            }
        }
        for (lane, seen) in seen.iter().enumerate() {
            let part = seen.len() as f64 / SAMPLES as f64;
            // 1 - (7/8)^20 = 93 % are expected.
            assert!(part > 0.8, "lane {lane} saw {:.0} % of {counts:?}", 100.0 * part);
        }
    }
}
