//! Restores a backup of three coordinators to three coordinators, as in docs/OPERATIONS.md.

use rustix::process::Signal;
use serde_json::Value;
use shardfeed_embedded::Loader;
use shardfeed_plan::{Digest, LoaderState, Mode};

use crate::cluster::{Process, until};
use crate::fixture::Place;
use crate::three::{RANKS, Rows, Three, look};

/// Returns the next batch of each rank.
fn step(loaders: &mut [Loader]) -> Vec<Rows> {
    let next = |loader: &mut Loader| until("a batch", || look(loader).map(|(_, rows)| rows));
    loaders.iter_mut().map(next).collect()
}

/// Returns the job as a cluster shows it, without the fields that vary with time and sessions.
fn job(cluster: &Three, coordinators: &str) -> Value {
    let mut job = cluster.json(coordinators, &["job", "show", "j"]);
    let steady = |value: &mut Value| {
        let fields = value.as_object_mut().unwrap();
        fields.retain(|name, _| {
            !["age_ms", "ranks_served", "generation", "history"].contains(&&**name)
        });
    };
    let mut generations = job["history"].take();
    generations.as_array_mut().unwrap().iter_mut().for_each(|generation| {
        let number = generation["generation"].take();
        steady(generation);
        generation["number"] = number;
    });
    steady(&mut job);
    job["history"] = generations;
    job
}

/// Returns the job of a loader state, and its position.
fn place_of(state: &LoaderState) -> (Digest, u64, u64) {
    (state.job, state.epoch, state.step())
}

/// Creates the data folder of node 1 from the backup.
fn restore(cluster: &Three, data: &str, more: &[&str]) -> Value {
    let args = ["cluster", "snapshot", "restore", "backup", "--node-id", "1", "--data-dir", data];
    let ran = cluster.place.run(&[&args[..], more, &["-o", "json"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Starts a node that is refused; returns its error.
fn refused(cluster: &Three, node: u64, data: &str) -> String {
    let args = cluster.args(node, data, &[]);
    let ran = cluster.place.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(ran.code, 5, "{}", ran.stderr);
    ran.stderr
}

/// Adds a node with an empty folder, and waits until it serves.
fn join(cluster: &mut Three, node: u64) {
    let first = cluster.address(1).to_owned();
    let (process, ready) = cluster.spawn(node, "new", &["--join", &first]);
    until("it waits to be added", || process.log().contains("cluster add").then_some(()));
    let (number, address) = (node.to_string(), cluster.address(node).to_owned());
    cluster.ok(&first, &["cluster", "add", &number, &address, "--timeout", "30s"]);
    ready().unwrap_or_else(|| panic!("node {node} ended: {}", process.log()));
    cluster.nodes.insert(node, process);
}

#[test]
fn three_nodes_are_restored_from_a_backup_with_the_job_where_it_was() {
    let mut cluster = Three::start(Place::with_shards(&[100; 4]));
    let list = cluster.list();
    let worker = cluster.worker();
    cluster.ok(&list, &["dataset", "add", "train", "s-*.tfrecord"]);
    let open = |cluster: &Three, run: &str| -> Vec<Loader> {
        (0..RANKS).map(|rank| cluster.loader(Mode::Deterministic, rank, run)).collect()
    };
    let mut loaders = open(&cluster, "run-1");
    for _ in 0..5 {
        step(&mut loaders);
    }
    let before = until("the cursor in the log", || {
        let job = job(&cluster, &list);
        let generation = &job["history"][0];
        let cursor = (&generation["cursor_epoch"], &generation["cursor_step"]);
        (cursor == (&0.into(), &5.into())).then_some(job)
    });
    let dataset = cluster.json(&list, &["dataset", "show", "train"]);
    let state = place_of(&loaders[0].cursor().state());
    let id = cluster.json(&list, &["status"])["cluster_id"].clone();
    let saved = cluster.json(&list, &["cluster", "snapshot", "save", "backup"]);
    // Later batches are lost with the cluster.
    let after: Vec<_> = (0..3).map(|_| step(&mut loaders)).collect();
    drop(loaders);
    assert_eq!(worker.terminate(), Some(0));
    let nodes = std::mem::take(&mut cluster.nodes);
    nodes.values().for_each(|node| node.signal(Signal::TERM));
    assert!(nodes.into_values().all(|node| node.ended() == Some(0)));

    // The name is checked at the start, so a wrong name is reported now.
    restore(&cluster, "unnamed-1", &[]);
    let said = refused(&cluster, 1, "unnamed");
    assert!(said.contains("node 1 of `shardfeed`"), "{said}");
    let restored = restore(&cluster, "new-1", &["--cluster-name", "prod"]);
    assert_eq!(restored["from_cluster"], id);
    assert_eq!(restored["applied_index"], saved["applied_index"]);
    assert_ne!(restored["cluster"], id);

    // Node 1 has all data on its disk; its `peers` are not used.
    let (first, ready) = cluster.spawn(1, "new", &[]);
    let line = ready().unwrap_or_else(|| panic!("it ended: {}", first.log()));
    assert_eq!(line.rsplit(' ').next(), restored["cluster"].as_str(), "{line}");
    cluster.nodes.insert(1, first);
    let alone = cluster.address(1).to_owned();
    assert_eq!(job(&cluster, &alone), before);
    // The other nodes would found a cluster with it, unless they have `join`.
    let said = refused(&cluster, 2, "new");
    assert!(said.contains("give this node `join`, too"), "{said}");
    join(&mut cluster, 2);
    join(&mut cluster, 3);

    until("three that vote and say the same", || {
        let status = cluster.json(&list, &["cluster", "status"]);
        let members = status["members"].as_array().unwrap();
        let votes = members.iter().all(|member| member["role"] != "learner");
        let hash = |member: &Value| member["view"]["state_hash"].clone();
        let is_same = members.iter().all(|member| hash(member) == hash(&members[0]));
        (members.len() == 3 && votes && is_same).then_some(())
    });
    assert_eq!(job(&cluster, &list), before);
    let shown = cluster.json(&list, &["dataset", "show", "train"]);
    for field in ["state", "content_digest"] {
        assert!(shown[field].is_string(), "{shown}");
        assert_eq!(shown[field], dataset[field], "{field}");
    }

    // The ranks continue from the backup's loader state, with the batches that followed it.
    let worker: Process = cluster.worker();
    let mut loaders = open(&cluster, "run-2");
    for loader in &mut loaders {
        loader.load_latest(&mut |_| true).unwrap();
        assert_eq!(place_of(&loader.cursor().state()), state);
    }
    let again: Vec<_> = (0..3).map(|_| step(&mut loaders)).collect();
    assert_eq!(again, after);
    drop(loaders);
    assert_eq!(worker.terminate(), Some(0));
}
