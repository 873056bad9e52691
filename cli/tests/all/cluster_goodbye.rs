//! A worker that is asked to end while trainers are connected.

use std::time::{Duration, Instant};

use shardfeed_cluster::GrpcCluster;
use shardfeed_embedded::{ClusterOptions, Delivery, Loader, LoaderOptions};
use shardfeed_plan::{Mode, Tail};

use crate::cluster::{Cluster, PATIENCE, until};
use crate::fixture::{Place, rows_of};

/// Session time and heartbeat interval, so long that any prompt update was sent at the end.
const TTL_MS: u64 = 120_000;
const HEARTBEAT_MS: u64 = 30_000;

/// Much shorter than either, and sufficient on any machine.
const SOON: Duration = Duration::from_secs(15);

const RECORDS: usize = 96;
const RANKS: u64 = 2;
const BATCH: u64 = 4;

type Rows = Vec<(u32, u64, bool)>;

fn loader(cluster: &Cluster, mode: Mode, rank: u64) -> Loader {
    let tail = if mode == Mode::Dynamic { Tail::Uneven } else { Tail::Drop };
    let options = LoaderOptions {
        dataset: Some("train".into()),
        batch_size: BATCH,
        rank,
        world_size: RANKS,
        mode,
        tail,
        prefetch: Some(2),
        job: Some("j".into()),
        cluster: Some(ClusterOptions {
            worker: Some(cluster.place.path("w.sock")),
            fallback: false,
            timeout: PATIENCE,
            run: Some("run-1".into()),
            ..ClusterOptions::new(&cluster.address, &GrpcCluster)
        }),
        ..LoaderOptions::default()
    };
    shardfeed_embedded::open(options, &mut |_| true).unwrap()
}

/// Returns the rows of the next batch.
fn next(loader: &mut Loader) -> Rows {
    until("a batch", || match loader.next(Duration::from_millis(100)).unwrap() {
        Delivery::Batch(mut delivered) => Some(rows_of(&mut delivered)),
        Delivery::EpochEnd { .. } | Delivery::Pending => None,
    })
}

/// Returns the rows of all remaining batches of the epoch; no rank waits for another one.
fn rest(loaders: Vec<Loader>) -> Vec<Rows> {
    let (mut open, mut received) = (loaders, Vec::new());
    until("the end of the epoch", || {
        // A deterministic epoch is over when the cursor is in the next one.
        open.retain(|loader| loader.cursor().epoch() == 0);
        open.retain_mut(|loader| match loader.next(Duration::from_millis(10)).unwrap() {
            Delivery::Batch(mut delivered) => {
                received.push(rows_of(&mut delivered));
                true
            }
            Delivery::EpochEnd { .. } => false,
            Delivery::Pending => true,
        });
        open.is_empty().then_some(())
    });
    received
}

fn check(mode: Mode) {
    let place = Place::with_shards(&[RECORDS / 4; 4]);
    let cluster = Cluster::start_with(place, TTL_MS, HEARTBEAT_MS);
    // A worker that joins looks for scans at once; later it would learn of them too late.
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord", "--no-wait"]);
    let worker = cluster.worker("w");
    cluster.ok(&["wait", "dataset", "train"]);
    let mut loaders: Vec<_> = (0..RANKS).map(|rank| loader(&cluster, mode, rank)).collect();
    let mut received: Vec<Rows> = Vec::new();
    for _ in 0..3 {
        received.extend(loaders.iter_mut().map(next));
    }

    let begun = Instant::now();
    assert_eq!(worker.terminate(), Some(0));
    assert_eq!(cluster.json(&["worker", "show", "w"])["state"], "left");
    let ranks = cluster.json(&["rank", "list", "--job", "j"]);
    for rank in ranks["ranks"].as_array().unwrap() {
        assert_ne!(rank["state"], "served", "{rank}");
        assert_eq!((&rank["epoch"], &rank["step"]), (&0.into(), &3.into()), "{rank}");
    }
    // Another worker serves the trainers from their current positions.
    let again = cluster.worker("w");
    received.extend(loaders.iter_mut().map(next));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());

    received.extend(rest(loaders));
    let mut samples: Vec<_> = received.iter().flatten().collect();
    samples.sort_unstable();
    samples.dedup();
    assert_eq!((samples.len(), received.iter().flatten().count()), (RECORDS, RECORDS));
    assert_eq!(again.terminate(), Some(0));
}

#[test]
fn its_ranks_are_free_at_once() {
    check(Mode::Deterministic);
}

#[test]
fn what_was_granted_to_its_ranks_waits_for_them() {
    check(Mode::Dynamic);
}
