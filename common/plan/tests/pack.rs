//! Properties of packs: all tokens once, equal numbers, little padding, new neighbours.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use shardfeed_plan::{
    Digest, Draws, Lengths, LongSequences, PACKS_MAX, PackError, PackMethod, PackSegment,
    PackSettings, Packing,
};

const SHARD: Digest = Digest::from_bytes([7; 32]);

fn settings(length: u64, block: u64, method: PackMethod) -> PackSettings {
    PackSettings { length, block, variants: 8, append: false, long: LongSequences::Split, method }
}

fn all_packs(packing: &Packing, variant: u64) -> Vec<Vec<PackSegment>> {
    (0..packing.blocks()).flat_map(|block| packing.open(block, variant)).collect()
}

proptest! {
    #[test]
    fn every_token_is_in_one_pack_of_every_variant(
        lengths in prop::collection::vec(prop_oneof![4 => 0u32..40, 1 => 0u32..400], 0..300),
        (length, block) in (1u64..130, 1u64..130),
        append in any::<bool>(),
        method in prop_oneof![Just(PackMethod::Fit), Just(PackMethod::Concat)],
    ) {
        let settings = PackSettings { append, ..settings(length, block, method) };
        let all: Lengths = lengths.iter().copied().collect();
        let packing = Packing::new(settings.clone(), SHARD, all.clone(), &[]).unwrap();
        let counts = packing.counts();
        let counted = |counts: &[u64]| {
            Packing::new(settings.clone(), SHARD, all.clone(), counts).unwrap()
        };
        assert_eq!(counted(&counts), packing);
        // Counts that cannot be right are not used.
        assert_eq!(counted(&counts[counts.len().min(1)..]), packing);
        assert_eq!(counted(&counts.iter().map(|_| 0).collect::<Vec<_>>()), packing);
        assert_eq!(counted(&counts.iter().map(|_| u64::MAX).collect::<Vec<_>>()), packing);
        let whole = |&tokens: &u32| u64::from(tokens) + u64::from(append && tokens > 0);
        for variant in 0..8 {
            let packs = all_packs(&packing, variant);
            prop_assert_eq!(packs.len() as u64, packing.packs());
            let mut segments: Vec<PackSegment> = vec![];
            for pack in packs {
                let tokens: u64 = pack.iter().map(|segment| segment.tokens).sum();
                prop_assert!((1..=length).contains(&tokens));
                segments.extend(pack);
            }
            segments.sort();
            let mut segments = segments.into_iter().peekable();
            for (sequence, tokens) in (0..).zip(lengths.iter().map(whole)) {
                let mut next = 0;
                while let Some(segment) = segments.next_if(|segment| segment.sequence == sequence) {
                    prop_assert!(segment.tokens > 0);
                    prop_assert_eq!(segment.first, next);
                    next += segment.tokens;
                }
                prop_assert_eq!(next, tokens);
            }
            prop_assert_eq!(segments.next(), None);
        }
    }
}

