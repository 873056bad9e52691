//! Properties of the order over random datasets, jobs and histories.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use shardfeed_plan::{
    Digest, EpochPlan, Line, Permutations, Planned, Portion, Sample, Segment, Shuffle, SlotSource,
    SplitRun, Steps, Tail,
};

#[derive(Clone, Debug)]
struct Case {
    counts: Vec<u64>,
    shuffle: Shuffle,
    tail: Tail,
    limit: Option<u64>,
    lanes: u64,
    per_lane: u64,
}

impl Case {
    fn plan(&self, segments: &[Segment], world_size: u64) -> EpochPlan {
        let line = Arc::new(Line::new(&self.counts, &self.shuffle, 3).unwrap());
        let rules = (self.tail, self.limit);
        EpochPlan::new(line, self.shuffle.clone(), 3, rules, segments, world_size).unwrap()
    }

    fn batch(&self) -> u64 {
        self.lanes * self.per_lane
    }

    fn whole(&self, world_size: u64) -> EpochPlan {
        self.plan(&[segment(self.lanes, self.batch(), 0)], world_size)
    }
}

fn segment(lanes: u64, global_batch: u64, steps: u64) -> Segment {
    Segment { lanes, global_batch, steps: Steps::All(steps) }
}

fn tails() -> impl Strategy<Value = Tail> {
    prop_oneof![Just(Tail::Drop), Just(Tail::Pad), Just(Tail::Uneven)]
}

prop_compose! {
    fn cases()(
        counts in prop::collection::vec(0u64..40, 1..12).prop_filter("some", |c| c.iter().any(|&n| n > 0)),
        seed in any::<u64>(),
        enabled in prop::bool::weighted(0.9),
        window in prop_oneof![1u64..12, Just(1000)],
        interleave in 1u64..6,
        block_length in 1u64..4,
        tail in tails(),
        limit in prop::option::weighted(0.2, 1u64..200),
        lanes in 1u64..7,
        per_lane in 1u64..7,
    ) -> Case {
        let digest = Digest::from_bytes([5; 32]);
        let shuffle = Shuffle { digest, seed, enabled, window, interleave, block_length };
        Case { counts, shuffle, tail, limit, lanes, per_lane }
    }
}

fn divisors(number: u64) -> Vec<u64> {
    (1..=number).filter(|d| number.is_multiple_of(*d)).collect()
}

/// Returns the global batches step by step, each the concatenation of its ranks' batches.
fn global_batches(plan: &EpochPlan, from: u64) -> Vec<Vec<Planned>> {
    (from..plan.steps())
        .map(|step| {
            let ranks = 0..plan.world_size();
            ranks
                .filter(|&rank| step < plan.rank_steps(rank))
                .flat_map(|rank| plan.batch(step, rank).unwrap())
                .collect()
        })
        .collect()
}

