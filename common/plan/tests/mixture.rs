//! Properties of the order of mixtures.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use expect_test::expect;
use proptest::prelude::*;
use shardfeed_plan::{
    Digest, EpochPlan, LaneBlock, Length, Mixture, MixtureEpoch, MixtureError, Permutations,
    Planned, Portion, Sample, Segment, Shuffle, Source, Stage, Steps, Tail,
};

/// Names of the sources of a generated mixture.
const NAMES: &[&str] = &["a", "b", "c", "d", "e"];

fn shuffle(enabled: bool, window: u64) -> Shuffle {
    let digest = Digest::from_bytes([0; 32]);
    Shuffle { digest, seed: 5, enabled, window, interleave: 3, block_length: 2 }
}

fn source(name: &str, counts: &[u64]) -> Arc<Source> {
    Arc::new(Source::new(name, counts.to_vec()).unwrap())
}

fn stage(first_epoch: u64, length: u64, sources: &[(Arc<Source>, String)]) -> Stage {
    let weighted: Vec<_> = sources.iter().map(|(s, weight)| (&**s, weight.as_str())).collect();
    Stage::new(first_epoch, Length::Samples(length), &weighted).unwrap()
}

fn plan(epoch: &Arc<MixtureEpoch>, tail: Tail, (lanes, batch): (u64, u64)) -> EpochPlan {
    let segment = Segment { lanes, global_batch: batch, steps: Steps::All(0) };
    EpochPlan::of_mixture(Arc::clone(epoch), (tail, None), &[segment], 1).unwrap()
}

fn batches(plan: &EpochPlan) -> Vec<Vec<Planned>> {
    (0..plan.steps()).map(|step| plan.batch(step, 0).unwrap()).collect()
}

/// A mixture of up to three stages, in which sources join, leave, come back and grow.
#[derive(Clone, Debug)]
struct Case {
    mixture: Mixture,
    sources: Vec<Arc<Source>>,
}

impl Case {
    fn epoch(&self, shuffle: &Shuffle, epoch: u64) -> Arc<MixtureEpoch> {
        Arc::new(MixtureEpoch::new(&self.mixture, &self.sources, shuffle, epoch).unwrap())
    }
}

/// Of each source whether it is in the stage, its weight, and whether it has grown; then the length.
type GivenStage = (Vec<(bool, u64, bool)>, u64);

