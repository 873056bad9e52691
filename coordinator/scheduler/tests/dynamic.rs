//! A dynamic job from end to end, without a network: ranks of different speeds take, deliver, die
//! and come back, and what was delivered is counted by hand.
#![allow(clippy::unwrap_used)]

mod ranks;

use std::collections::BTreeMap;

use proptest::prelude::*;
use shardfeed_plan::{Segment, Steps, Tail};

use ranks::{Cluster, Rank};

/// How often each sample was delivered.
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

    /// Workers are killed and come back; trainers live, and tell where they are when they return.
    #[test]
    fn an_uneven_epoch_is_delivered_once_whatever_workers_do(
        sizes in sizes(),
        speeds in prop::collection::vec(1u64..9, 1..6),
        batch_size in 1u64..7,
        faults in prop::collection::vec((0usize..6, 0u64..40, 0u64..4), 0..12),
    ) {
        let mut cluster = Cluster::new(sizes.clone(), Tail::Uneven, batch_size, speeds.len());
        let mut round = 0;
        while !cluster.ranks.iter().all(Rank::is_over) {
            for (rank, _, length) in faults.iter().filter(|(_, at, _)| *at == round) {
                // A worker is gone for some rounds; its trainer delivers nothing without it.
                cluster.kill_worker(rank % speeds.len(), *length);
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
        prop_assert!(counted.keys().eq(once(&sizes).keys()));
        // What a trainer consumed before it could say so was given to others meanwhile.
        let twice = counted.values().map(|times| times - 1).sum::<u64>();
        prop_assert_eq!((pool.delivered(), pool.duplicated), (pool.samples, twice));
        prop_assert_eq!(pool.tally(speeds.len() as u64).missing(), 0);
    }

    /// A trainer dies with what it consumed after its last word: others deliver that again, and
    /// what it says late is counted.
    #[test]
    fn what_a_dead_rank_consumed_unreported_is_what_it_duplicates(
        sizes in sizes(),
        others in 1usize..4,
        batch_size in 1u64..5,
        reported in 0u64..4,
        unreported in 0u64..4,
    ) {
        let mut cluster = Cluster::new(sizes.clone(), Tail::Uneven, batch_size, 1 + others);
        (0..reported).for_each(|_| cluster.step(0));
        cluster.report(0, true);
        (0..unreported).for_each(|_| cluster.step(0));
        // A take tells as well.
        let known = cluster.pool().shares.get(&0).map_or(0, |share| share.consumed);
        let more = cluster.ranks[0].delivered.len() as u64 - known;
        cluster.kill_worker(0, u64::MAX - 1);
        cluster.late_report(0);
        let mut rounds = 0;
        while !(1..=others).all(|rank| cluster.ranks[rank].ended) {
            for rank in 1..=others {
                cluster.step(rank);
                cluster.report(rank, true);
            }
            cluster.balance(&vec![1; 1 + others]);
            cluster.check();
            rounds += 1;
            prop_assert!(rounds < 20_000, "the epoch does not end");
        }
        let counted = counted(&cluster.ranks);
        let twice = counted.values().map(|times| times - 1).sum::<u64>();
        prop_assert_eq!(counted.keys().count(), once(&sizes).len());
        prop_assert_eq!((twice, cluster.pool().duplicated), (more, more));
    }

    /// Everybody has the quota, whoever is fast.
    #[test]
    fn with_drop_and_pad_every_rank_has_the_same_steps(
        sizes in sizes(),
        speeds in prop::collection::vec(1u64..9, 1..6),
        batch_size in 1u64..7,
        pad in any::<bool>(),
        kill in (0usize..6, 0u64..10),
    ) {
        let tail = if pad { Tail::Pad } else { Tail::Drop };
        let mut cluster = Cluster::new(sizes.clone(), tail, batch_size, speeds.len());
        let mut round = 0;
        while !cluster.ranks.iter().all(Rank::is_over) {
            if round == kill.1 {
                cluster.kill_worker(kill.0 % speeds.len(), 2);
            }
            for (rank, speed) in speeds.iter().enumerate() {
                (0..*speed).for_each(|_| cluster.step(rank));
                cluster.report(rank, true);
            }
            cluster.revive();
            cluster.check();
            round += 1;
            prop_assert!(round < 20_000, "the epoch does not end");
        }
        let samples: u64 = sizes.iter().sum();
        let world = speeds.len() as u64;
        let quota = match tail {
            Tail::Drop => samples / world / batch_size * batch_size,
            _ => samples.div_ceil(world).div_ceil(batch_size) * batch_size,
        };
        prop_assert!(cluster.ranks.iter().all(|rank| rank.step * batch_size == quota));
        let counted = counted(&cluster.ranks);
        prop_assert!(counted.values().all(|times| *times == 1));
        let delivered = if pad { samples } else { quota * world };
        prop_assert_eq!(counted.len() as u64, delivered);
        let tally = cluster.pool().tally(world);
        prop_assert_eq!((tally.delivered, tally.missing()), (delivered, 0));
    }

    /// A run that starts again from a token has the very same lists up to where they went.
    #[test]
    fn a_restart_from_a_token_replays_the_log(
        sizes in sizes(),
        speeds in prop::collection::vec(1u64..5, 1..5),
        batch_size in 1u64..5,
        uneven in any::<bool>(),
        token_at in 0u64..6,
        more in 0u64..6,
    ) {
        let tail = if uneven { Tail::Uneven } else { Tail::Drop };
        let mut cluster = Cluster::new(sizes, tail, batch_size, speeds.len());
        let run = |cluster: &mut Cluster, rounds: u64| {
            for _ in 0..rounds {
                for (rank, speed) in speeds.iter().enumerate() {
                    // Ranks of other tails step together.
                    let steps = if uneven { *speed } else { 1 };
                    (0..steps).for_each(|_| cluster.step(rank));
                    cluster.report(rank, true);
                }
            }
        };
        run(&mut cluster, token_at);
        let tokens: Vec<u64> = cluster.ranks.iter().map(|rank| rank.step).collect();
        let had: Vec<_> = cluster.ranks.iter().map(|rank| rank.delivered.len()).collect();
        run(&mut cluster, more);
        let first = cluster.ranks.clone();
        cluster.restart(&tokens);
        cluster.check();
        run(&mut cluster, more);
        for (rank, before) in first.iter().enumerate() {
            // What had to wait the first time is at hand now.
            prop_assert!(cluster.ranks[rank].delivered.starts_with(&before.delivered[had[rank]..]));
        }
    }

    /// 4 -> 3 -> 6 ranks, each time from tokens.
    #[test]
    fn other_world_sizes_go_on_with_what_is_left(
        sizes in prop::collection::vec(1u64..60, 8..40),
        tail in prop_oneof![Just(Tail::Uneven), Just(Tail::Drop), Just(Tail::Pad)],
        steps in prop::collection::vec(0u64..5, 7),
        after in 0u64..3,
        worlds in Just([4usize, 3, 6]),
    ) {
        let batch = 12;
        let mut cluster = Cluster::new(sizes.clone(), tail, batch / 4, 4);
        let mut delivered = vec![];
        let mut segments = vec![];
        for (stage, world) in worlds.into_iter().enumerate() {
            if stage > 0 {
                cluster.resize(world, batch / world as u64, &segments);
            }
            if stage == 2 {
                break;
            }
            let taken: Vec<u64> = (0..world).map(|rank| match tail {
                Tail::Uneven => steps[3 * stage + rank % 3],
                _ => steps[stage],
            }).collect();
            for (rank, taken) in taken.iter().enumerate() {
                (0..*taken).for_each(|_| cluster.step(rank));
                cluster.report(rank, true);
            }
            // The token's steps, and some more that it does not speak of.
            let stood: Vec<u64> = cluster.ranks.iter().map(|rank| rank.step).collect();
            let equal = stood.iter().all(|step| *step == stood[0]);
            prop_assume!(tail == Tail::Uneven || equal);
            delivered.extend(cluster.ranks.iter().flat_map(|rank| rank.delivered.clone()));
            for rank in 0..world {
                (0..after).for_each(|_| cluster.step(rank));
                cluster.report(rank, true);
            }
            let first = cluster.first_step();
            segments = next_segments(&segments, tail, &stood, first, batch);
        }
        cluster.finish();
        let mut counted = counted(&cluster.ranks);
        delivered.iter().for_each(|sample| *counted.entry(*sample).or_default() += 1);
        prop_assert!(counted.values().all(|times| *times == 1), "doubled");
        let all = once(&sizes);
        match tail {
            Tail::Drop => {
                let dropped = all.len() - counted.len();
                let tally = cluster.pool().tally(6);
                prop_assert_eq!((tally.dropped, tally.missing()), (dropped as u64, 0));
                prop_assert!((dropped as u64) < batch);
            }
            _ => prop_assert_eq!(counted, all),
        }
    }
}

/// Segments of a token after ranks stood there.
fn next_segments(
    before: &[Segment],
    tail: Tail,
    stood: &[u64],
    first_step: u64,
    batch: u64,
) -> Vec<Segment> {
    let segment = |steps| Segment { lanes: 1, global_batch: batch, steps };
    if tail != Tail::Uneven {
        return vec![segment(Steps::All(stood[0]))];
    }
    let mut segments = before.to_vec();
    segments.pop();
    let steps = stood.iter().map(|step| step - first_step).collect();
    segments.push(segment(Steps::PerRank(steps)));
    segments.push(segment(Steps::All(0)));
    segments
}

/// Nothing walks over all ranks or groups: the times are printed for people, and judged by none.
#[test]
fn a_take_in_a_large_job() {
    for (groups, ranks) in [(1_000usize, 64usize), (1_000_000, 10_000)] {
        let mut cluster = Cluster::new(vec![100; groups], Tail::Uneven, 10, ranks);
        for first in (0..ranks - 63).step_by(64) {
            cluster.take_many(first..first + 64);
        }
        let takes: Vec<_> = (0..64).map(|rank| cluster.take_of(rank, 150)).collect();
        let granted = cluster.pool().next;
        let (took, answer) = cluster.timed(shardfeed_scheduler::Change::TakeGroups { takes });
        println!("64 takes with {groups} groups and {ranks} ranks: {took:?}");
        let shardfeed_scheduler::Answer::Taken(taken) = answer else { panic!() };
        assert!(taken.iter().all(|taken| taken.as_ref().unwrap().pieces.len() == 1));
        assert_eq!(cluster.pool().next, granted + 64);
    }
}
