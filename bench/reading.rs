//! Framing and checksums compared with a bare loop of `read` and CRC over the same warm file, one
//! thread.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, CompressionChoice, IndexOptions, create, index_source,
    open_source,
};

fn write(path: &Path, records: usize, record_bytes: usize, compression: Compression) {
    let mut data: Vec<u8> = (0..record_bytes).map(|at| ((at * at) >> 3) as u8).collect();
    let mut writer = create(path, compression).expect("create");
    for number in 0..records {
        data[..8].copy_from_slice(&number.to_le_bytes());
        writer.write(&data).expect("write");
    }
    writer.finish().expect("finish");
}

fn bare(path: &Path, buffer: &mut [u8]) -> u32 {
    let mut file = File::open(path).expect("open");
    let mut sum = 0;
    loop {
        let read = file.read(buffer).expect("read");
        if read == 0 {
            return sum;
        }
        sum ^= crc_fast::crc32_iscsi(&buffer[..read]);
    }
}

fn chunks(path: &Path, choice: CompressionChoice) -> usize {
    let source = open_source(path, choice).expect("open");
    let mut reader = ChunkReader::new(source, "bench", ChunkOptions::default());
    let mut records = 0;
    while let Some(chunk) = reader.next_chunk().expect("good") {
        records += chunk.records.len();
        reader.recycle(black_box(chunk).bytes);
    }
    records
}

fn reading(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut buffer = vec![0; 1 << 20];
    for (name, count, record_bytes) in [("100KB", 640, 100_000), ("250B", 240_000, 250)] {
        let path = folder.path().join(name);
        write(&path, count, record_bytes, Compression::None);
        let mut group = criterion.benchmark_group(format!("reading/{name}"));
        group.sample_size(20).measurement_time(Duration::from_secs(2));
        group.warm_up_time(Duration::from_millis(500));
        group.throughput(Throughput::ElementsAndBytes {
            elements: count as u64,
            bytes: (count * (record_bytes + 16)) as u64,
        });
        group.bench_function("bare_read_and_crc", |bencher| {
            bencher.iter(|| bare(&path, &mut buffer));
        });
        group.bench_function("chunks", |bencher| {
            bencher.iter(|| assert_eq!(chunks(&path, CompressionChoice::Auto), count));
        });
        for (name, verify_data) in [("index", false), ("index_verify_data", true)] {
            let options = IndexOptions { verify_data, ..IndexOptions::default() };
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    let mut file = File::open(&path).expect("open");
                    index_source(&mut file, "bench", &options, &mut |_| {}).expect("good").records
                });
            });
        }
        group.finish();

        let zipped = folder.path().join(format!("{name}.gz"));
        write(&zipped, count / 4, record_bytes, Compression::Gzip);
        let mut group = criterion.benchmark_group(format!("reading/{name}_gzip"));
        group.sample_size(10).measurement_time(Duration::from_secs(2));
        group.throughput(Throughput::Elements(count as u64 / 4));
        group.bench_function("chunks", |bencher| {
            bencher.iter(|| chunks(&zipped, CompressionChoice::Auto));
        });
        group.finish();
    }
}

criterion_group!(benches, reading);
criterion_main!(benches);
