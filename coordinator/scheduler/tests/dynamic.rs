//! A dynamic job from end to end, without a network.
//!
//! Ranks of different speeds claim, deliver, die and come back, and the test counts the delivered
//! samples itself.
#![allow(clippy::unwrap_used)]

mod ranks;

use std::collections::BTreeMap;

use proptest::prelude::*;
use shardfeed_plan::{Segment, Steps};
use shardfeed_scheduler::{DoubtPolicy, InDoubt};

use ranks::{Cluster, Rank};

/// Number of deliveries of each sample.
fn counted<'a>(ranks: impl IntoIterator<Item = &'a Rank>) -> BTreeMap<(u64, u64), u64> {
    let mut counted = BTreeMap::new();
    for sample in ranks.into_iter().flat_map(|rank| &rank.delivered) {
        *counted.entry(*sample).or_default() += 1;
    }
    counted
}

fn once(sizes: &[u64]) -> BTreeMap<(u64, u64), u64> {
    let groups = (0u64..).zip(sizes);
    groups.flat_map(|(group, &size)| (0..size).map(move |at| ((group, at), 1))).collect()
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1u64..40, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Workers are killed and come back; trainers survive, and report their position when they
    /// return. Some leave the epoch before its end.
    #[test]
    fn an_epoch_is_delivered_once_whatever_workers_do(
        sizes in sizes(),
        speeds in prop::collection::vec(1u64..9, 1..6),
        batch_size in 1u64..7,
        faults in prop::collection::vec((0usize..6, 0u64..40, 0u64..4), 0..12),
        leaving in prop::collection::vec((1usize..6, 0u64..40), 0..3),
    ) {
        let mut cluster = Cluster::new(sizes.clone(), batch_size, speeds.len());
        let mut round = 0;
        while !cluster.ranks.iter().all(Rank::is_over) {
            for (rank, _, length) in faults.iter().filter(|(_, at, _)| *at == round) {
                // A worker is gone for some rounds; its trainer delivers nothing without it.
                cluster.kill_worker(rank % speeds.len(), *length);
            }
            for (rank, _) in leaving.iter().filter(|(_, at)| *at == round) {
                if rank % speeds.len() > 0 {
                    cluster.leave(rank % speeds.len());
                }
            }
            for (rank, speed) in speeds.iter().enumerate() {
                for _ in 0..*speed {
                    cluster.step(rank);
                }
                cluster.report(rank, round % 3 == 0);
            }
            cluster.revive();
            cluster.balance(&speeds);
            cluster.check();
            round += 1;
            prop_assert!(round < 20_000, "the epoch does not end");
        }
        let (counted, pool) = (counted(&cluster.ranks), cluster.pool());
        prop_assert_eq!(counted, once(&sizes));
        let tally = pool.tally();
        prop_assert_eq!((tally.delivered, tally.missing()), (pool.samples, 0));
        prop_assert_eq!((tally.duplicated, tally.redelivered, tally.dropped), (0, 0, 0));
    }

    /// Workers and trainers die, and some come back after the policy has decided.
    #[test]
    fn what_is_in_doubt_goes_to_nobody_until_the_policy_decides(
        sizes in sizes(),
        others in 1usize..4,
        batch_size in 1u64..5,
        dead in prop::collection::vec((0u64..4, 0u64..4), 1..3),
        in_doubt in prop::sample::select(vec![InDoubt::Redeliver, InDoubt::Drop]),
        by_operator: bool,
        returns: bool,
        tells_late: bool,
    ) {
        let doubt = DoubtPolicy { in_doubt, grace_ms: 3_000 };
        let (gone, all) = (dead.len(), dead.len() + others);
        let mut cluster = Cluster::with_policy(sizes.clone(), batch_size, all, doubt);
        let mut consumed_unreported = 0;
        for (rank, (reported, unreported)) in dead.iter().enumerate() {
            (0..*reported).for_each(|_| cluster.step(rank));
            cluster.report(rank, true);
            (0..*unreported).for_each(|_| cluster.step(rank));
            // A claim reports progress as well.
            let known = cluster.pool().shares.get(&(rank as u64)).map_or(0, |share| share.consumed);
            consumed_unreported += cluster.ranks[rank].delivered.len() as u64 - known;
        }
        for rank in 0..gone {
            cluster.kill_worker(rank, 0);
        }
        let begun = cluster.pool().tally().in_doubt;
        prop_assert!(consumed_unreported <= begun);
        let live = |cluster: &mut Cluster| {
            for rank in gone..all {
                cluster.step(rank);
                cluster.report(rank, true);
            }
            cluster.balance(&vec![1; all]);
            cluster.check();
        };
        // No rank gets the samples in doubt, and the epoch does not end.
        let mut rounds = 0;
        while !cluster.pool().waits_for_doubt() && !cluster.pool().is_done() {
            cluster.wait(10_000);
            live(&mut cluster);
            rounds += 1;
            prop_assert!(rounds < 20_000, "the epoch does not continue");
        }
        prop_assert!(counted(&cluster.ranks).values().all(|times| *times == 1));
        if tells_late {
            // A late report of a worker is a lower bound: it ends no doubt.
            cluster.late_report(0);
            prop_assert!(counted(&cluster.ranks).values().all(|times| *times == 1));
        }
        let in_doubt_now = cluster.pool().tally().in_doubt;
        prop_assert_eq!(cluster.pool().is_done(), in_doubt_now == 0);
        if by_operator {
            let decided: u64 = (0..gone).map(|rank| cluster.declare_gone(rank)).sum();
            prop_assert_eq!(decided, in_doubt_now);
            prop_assert_eq!(cluster.declare_gone(0), 0);
        } else {
            cluster.wait(2_999);
            prop_assert_eq!(cluster.pool().tally().in_doubt, in_doubt_now);
            cluster.wait(1);
        }
        let tally = cluster.pool().tally();
        let decided = [tally.redelivered, tally.dropped];
        let expected = if in_doubt == InDoubt::Drop { [0, in_doubt_now] } else { [in_doubt_now, 0] };
        prop_assert_eq!((tally.in_doubt, decided), (0, expected));
        let mut rounds = 0;
        while !(gone..all).all(|rank| cluster.ranks[rank].ended) {
            live(&mut cluster);
            rounds += 1;
            prop_assert!(rounds < 20_000, "the epoch does not end");
        }
        prop_assert!(cluster.pool().is_done());
        if returns {
            cluster.revive();
            cluster.check();
            let mut rounds = 0;
            while !cluster.ranks.iter().all(Rank::is_over) {
                (0..all).for_each(|rank| cluster.step(rank));
                (0..all).for_each(|rank| cluster.report(rank, true));
                cluster.check();
                rounds += 1;
                prop_assert!(rounds < 20_000, "the epoch does not end");
            }
        }
        let (counted, tally) = (counted(&cluster.ranks), cluster.pool().tally());
        let twice = counted.values().map(|times| times - 1).sum::<u64>();
        let lost = once(&sizes).len() - counted.len();
        prop_assert!(counted.values().all(|times| *times <= 2), "a third time");
        prop_assert_eq!(tally.missing(), 0);
        prop_assert!(twice <= tally.redelivered + tally.duplicated);
        if in_doubt == InDoubt::Drop {
            prop_assert_eq!(twice, 0);
            prop_assert!(lost as u64 <= tally.dropped);
        } else {
            prop_assert_eq!((lost, tally.dropped), (0, 0));
        }
        if returns {
            // The counts are now exact.
            prop_assert_eq!((tally.redelivered, tally.duplicated), (0, twice));
            prop_assert_eq!(lost as u64, tally.dropped);
        }
    }

    /// A run that starts again from a loader state has the same lists up to their ends.
    #[test]
    fn a_restart_from_a_token_replays_the_log(
        sizes in sizes(),
        speeds in prop::collection::vec(1u64..5, 1..5),
        batch_size in 1u64..5,
        state_at in 0u64..6,
        more in 0u64..6,
    ) {
        let mut cluster = Cluster::new(sizes, batch_size, speeds.len());
        let run = |cluster: &mut Cluster, rounds: u64| {
            for _ in 0..rounds {
                for (rank, speed) in speeds.iter().enumerate() {
                    (0..*speed).for_each(|_| cluster.step(rank));
                    cluster.report(rank, true);
                }
            }
        };
        run(&mut cluster, state_at);
        let tokens: Vec<u64> = cluster.ranks.iter().map(|rank| rank.step).collect();
        let had: Vec<_> = cluster.ranks.iter().map(|rank| rank.delivered.len()).collect();
        run(&mut cluster, more);
        let first = cluster.ranks.clone();
        cluster.restart(&tokens);
        cluster.check();
        run(&mut cluster, more);
        for (rank, before) in first.iter().enumerate() {
            // Samples that had to wait the first time are available now.
            prop_assert!(cluster.ranks[rank].delivered.starts_with(&before.delivered[had[rank]..]));
        }
    }

    /// Reshards 4 -> 3 -> 6 ranks, each time from loader states.
    #[test]
    fn other_world_sizes_go_on_with_what_is_left(
        sizes in prop::collection::vec(1u64..60, 8..40),
        steps in prop::collection::vec(0u64..5, 7),
        after in 0u64..3,
        worlds in Just([4usize, 3, 6]),
    ) {
        let batch = 12;
        let mut cluster = Cluster::new(sizes.clone(), batch / 4, 4);
        let mut delivered = vec![];
        let mut segments = vec![];
        for (stage, world) in worlds.into_iter().enumerate() {
            if stage > 0 {
                cluster.resize(world, batch / world as u64, &segments);
            }
            if stage == 2 {
                break;
            }
            for rank in 0..world {
                (0..steps[3 * stage + rank % 3]).for_each(|_| cluster.step(rank));
                cluster.report(rank, true);
            }
            // The steps of the loader state, and some later steps that it does not include.
            let stood: Vec<u64> = cluster.ranks.iter().map(|rank| rank.step).collect();
            delivered.extend(cluster.ranks.iter().flat_map(|rank| rank.delivered.clone()));
            for rank in 0..world {
                (0..after).for_each(|_| cluster.step(rank));
                cluster.report(rank, true);
            }
            let first = cluster.first_step();
            segments = next_segments(&segments, &stood, first, batch);
        }
        cluster.finish();
        let mut counted = counted(&cluster.ranks);
        delivered.iter().for_each(|sample| *counted.entry(*sample).or_default() += 1);
        prop_assert!(counted.values().all(|times| *times == 1), "doubled");
        prop_assert_eq!(counted, once(&sizes));
        prop_assert_eq!(cluster.pool().tally().missing(), 0);
    }
}

