//! Parsing of Examples into preallocated columns, 512 at a time, one thread.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shardfeed_tfrecord::example::{
    DType, ExampleParser, Feature, FeatureSpec, Value, encode_example,
};

const BATCH: usize = 512;

fn fixed(name: &str, shape: &[usize], dtype: DType) -> FeatureSpec {
    let feature = Feature::FixedLen { shape: shape.to_vec(), dtype, default: None };
    FeatureSpec { name: name.to_owned(), feature }
}

fn examples(features: impl Fn(usize, &mut Vec<u8>)) -> Vec<Vec<u8>> {
    (0..BATCH)
        .map(|number| {
            let mut record = Vec::new();
            features(number, &mut record);
            record
        })
        .collect()
}

/// Features `d`: 194 bytes, `s`: int64, both fixed.
fn bytes_and_int(criterion: &mut Criterion) {
    let records = examples(|number, out| {
        let data: &[&[u8]] = &[&[number as u8; 194]];
        let features =
            [("d", Value::Bytes(data)), ("s", Value::Int64(&[number as i64 * 1_000_003]))];
        encode_example(&features, out);
    });
    let specs = vec![fixed("d", &[], DType::Bytes), fixed("s", &[], DType::Int64)];
    let parser = ExampleParser::new(specs).expect("good specs");
    let (mut data, mut offsets) = (Vec::with_capacity(BATCH * 194), Vec::with_capacity(BATCH + 1));
    let mut numbers = vec![0; BATCH];
    let mut group = criterion.benchmark_group("parsing");
    group.sample_size(30).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("bytes194_and_int64", |bencher| {
        bencher.iter(|| {
            data.clear();
            offsets.clear();
            offsets.push(0);
            let mut located = Vec::with_capacity(2);
            for (record, number) in records.iter().zip(&mut numbers) {
                parser.locate(record, &mut located).expect("good");
                let [Some(d), Some(s)] = located[..] else {
                    continue;
                };
                d.for_each_bytes(|value| data.extend_from_slice(value));
                offsets.push(data.len());
                s.write_i64(std::slice::from_mut(number));
            }
            black_box((&data, &offsets, &numbers));
        });
    });
    group.finish();
}

/// Features `x`: float32[64], `y`: int64.
fn floats_and_int(criterion: &mut Criterion) {
    let records = examples(|number, out| {
        let floats = [number as f32; 64];
        let features = [("x", Value::Float32(&floats)), ("y", Value::Int64(&[number as i64]))];
        encode_example(&features, out);
    });
    let specs = vec![fixed("x", &[64], DType::Float32), fixed("y", &[], DType::Int64)];
    let parser = ExampleParser::new(specs).expect("good specs");
    let (mut floats, mut numbers) = (vec![0.0; BATCH * 64], vec![0; BATCH]);
    let mut group = criterion.benchmark_group("parsing");
    group.sample_size(30).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("float32x64_and_int64", |bencher| {
        bencher.iter(|| {
            let mut located = Vec::with_capacity(2);
            let rows = floats.chunks_exact_mut(64).zip(&mut numbers);
            for (record, (row, number)) in records.iter().zip(rows) {
                parser.locate(record, &mut located).expect("good");
                let [Some(x), Some(y)] = located[..] else {
                    continue;
                };
                x.write_f32(row);
                y.write_i64(std::slice::from_mut(number));
            }
            black_box((&floats, &numbers));
        });
    });
    group.finish();
}

/// One requested key of 40, with 64 packed int64s each.
fn wide(criterion: &mut Criterion) {
    let names: Vec<String> = (0..40).map(|number| format!("feature/{number}/value")).collect();
    let records = examples(|number, out| {
        let values = [[number as i64 * 77; 64]; 40];
        let features: Vec<_> = names
            .iter()
            .zip(&values)
            .map(|(name, values)| (name.as_str(), Value::Int64(values)))
            .collect();
        encode_example(&features, out);
    });
    let parser =
        ExampleParser::new(vec![fixed(&names[30], &[64], DType::Int64)]).expect("good specs");
    let mut numbers = vec![0; BATCH * 64];
    let mut group = criterion.benchmark_group("parsing");
    group.sample_size(30).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("int64x64_of_40_features", |bencher| {
        bencher.iter(|| {
            let mut located = Vec::with_capacity(1);
            for (record, row) in records.iter().zip(numbers.chunks_exact_mut(64)) {
                parser.locate(record, &mut located).expect("good");
                let [Some(values)] = located[..] else {
                    continue;
                };
                values.write_i64(row);
            }
            black_box(&numbers);
        });
    });
    group.finish();
}

criterion_group!(benches, bytes_and_int, floats_and_int, wide);
criterion_main!(benches);
