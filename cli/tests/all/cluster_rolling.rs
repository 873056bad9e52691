//! Three coordinators are restarted one after the other, as in an upgrade, while ranks train.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::Value;
use shardfeed_embedded::Loader;
use shardfeed_plan::Mode;

use crate::cluster::until;
use crate::fixture::Place;
use crate::three::{BATCH, RANKS, Rows, Three, look};

/// Divisible into whole steps, so that no epoch drops any.
const RECORDS: usize = 2_000;
const SHARDS: usize = 8;

/// Time without a message after which the leader considers a follower absent, ms.
const HEARD_MS: u64 = 2_000;

/// Ranks, and the rows that they received, by epoch.
struct Training {
    loaders: Vec<Loader>,
    epochs: BTreeMap<u64, Rows>,
}

impl Training {
    /// Asks for one batch of each rank.
    fn go_on(&mut self) {
        for loader in &mut self.loaders {
            if let Some((epoch, rows)) = look(loader) {
                self.epochs.entry(epoch).or_default().extend(rows);
            }
        }
    }

    /// Trains until a condition is met.
    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        until(what, || {
            self.go_on();
            found(self)
        })
    }

    /// Number of epochs that all ranks have left.
    fn done(&self) -> u64 {
        self.loaders.iter().map(|loader| loader.cursor().epoch()).min().unwrap()
    }

    fn until_another_epoch(&mut self) {
        let before = self.done();
        self.until("another epoch", |training| (training.done() > before).then_some(()));
    }
}

/// True if all three vote, are in contact, and have the entries committed at the first call.
fn is_level(status: &Value, committed: &mut Option<u64>) -> bool {
    let members = status["members"].as_array().unwrap();
    let committed = *committed.get_or_insert(status["committed_index"].as_u64().unwrap());
    let follows = |member: &Value| {
        member["role"] == "voter"
            && member["matched_index"].as_u64().is_some_and(|matched| matched >= committed)
            && member["heard_ms"].as_u64().is_some_and(|heard| heard < HEARD_MS)
    };
    let followers = members.iter().filter(|member| follows(member)).count();
    (members.len(), followers) == (3, 2) && members.iter().any(|m| m["role"] == "leader")
}

fn check(mode: Mode) {
    assert_eq!(RECORDS as u64 % (BATCH * RANKS), 0);
    let mut cluster = Three::start(Place::with_shards(&[RECORDS / SHARDS; SHARDS]));
    let list = cluster.list();
    let worker = cluster.worker();
    cluster.ok(&list, &["dataset", "add", "train", "s-*.tfrecord"]);
    let loaders = (0..RANKS).map(|rank| cluster.loader(mode, rank, "run-1")).collect();
    let mut training = Training { loaders, epochs: BTreeMap::new() };
    training.until_another_epoch();
    let session = cluster.json(&list, &["worker", "show", "w"])["session"].clone();

    let mut leaders = vec![];
    for node in 1..=3 {
        leaders.push(cluster.json(&list, &["status"])["leader"].as_u64().unwrap());
        let mut process = cluster.nodes.remove(&node).unwrap();
        process.signal(Signal::TERM);
        let code = training.until("its end", |_| process.exited());
        assert_eq!(code, Some(0), "node {node}: {}", process.log());
        let (process, ready) = cluster.spawn(node, "data", &[]);
        ready().unwrap_or_else(|| panic!("node {node} ended: {}", process.log()));
        cluster.nodes.insert(node, process);
        let mut committed = None;
        training.until("three that are level", |_| {
            let args = ["cluster", "status", "-o", "json", "--coordinator", &list];
            let ran = cluster.place.run(&args);
            let status = (ran.code == 0).then(|| serde_json::from_str(&ran.stdout).unwrap())?;
            is_level(&status, &mut committed).then_some(())
        });
    }
    training.until_another_epoch();
    // At least one of the three was the leader when it was asked to end.
    assert!((1..).zip(&leaders).any(|(node, leader)| node == *leader), "{leaders:?}");
    assert_eq!(
        cluster.json(&list, &["worker", "show", "w"])["session"],
        session,
        "the worker was there all the time"
    );

    // No record is lost or received twice.
    for epoch in 0..training.done() {
        let mut rows = training.epochs.remove(&epoch).unwrap_or_default();
        let received = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!((received, rows.len()), (RECORDS, RECORDS), "epoch {epoch}");
        assert!(rows.iter().all(|(_, _, valid)| *valid), "epoch {epoch}");
    }
    drop(training);
    assert_eq!(worker.terminate(), Some(0));
}

#[test]
fn nothing_is_lost_while_coordinators_are_restarted_one_after_the_other() {
    check(Mode::Deterministic);
}

#[test]
fn nothing_granted_is_lost_while_coordinators_are_restarted_one_after_the_other() {
    check(Mode::Dynamic);
}