/// Segments of a loader state after ranks were at these steps.
fn next_segments(before: &[Segment], stood: &[u64], first_step: u64, batch: u64) -> Vec<Segment> {
    let segment = |steps| Segment { lanes: 1, global_batch: batch, steps };
    let mut segments = before.to_vec();
    segments.pop();
    let steps = stood.iter().map(|step| step - first_step).collect();
    segments.push(segment(Steps::PerRank(steps)));
    segments.push(segment(Steps::All(0)));
    segments
}

/// No operation walks over all ranks or groups: the times are printed for people and not checked.
#[test]
fn a_take_in_a_large_job() {
    for (groups, ranks) in [(1_000usize, 64usize), (1_000_000, 10_000)] {
        let mut cluster = Cluster::new(vec![100; groups], 10, ranks);
        for first in (0..ranks - 63).step_by(64) {
            cluster.take_many(first..first + 64);
        }
        let takes: Vec<_> = (0..64).map(|rank| cluster.take_of(rank, 150)).collect();
        let granted = cluster.pool().next;
        let (took, answer) = cluster.timed(shardfeed_scheduler::Change::ClaimGroups { takes });
        println!("64 claims with {groups} groups and {ranks} ranks: {took:?}");
        let shardfeed_scheduler::Answer::Taken(taken) = answer else { panic!() };
        assert!(taken.iter().all(|taken| taken.as_ref().unwrap().pieces.len() == 1));
        assert_eq!(cluster.pool().next, granted + 64);
    }
}