/// Returns lengths whose logarithm is normal, by the method of Box and Muller.
fn log_normal(count: usize, (mean, deviation): (f64, f64), most: u32) -> Arc<[u32]> {
    let mut draws = Draws::new(1, 0);
    let mut unit = || ((draws.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let mut length = || {
        let normal = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
        (mean + deviation * normal).exp().round().clamp(1.0, f64::from(most)) as u32
    };
    (0..count).map(|_| length()).collect()
}

/// Packs of best fit decreasing, by the plainest search.
fn reference(lengths: &[u32], length: u32) -> u64 {
    let mut sorted = lengths.to_vec();
    sorted.sort_by(|a, b| b.cmp(a));
    let mut rooms: Vec<u32> = vec![];
    for tokens in sorted {
        match rooms.iter_mut().filter(|room| **room >= tokens).min() {
            Some(room) => *room -= tokens,
            None => rooms.push(length - tokens),
        }
    }
    rooms.len() as u64
}

fn neighbours(packs: &[Vec<PackSegment>]) -> BTreeSet<(u64, u64)> {
    let pairs = |pack: &Vec<PackSegment>| {
        let pairs = pack
            .iter()
            .enumerate()
            .flat_map(|(index, a)| pack[index + 1..].iter().map(|b| (a.sequence, b.sequence)));
        pairs.collect::<Vec<_>>()
    };
    packs.iter().flat_map(pairs).collect()
}

#[test]
fn padding_is_below_half_a_percent_and_neighbours_are_new() {
    const BLOCK: usize = 4_096;
    for (name, shape, length) in [
        ("lm", (6.2, 1.1), 2_048),
        ("lm", (6.2, 1.1), 8_192),
        ("sft", (5.5, 0.9), 2_048),
        ("long", (7.3, 1.0), 8_192),
    ] {
        let lengths = log_normal(4 * BLOCK, shape, length);
        let fit = settings(u64::from(length), BLOCK as u64, PackMethod::Fit);
        let packing = Packing::new(fit, SHARD, lengths.iter().copied().collect(), &[]).unwrap();
        let tokens: u64 = lengths.iter().map(|&tokens| u64::from(tokens)).sum();
        let padding =
            |packs: u64| 100.0 * (1.0 - tokens as f64 / (packs * u64::from(length)) as f64);
        let best: u64 = lengths.chunks(BLOCK).map(|block| reference(block, length)).sum();
        let [before, after] = [0, 1].map(|variant| neighbours(&all_packs(&packing, variant)));
        let again = 100.0 * before.intersection(&after).count() as f64 / before.len() as f64;
        let (ours, theirs) = (padding(packing.packs()), padding(best));
        println!(
            "{name} {length}: padding {ours:.2} %, best fit decreasing {theirs:.2} %, again {again:.1} %"
        );
        assert!(ours < 0.5 && ours < theirs + 0.3, "{name}: {ours} and {theirs} %");
        assert!(again < 9.0, "{name}: {again} % of the neighbours meet again");
    }
}

#[test]
fn settings_and_shards_out_of_range_are_refused() {
    let refused = |settings: PackSettings, lengths: &[u32]| {
        Packing::new(settings, SHARD, lengths.iter().copied().collect(), &[])
            .unwrap_err()
            .to_string()
    };
    let fit = |length, block| settings(length, block, PackMethod::Fit);
    assert_eq!(refused(fit(0, 1), &[]), "`length` must be at least 1");
    assert_eq!(
        refused(fit(1, (1 << 20) + 1), &[]),
        "`block` is 1048577, but may be at most 1048576"
    );
    assert_eq!(
        refused(PackSettings { variants: 65, ..fit(1, 1) }, &[]),
        "`variants` is 65, but may be at most 64"
    );
    let error = PackSettings { long: LongSequences::Error, append: true, ..fit(8, 4) };
    assert_eq!(
        refused(error, &[7, 8]),
        "sequence 1 of the shard has 9 tokens, which is more than length=8; pass long=\"split\", \
         \"truncate\" or \"drop\", or a larger length"
    );
    for method in [PackMethod::Fit, PackMethod::Concat] {
        let found =
            Packing::new(settings(1, 4, method), SHARD, [u32::MAX].into_iter().collect(), &[]);
        assert_eq!(found.unwrap_err(), PackError::TooMany { sequences: 1, length: 1 });
    }
    // The longest sequence fits with the appended token, and memory does not grow with tokens.
    let long = PackSettings { append: true, ..settings(4_096, 4, PackMethod::Fit) };
    let packing = Packing::new(long, SHARD, [u32::MAX].into_iter().collect(), &[]).unwrap();
    assert_eq!(packing.packs(), 1 << 20);
    assert!(packing.packs() <= PACKS_MAX);
    let last = packing.open(packing.blocks() - 1, 7);
    assert_eq!(last.iter().flatten().map(|segment| segment.tokens).max(), Some(4_096));
}
