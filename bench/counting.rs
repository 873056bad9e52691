//! The counting pass of a filter compared with a bare loop of `read` and the CRC of each record over
//! the same warm file, one thread each.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::json;
use shardfeed_pipeline::{RecordSpec, SampleProgram, Schema};
use shardfeed_plan::Corrupt;
use shardfeed_source::{CacheChoice, CacheOptions, Dataset, FileRules};
use shardfeed_tfrecord::example::{Value, encode_example};
use shardfeed_tfrecord::{Compression, create};

/// Bytes of a file.
const FILE_BYTES: usize = 48 << 20;

/// Writes records of about `record_bytes`: an id, a label, a text and tokens.
fn write(path: &Path, record_bytes: usize) -> usize {
    let records = FILE_BYTES / record_bytes;
    let mut writer = create(path, Compression::None).expect("create");
    let text = vec![b'x'; record_bytes.saturating_sub(120)];
    for number in 0..records {
        let tokens: Vec<i64> = (0..20).map(|at| (number * 31 + at * 7) as i64 % 30_000).collect();
        let mut bytes = vec![];
        encode_example(
            &[
                ("id", Value::Int64(&[number as i64])),
                ("label", Value::Int64(&[number as i64 % 10])),
                ("text", Value::Bytes(&[&text])),
                ("tokens", Value::Int64(&tokens)),
            ],
            &mut bytes,
        );
        writer.write(&bytes).expect("write");
    }
    writer.finish().expect("finish");
    records
}

/// Reads a file by the mebibyte, and the CRC of each record's length and data.
fn bare(path: &Path, buffer: &mut [u8]) -> usize {
    let mut file = File::open(path).expect("open");
    let (mut records, mut held, mut sum) = (0, 0, 0_u32);
    loop {
        let read = file.read(&mut buffer[held..]).expect("read");
        if read == 0 {
            black_box(sum);
            return records;
        }
        held += read;
        let mut at = 0;
        while held - at >= 12 {
            let header: [u8; 8] = buffer[at..at + 8].try_into().expect("eight bytes");
            let len = u64::from_le_bytes(header) as usize;
            if held - at < len + 16 {
                break;
            }
            sum ^= crc_fast::crc32_iscsi(&buffer[at..at + 8]);
            sum ^= crc_fast::crc32_iscsi(&buffer[at + 12..at + 12 + len]);
            records += 1;
            at += len + 16;
        }
        buffer.copy_within(at..held, 0);
        held -= at;
    }
}

fn program(filter: &str) -> Arc<SampleProgram> {
    let fixed = json!({"fixed_len": {"shape": [], "dtype": "int64", "default": null}});
    let spec: RecordSpec = serde_json::from_value(json!({
        "parse": [
            {"name": "id", "feature": fixed},
            {"name": "label", "feature": fixed},
            {"name": "tokens", "feature": {"var_len": {"dtype": "int64"}}},
        ],
        "filter": filter,
    }))
    .expect("a record spec");
    Arc::clone(Schema::new(spec).expect("a schema").samples().expect("a filter"))
}

fn counting(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut buffer = vec![0; 2 << 20];
    for (name, record_bytes) in
        [("250B", 250), ("1KB", 1 << 10), ("4KB", 4 << 10), ("64KB", 64 << 10)]
    {
        let path = folder.path().join(name);
        let records = write(&path, record_bytes);
        let file = path.to_str().expect("a path of text").to_owned();
        let cache = CacheOptions::from(CacheChoice::Off);
        let open = Dataset::open(&[file], FileRules::default(), None, &cache, &mut |_| true);
        let dataset = open.expect("it was written");
        let mut group = criterion.benchmark_group(format!("counting/{name}"));
        group.sample_size(10).measurement_time(Duration::from_secs(3));
        group.warm_up_time(Duration::from_millis(500));
        group.throughput(Throughput::Elements(records as u64));
        group.bench_function("bare_read_and_crc", |bencher| {
            bencher.iter(|| assert_eq!(bare(&path, &mut buffer), records));
        });
        for (name, filter) in [("label", "label != 3"), ("len", "len(tokens) > 7 and id >= 0")] {
            let program = program(filter);
            group.bench_function(format!("filter_{name}"), |bencher| {
                bencher.iter(|| {
                    let dataset = dataset.clone();
                    let counted =
                        dataset.with_samples(&program, Corrupt::Error, &cache, &mut |_| true);
                    counted.expect("no record is damaged")
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, counting);
criterion_main!(benches);
