//! Compares the packs computed by `shardfeed-plan` with those of `pack_oracle.py`, which was written
//! from docs/ORDER.md, section 14, alone.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};
use shardfeed_plan::{
    Digest, LongSequences, PackError, PackMethod, PackSegment, PackSettings, Packing,
};

use crate::order_agreement::{ask, random_cases};

const CASES: usize = 4_000;

#[derive(Clone, Debug)]
struct Case {
    settings: PackSettings,
    shard: Digest,
    lengths: Vec<u32>,
}

prop_compose! {
    fn cases()(
        (length, block, variants) in (
            prop_oneof![1u64..9, 9u64..70],
            prop_oneof![1u64..9, 9u64..60],
            1u64..6,
        ),
        append in any::<bool>(),
        long in prop_oneof![
            6 => Just(LongSequences::Split), 3 => Just(LongSequences::Truncate),
            3 => Just(LongSequences::Drop), 1 => Just(LongSequences::Error),
        ],
        method in prop_oneof![2 => Just(PackMethod::Fit), 1 => Just(PackMethod::Concat)],
        bytes in any::<[u8; 32]>(),
        lengths in prop::collection::vec(prop_oneof![8 => 0u32..20, 2 => 0u32..90], 0..90),
    ) -> Case {
        let settings = PackSettings { length, block, variants, append, long, method };
        Case { settings, shard: Digest::from_bytes(bytes), lengths }
    }
}

fn question(case: &Case) -> Value {
    let PackSettings { length, block, variants, append, long, method } = case.settings;
    let long = match long {
        LongSequences::Split => "split",
        LongSequences::Truncate => "truncate",
        LongSequences::Drop => "drop",
        LongSequences::Error => "error",
    };
    let method = if method == PackMethod::Fit { "fit" } else { "concat" };
    json!({
        "length": length, "block": block, "variants": variants, "append": append, "long": long,
        "method": method, "shard": case.shard, "lengths": case.lengths,
    })
}

fn packing(case: &Case) -> Result<Packing, PackError> {
    Packing::new(case.settings.clone(), case.shard, case.lengths.iter().copied().collect(), &[])
}

/// Returns the packs of all variants, of which each is also found on its own.
fn answer(packing: &Packing, case: &Case) -> Value {
    let row = |segment: &PackSegment| json!([segment.sequence, segment.first, segment.tokens]);
    let variant = |variant: u64| {
        let mut packs = vec![];
        for block in 0..packing.blocks() {
            let opened = packing.open(block, variant);
            assert_eq!(opened.len(), packing.packs_of(block).count());
            for (pack, segments) in packing.packs_of(block).zip(opened) {
                assert_eq!((pack, packing.block_of(pack)), (packs.len() as u64, block));
                packs.push(segments.iter().map(row).collect::<Vec<_>>());
            }
        }
        assert_eq!(packs.len() as u64, packing.packs());
        packs
    };
    let losses = packing.losses();
    json!({
        "variants": (0..case.settings.variants).map(variant).collect::<Vec<_>>(),
        "empty": losses.empty, "dropped": losses.dropped, "lost": losses.tokens,
    })
}

#[test]
fn packs_agree_with_the_oracle_on_thousands_of_cases() {
    let cases = random_cases(CASES, &cases());
    let questions: Vec<Value> = cases.iter().map(question).collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (case, expected) in cases.iter().zip(ask("pack_oracle.py", &questions)) {
        let mut is = |what, holds: bool| *seen.entry(what).or_default() += usize::from(holds);
        let packing = match packing(case) {
            Ok(packing) => packing,
            Err(error) => {
                assert!(expected.get("error").is_some(), "{error}: {}", question(case));
                is("refused", true);
                continue;
            }
        };
        assert_eq!(answer(&packing, case), expected, "case: {}", question(case));
        let losses = packing.losses();
        is("blocks", packing.blocks() > 1);
        is("concat over blocks", packing.blocks() > packing.packs() && packing.packs() > 1);
        is("dropped", losses.dropped > 0);
        is("truncated", losses.dropped == 0 && losses.tokens > 0);
        is("empty", losses.empty > 0);
        is("nothing", packing.packs() == 0);
    }
    // The agreement means little for trivial cases only.
    let least = [("blocks", 3), ("concat over blocks", 60), ("dropped", 10), ("truncated", 10)];
    for (what, share) in least.into_iter().chain([("empty", 3), ("nothing", 200), ("refused", 40)])
    {
        assert!(seen[what] > CASES / share, "{what}: {seen:?}");
    }
}
