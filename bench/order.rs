//! Order of an epoch of 1,000,000 shards x 1,000 records: the epoch sequence, a batch, the inverse
//! lookup. The same of a mixture of 35 sources x 1,000 shards.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use shardfeed_plan::{
    Digest, EpochPlan, Length, Line, Mixture, MixtureEpoch, Portion, Segment, Shuffle, Source,
    Stage, Tail,
};

const SHARDS: usize = 1_000_000;
const RECORDS: u64 = 1_000;
const RANKS: u64 = 64;

fn plan(line: &Arc<Line>, shuffle: &Shuffle, epoch: u64) -> EpochPlan {
    let segment = Segment::start(RANKS, 32, RANKS).unwrap();
    let rules = (Tail::Drop, None);
    EpochPlan::new(Arc::clone(line), shuffle.clone(), epoch, rules, &[segment], RANKS).unwrap()
}

fn shuffle() -> Shuffle {
    let digest = Digest::from_bytes([3; 32]);
    Shuffle { digest, seed: 1, enabled: true, window: 10_000, interleave: 16, block_length: 1 }
}

fn order(criterion: &mut Criterion) {
    let counts = vec![RECORDS; SHARDS];
    let shuffle = shuffle();
    let mut group = criterion.benchmark_group("order/1M shards x 1000 records");
    group.sample_size(10);
    group.bench_function("line of an epoch", |bencher| {
        let mut epoch = 0;
        bencher.iter(|| {
            epoch += 1;
            Line::new(black_box(&counts), &shuffle, epoch).unwrap()
        });
    });
    let line = Arc::new(Line::new(&counts, &shuffle, 0).unwrap());
    let plan = plan(&line, &shuffle, 0);
    group.bench_function("batch of one rank at a far step", |bencher| {
        bencher.iter(|| plan.batch(black_box(plan.steps() - 7), 5).unwrap());
    });
    let sample = plan.batch(plan.steps() - 7, 5).unwrap()[3].sample;
    group.bench_function("place of one sample", |bencher| {
        bencher.iter(|| plan.place(Portion::default(), black_box(sample)).unwrap());
    });
    let lane = plan.lane(0);
    group.bench_function("100 shuffle windows of a lane", |bencher| {
        bencher.iter(|| {
            lane.blocks_from(0).take(100).map(|b| b.unwrap().sources.len()).sum::<usize>()
        });
    });
    group.bench_function("1,000,000 samples of a lane in reading order", |bencher| {
        bencher.iter(|| lane.inputs_from(0).take(1_000_000).map(|s| s.ordinal).sum::<u64>());
    });
    group.finish();
}

fn mixture(criterion: &mut Criterion) {
    let source = |number: u64| Source::new(&format!("{number:02}"), vec![RECORDS + number; 1_000]);
    let sources: Vec<_> = (0..35).map(|number| Arc::new(source(number).unwrap())).collect();
    // Ten large sources and 25 small ones, of which each mixture epoch has a part.
    let weight = |number| if number < 10 { "1" } else { "0.03" };
    let weighted: Vec<_> =
        sources.iter().enumerate().map(|(number, source)| (&**source, weight(number))).collect();
    let stage = Stage::new(0, Length::Samples(20_000_000), &weighted).unwrap();
    let mixture = Mixture::new(vec![stage]).unwrap();
    let shuffle = shuffle();
    let open = |epoch| {
        let epoch = MixtureEpoch::new(&mixture, &sources, &shuffle, epoch).unwrap();
        let segment = Segment::start(RANKS, 32, RANKS).unwrap();
        EpochPlan::of_mixture(Arc::new(epoch), (Tail::Drop, None), &[segment], RANKS).unwrap()
    };
    let mut group = criterion.benchmark_group("order/mixture of 35 sources x 1000 shards");
    group.sample_size(10);
    group.bench_function("an epoch and its first batch", |bencher| {
        let mut epoch = 0;
        bencher.iter(|| {
            epoch += 1;
            open(black_box(epoch)).batch(0, 5).unwrap()
        });
    });
    let plan = open(0);
    group.bench_function("batch of one rank at a far step", |bencher| {
        bencher.iter(|| plan.batch(black_box(plan.steps() - 7), 5).unwrap());
    });
    let planned = plan.batch(plan.steps() - 7, 5).unwrap()[3];
    group.bench_function("place of one sample", |bencher| {
        bencher.iter(|| plan.place(planned.portion, black_box(planned.sample)).unwrap());
    });
    let lane = plan.lane(0);
    group.bench_function("100 blocks of a lane", |bencher| {
        bencher.iter(|| {
            lane.blocks_from(0).take(100).map(|b| b.unwrap().sources.len()).sum::<usize>()
        });
    });
    group.finish();
}

criterion_group!(benches, order, mixture);
criterion_main!(benches);
