//! Compares the delivered samples computed from cursors with the batches themselves.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::slice;
use std::sync::Arc;

use expect_test::expect;
use proptest::prelude::*;
use shardfeed_plan::{
    Digest, EpochPlan, LeftOut, Line, Portion, Sample, Segment, Shuffle, Steps, Tail,
};

#[derive(Clone, Debug)]
struct Case {
    counts: Vec<u64>,
    shuffle: Shuffle,
    tail: Tail,
    limit: Option<u64>,
}

/// Parameters of a segment, and the fractions of its steps at which its ranks stop.
#[derive(Clone, Debug)]
struct Stretch {
    lanes: u64,
    per_lane: u64,
    world: prop::sample::Index,
    stops: Vec<f64>,
    apart: bool,
}

impl Case {
    fn plan(&self, segments: &[Segment], world_size: u64) -> EpochPlan {
        let line = Arc::new(Line::new(&self.counts, &self.shuffle, 3).unwrap());
        let rules = (self.tail, self.limit);
        EpochPlan::new(line, self.shuffle.clone(), 3, rules, segments, world_size).unwrap()
    }
}

impl Stretch {
    fn world_size(&self) -> u64 {
        let batch = self.lanes * self.per_lane;
        let worlds: Vec<u64> = (1..=batch).filter(|w| batch.is_multiple_of(*w)).collect();
        worlds[self.world.index(worlds.len())]
    }

    fn segment(&self) -> Segment {
        let (lanes, global_batch) = (self.lanes, self.lanes * self.per_lane);
        Segment { lanes, global_batch, steps: Steps::All(0) }
    }

    /// Returns the cursors of the ranks of `plan`, between its last segment's start and their ends.
    ///
    /// If `apart`, they may differ between ranks.
    fn cursors(&self, plan: &EpochPlan, apart: bool) -> Vec<u64> {
        let cursor = |rank: u64| {
            let stop = if apart && self.apart {
                self.stops[rank as usize % self.stops.len()]
            } else {
                self.stops[0]
            };
            let left = plan.rank_steps(rank) - plan.first_step();
            plan.first_step() + (left as f64 * stop).round() as u64
        };
        (0..plan.world_size()).map(cursor).collect()
    }
}

prop_compose! {
    fn cases()(
        counts in prop::collection::vec(0u64..40, 1..12).prop_filter("some", |c| c.iter().any(|&n| n > 0)),
        seed in any::<u64>(),
        enabled in prop::bool::weighted(0.9),
        window in prop_oneof![1u64..12, 12u64..60, Just(1000)],
        interleave in prop_oneof![1u64..6, Just(100)],
        block_length in 1u64..4,
        tail in prop_oneof![Just(Tail::Drop), Just(Tail::Pad), Just(Tail::Uneven)],
        limit in prop::option::weighted(0.3, 1u64..300),
    ) -> Case {
        let digest = Digest::from_bytes([5; 32]);
        let shuffle = Shuffle { digest, seed, enabled, window, interleave, block_length };
        Case { counts, shuffle, tail, limit }
    }
}

prop_compose! {
    fn stretches()(
        lanes in 1u64..7,
        per_lane in 1u64..7,
        world in any::<prop::sample::Index>(),
        stops in prop::collection::vec(prop_oneof![0.0..1.0f64, Just(1.0)], 1..12),
        apart in any::<bool>(),
    ) -> Stretch {
        Stretch { lanes, per_lane, world, stops, apart }
    }
}

/// Counts the samples that the ranks received in these steps, and checks that these ranks read the
/// shards.
fn deliver(plan: &EpochPlan, cursors: &[u64], counts: &mut [u64]) {
    let readers = plan.ranks_of_shards().unwrap();
    for (rank, &cursor) in cursors.iter().enumerate() {
        for step in plan.first_step()..cursor {
            for planned in plan.batch(step, rank as u64).unwrap().iter().filter(|p| p.valid) {
                let shard = planned.sample.shard as usize;
                let [first, second] = &readers[shard];
                let rank = rank as u64;
                assert!(first.contains(&rank) || second.contains(&rank), "{rank} of {readers:?}");
                counts[shard] += 1;
            }
        }
    }
}

