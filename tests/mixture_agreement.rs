//! Compares the order of mixtures with that of `mixture_oracle.py`, which was written from
//! docs/ORDER.md, section 13, alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use shardfeed_plan::{
    Digest, EPOCHS, EpochPlan, Length, Mixture, MixtureEpoch, MixtureError, Planned, Segment,
    Shuffle, Source, Stage, Steps, Tail,
};

use crate::order_agreement::{Change, ask, changes, deliveries, history, random_cases};

const CASES: usize = 2_500;

/// Byte order differs from that of the alphabet, and one name has several bytes a character.
const NAMES: &[&str] = &["web", "Code", "books-2", "é", "zz"];

const WEIGHTS: &[&str] = &["1", "0.25", "3", ".7", "1e1", "20.5e-1", "33"];

/// One stage of a case: first epoch, length, and sources with weights and counts.
#[derive(Clone, Debug)]
struct GivenStage {
    first_epoch: u64,
    length: Length,
    sources: Vec<(&'static str, &'static str, Vec<u64>)>,
}

#[derive(Clone, Debug)]
struct Case {
    stages: Vec<GivenStage>,
    shuffle: Shuffle,
    epoch: u64,
    tail: Tail,
    limit: Option<u64>,
    segments: Vec<Segment>,
    world_size: u64,
}

fn lengths() -> impl Strategy<Value = Length> {
    prop_oneof![
        40 => (1u64..200).prop_map(Length::Samples),
        1 => (1_000u64..4_000).prop_map(Length::Samples),
        8 => Just(Length::FirstExhausted),
        1 => Just(Length::AllExhausted),
    ]
}

/// Versions of a source: small, so that it is repeated, and large.
fn versions() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let small = prop::collection::vec(0u64..9, 1..6);
    let large = prop::collection::vec(0u64..90, 1..7);
    let counts = prop_oneof![2 => small, 1 => large];
    let counts = counts.prop_filter("some samples", |counts| counts.iter().any(|&n| n > 0));
    prop::collection::vec(counts, 2)
}

prop_compose! {
    fn stages()(
        versions in prop::collection::vec(versions(), NAMES.len()),
        stages in prop::collection::vec(
            (
                1u64..9,
                lengths(),
                prop::collection::vec(
                    (prop::bool::weighted(0.6), 0usize..2, 0..WEIGHTS.len()),
                    NAMES.len(),
                ),
            ),
            1..5,
        ),
    ) -> Vec<GivenStage> {
        let mut next = 0;
        let stage = |(gap, length, picks): (u64, Length, Vec<(bool, usize, usize)>)| {
            let first_epoch = next;
            next += gap;
            let mut sources: Vec<_> = picks
                .into_iter()
                .zip(NAMES.iter().zip(&versions))
                .filter(|((is_in, ..), _)| *is_in)
                .map(|((_, version, weight), (name, versions))| {
                    (*name, WEIGHTS[weight], versions[version].clone())
                })
                .collect();
            if sources.is_empty() {
                sources.push((NAMES[0], WEIGHTS[0], versions[0][0].clone()));
            }
            GivenStage { first_epoch, length, sources }
        };
        stages.into_iter().map(stage).collect()
    }
}

prop_compose! {
    fn cases()(
        stages in stages(),
        epoch in prop_oneof![9 => 0u64..40, 1 => 0..EPOCHS],
        seed in any::<u64>(),
        enabled in prop::bool::weighted(0.85),
        (window, interleave, block_length) in (prop_oneof![1u64..40, Just(3_000)], 1u64..9, 1u64..4),
        tail in prop_oneof![Just(Tail::Drop), Just(Tail::Pad), Just(Tail::Uneven)],
        limit in prop::option::weighted(0.2, 1u64..200),
        changes in changes(),
        even in prop::bool::weighted(0.3),
        world in any::<prop::sample::Index>(),
    ) -> Case {
        let digest = Digest::from_bytes([0; 32]);
        let shuffle = Shuffle { digest, seed, enabled, window, interleave, block_length };
        let segments = vec![];
        let mut case = Case { stages, shuffle, epoch, tail, limit, segments, world_size: 1 };
        (case.segments, case.world_size) = segments_of(&case, &changes, even, &world);
        case
    }
}

fn segments_of(
    case: &Case,
    changes: &[Change],
    even: bool,
    world: &prop::sample::Index,
) -> (Vec<Segment>, u64) {
    match mixture_epoch(case) {
        Ok((_, epoch)) => history(case.tail, changes, even, world, |segments, world_size| {
            let rules = (case.tail, case.limit);
            EpochPlan::of_mixture(Arc::clone(&epoch), rules, segments, world_size).unwrap()
        }),
        Err(_) => (vec![Segment { lanes: 1, global_batch: 1, steps: Steps::All(0) }], 1),
    }
}

