//! The embedded loader alone, with real files: each record of an epoch arrives exactly once.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use std::path::Path;
use std::time::{Duration, Instant};

use shardfeed_embedded::{CacheChoice, Delivery, Loader, LoaderOptions, open};
use shardfeed_plan::Tail;
use shardfeed_tfrecord::{Compression, create};

const SHARDS: [(u64, Compression); 3] =
    [(70, Compression::None), (31, Compression::Gzip), (43, Compression::Zlib)];
const RECORDS: u64 = 70 + 31 + 43;
const WORLD_SIZE: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes shards whose records are the numbers from 0 to `RECORDS`, each once.
fn write_shards(folder: &Path) {
    let mut number = 0_u64;
    for (shard, (records, compression)) in SHARDS.into_iter().enumerate() {
        let path = folder.join(format!("{shard}.tfrecord"));
        let mut writer = create(&path, compression).unwrap();
        for _ in 0..records {
            writer.write(&number.to_le_bytes()).unwrap();
            number += 1;
        }
        writer.finish().unwrap();
    }
}

/// Opens a rank whose batches are shuffled; each rank gets 48 of the 144 records of an epoch.
fn rank(folder: &Path, rank: u64) -> Loader {
    let options = LoaderOptions {
        files: vec![folder.join("*.tfrecord").display().to_string()],
        cache: CacheChoice::Off.into(),
        batch_size: 8,
        seed: 7,
        shuffle_window: 50,
        tail: Tail::Drop,
        rank,
        world_size: WORLD_SIZE,
        ..LoaderOptions::default()
    };
    open(options, &mut |_| true).unwrap()
}

/// Returns the numbers in the batches up to the end of the current epoch.
fn read_epoch(loader: &mut Loader) -> Vec<u64> {
    let (mut numbers, begun, epoch) = (vec![], Instant::now(), loader.cursor().epoch());
    while loader.cursor().epoch() == epoch {
        assert!(begun.elapsed() < PATIENCE, "no batch at step {}", loader.cursor().step());
        if let Delivery::Batch(mut delivered) = loader.next(Duration::from_millis(100)).unwrap() {
            let batch = &mut delivered.batch;
            let bytes = batch.slot.read(&batch.columns[0].values);
            let words = bytes.chunks_exact(8);
            numbers.extend(words.map(|word| u64::from_le_bytes(word.try_into().unwrap())));
        }
    }
    numbers
}

/// Reads an epoch with all ranks; checks that they deliver each record once, and shuffled.
fn read_all(loaders: &mut [Loader]) -> Vec<Vec<u64>> {
    let of_ranks: Vec<_> = loaders.iter_mut().map(read_epoch).collect();
    let mut numbers = of_ranks.concat();
    assert!(!numbers.is_sorted());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..RECORDS).collect::<Vec<_>>());
    of_ranks
}

#[test]
fn the_ranks_of_an_epoch_deliver_each_record_once() {
    let folder = tempfile::tempdir().unwrap();
    write_shards(folder.path());
    let start = || (0..WORLD_SIZE).map(|number| rank(folder.path(), number)).collect::<Vec<_>>();
    let mut loaders = start();
    let first = read_all(&mut loaders);
    let second = read_all(&mut loaders);
    assert_ne!(first, second, "each epoch has its own order");
    assert_eq!(read_all(&mut start()), first, "the order depends on the options alone");
}

#[test]
fn a_rank_that_resumes_from_a_state_delivers_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    write_shards(folder.path());
    let whole = read_epoch(&mut rank(folder.path(), 0));
    let mut stopped = rank(folder.path(), 0);
    let begun = Instant::now();
    while stopped.cursor().step() < 2 {
        assert!(begun.elapsed() < PATIENCE, "no batch");
        stopped.next(Duration::from_millis(100)).unwrap();
    }
    let state = stopped.state();
    drop(stopped);
    let mut resumed = rank(folder.path(), 0);
    resumed.load(&[state], false, &mut |_| true).unwrap();
    assert_eq!(read_epoch(&mut resumed), whole[16..]);
}