fn check(plan: &EpochPlan, cursors: &[u64], counts: &[u64]) {
    assert_eq!(plan.delivered_by_shard(cursors).unwrap(), counts);
    assert_eq!(plan.delivered_before(cursors).unwrap(), counts.iter().sum::<u64>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn counts_are_those_of_the_batches(case in cases(), stretches in prop::collection::vec(stretches(), 1..5)) {
        let mut segments: Vec<Segment> = Vec::new();
        let mut delivered = vec![0; case.counts.len()];
        for (index, stretch) in stretches.iter().enumerate() {
            segments.push(stretch.segment());
            let plan = case.plan(&segments, stretch.world_size());
            let from = vec![plan.first_step(); stretch.world_size() as usize];
            check(&plan, &from, &delivered);
            let apart = case.tail == Tail::Uneven || index + 1 == stretches.len();
            let cursors = stretch.cursors(&plan, apart);
            deliver(&plan, &cursors, &mut delivered);
            check(&plan, &cursors, &delivered);
            let taken: Vec<u64> = cursors.iter().map(|step| step - plan.first_step()).collect();
            if taken.iter().all(|&steps| steps == 0) {
                segments.pop();
            } else {
                segments.last_mut().unwrap().steps = Steps::PerRank(taken).normalized();
            }
        }
    }

    #[test]
    fn what_no_step_delivers_is_dropped(case in cases(), first in stretches(), last in stretches()) {
        let mut segments = vec![first.segment()];
        let plan = case.plan(&segments, first.world_size());
        let cursors = first.cursors(&plan, case.tail == Tail::Uneven);
        if cursors.iter().any(|&steps| steps > 0) {
            segments[0].steps = Steps::PerRank(cursors.clone()).normalized();
            segments.push(last.segment());
        }
        let mut delivered = vec![0; case.counts.len()];
        if segments.len() == 2 {
            deliver(&plan, &cursors, &mut delivered);
        }
        let plan = case.plan(&segments, 1);
        deliver(&plan, &[plan.steps()], &mut delivered);
        let dropped = plan.dropped_by_shard().unwrap();
        prop_assert_eq!(dropped.iter().sum::<u64>(), plan.dropped());
        for shard in 0..case.counts.len() {
            prop_assert_eq!(delivered[shard] + dropped[shard], case.counts[shard]);
        }
    }

    #[test]
    fn left_out_steps_count_by_the_shards_of_their_batches(
        case in cases(),
        stretches in prop::collection::vec(stretches(), 1..5),
        picks in prop::collection::vec(any::<bool>(), 1..20),
    ) {
        let tail = if case.tail == Tail::Uneven { Tail::Drop } else { case.tail };
        let (case, mut segments) = (Case { tail, ..case }, Vec::<Segment>::new());
        let (mut left_out, mut expected) = (LeftOut::default(), vec![0; case.counts.len()]);
        for stretch in stretches {
            segments.push(stretch.segment());
            let plan = case.plan(&segments, 1);
            let end = stretch.cursors(&plan, false)[0];
            for step in plan.first_step()..end {
                let batch = plan.batch(step, 0).unwrap();
                let is_full = batch.len() as u64 == plan.rows() && batch.iter().all(|p| p.valid);
                if is_full && picks[step as usize % picks.len()] {
                    left_out.add(step, step + 1);
                    batch.iter().for_each(|p| expected[p.sample.shard as usize] += 1);
                }
            }
            prop_assert_eq!(&plan.left_out_by_shard(&left_out).unwrap(), &expected);
            prop_assert_eq!(left_out.samples(&segments), expected.iter().sum::<u64>());
            let taken = end - plan.first_step();
            match taken {
                0 => drop(segments.pop()),
                _ => segments.last_mut().unwrap().steps = Steps::All(taken),
            }
        }
    }

    #[test]
    fn the_ranks_of_a_shard_are_those_of_its_lanes(case in cases(), stretch in stretches()) {
        let plan = case.plan(&[stretch.segment()], stretch.world_size());
        let mut expected = vec![BTreeSet::new(); case.counts.len()];
        for lane in 0..plan.lanes() {
            let (per_lane, width) = (stretch.per_lane, plan.rows());
            let ranks = lane * per_lane / width..((lane + 1) * per_lane).div_ceil(width);
            for sample in plan.lane(lane).inputs_from(0) {
                expected[sample.shard as usize].extend(ranks.clone());
            }
        }
        let found = plan.ranks_of_shards().unwrap();
        for (shard, expected) in expected.into_iter().enumerate() {
            let [first, second] = found[shard].clone();
            prop_assert!(second.is_empty() || first.end < second.start, "{found:?}");
            prop_assert_eq!(first.chain(second).collect::<BTreeSet<_>>(), expected);
        }
    }
}

fn large(counts: &[u64], lanes: u64, world_size: u64) -> EpochPlan {
    let digest = Digest::from_bytes([5; 32]);
    let shuffle =
        Shuffle { digest, seed: 1, enabled: true, window: 10_000, interleave: 16, block_length: 1 };
    let line = Arc::new(Line::new(counts, &shuffle, 0).unwrap());
    let global_batch = 256 * world_size;
    let segment = Segment { lanes, global_batch, steps: Steps::All(0) };
    EpochPlan::new(line, shuffle, 0, (Tail::Drop, None), &[segment], world_size).unwrap()
}

#[test]
fn twenty_million_samples_are_not_walked() {
    let counts = vec![1_000; 20_000];
    let plan = large(&counts, 8, 8);
    let near = |step: u64| -> Vec<u64> { (0..8).map(|rank| step + rank % 3).collect() };
    for cursors in [near(0), near(plan.steps() / 2), vec![plan.steps(); 8]] {
        let delivered = plan.delivered_by_shard(&cursors).unwrap();
        assert_eq!(delivered.iter().sum::<u64>(), plan.delivered_before(&cursors).unwrap());
        // Only splits near the cursors are delivered in part: two windows and a group of each lane.
        let partly = delivered.iter().filter(|&&samples| samples > 0 && samples < 1_000).count();
        assert!(partly <= 8 * (20 + 2 * 16), "{partly} shards are delivered in part");
    }
}

/// Iterating over these samples would take days.
#[test]
fn a_trillion_samples_are_not_walked() {
    let counts: Vec<u64> = (0..2_000).map(|shard| 500_000_000 + shard).collect();
    let plan = large(&counts, 4, 8);
    let cursors: Vec<u64> = (0..8).map(|rank| plan.steps() / 3 + rank).collect();
    let delivered = plan.delivered_by_shard(&cursors).unwrap();
    assert_eq!(delivered.iter().sum::<u64>(), plan.delivered_before(&cursors).unwrap());
    assert_eq!(plan.dropped_by_shard().unwrap().iter().sum::<u64>(), plan.dropped());
}

#[test]
fn cursors_that_no_epoch_has_are_refused() {
    let plan = large(&[10_000], 2, 2);
    let few = plan.delivered_before(&[0]).unwrap_err();
    let beyond = plan.delivered_by_shard(&[0, plan.steps() + 1]).unwrap_err();
    expect![[r#"
        1 cursors were given for 2 ranks; give one for each rank
        epoch 0 has 19 steps for this rank; there is no step 20"#]]
    .assert_eq(&format!("{few}\n{beyond}"));
}

#[test]
fn every_plan_that_is_refused_says_why() {
    let digest = Digest::from_bytes([5; 32]);
    let shuffle =
        Shuffle { digest, seed: 1, enabled: true, window: 10, interleave: 2, block_length: 1 };
    let plan = |tail: Tail, segments: &[Segment], world_size: u64, shuffle: &Shuffle| {
        let line = Arc::new(Line::new(&[60, 40], shuffle, 0).unwrap());
        EpochPlan::new(line, shuffle.clone(), 0, (tail, None), segments, world_size)
    };
    let of = |lanes: u64, global_batch: u64, steps: Steps| Segment { lanes, global_batch, steps };
    let one = of(2, 8, Steps::All(0));
    let whole = plan(Tail::Drop, slice::from_ref(&one), 2, &shuffle).unwrap();
    let dropped =
        |segments: &[Segment], world_size| plan(Tail::Drop, segments, world_size, &shuffle);
    let asked = [
        ("no record", Line::new(&[0, 0], &shuffle, 0).err()),
        ("no segment", dropped(&[], 2).err()),
        ("ranks that do not divide", dropped(slice::from_ref(&one), 3).err()),
        ("17 segments", dropped(&vec![of(2, 8, Steps::All(1)); 17], 2).err()),
        ("too many steps", dropped(&[of(2, 8, Steps::All(99)), one.clone()], 2).err()),
        ("steps of each rank", dropped(&[of(2, 8, Steps::PerRank(vec![1, 2]))], 2).err()),
        ("a rank beyond", whole.slots(0, 2).err()),
        ("a step beyond", whole.slots(12, 0).err()),
        ("a shard beyond", whole.place(Portion::default(), Sample { shard: 2, ordinal: 0 }).err()),
        (
            "a sample beyond",
            whole.place(Portion::default(), Sample { shard: 1, ordinal: 40 }).err(),
        ),
        (
            "no window",
            plan(Tail::Drop, slice::from_ref(&one), 2, &Shuffle { window: 0, ..shuffle.clone() })
                .err(),
        ),
        ("no batch", Segment::start(2, 0, 2).err()),
        ("lanes that do not divide", Segment::start(3, 4, 2).err()),
        ("many lanes", Segment::start(1 << 30, 4, 2).err()),
    ];
    let said = asked.map(|(what, error)| format!("{what}: {}\n", error.unwrap()));
    expect![[r#"
        no record: the dataset has no records: 2 shards, all empty
        no segment: `segments` must be at least 1
        ranks that do not divide: world_size=3 does not divide the global batch of 8
        17 segments: lanes or the global batch changed more than 16 times in this epoch; keep the global batch, or start the next epoch with set_epoch()
        too many steps: the position is beyond the epoch: 99 steps were taken with lanes=2 and a global batch of 8, but only 12 exist; it belongs to another dataset or job
        steps of each rank: only tail="uneven" lets ranks stop at different steps
        a rank beyond: rank=2 is not in 0..2: ranks count from 0 to world_size - 1
        a step beyond: epoch 0 has 12 steps for this rank; there is no step 12
        a shard beyond: shard 2 has no sample 0
        a sample beyond: shard 1 has no sample 40
        no window: `shuffle_window` must be at least 1
        no batch: `batch_size` must be at least 1
        lanes that do not divide: lanes=3 does not divide the global batch of 8 (batch_size 4 x world_size 2); use batch_size=3 or 6, or one of lanes=1, 2, 4, 8
        many lanes: `lanes` is 1073741824, but may be at most 1048576
    "#]].assert_eq(&said.concat());
}