fn count_valid(batches: &[Vec<Planned>], seen: &mut BTreeMap<Sample, u32>) {
    for planned in batches.iter().flatten().filter(|planned| planned.valid) {
        *seen.entry(planned.sample).or_default() += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_sample_is_delivered_once_or_dropped(case in cases()) {
        let plan = case.whole(1);
        let batches = global_batches(&plan, 0);
        let mut seen = BTreeMap::new();
        count_valid(&batches, &mut seen);
        prop_assert!(seen.values().all(|&times| times == 1));
        let samples: u64 = case.counts.iter().sum();
        prop_assert_eq!(samples - seen.len() as u64, plan.dropped());
        for sample in seen.keys() {
            prop_assert!(sample.ordinal < case.counts[sample.shard as usize]);
        }
    }

    #[test]
    fn steps_are_equal_and_within_the_bounds(mut case in cases()) {
        case.limit = None;
        let plan = case.whole(1);
        let (samples, batch) = (case.counts.iter().sum::<u64>(), case.batch());
        let (lanes, per_lane) = (case.lanes, case.per_lane);
        match case.tail {
            Tail::Drop => {
                prop_assert_eq!(plan.steps(), samples / lanes / per_lane);
                prop_assert!(plan.dropped() < batch);
            }
            Tail::Pad => {
                prop_assert_eq!(plan.steps(), samples.div_ceil(lanes).div_ceil(per_lane));
                prop_assert_eq!(plan.dropped(), 0);
            }
            Tail::Uneven => prop_assert_eq!(plan.dropped(), 0),
        }
        for world_size in divisors(batch) {
            let plan = case.whole(world_size);
            let width = (batch / world_size) as usize;
            for rank in 0..world_size {
                if case.tail == Tail::Uneven {
                    prop_assert!(plan.rank_steps(rank) + 1 >= plan.steps());
                    continue;
                }
                prop_assert_eq!(plan.rank_steps(rank), plan.steps());
                for step in 0..plan.steps() {
                    prop_assert_eq!(plan.slots(step, rank).unwrap().len(), width);
                }
            }
        }
    }

    #[test]
    fn the_global_batch_is_the_same_for_every_world_size(case in cases()) {
        let expected = global_batches(&case.whole(1), 0);
        for world_size in divisors(case.batch()) {
            prop_assert_eq!(&global_batches(&case.whole(world_size), 0), &expected);
        }
    }

    #[test]
    fn resuming_gives_the_tail_of_the_whole_run(case in cases(), part in 0.0..1.0f64, pick in any::<prop::sample::Index>()) {
        let whole = case.whole(1);
        let step = (whole.steps() as f64 * part) as u64;
        let expected = global_batches(&whole, step);
        let worlds = divisors(case.batch());
        let world_size = worlds[pick.index(worlds.len())];
        let resumed = case.plan(&[segment(case.lanes, case.batch(), step)], world_size);
        prop_assert_eq!(resumed.steps(), whole.steps());
        prop_assert_eq!(global_batches(&resumed, step), expected);
    }

    #[test]
    fn a_new_cut_loses_and_doubles_nothing(
        mut case in cases(),
        changes in prop::collection::vec((1u64..7, 1u64..7, 0.0..1.0f64), 1..5),
    ) {
        case.limit = None;
        let mut segments = vec![segment(case.lanes, case.batch(), 0)];
        let mut seen = BTreeMap::new();
        for (lanes, per_lane, part) in changes {
            let plan = case.plan(&segments, 1);
            let left = plan.steps() - plan.first_step();
            let steps = (left as f64 * part) as u64;
            let batches = global_batches(&plan, plan.first_step());
            count_valid(&batches[..steps as usize], &mut seen);
            segments.last_mut().unwrap().steps = Steps::All(steps);
            if steps == 0 {
                segments.pop();
            }
            segments.push(segment(lanes, lanes * per_lane, 0));
        }
        let plan = case.plan(&segments, 1);
        count_valid(&global_batches(&plan, plan.first_step()), &mut seen);
        prop_assert!(seen.values().all(|&times| times == 1));
        let samples: u64 = case.counts.iter().sum();
        prop_assert_eq!(samples - seen.len() as u64, plan.dropped());
        if case.tail == Tail::Drop {
            prop_assert!(plan.dropped() < segments.last().unwrap().global_batch);
        } else {
            prop_assert_eq!(plan.dropped(), 0);
        }
        // The history is kept: every step of every segment can still be computed.
        for step in 0..plan.steps() {
            plan.batch(step, 0).unwrap();
        }
    }

    #[test]
    fn uneven_ranks_that_stopped_anywhere_lose_nothing(
        mut case in cases(),
        stops in prop::collection::vec(0.0..1.0f64, 12),
        lanes in 1u64..7,
        per_lane in 1u64..7,
        pick in any::<prop::sample::Index>(),
    ) {
        (case.tail, case.limit) = (Tail::Uneven, None);
        let worlds: Vec<u64> = divisors(case.batch()).into_iter().filter(|&w| w <= 12).collect();
        let world_size = worlds[pick.index(worlds.len())];
        let plan = case.whole(world_size);
        let mut seen = BTreeMap::new();
        let mut steps = Vec::new();
        for rank in 0..world_size {
            let taken = (plan.rank_steps(rank) as f64 * stops[rank as usize]).round() as u64;
            let batches: Vec<_> = (0..taken).map(|step| plan.batch(step, rank).unwrap()).collect();
            count_valid(&batches, &mut seen);
            steps.push(taken);
        }
        if steps.iter().all(|&taken| taken == 0) {
            return Ok(());
        }
        let before = Segment { steps: Steps::PerRank(steps), ..segment(case.lanes, case.batch(), 0) };
        let resumed = case.plan(&[before, segment(lanes, lanes * per_lane, 0)], 1);
        count_valid(&global_batches(&resumed, resumed.first_step()), &mut seen);
        prop_assert!(seen.values().all(|&times| times == 1));
        prop_assert_eq!(seen.len() as u64, case.counts.iter().sum::<u64>());
        prop_assert_eq!(resumed.dropped(), 0);
    }

    #[test]
    fn the_way_back_finds_every_sample(case in cases(), second in prop::option::of((1u64..7, 1u64..7))) {
        let whole = case.whole(1);
        let plan = match second {
            Some((lanes, per_lane)) if whole.steps() > 1 => {
                let first = segment(case.lanes, case.batch(), whole.steps() / 2);
                case.plan(&[first, segment(lanes, lanes * per_lane, 0)], 1)
            }
            _ => whole,
        };
        let (mut dropped, mut known) = (0, Permutations::default());
        for (shard, &count) in case.counts.iter().enumerate() {
            for ordinal in 0..count {
                let sample = Sample { shard: shard as u32, ordinal };
                let placed = plan.place(Portion::default(), sample).unwrap();
                prop_assert_eq!(plan.place_with(Portion::default(), sample, &mut known).unwrap(), placed);
                let Some(placed) = placed else {
                    dropped += 1;
                    continue;
                };
                let slots = plan.slots(placed.step, placed.rank).unwrap();
                let index = slots.iter().position(|slot| slot.entry == placed.entry).unwrap();
                prop_assert!(matches!(slots[index].source, SlotSource::Lane(_)));
                let planned = plan.batch(placed.step, placed.rank).unwrap()[index];
                prop_assert_eq!((planned.sample, planned.valid), (sample, true));
            }
        }
        prop_assert_eq!(dropped, plan.dropped());
    }

    #[test]
    fn runs_are_the_slots_together(case in cases(), second in prop::option::of((1u64..7, 1u64..7))) {
        let whole = case.whole(1);
        let (plan, world_size) = match second {
            Some((lanes, per_lane)) if whole.steps() > 1 => {
                let first = segment(case.lanes, case.batch(), whole.steps() / 2);
                (case.plan(&[first, segment(lanes, lanes * per_lane, 0)], lanes), lanes)
            }
            _ => (case.whole(case.batch()), case.batch()),
        };
        let first = if second.is_some() { whole.steps() / 2 } else { 0 };
        for (step, rank) in (first..plan.steps()).flat_map(|s| (0..world_size).map(move |r| (s, r))) {
            let Ok(slots) = plan.slots(step, rank) else { continue };
            let mut found = Vec::new();
            for run in plan.slot_runs(step, rank).unwrap() {
                for number in 0..run.slots {
                    let mut slot = run.first;
                    slot.entry += number;
                    match &mut slot.source {
                        SlotSource::Lane(at) => at.output += number,
                        SlotSource::Padding { .. } => prop_assert_eq!(run.slots, 1),
                    }
                    found.push(slot);
                }
            }
            prop_assert_eq!(found, slots);
        }
        for lane in (0..plan.lanes()).map(|lane| plan.lane(lane)) {
            let (mut runs, mut inputs) = (lane.inputs_from(0), Vec::new());
            let mut next_of_split = BTreeMap::new();
            while let Some(SplitRun { split, first, samples, .. }) = runs.next_run(5) {
                let Sample { shard, ordinal } = first;
                let next = Sample { shard, ordinal: ordinal + samples };
                // Also if a shard has two splits in the lane.
                let expected = next_of_split.insert(split, next);
                prop_assert!(expected.is_none_or(|expected| expected == first));
                inputs.extend((ordinal..next.ordinal).map(|ordinal| Sample { shard, ordinal }));
            }
            prop_assert_eq!(inputs, lane.inputs_from(0).collect::<Vec<_>>());
        }
    }

    #[test]
    fn reading_needs_at_most_two_windows(case in cases()) {
        let plan = case.whole(1);
        for index in 0..plan.lanes() {
            let lane = plan.lane(index);
            let window = case.shuffle.window.min(lane.samples());
            let inputs: Vec<Sample> = lane.inputs_from(0).collect();
            prop_assert_eq!(inputs.len() as u64, lane.samples());
            let (mut next, mut known) = (0, Permutations::default());
            for block in lane.blocks_from(0) {
                let block = block.unwrap();
                prop_assert_eq!(block.outputs.start, next);
                next = block.outputs.end;
                if case.shuffle.enabled && window > 1 {
                    prop_assert!(block.needs.end - block.needs.start <= 2 * window);
                }
                for (output, &input) in block.outputs.clone().zip(&block.sources) {
                    prop_assert!(block.needs.contains(&input));
                    if case.shuffle.enabled {
                        prop_assert!(2 * output.abs_diff(input) < 3 * window.max(1));
                    }
                    prop_assert_eq!(lane.output(output).unwrap(), inputs[input as usize]);
                    let sample = inputs[input as usize];
                    let found = lane.output_with(Portion::default(), sample, &mut known);
                    prop_assert_eq!(found, Ok(Some(output)));
                }
            }
            prop_assert_eq!(next, lane.samples());
        }
    }
}
