//! Workers that receive no more work, and their trainers.

use std::time::Duration;

use expect_test::expect;
use shardfeed_cluster::GrpcCluster;
use shardfeed_embedded::{ClusterOptions, Delivery, Loader, LoaderOptions};

use crate::cluster::{Cluster, PATIENCE, Process, until};
use crate::fixture::{Place, strings};

const RANKS: u64 = 2;

/// A cluster with the worker `w` and the dataset `train`.
fn start() -> (Cluster, Process) {
    let cluster = Cluster::start(Place::with_shards(&[400, 400]), 10_000);
    let worker = cluster.worker("w");
    cluster.ok(&["dataset", "add", "train", "s-*.tfrecord"]);
    (cluster, worker)
}

/// A trainer that continues in its own process if the worker `w` does not serve it.
fn loader(cluster: &Cluster, rank: u64) -> Loader {
    let options = LoaderOptions {
        dataset: Some("train".into()),
        batch_size: 4,
        rank,
        world_size: RANKS,
        shuffle_window: 10,
        job: Some("j".into()),
        cluster: Some(ClusterOptions {
            worker: Some(cluster.place.path("w.sock")),
            timeout: PATIENCE,
            run: Some("run-1".into()),
            ..ClusterOptions::new(&cluster.address, &GrpcCluster)
        }),
        ..LoaderOptions::default()
    };
    shardfeed_embedded::open(options, &mut |_| true).unwrap()
}

/// Reads a batch of each rank.
fn step(loaders: &mut [Loader]) {
    for loader in loaders {
        until("a batch", || match loader.next(Duration::from_millis(100)).unwrap() {
            Delivery::Batch(_) => Some(()),
            Delivery::EpochEnd { .. } | Delivery::Pending => None,
        });
    }
}

/// State that `worker cordon`, `uncordon` and `drain` show.
fn state_of(shown: &str) -> &str {
    shown.lines().find_map(|line| line.strip_prefix("state ")).unwrap().trim()
}

#[test]
fn a_cordoned_worker_keeps_what_it_serves_and_gets_nothing_new() {
    let (cluster, _worker) = start();
    let mut loaders = vec![loader(&cluster, 0)];
    until("its lease", || {
        let _ = loaders[0].next(Duration::from_millis(50)).unwrap();
        (cluster.json(&["worker", "show", "w"])["leases"] == 1).then_some(())
    });
    assert_eq!(state_of(&cluster.ok(&["worker", "cordon", "w"])), "live, cordoned");
    // A repetition changes nothing.
    let shown = cluster.json(&["worker", "cordon", "w"]);
    assert_eq!((&shown["cordon"], &shown["leases"]), (&"cordoned".into(), &1.into()));
    expect![[r#"
        exit 3
        error: there is no worker `x`
        hint: there are these workers: w
    "#]]
    .assert_eq(&cluster.fails(&["worker", "cordon", "x"]));
    expect![[r#"
        exit 3
        error: there is no worker `x`
        hint: there are these workers: w
    "#]]
    .assert_eq(&cluster.fails(&["worker", "drain", "x"]));

    loaders.push(loader(&cluster, 1));
    step(&mut loaders);
    let ranks = cluster.json(&["rank", "list", "--job", "j"]);
    let workers = strings(&ranks["ranks"], "worker");
    assert!(workers[0] == "w" && workers[1].starts_with("trainer-"), "{workers:?}");
    let listed = cluster.ok(&["worker", "list"]);
    assert!(listed.lines().any(|line| line.starts_with("w  live, cordoned  ")), "{listed}");

    let inside = workers[1].to_owned();
    let refused =
        cluster.place.fails(&["worker", "drain", &inside, "--coordinator", &cluster.address]);
    expect![[r#"
        exit 1
        error: worker `$TRAINER` lives in a trainer's process
        hint: it ends with its trainer
    "#]]
    .assert_eq(&refused.replace(&inside, "$TRAINER"));

    assert_eq!(state_of(&cluster.ok(&["worker", "uncordon", "w"])), "live");
    let shown = cluster.json(&["worker", "show", "w"]);
    assert_eq!((&shown["cordon"], &shown["leases"]), (&"open".into(), &1.into()));
    // An unknown name is open, too.
    let args = ["worker", "uncordon", "x", "--coordinator", &cluster.address];
    let ran = cluster.place.run(&args);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(ran.stderr.contains("it is not known now, and may join"), "{}", ran.stderr);
}

#[test]
fn a_worker_has_left_when_its_drain_ends_and_its_trainers_go_on() {
    let (cluster, worker) = start();
    let mut loaders: Vec<_> = (0..RANKS).map(|rank| loader(&cluster, rank)).collect();
    step(&mut loaders);
    let drained = std::thread::scope(|scope| {
        let drain = scope.spawn(|| cluster.ok(&["worker", "drain", "w"]));
        // The trainers leave while they read the batches that were sent.
        until("the end of the drain", || {
            step(&mut loaders);
            drain.is_finished().then_some(())
        });
        drain.join().unwrap()
    });
    assert_eq!(state_of(&drained), "left, draining");
    let shown = cluster.json(&["worker", "show", "w"]);
    assert_eq!((&shown["state"], &shown["leases"]), (&"left".into(), &0.into()));
    until("that they serve themselves", || {
        step(&mut loaders);
        let ranks = cluster.json(&["rank", "list", "--job", "j"]);
        let is_own = |rank: &serde_json::Value| {
            rank["worker"].as_str().is_some_and(|worker| worker.starts_with("trainer-"))
        };
        ranks["ranks"].as_array().unwrap().iter().all(is_own).then_some(())
    });

    // The process runs until it is stopped; its cordon state outlives it.
    assert_eq!(worker.terminate(), Some(0));
    let uncordoned =
        cluster.place.run(&["worker", "uncordon", "w", "--coordinator", &cluster.address]);
    assert_eq!(state_of(&uncordoned.stdout), "left");
    assert!(uncordoned.stderr.contains("until its process is restarted"), "{}", uncordoned.stderr);
    let again = cluster.worker("w");
    assert_eq!(state_of(&cluster.ok(&["worker", "show", "w"])), "live");
    let shown = cluster.json(&["worker", "drain", "w", "--no-wait"]);
    assert_eq!(shown["cordon"], "draining");
    assert_eq!(cluster.ok(&["wait", "worker", "w", "--until", "gone"]), "worker w is gone\n");
    assert_eq!(again.terminate(), Some(0));
}