fn mixture_epoch(case: &Case) -> Result<(Mixture, Arc<MixtureEpoch>), MixtureError> {
    let (mut all, mut stages) = (Vec::new(), Vec::new());
    for GivenStage { first_epoch, length, sources } in &case.stages {
        let source = |(name, weight, counts): &(&str, &'static str, Vec<u64>)| {
            Ok((Arc::new(Source::new(name, counts.clone())?), *weight))
        };
        let made = sources.iter().map(source).collect::<Result<Vec<_>, MixtureError>>()?;
        let weighted: Vec<_> = made.iter().map(|(source, weight)| (&**source, *weight)).collect();
        stages.push(Stage::new(*first_epoch, *length, &weighted)?);
        all.extend(made.into_iter().map(|(source, _)| source));
    }
    let mixture = Mixture::new(stages)?;
    let epoch = MixtureEpoch::new(&mixture, &all, &case.shuffle, case.epoch)?;
    Ok((mixture, Arc::new(epoch)))
}

fn question(case: &Case) -> Value {
    let stage = |stage: &GivenStage| {
        let length = match stage.length {
            Length::Samples(samples) => json!(samples),
            Length::FirstExhausted => json!("first_exhausted"),
            Length::AllExhausted => json!("all_exhausted"),
        };
        json!({"first_epoch": stage.first_epoch, "length": length, "sources": stage.sources})
    };
    json!({
        "stages": case.stages.iter().map(stage).collect::<Vec<_>>(),
        "seed": case.shuffle.seed, "epoch": case.epoch, "shuffle": case.shuffle.enabled,
        "window": case.shuffle.window, "interleave": case.shuffle.interleave,
        "block_length": case.shuffle.block_length, "tail": case.tail, "limit": case.limit,
        "segments": case.segments, "world_size": case.world_size,
    })
}

fn answer(case: &Case) -> Result<Value, MixtureError> {
    let (mixture, epoch) = mixture_epoch(case)?;
    let (rules, segments) = ((case.tail, case.limit), &case.segments);
    let plan = EpochPlan::of_mixture(Arc::clone(&epoch), rules, segments, case.world_size)?;
    let row = |p: &Planned| {
        json!([p.portion.source, p.portion.epoch, p.sample.shard, p.sample.ordinal, p.valid])
    };
    let mut answer = deliveries(&plan, row);
    let stages = 0..mixture.stages().len();
    let counts = |stage: &Stage| stage.sources.iter().map(|s| s.count).collect::<Vec<_>>();
    answer["counts"] = mixture.stages().iter().map(counts).collect();
    answer["cut"] = stages.clone().map(|stage| mixture.dropped(stage)).collect();
    answer["digest"] = stages.map(|stage| mixture.stages_digest(stage + 1)).collect();
    answer["operator_keys"] = epoch.sources().map(|source| source.operator_key()).collect();
    Ok(answer)
}

#[test]
fn mixtures_agree_with_the_oracle_on_thousands_of_cases() {
    let cases = random_cases(CASES, &cases());
    let questions: Vec<Value> = cases.iter().map(question).collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (case, expected) in cases.iter().zip(ask("mixture_oracle.py", &questions)) {
        let found = match answer(case) {
            Ok(found) => found,
            Err(error) => {
                assert!(expected.get("error").is_some(), "{error}: {}", question(case));
                if let MixtureError::NoSampleOf { samples_min, .. } = error {
                    assert_eq!(expected["error"], format!("use at least {samples_min}"));
                    *seen.entry("too short").or_default() += 1;
                }
                *seen.entry("refused").or_default() += 1;
                continue;
            }
        };
        assert_eq!(found, expected, "case: {}", question(case));
        let mut is = |what, holds: bool| *seen.entry(what).or_default() += usize::from(holds);
        let cuts = found["cut"].as_array().unwrap().iter().flat_map(|cut| cut.as_array().unwrap());
        is("history", case.segments.len() > 1);
        is("apart", case.segments.iter().any(|s| matches!(s.steps, Steps::PerRank(_))));
        is("replaced", cuts.into_iter().any(|cut| cut != 0));
        let (_, epoch) = mixture_epoch(case).unwrap();
        let whole = |s: &Source| epoch.samples() > 3 * s.samples() * epoch.sources().len() as u64;
        is("repeated", epoch.sources().any(|source| whole(source)));
        is("blocks", epoch.samples() / case.segments[0].lanes > 1_024);
        is("plain", !case.shuffle.enabled);
    }
    // The agreement means little for trivial cases only.
    let least = [("history", 3), ("apart", 20), ("replaced", 5), ("repeated", 10), ("blocks", 150)];
    for (what, share) in least.into_iter().chain([("plain", 10)]) {
        assert!(seen[what] > CASES / share, "{what}: {seen:?}");
    }
    assert!((10..CASES / 5).contains(&seen["refused"]) && seen["too short"] > 10, "{seen:?}");
}
