//! Batches that are offered and not consumed, because a device has no room yet or the consumer was
//! interrupted: such a batch is offered again, and is the next one as long as it belongs to the
//! rank.

use std::time::Duration;

use shardfeed_cluster::GrpcCluster;
use shardfeed_embedded::{CacheChoice, ClusterOptions, Delivery, Loader, LoaderOptions};
use shardfeed_plan::{Mode, Tail};

use crate::cluster::{Cluster, PATIENCE, until};
use crate::fixture::{Place, rows_of};

const COUNTS: [usize; 4] = [25, 0, 17, 30];
const RECORDS: usize = 72;

/// Rows of a batch: shard, ordinal, validity.
type Rows = Vec<(u32, u64, bool)>;

const LOOK: Duration = Duration::from_millis(100);

fn options() -> LoaderOptions {
    LoaderOptions {
        batch_size: 4,
        shuffle_window: 10,
        cache: CacheChoice::Off.into(),
        ..LoaderOptions::default()
    }
}

fn alone(place: &Place) -> Loader {
    let options = LoaderOptions { files: place.loader("s-*.tfrecord").files, ..options() };
    shardfeed_embedded::open(options, &mut |_| true).unwrap()
}

fn in_cluster(cluster: &Cluster, mode: Mode) -> Loader {
    let options = LoaderOptions {
        dataset: Some("train".into()),
        mode,
        tail: if mode == Mode::Dynamic { Tail::Uneven } else { Tail::Drop },
        job: Some("j".into()),
        cluster: Some(ClusterOptions {
            worker: Some(cluster.place.path("w.sock")),
            timeout: PATIENCE,
            run: Some("run-1".into()),
            ..ClusterOptions::new(&cluster.address, &GrpcCluster)
        }),
        ..options()
    };
    shardfeed_embedded::open(options, &mut |_| true).unwrap()
}

fn next(loader: &mut Loader) -> Rows {
    until("a batch", || match loader.next(LOOK).unwrap() {
        Delivery::Batch(mut delivered) => Some(rows_of(&mut delivered)),
        Delivery::EpochEnd { .. } | Delivery::Pending => None,
    })
}

/// Waits until a batch is offered, without consuming it; returns its ordinals.
fn looks(loader: &mut Loader) -> Vec<u8> {
    let stood = (loader.cursor().epoch(), loader.cursor().step());
    until("a batch to look at", || {
        let offer = loader.offer(LOOK).unwrap();
        assert_eq!((loader.cursor().epoch(), loader.cursor().step()), stood);
        matches!(offer, Delivery::Batch(_)).then_some(())
    });
    let batch = loader.offered().expect("it is still offered");
    let seen = batch.slot.read(&batch.ordinals);
    let mut shown = vec![];
    loader.peek(1, &mut |batch| shown.push(batch.slot.read(&batch.ordinals)));
    assert_eq!(shown, std::slice::from_ref(&seen), "it is the first of the batches ahead");
    seen
}

/// Returns the next batch, which must be the one offered last.
fn takes(loader: &mut Loader, seen: &[u8]) -> Rows {
    let rows = next(loader);
    let ordinals = rows.iter().flat_map(|(_, ordinal, _)| ordinal.to_ne_bytes());
    assert_eq!(ordinals.collect::<Vec<_>>(), seen);
    rows
}

#[test]
fn comes_again_in_one_process() {
    let place = Place::with_shards(&COUNTS);
    let (mut late, mut other) = (alone(&place), alone(&place));
    // Continues into the next epoch.
    for _ in 0..25 {
        let seen = looks(&mut late);
        assert_eq!(looks(&mut late), seen);
        assert_eq!(takes(&mut late, &seen), next(&mut other));
    }
    // A loader that moves elsewhere discards the offered batch.
    looks(&mut late);
    late.set_epoch(5).unwrap();
    other.set_epoch(5).unwrap();
    assert_eq!(next(&mut late), next(&mut other));
}

#[test]
fn comes_again_from_a_worker_also_when_that_is_gone() {
    let cluster = Cluster::start(Place::with_shards(&COUNTS), 1_000);
    let worker = cluster.worker("w");
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]);
    let mut late = in_cluster(&cluster, Mode::Deterministic);
    let mut other = alone(&cluster.place);
    for _ in 0..6 {
        let seen = looks(&mut late);
        assert_eq!(looks(&mut late), seen);
        assert_eq!(takes(&mut late, &seen), next(&mut other));
    }
    let seen = looks(&mut late);
    drop(worker);
    assert_eq!(looks(&mut late), seen);
    assert_eq!(takes(&mut late, &seen), next(&mut other));
    for _ in 0..20 {
        let seen = looks(&mut late);
        assert_eq!(takes(&mut late, &seen), next(&mut other));
    }
    assert_eq!(late.stats().source, "in process");
}

#[test]
fn of_a_dynamic_job_comes_once() {
    let cluster = Cluster::start(Place::with_shards(&COUNTS), 1_000);
    let _worker = cluster.worker("w");
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]);
    let mut late = in_cluster(&cluster, Mode::Dynamic);
    let mut received: Vec<Rows> = vec![];
    while received.iter().map(Vec::len).sum::<usize>() < RECORDS {
        let seen = looks(&mut late);
        received.push(takes(&mut late, &seen));
    }
    let mut samples: Vec<_> = received.into_iter().flatten().collect();
    samples.sort_unstable();
    samples.dedup();
    assert_eq!(samples.len(), RECORDS);
}