prop_compose! {
    fn cases()(
        counts in prop::collection::vec(prop::collection::vec(1u64..40, 1..5), NAMES.len()),
        stages in prop::collection::vec(
            (
                prop::collection::vec((prop::bool::weighted(0.7), 1u64..30, any::<bool>()), NAMES.len()),
                1u64..400,
            ),
            1..4,
        ),
    ) -> Case {
        let mut sources = Vec::new();
        let mut given = |(index, (picks, length)): (usize, GivenStage)| {
            let pick = |(number, (is_in, weight, has_grown)): (usize, (bool, u64, bool))| {
                let mut counts = counts[number].clone();
                counts.extend(has_grown.then_some(7));
                (is_in || number == 0).then(|| (source(NAMES[number], &counts), weight.to_string()))
            };
            let here: Vec<_> = picks.into_iter().enumerate().filter_map(pick).collect();
            sources.extend(here.iter().map(|(source, _)| Arc::clone(source)));
            // At least 30 x 5 samples, so that each source has one.
            stage(3 * index as u64, 150 + length, &here)
        };
        let stages = stages.into_iter().enumerate().map(&mut given).collect();
        Case { mixture: Mixture::new(stages).unwrap(), sources }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_source_epoch_is_delivered_whole_and_once_in_any_order_of_epochs(
        case in cases(),
        lanes in prop::collection::vec(1u64..70, 9),
        enabled in prop::bool::weighted(0.9),
    ) {
        const EPOCHS: u64 = 9;
        let mut seen: BTreeMap<(String, u64), BTreeSet<Sample>> = BTreeMap::new();
        for epoch in [4, 1, 0, 8, 5, 3, 2, 7, 6] {
            let here = case.epoch(&shuffle(enabled, 20), epoch);
            let stage = case.mixture.stage_of(epoch);
            let begins = case.mixture.stages()[stage].first_epoch == epoch;
            let rests = case.mixture.dropped(stage).into_iter().map(|rest| rest * u64::from(begins));
            prop_assert!(here.rests_dropped().eq(rests));
            let lanes = lanes[epoch as usize];
            let plan = plan(&here, Tail::Uneven, (lanes, lanes));
            let lengths: Vec<u64> = (0..lanes).map(|lane| plan.lane(lane).samples()).collect();
            prop_assert!(lengths[0] - lengths[lanes as usize - 1] <= 1, "{:?}", lengths);
            prop_assert_eq!(lengths.iter().sum::<u64>(), here.samples());
            let names: Vec<_> = here.sources().map(|source| source.name().to_owned()).collect();
            for planned in batches(&plan).iter().flatten() {
                let Portion { source, epoch } = planned.portion;
                let of_epoch = seen.entry((names[source as usize].clone(), epoch)).or_default();
                prop_assert!(of_epoch.insert(planned.sample), "{:?} twice", planned);
            }
        }
        // Only the last source epoch of each version is not whole: it is continued, or was cut.
        let stages = case.mixture.stages();
        for name in NAMES {
            let mut versions: Vec<(u64, u64)> = Vec::new();
            let (mut last, mut cut) = (None, 0);
            for (index, stage) in stages.iter().enumerate() {
                let next = stages.get(index + 1).map_or(EPOCHS, |next| next.first_epoch);
                let Some(at) = stage.sources.iter().position(|s| s.name == *name) else { continue };
                let source = &stage.sources[at];
                cut += case.mixture.dropped(index)[at];
                if last != Some(source.order_digest) {
                    versions.push((source.samples, 0));
                    last = Some(source.order_digest);
                }
                versions.last_mut().unwrap().1 += (next - stage.first_epoch) * source.count;
            }
            let mut epochs = seen.iter().filter(|((of, _), _)| of == name);
            let mut expected_cut = 0;
            for (index, (samples, taken)) in versions.iter().enumerate() {
                for epoch in 0..taken.div_ceil(*samples) {
                    let delivered = epochs.next().unwrap().1.len() as u64;
                    prop_assert_eq!(delivered, (*samples).min(taken - epoch * samples));
                }
                if index + 1 < versions.len() {
                    expected_cut += taken.next_multiple_of(*samples) - taken;
                }
            }
            prop_assert_eq!(cut, expected_cut);
            prop_assert!(epochs.next().is_none());
        }
    }

    #[test]
    fn the_way_back_finds_every_sample_of_a_mixture(
        case in cases(),
        epoch in 0u64..9,
        (lanes, per_lane) in (1u64..7, 1u64..7),
        second in (1u64..7, 1u64..7),
    ) {
        let here = case.epoch(&shuffle(true, 30), epoch);
        let first = Segment { lanes, global_batch: lanes * per_lane, steps: Steps::All(2) };
        let (lanes, per_lane) = second;
        let second = Segment { lanes, global_batch: lanes * per_lane, steps: Steps::All(0) };
        let rules = (Tail::Drop, None);
        let plan = EpochPlan::of_mixture(Arc::clone(&here), rules, &[first, second], lanes).unwrap();
        let (mut dropped, mut known) = (0, Permutations::default());
        for position in 0..here.samples() {
            let run = plan.sample_at(position);
            let Some(placed) = plan.place_with(run.portion, run.first, &mut known).unwrap() else {
                dropped += 1;
                continue;
            };
            if placed.step < plan.first_step() {
                continue; // its ranks are those of another world size
            }
            let slots = plan.slots(placed.step, placed.rank).unwrap();
            let index = slots.iter().position(|slot| slot.entry == placed.entry).unwrap();
            let expected = Planned { portion: run.portion, sample: run.first, valid: true };
            prop_assert_eq!(plan.batch(placed.step, placed.rank).unwrap()[index], expected);
            let fillers = plan.fillers(run.portion, run.first).unwrap();
            prop_assert!(!fillers.contains(&run.first));
        }
        prop_assert_eq!(dropped, plan.dropped());
        let beyond = Portion { source: 0, epoch: 1 << 40 };
        let sample = Sample { shard: 0, ordinal: 0 };
        let error = plan.place(beyond, sample).unwrap_err().to_string();
        prop_assert!(error.contains("of source epoch 1099511627776 of its source 0"), "{}", error);
    }

    #[test]
    fn a_mixture_is_read_in_proportion_with_three_windows(
        case in cases(),
        scale in prop_oneof![Just(1u64), Just(40)],
        (lanes, window) in (1u64..4, 2u64..3_000),
        part in 0.0..1.0f64,
        enabled in prop::bool::weighted(0.8),
    ) {
        // The same sources in longer epochs.
        let mut stages = case.mixture.stages().to_vec();
        let sources = stages.iter_mut().flat_map(|stage| &mut stage.sources);
        sources.for_each(|source| source.count *= scale);
        let case = Case { mixture: Mixture::new(stages).unwrap(), ..case };
        let here = case.epoch(&shuffle(enabled, window), 1);
        let plan = plan(&here, Tail::Drop, (lanes, lanes));
        let sources = here.sources().len() as u64;
        for lane in (0..lanes).map(|lane| plan.lane(lane)) {
            let all: Vec<Sample> = lane.inputs_from(0).collect();
            prop_assert_eq!(all.len() as u64, lane.samples());
            let from = (part * lane.samples() as f64) as u64;
            prop_assert_eq!(&lane.inputs_from(from).collect::<Vec<_>>(), &all[from as usize..]);
            let mut last = 0;
            for block in lane.blocks_from(from) {
                let LaneBlock { outputs, needs, sources: inputs, is_plain } = block.unwrap();
                prop_assert!(needs.start >= last && is_plain != enabled);
                last = needs.start;
                let held_max = 3 * window + 1024 + 4 * sources;
                prop_assert!(needs.end - needs.start <= held_max, "{:?} of {}", needs, window);
                let order = lane.planned(outputs).unwrap();
                prop_assert_eq!(order.len(), inputs.len());
                for (planned, input) in order.into_iter().zip(inputs) {
                    prop_assert!(needs.contains(&input));
                    prop_assert_eq!(planned.sample, all[input as usize]);
                }
            }
            prop_assert_eq!(lane.inputs_from(lane.samples()).next(), None);
            if from > 0 {
                prop_assert_eq!(lane.input(from - 1), all[from as usize - 1]);
            }
        }
    }

    #[test]
    fn counts_by_shard_of_a_mixture_are_those_of_its_batches(
        case in cases(),
        epoch in 0u64..9,
        (lanes, per_lane, world_size) in (1u64..5, 1u64..5, 1u64..5),
        stops in prop::collection::vec(0.0..1.0f64, 5),
    ) {
        let here = case.epoch(&shuffle(true, 30), epoch);
        let global_batch = lanes * per_lane * world_size;
        let segment = Segment { lanes, global_batch, steps: Steps::All(0) };
        let plan = EpochPlan::of_mixture(Arc::clone(&here), (Tail::Drop, None), &[segment], world_size);
        let plan = plan.unwrap();
        let firsts: Vec<usize> = here
            .sources()
            .scan(0, |next, source| {
                *next += source.counts().len();
                Some(*next - source.counts().len())
            })
            .collect();
        let shards = here.sources().map(|source| source.counts().len()).sum::<usize>();
        let (mut all, mut read_by) = (vec![0; shards], vec![BTreeSet::new(); shards]);
        let mut count = |steps: &[u64]| {
            let mut counts = vec![0; shards];
            for (rank, step) in (0..).zip(steps).flat_map(|(r, &to)| (0..to).map(move |s| (r, s))) {
                for planned in plan.batch(step, rank).unwrap() {
                    let source = planned.portion.source as usize;
                    let shard = firsts[source] + planned.sample.shard as usize;
                    counts[shard] += 1;
                    read_by[shard].insert(rank);
                }
            }
            counts
        };
        let ranks = 0..world_size as usize;
        let steps: Vec<u64> =
            ranks.clone().map(|rank| (plan.steps() as f64 * stops[rank]) as u64).collect();
        let by_shard = count(&steps);
        let ends = firsts[1..].iter().copied().chain([shards]);
        let of_source = |(first, end): (&usize, usize)| by_shard[*first..end].iter().sum();
        let by_source: Vec<u64> = firsts.iter().zip(ends).map(of_source).collect();
        prop_assert_eq!(plan.delivered_by_source(&steps).unwrap(), by_source);
        prop_assert_eq!(plan.delivered_by_shard(&steps).unwrap(), by_shard);
        let delivered = count(&ranks.map(|_| plan.steps()).collect::<Vec<_>>());
        for position in 0..here.samples() {
            let run = plan.sample_at(position);
            all[firsts[run.portion.source as usize] + run.first.shard as usize] += 1;
        }
        let dropped = plan.dropped_by_shard().unwrap();
        prop_assert_eq!(dropped.iter().sum::<u64>(), plan.dropped());
        for (shard, dropped) in dropped.into_iter().enumerate() {
            prop_assert_eq!(delivered[shard] + dropped, all[shard]);
        }
        let found = plan.ranks_of_shards().unwrap();
        for (shard, ranks) in read_by.iter().enumerate() {
            prop_assert!(ranks.iter().all(|rank| found[shard][0].contains(rank)));
        }
    }
}

/// 35 sources with weights from 1 to 10,000.
fn thirty_five(length: u64) -> Arc<MixtureEpoch> {
    let given = |number: u64| {
        let weight = (10_000_f64.powf(number as f64 / 34.0)).round();
        (source(&format!("source-{number:02}"), &[100 * (number % 7 + 1); 40]), weight.to_string())
    };
    let given: Vec<_> = (0..35).map(given).collect();
    let mixture = Mixture::new(vec![stage(0, length, &given)]).unwrap();
    let sources: Vec<_> = given.into_iter().map(|(source, _)| source).collect();
    Arc::new(MixtureEpoch::new(&mixture, &sources, &shuffle(true, 5_000), 3).unwrap())
}

#[test]
fn every_prefix_of_a_lane_has_the_sources_in_proportion() {
    let here = thirty_five(300_000);
    let lanes = 4;
    let plan = plan(&here, Tail::Drop, (lanes, lanes));
    for lane in (0..lanes).map(|lane| plan.lane(lane)) {
        let labels = |from: u64| {
            let mut inputs = lane.inputs_from(from);
            std::iter::from_fn(move || Some(inputs.next_run(1)?.portion.source as usize))
        };
        let mut lengths = [0_u64; 35];
        labels(0).for_each(|source| lengths[source] += 1);
        let mut passed = [0_u64; 35];
        for (prefix, source) in (1_u64..).zip(labels(0)) {
            passed[source] += 1;
            for (passed, length) in passed.iter().zip(lengths) {
                let weight = length as f64 / lane.samples() as f64;
                let error = (*passed as f64 - prefix as f64 * weight).abs();
                assert!(error <= 0.5 + 35.0 * weight / 2.0 + 1e-6, "{error} after {prefix}");
            }
        }
        for from in (0..lane.samples()).step_by(9_973) {
            assert!(
                labels(from).take(50).eq(labels(0).skip(from as usize).take(50)),
                "from {from}"
            );
        }
    }
}

#[test]
fn blocks_keep_the_proportion_and_permute_within_themselves() {
    let here = thirty_five(120_000);
    let plan = plan(&here, Tail::Drop, (1, 1_000));
    let lane = plan.lane(0);
    let mut inputs = lane.inputs_from(0);
    let merged = std::iter::from_fn(move || Some(inputs.next_run(1)?.portion.source));
    let merged: Vec<u32> = merged.collect();
    let order: Vec<u32> = batches(&plan).iter().flatten().map(|p| p.portion.source).collect();
    assert_ne!(merged, order);
    for (merged, order) in merged.chunks(1024).zip(order.chunks(1024)) {
        let (mut merged, mut order) = (merged.to_vec(), order.to_vec());
        merged.sort_unstable();
        order.sort_unstable();
        assert_eq!(merged, order);
    }
}

#[test]
fn equal_counts_under_two_names_have_different_orders() {
    let weight = || "1".to_owned();
    let given = [(source("a", &[50, 50]), weight()), (source("b", &[50, 50]), weight())];
    let mixture = Mixture::new(vec![stage(0, 200, &given)]).unwrap();
    let sources = given.map(|(source, _)| source);
    let here = MixtureEpoch::new(&mixture, &sources, &shuffle(true, 30), 0).unwrap();
    let plan = plan(&Arc::new(here), Tail::Drop, (1, 1));
    let of = |number: u32| -> Vec<Sample> {
        let all = batches(&plan).into_iter().flatten();
        all.filter(|planned| planned.portion.source == number).map(|p| p.sample).collect()
    };
    assert_eq!((of(0).len(), of(1).len()), (100, 100));
    assert_ne!(of(0), of(1));
    assert_ne!(sources[0].operator_key(), sources[1].operator_key());
}

#[test]
fn stages_begin_with_their_first_step() {
    let one = [(source("a", &[10]), "1".to_owned())];
    let stages = vec![stage(0, 4, &one), stage(3, 6, &one)];
    let mixture = Mixture::new(stages.clone()).unwrap();
    let begun = |epoch, step| mixture.begun(epoch, step);
    assert_eq!((begun(0, 0), begun(0, 1), begun(3, 0), begun(3, 1)), (0, 1, 1, 2));
    // A stage that is not begun may change, one that is begun may not.
    let later = Mixture::new(vec![stages[0].clone(), stage(5, 6, &one)]).unwrap();
    assert_eq!(mixture.stages_digest(1), later.stages_digest(1));
    assert_ne!(mixture.stages_digest(2), later.stages_digest(2));
    let json = serde_json::to_string(&stages).unwrap();
    assert_eq!(Mixture::new(serde_json::from_str(&json).unwrap()), Ok(mixture));
}

#[test]
fn every_mixture_that_is_refused_says_why() {
    let (a, b) = (source("a", &[60, 40]), source("b", &[10]));
    let stage_of = |length: Length, weights: &[&str]| {
        let sources = [&a, &b];
        let given: Vec<_> = sources.iter().zip(weights).map(|(s, w)| (&***s, *w)).collect();
        Stage::new(0, length, &given).err()
    };
    let samples = Length::Samples;
    let ends = |first_epochs: &[u64]| {
        let stages =
            first_epochs.iter().map(|&epoch| stage(epoch, 9, &[(Arc::clone(&a), "1".into())]));
        Mixture::new(stages.collect()).err()
    };
    let twice = Stage::new(0, samples(10), &[(&*a, "1"), (&*a, "2")]).err();
    let mixture = Mixture::new(vec![stage(0, 9, &[(Arc::clone(&a), "1".into())])]).unwrap();
    let epoch = |sources: &[Arc<Source>], epoch: u64| {
        MixtureEpoch::new(&mixture, sources, &shuffle(true, 5), epoch).err()
    };
    let tiny = [(source("tiny", &[1]), "1".to_owned())];
    let endless = Mixture::new(vec![stage(0, 1 << 62, &tiny)]).unwrap();
    let huge = source("huge", &[i64::MAX as u64]);
    let refused: [(&str, Option<MixtureError>); 19] = [
        ("no name", Source::new("", vec![1]).err()),
        ("a blank", Source::new("a b", vec![1]).err()),
        ("the ledger's sign", Source::new("-", vec![1]).err()),
        ("empty", Source::new("web", vec![0, 0]).err()),
        ("too large", Source::new("web", vec![u64::MAX, 1]).err()),
        ("no source", stage_of(samples(10), &[])),
        ("the same name", twice),
        ("a weight of zero", stage_of(samples(10), &["1", "0"])),
        ("no number", stage_of(samples(10), &["1", "-0.5"])),
        ("too many digits", stage_of(samples(10), &["1", "1e-40"])),
        ("too short", stage_of(samples(10), &["0.99", "0.01"])),
        ("no length", stage_of(samples(0), &["1", "1"])),
        ("too long", Stage::new(0, Length::AllExhausted, &[(&*huge, "1"), (&*b, "9")]).err()),
        ("no stage", ends(&[])),
        ("too many stages", ends(&(0..65).collect::<Vec<_>>())),
        ("a late start", ends(&[1])),
        ("not ascending", ends(&[0, 7, 7])),
        ("no such source", epoch(&[], 4)),
        (
            "repeated too often",
            MixtureEpoch::new(&endless, &[Arc::clone(&tiny[0].0)], &shuffle(true, 5), 5).err(),
        ),
    ];
    let lines = refused.map(|(what, error)| format!("{what}: {}", error.unwrap()));
    expect![[r#"
        no name: "" cannot name a source of a mixture: use 1 to 128 bytes without white space and control characters, other than "-"
        a blank: "a b" cannot name a source of a mixture: use 1 to 128 bytes without white space and control characters, other than "-"
        the ledger's sign: "-" cannot name a source of a mixture: use 1 to 128 bytes without white space and control characters, other than "-"
        empty: source `web` has no samples in 2 shards; remove it from the mixture
        too large: source `web` has more than 2**63 - 1 samples or 2**32 - 1 shards
        no source: a mixture has 1 to 1024 sources, not 0
        the same name: two sources of the mixture have the name `a`; give each another name
        a weight of zero: the weight of source `b` is "0"; use a positive decimal number of at most 40 characters, such as 0.25 (to leave a source out, remove it)
        no number: the weight of source `b` is "-0.5"; use a positive decimal number of at most 40 characters, such as 0.25 (to leave a source out, remove it)
        too many digits: the weights differ by too many digits: as integers in proportion their sum must be below 2**126; round them to fewer digits
        too short: a mixture epoch of 10 samples has none of source `b`, whose weight is too small for it; use an epoch of at least 51 samples
        no length: a mixture epoch has 1 to 9223372036854775807 samples, not 0
        too long: in proportion to the source that ends first or last, a mixture epoch would have more than 2**63 - 1 samples; pass its length as a number
        no stage: a mixture has 1 to 64 stages, not 0
        too many stages: a mixture has 1 to 64 stages, not 65
        a late start: stage 0 begins at epoch 1: the first stage begins at epoch 0, each other one after the stage before it and before epoch 281474976710656
        not ascending: stage 2 begins at epoch 7: the first stage begins at epoch 0, each other one after the stage before it and before epoch 281474976710656
        no such source: epoch 4 needs source `a` with order digest cfe1862fbe7755778767edd57d7b3e8ed05273f53c2c9d08ca446aec80081ae6; open this version of the source
        repeated too often: epoch 5 repeats source `tiny` more than 2**64 times"#]].assert_eq(&lines.join("\n"));
    let other = epoch(&[source("a", &[100])], 4).unwrap();
    assert!(matches!(&other, MixtureError::OtherSource { found: Some(_), .. }), "{other}");
    assert_eq!(
        epoch(&[a], 1 << 48).unwrap().to_string(),
        "epoch must be at least 0 and below 2**48, not 281474976710656"
    );
}
