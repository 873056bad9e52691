//! Acknowledged commands survive a restart, and one node at a time owns the directory.

use std::time::Instant;

use crate::common::{
    FaultyDisk, Ledger, numbers, open, open_in, open_on, propose, propose_all, until,
};
use shardfeed_raft::{NodeOptions, OpenError, ProposeError};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_there_after_each_restart() {
    let dir = tempfile::tempdir().unwrap();
    let options = NodeOptions::default();
    let mut cluster_id = None;
    for round in 0..4 {
        let begun = Instant::now();
        let node = open(dir.path(), &options).await;
        assert_eq!(node.read(Ledger::commands), numbers(round * 25));
        propose(&node, round * 25, round * 25 + 1).await;
        assert!(begun.elapsed().as_secs() < 5, "a single member took {:?}", begun.elapsed());
        propose(&node, round * 25 + 1, (round + 1) * 25).await;
        let id = node.cluster_id().to_owned();
        assert_eq!(*cluster_id.get_or_insert(id.clone()), id);
        let status = node.status();
        assert!(status.is_leader && status.leader == Some(1) && status.fatal.is_none());
        assert_eq!(status.term, round as u64 + 1);
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_proposers_each_get_their_own_answer() {
    let dir = tempfile::tempdir().unwrap();
    let options = NodeOptions::default();
    let node = open(dir.path(), &options).await;
    let mut proposers = tokio::task::JoinSet::new();
    for proposer in 0..64 {
        let node = node.clone();
        proposers.spawn(async move {
            let mut mine = Vec::new();
            for number in 0..20 {
                let command = format!("{proposer}/{number}");
                let applied = node.propose(command.clone().into_bytes()).await.unwrap();
                mine.push((applied.index, command.into_bytes()));
            }
            mine
        });
    }
    let mut acknowledged = proposers.join_all().await.concat();
    acknowledged.sort();
    assert_eq!(acknowledged.len(), 64 * 20);
    assert_eq!(node.read(|ledger| ledger.applied.clone()), acknowledged);
    node.shutdown().await;
    let node = open(dir.path(), &options).await;
    assert_eq!(node.read(|ledger| ledger.applied.clone()), acknowledged);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_take_the_place_of_old_entries() {
    let dir = tempfile::tempdir().unwrap();
    let options = NodeOptions { snapshot_every: 50, ..NodeOptions::default() };
    let node = open(dir.path(), &options).await;
    propose(&node, 0, 120).await;
    // Two snapshots are kept, and the log begins after the older one.
    until("two snapshots, and a log that forgot", || node.status().purged.is_some()).await;
    propose(&node, 120, 300).await;
    until("a snapshot of later entries", || node.status().snapshot > Some(200)).await;
    let status = node.status();
    assert!(status.purged < status.snapshot, "{status:?}");
    let bytes_of = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
    let newest = || snapshot_names(dir.path()).into_iter().max().unwrap();
    until("the snapshot's size", || node.status().snapshot_bytes == bytes_of(&newest())).await;
    until("the log's size", || node.status().log_bytes == bytes_of("log.redb")).await;
    let live = node.read(Clone::clone);
    propose(&node, 300, 310).await;
    node.shutdown().await;

    assert_eq!(snapshot_names(dir.path()).len(), 2);
    let node = open(dir.path(), &options).await;
    let status = node.status();
    assert!(status.snapshot_bytes > 0 && status.log_bytes > 0, "{status:?}");
    assert_eq!(node.read(Ledger::commands), numbers(310));
    assert_eq!(node.read(|ledger| ledger.applied[..300].to_vec()), live.applied);
    propose(&node, 310, 320).await;
    node.shutdown().await;
}

/// The state from a snapshot and the log's tail equals the state replayed from the whole log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_equals_replay() {
    let mut states = Vec::new();
    for snapshot_every in [7, 1_000_000] {
        let dir = tempfile::tempdir().unwrap();
        let options = NodeOptions { snapshot_every, ..NodeOptions::default() };
        let node = open(dir.path(), &options).await;
        propose(&node, 0, 100).await;
        node.shutdown().await;
        assert_eq!(snapshot_names(dir.path()).is_empty(), snapshot_every > 100);
        let node = open(dir.path(), &options).await;
        states.push(node.read(shardfeed_raft::Machine::snapshot));
        node.shutdown().await;
    }
    assert!(!states[0].is_empty());
    assert_eq!(states[0], states[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_has_one_node() {
    let dir = tempfile::tempdir().unwrap();
    let options = NodeOptions::default();
    let node = open(dir.path(), &options).await;
    let error = open_in(dir.path(), &options).await.unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
    propose(&node, 0, 1).await;
    node.shutdown().await;
    open(dir.path(), &options).await.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_shutdown_every_handle_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let node = open(dir.path(), &NodeOptions::default()).await;
    let other = node.clone();
    node.shutdown().await;
    assert_eq!(other.propose(b"late".to_vec()).await, Err(ProposeError::ShuttingDown));
    assert_eq!(other.linearize().await, Err(ProposeError::ShuttingDown));
    assert_eq!(other.status().fatal, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_directories_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let base = NodeOptions::default();
    open(dir.path(), &base).await.shutdown().await;
    let other_name = NodeOptions { cluster_name: "other".to_owned(), ..base.clone() };
    let other_node = NodeOptions { node_id: 2, ..base.clone() };
    for wrong in [other_name, other_node] {
        let error = open_in(dir.path(), &wrong).await.unwrap_err();
        assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    }
    open(dir.path(), &base).await.shutdown().await;

    let stray = tempfile::tempdir().unwrap();
    std::fs::write(stray.path().join("thesis.tex"), "").unwrap();
    let error = open_in(stray.path(), &NodeOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("thesis.tex"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_panics_stops_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = open(dir.path(), &NodeOptions::default()).await;
    propose(&node, 0, 3).await;
    for command in ["panic", "more"] {
        let error = node.propose(command.as_bytes().to_vec()).await.unwrap_err();
        assert!(matches!(error, ProposeError::Stopped { .. }), "{error}");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
    assert!(node.status().fatal.is_some());
    node.shutdown().await;
}

/// A release must not skip a command that it does not know: its replica would diverge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_the_machine_does_not_know_stops_the_node_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = open(dir.path(), &NodeOptions::default()).await;
    propose(&node, 0, 3).await;
    for command in ["of a later release", "more"] {
        let error = node.propose(command.as_bytes().to_vec()).await.unwrap_err();
        assert!(matches!(error, ProposeError::Stopped { .. }), "{error}");
        assert!(error.to_string().contains("this release has no such command"), "{error}");
    }
    assert_eq!(node.read(Ledger::commands).len(), 3);
    node.shutdown().await;
    // Each start of the same release stops there, too.
    let error = open_in(dir.path(), &NodeOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("this release has no such command"), "{error}");
}

fn snapshot_names(dir: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".snap")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_proposals_share_syncs() {
    let disk = FaultyDisk::default();
    let node = open_on(&disk, &NodeOptions::default()).await.unwrap();
    let before = disk.syncs();
    let commands = (0..500).map(|number| number.to_string().into_bytes());
    assert!(propose_all(&node, commands).await.iter().all(Result::is_ok));
    // A commit with a single command takes two or more.
    assert!(disk.syncs() - before < 500, "{} syncs for 500", disk.syncs() - before);
    let other = node.clone();
    node.shutdown().await;
    let refused = propose_all(&other, [vec![1], vec![2]]).await;
    assert_eq!(refused, [Err(ProposeError::ShuttingDown), Err(ProposeError::ShuttingDown)]);
}
