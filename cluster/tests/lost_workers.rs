//! Workers that accept connections but serve no batch: the trainer's process takes over or returns
//! an error; it never waits forever.
#![allow(clippy::unwrap_used)] // Clippy's own exception ends at the functions marked as tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shardfeed_cluster::GrpcCluster;
use shardfeed_embedded::{
    CacheChoice, CacheOptions, ClusterOptions, Delivery, Loader, LoaderOptions,
};
use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::trainer::v1::to_trainer::Message;
use shardfeed_proto::trainer::v1::to_worker::Message as Ask;
use shardfeed_socket::{Connection, ListenOptions, Listener};
use shardfeed_source::{Dataset, FileRules};
use shardfeed_tfrecord::{Compression, CompressionChoice, create};

const PATIENCE: Duration = Duration::from_secs(30);
const RECORDS: u64 = 12;

type ToTrainer = Connection<wire::ToTrainer, wire::ToWorker>;

/// Behaviour of a worker after its first start, instead of sending a batch.
#[derive(Clone, Copy)]
enum Ends {
    /// It closes the connection.
    Closed,
    /// It sends the reason why no message follows.
    Goodbye,
}

fn say(trainer: &ToTrainer, message: Message) {
    // A trainer that has disconnected does not need it.
    let _ = trainer.send(&wire::ToTrainer { message: Some(message) }, None);
}

/// Answers one trainer up to and including its start.
fn answer(mut trainer: ToTrainer, dataset: &Dataset, ends: Ends, starts: &AtomicUsize) {
    let shards = dataset.manifest().shards();
    while let Ok(Some((message, _))) = trainer.recv(PATIENCE) {
        match message.message {
            Some(Ask::Hello(_)) => say(&trainer, Message::Welcome(wire::Welcome::default())),
            Some(Ask::Open(_)) => {
                let described = wire::Dataset {
                    name: "data".into(),
                    root: dataset.root().display().to_string(),
                    content: dataset.manifest().digest().as_bytes().to_vec(),
                    shards: shards.len() as u64,
                    compression: "none".into(),
                    ..wire::Dataset::default()
                };
                say(&trainer, Message::Dataset(described));
                let paths = shards.iter().map(|shard| shard.path.clone()).collect();
                let records = shards.iter().map(|shard| shard.records).collect();
                say(&trainer, Message::Shards(wire::Shards { paths, records, digests: vec![] }));
            }
            Some(Ask::Register(_)) => {
                say(&trainer, Message::Registered(wire::Registered::default()));
            }
            Some(Ask::Start(start)) => {
                starts.fetch_add(1, Ordering::Relaxed);
                let started = wire::Started {
                    start: start.start,
                    fencing: 1,
                    segments: start.segments,
                    hold_max: 2,
                    ..wire::Started::default()
                };
                say(&trainer, Message::Started(started));
                if let Ends::Goodbye = ends {
                    let reason = "worker w stopped sending".into();
                    say(&trainer, Message::Goodbye(wire::Goodbye { reason }));
                }
                return;
            }
            _ => {}
        }
    }
}

/// Runs `trainer` with such a worker; returns how often the worker was asked to start.
fn beside(ends: Ends, fallback: bool, trainer: impl FnOnce(Loader)) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let file = shard(folder.path());
    let none = CompressionChoice::Fixed(Compression::None);
    let cache: CacheOptions = CacheChoice::Off.into();
    let patterns = [file.display().to_string()];
    let rules = FileRules { compression: none, ..FileRules::default() };
    let dataset = Dataset::open(&patterns, rules, None, &cache, &mut |_| true).unwrap();
    let socket = folder.path().join("w.sock");
    let listener = Arc::new(Listener::bind(&socket, ListenOptions::default()).unwrap());
    let starts = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let accepting = Arc::clone(&listener);
        scope.spawn(|| {
            let accepting = accepting;
            while let Ok(Some(incoming)) = accepting.accept(PATIENCE) {
                if let Ok(trainer) = incoming.handshake(PATIENCE) {
                    answer(trainer, &dataset, ends, &starts);
                }
            }
        });
        // No process listens on port 1, so that every call to a coordinator would fail.
        let cluster = ClusterOptions {
            worker: Some(socket.clone()),
            fallback,
            timeout: Duration::from_millis(500),
            ..ClusterOptions::new("127.0.0.1:1", &GrpcCluster)
        };
        let options = LoaderOptions {
            files: patterns.to_vec(),
            compression: none,
            cache: cache.clone(),
            cluster: Some(cluster),
            job: Some("job".into()),
            batch_size: 1,
            shuffle: false,
            ..LoaderOptions::default()
        };
        trainer(Loader::open(options, &mut |_| true).unwrap());
        listener.stop();
    });
    starts.into_inner()
}

fn shard(folder: &Path) -> PathBuf {
    let path = folder.join("s.tfrecord");
    let mut writer = create(&path, Compression::None).unwrap();
    (0..RECORDS).for_each(|record| writer.write(&record.to_le_bytes()).unwrap());
    writer.finish().unwrap();
    path
}

/// Checks that every step of the epoch is delivered once, in order.
fn takes_all(mut loader: Loader) {
    let (mut steps, begun) = (vec![], Instant::now());
    while loader.cursor().epoch() == 0 {
        assert!(begun.elapsed() < PATIENCE, "it waits for ever after {steps:?}");
        if let Delivery::Batch(batch) = loader.next(Duration::from_millis(100)).unwrap() {
            steps.push(batch.step);
        }
    }
    assert_eq!(steps, (0..RECORDS).collect::<Vec<_>>());
    let stats = loader.stats();
    assert_eq!(stats.source, "in process");
    let setup = stats.prefetch.expect("it read").account.setup;
    assert!(setup.took_over, "`why` can say so");
}

#[test]
fn a_worker_that_is_lost_again_and_again_before_its_first_batch_is_replaced() {
    assert_eq!(beside(Ends::Closed, true, takes_all), 2);
}

#[test]
fn a_worker_that_says_that_it_cannot_send_is_replaced_at_once() {
    assert_eq!(beside(Ends::Goodbye, true, takes_all), 1);
}

#[test]
fn without_a_replacement_it_is_an_error_after_the_timeout() {
    for ends in [Ends::Closed, Ends::Goodbye] {
        let starts = beside(ends, false, |mut loader| {
            let begun = Instant::now();
            let error = loop {
                assert!(begun.elapsed() < PATIENCE, "it waits for ever");
                match loader.next(Duration::from_millis(100)) {
                    Ok(next) => assert!(matches!(next, Delivery::Pending), "there is no batch"),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("the worker sent no batch in"), "{error}");
        });
        assert!(starts > 2, "{starts}");
    }
}
