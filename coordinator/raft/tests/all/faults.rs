//! Disks that fill up, fail to sync or lose power: an acknowledged command is durable, an error
//! never acknowledges, and a node that failed once rejects everything.

use crate::common::{Fault, FaultyDisk, Ledger, numbers, open_on, propose};
use shardfeed_raft::{Node, NodeOptions, OpenError, ProposeError};

/// Proposes until the disk fails; returns the number of acknowledged commands.
async fn propose_until_refused(node: &Node<Ledger>, from: usize) -> usize {
    for number in from..from + 1_000 {
        match node.propose(number.to_string().into_bytes()).await {
            Ok(_) => {}
            Err(ProposeError::Stopped { message }) => {
                assert!(message.contains("os error"), "{message}");
                return number;
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("the fault was never met");
}

/// Checks that all acknowledged commands are there, and beyond them at most the one with an unknown
/// outcome.
async fn check_reopened(disk: &FaultyDisk, options: &NodeOptions, acknowledged: usize) -> usize {
    let node = open_on(disk, options).await.unwrap();
    let found = node.read(Ledger::commands);
    assert_eq!(found, numbers(found.len()));
    assert!(
        (acknowledged..=acknowledged + 1).contains(&found.len()),
        "{} {acknowledged}",
        found.len()
    );
    propose(&node, found.len(), found.len() + 3).await;
    node.shutdown().await;
    found.len() + 3
}

async fn fail_and_recover(fault: Fault, options: &NodeOptions, torn: Option<u64>) {
    let disk = FaultyDisk::default();
    let node = open_on(&disk, options).await.unwrap();
    propose(&node, 0, 5).await;
    disk.set_fault(fault);
    let acknowledged = propose_until_refused(&node, 5).await;
    for _ in 0..3 {
        let error = node.propose(b"again".to_vec()).await.unwrap_err();
        assert!(matches!(error, ProposeError::Stopped { .. }), "{fault:?}: {error}");
        let error = node.linearize().await.unwrap_err();
        assert!(matches!(error, ProposeError::Stopped { .. }), "{fault:?}: {error}");
    }
    let status = node.status();
    assert!(status.fatal.is_some() && !status.is_leader, "{fault:?}: {status:?}");
    let found = node.read(Ledger::commands);
    assert_eq!(found, numbers(found.len()));
    assert!((acknowledged..=acknowledged + 1).contains(&found.len()), "{fault:?}: {acknowledged}");
    node.shutdown().await;
    check_reopened(&disk.crash(torn), options, acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_acknowledges_nothing_and_loses_nothing() {
    for after in 0..40 {
        fail_and_recover(Fault::FullAfter(after), &NodeOptions::default(), None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_acknowledges_nothing_and_loses_nothing() {
    for after in 0..20 {
        fail_and_recover(Fault::SyncsFailFrom(after), &NodeOptions::default(), None).await;
        fail_and_recover(Fault::OneSyncFailsAt(after), &NodeOptions::default(), None).await;
    }
}

/// With a snapshot every few entries, the fault meets snapshots as often as the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_holds_while_snapshots_are_saved() {
    let options = NodeOptions { snapshot_every: 3, ..NodeOptions::default() };
    for after in 0..30 {
        fail_and_recover(Fault::FullAfter(after), &options, None).await;
        fail_and_recover(Fault::SyncsFailFrom(after), &options, Some(after)).await;
        fail_and_recover(Fault::OneSyncFailsAt(after), &options, Some(after)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torn_writes_at_a_power_cut_are_undone() {
    for seed in 0..40 {
        fail_and_recover(Fault::SyncsFailFrom(seed % 13), &NodeOptions::default(), Some(seed))
            .await;
        fail_and_recover(Fault::FullAfter(seed), &NodeOptions::default(), Some(seed)).await;
    }
}

/// Power fails while 16 clients propose, at arbitrary moments, repeatedly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_cuts_under_load_lose_nothing_acknowledged() {
    let options = NodeOptions { snapshot_every: 40, ..NodeOptions::default() };
    let mut disk = FaultyDisk::default();
    let mut acknowledged = std::collections::BTreeMap::new();
    for round in 0..8_u64 {
        let node = open_on(&disk, &options).await.unwrap();
        check_contains(&node, &acknowledged);
        let mut proposers = tokio::task::JoinSet::new();
        for proposer in 0..16 {
            let node = node.clone();
            proposers.spawn(async move {
                let mut mine = Vec::new();
                for number in 0..100 {
                    let command = format!("{round}/{proposer}/{number}").into_bytes();
                    let Ok(applied) = node.propose(command.clone()).await else { break };
                    mine.push((applied.index, command));
                }
                mine
            });
        }
        disk.set_fault(Fault::SyncsFailFrom(10 + round * 7));
        for (index, command) in proposers.join_all().await.concat() {
            assert_eq!(acknowledged.insert(index, command), None);
        }
        node.shutdown().await;
        disk = disk.crash(Some(round));
    }
    let node = open_on(&disk, &options).await.unwrap();
    check_contains(&node, &acknowledged);
    assert!(acknowledged.len() > 200, "only {} were acknowledged", acknowledged.len());
    node.shutdown().await;
}

fn check_contains(node: &Node<Ledger>, acknowledged: &std::collections::BTreeMap<u64, Vec<u8>>) {
    let applied: std::collections::BTreeMap<_, _> =
        node.read(|ledger| ledger.applied.iter().cloned().collect());
    for (index, command) in acknowledged {
        assert_eq!(applied.get(index), Some(command), "index {index}");
    }
}

/// A disk that fails during bootstrap leaves a directory that can be bootstrapped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_that_fails_can_be_repeated() {
    let mut failed = 0;
    for after in 0..40 {
        for fault in [Fault::FullAfter(after), Fault::SyncsFailFrom(after)] {
            let disk = FaultyDisk::default();
            disk.set_fault(fault);
            match open_on(&disk, &NodeOptions::default()).await {
                Ok(node) => node.shutdown().await,
                Err(OpenError::Io { .. } | OpenError::Start { .. }) => failed += 1,
                Err(other) => panic!("{fault:?}: {other}"),
            }
            let node = open_on(&disk.crash(Some(after)), &NodeOptions::default()).await.unwrap();
            propose(&node, 0, 3).await;
            node.shutdown().await;
        }
    }
    assert!(failed > 20, "only {failed} of the faults were met");
}
