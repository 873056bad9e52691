//! Groups partition the epoch sequence, and each has a closed-form order that can be read from any
//! position.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use shardfeed_plan::dynamic::{FreeRanges, GroupRange, Groups, RankList};
use shardfeed_plan::{Digest, Line, Permutations, Sample, Shuffle};

fn groups() -> impl Strategy<Value = Groups> {
    let counts = prop::collection::vec(0u64..12, 1..12)
        .prop_filter("no samples", |counts| counts.iter().any(|&count| count > 0));
    (counts, any::<bool>(), 1u64..9, 1u64..5, 1u64..4, 0u64..3).prop_map(
        |(counts, enabled, window, interleave, block_length, epoch)| {
            let digest = Digest::from_bytes([5; 32]);
            let shuffle = Shuffle { digest, seed: 3, enabled, window, interleave, block_length };
            let line = Arc::new(Line::unrotated(&counts, &shuffle, epoch).unwrap());
            Groups::new(line, shuffle, epoch).unwrap()
        },
    )
}

fn order(groups: &Groups, group: u64) -> Vec<Sample> {
    let lane = groups.lane(group);
    (0..lane.samples()).map(|output| lane.output(output).unwrap()).collect()
}

proptest! {
    #[test]
    fn every_sample_is_in_one_group_at_one_offset(groups in groups()) {
        let mut seen = BTreeSet::new();
        let (mut samples, mut known) = (0, Permutations::default());
        for group in 0..groups.count() {
            let order = order(&groups, group);
            prop_assert_eq!(order.len() as u64, groups.samples_of(group));
            prop_assert!(!order.is_empty());
            samples += order.len() as u64;
            for (offset, &sample) in order.iter().enumerate() {
                prop_assert!(seen.insert(sample));
                prop_assert!(groups.shards(group).contains(&sample.shard));
                let place = Some((group, offset as u64));
                prop_assert_eq!(groups.place_of(sample).unwrap(), place);
                prop_assert_eq!(groups.place_with(sample, &mut known).unwrap(), place);
            }
        }
        prop_assert_eq!(samples, groups.samples());
        prop_assert_eq!((0..groups.count()).map(|group| groups.samples_of(group)).sum::<u64>(), samples);
        let nowhere = Sample { shard: 99, ordinal: 0 };
        prop_assert_eq!(groups.place_of(nowhere).unwrap(), None);
    }

    #[test]
    fn a_group_is_read_from_anywhere(groups in groups(), pick in any::<prop::sample::Index>()) {
        let group = pick.index(groups.count() as usize) as u64;
        let (lane, order) = (groups.lane(group), order(&groups, group));
        let from = pick.index(order.len());
        let first = lane.blocks_from(from as u64).next().unwrap().unwrap();
        let inputs: Vec<Sample> = lane.inputs_from(first.needs.start).collect();
        for (block, output) in lane.blocks_from(from as u64).flat_map(|block| {
            let block = block.unwrap();
            block.outputs.clone().map(|output| (block.clone(), output)).collect::<Vec<_>>()
        }) {
            let source = block.sources[(output - block.outputs.start) as usize];
            let read = inputs[(source - first.needs.start) as usize];
            prop_assert_eq!(read, order[output as usize]);
        }
    }

    #[test]
    fn free_pieces_hold_what_was_put_in_and_not_taken_out(
        changes in prop::collection::vec((any::<bool>(), 0u64..3, 0u64..20, 1u64..8), 0..40),
    ) {
        let (mut free, mut model) = (FreeRanges::default(), BTreeSet::new());
        for (add, group, from, length) in changes {
            let places = || (from..from + length).map(|offset| (group, offset));
            let piece = GroupRange { group, from, to: from + length };
            if !add {
                let removed: u64 = free.remove(piece).iter().map(GroupRange::samples).sum();
                let met = places().filter(|place| model.remove(place)).count();
                prop_assert_eq!(removed, met as u64);
            } else if places().all(|place| !model.contains(&place)) {
                free.insert(piece);
                model.extend(places());
            }
            let held: Vec<_> =
                free.iter().flat_map(|p| (p.from..p.to).map(move |o| (p.group, o))).collect();
            prop_assert_eq!(&held, &model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(free.samples(), model.len() as u64);
            prop_assert_eq!(&FreeRanges::from(Vec::from(free.clone())), &free, "joined");
        }
    }

    /// A worker that mirrors a list range by range computes the same steps.
    #[test]
    fn steps_are_a_function_of_pieces_and_closed_runs(
        grants in prop::collection::vec((1u64..9, prop::bool::weighted(0.3)), 0..20),
        batch_size in 1u64..6,
        first_step in 0u64..3,
        cut in 0u64..60,
    ) {
        let mut list = RankList::new(batch_size, first_step);
        for (group, (samples, close)) in grants.into_iter().enumerate() {
            list.append(GroupRange { group: group as u64, from: 0, to: samples });
            if close {
                list.close();
            }
        }
        let mut position = 0;
        for step in first_step..list.end_step() {
            let positions = list.positions_of(step).unwrap();
            prop_assert_eq!(positions.start, position);
            prop_assert_eq!(list.position_of_step(step), Some(position));
            let short = positions.end - positions.start < batch_size;
            prop_assert!(!short || list.closed().contains(&positions.end));
            let pieces: u64 = list.pieces_in(positions.clone()).map(|p| p.samples()).sum();
            prop_assert_eq!(pieces, positions.end - positions.start);
            position = positions.end;
        }
        prop_assert!(list.samples() - position < batch_size);
        let mut mirror = RankList::new(batch_size, first_step);
        list.pieces().iter().for_each(|&piece| mirror.append(piece));
        list.closed().into_iter().for_each(|end| mirror.close_at(end));
        prop_assert_eq!(&mirror, &list);
        prop_assert_eq!(mirror.truncate_to(cut), list.truncate_to(cut));
        prop_assert_eq!(mirror, list);
    }
}
