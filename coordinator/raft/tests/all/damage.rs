//! Changed bytes on disk: the node refuses with a clear error, or its state is correct
//! nevertheless.

use crate::common::{FaultyDisk, Ledger, numbers, open_on, propose, until};
use shardfeed_raft::{NodeOptions, OpenError};

const LOG: &str = "log.redb";
const WITNESS: &str = "log.witness";
const COMMANDS: usize = 60;

/// Returns a disk with some history: as a clean shutdown leaves it, or as a kill does.
async fn written(options: &NodeOptions, killed: bool) -> FaultyDisk {
    let disk = FaultyDisk::default();
    let node = open_on(&disk, options).await.unwrap();
    propose(&node, 0, COMMANDS).await;
    if options.snapshot_every < COMMANDS as u64 / 2 {
        // The log is purged after the second snapshot.
        until("a log that does not begin at its start", || node.status().purged.is_some()).await;
    }
    if killed {
        return disk.crash(None);
    }
    node.shutdown().await;
    disk.crash(None)
}

/// Opens a damaged disk; if it opens, it must hold everything.
async fn check(disk: &FaultyDisk, options: &NodeOptions, what: &str) -> Result<(), OpenError> {
    let node = open_on(disk, options).await?;
    assert_eq!(node.read(Ledger::commands), numbers(COMMANDS), "{what}");
    propose(&node, COMMANDS, COMMANDS + 2).await;
    node.shutdown().await;
    Ok(())
}

async fn flip_everywhere(
    name: &str,
    options: &NodeOptions,
    pristine: &FaultyDisk,
) -> (usize, usize) {
    let bytes = pristine.bytes(name);
    // Every bit of the first header, where single bits select a commit; then bytes of each part.
    let header = (0..64.min(bytes.len())).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    let slots = (64..320.min(bytes.len())).map(|at| (at, at % 8));
    let used = (320..bytes.len()).filter(|&at| bytes[at] != 0).step_by(97).map(|at| (at, at % 8));
    let (mut refused, mut right) = (0, 0);
    for (at, bit) in header.chain(slots).chain(used) {
        let disk = pristine.crash(None);
        let mut bad = bytes.clone();
        bad[at] ^= 1 << bit;
        disk.set_bytes(name, bad);
        match check(&disk, options, &format!("{name}, bit {bit} of byte {at}")).await {
            Ok(()) => right += 1,
            Err(error) => {
                assert!(error.to_string().contains("faulty:/"), "{error}");
                refused += 1;
            }
        }
    }
    (refused, right)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_the_log_is_never_believed() {
    let options = NodeOptions::default();
    for killed in [false, true] {
        let pristine = written(&options, killed).await;
        let (refused, right) = flip_everywhere(LOG, &options, &pristine).await;
        println!("killed {killed}: {refused} refused, {right} harmless");
        assert!(refused > 50, "killed {killed}: {refused} refused, {right} harmless");
    }
}

/// The commit mark may be damaged in one slot; a log that went back to an older commit must be
/// rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_witness_survives_one_flip_and_sees_an_older_log() {
    let options = NodeOptions::default();
    let older = written(&options, true).await;
    let node = open_on(&older, &options).await.unwrap();
    let old_log = older.bytes(LOG);
    node.shutdown().await;
    let pristine = older.crash(None);
    let (refused, right) = flip_everywhere(WITNESS, &options, &pristine).await;
    assert_eq!(refused, 0, "{right} harmless");

    pristine.set_bytes(LOG, old_log);
    let error = check(&pristine, &options, "an older log").await.unwrap_err();
    assert!(error.to_string().contains("acknowledged"), "{error}");

    let disk = older.crash(None);
    shardfeed_host::Disk::remove(&disk, WITNESS).unwrap();
    let error = check(&disk, &options, "no witness").await.unwrap_err();
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_a_snapshot_is_never_believed() {
    let options = NodeOptions { snapshot_every: 20, ..NodeOptions::default() };
    let pristine = written(&options, false).await;
    let names = snapshots(&pristine);
    assert_eq!(names.len(), 2);
    // The older snapshot and the rest of the log replace the newest; no single snapshot is needed.
    for name in &names {
        flip_everywhere(name, &options, &pristine).await;
    }
    // Without a snapshot the log alone is too short.
    let disk = pristine.crash(None);
    for name in &names {
        let mut bad = pristine.bytes(name);
        bad.pop();
        disk.set_bytes(name, bad);
    }
    let error = check(&disk, &options, "both cut").await.unwrap_err();
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_log_is_refused() {
    let options = NodeOptions::default();
    for killed in [false, true] {
        let pristine = written(&options, killed).await;
        let bytes = pristine.bytes(LOG);
        for kept in
            [0, 1, 9, 100, 320, 4096, 8192, bytes.len() / 2, bytes.len() - 4096, bytes.len() - 1]
        {
            let disk = pristine.crash(None);
            disk.set_bytes(LOG, bytes[..kept].to_vec());
            match check(&disk, &options, &format!("{kept} bytes kept")).await {
                Ok(()) => {
                    assert!(kept > bytes.len() / 2, "{kept} of {} bytes are enough", bytes.len());
                }
                Err(error) => assert!(error.to_string().contains(LOG), "{error}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_peoples_files_are_refused() {
    let options = NodeOptions { snapshot_every: 20, ..NodeOptions::default() };
    let pristine = written(&options, false).await;
    let other = written(&options, false).await;

    let disk = pristine.crash(None);
    disk.set_bytes(LOG, b"once upon a time".repeat(1000));
    assert!(check(&disk, &options, "a text").await.unwrap_err().to_string().contains(LOG));

    // Another cluster's log, first with our commit mark, then only with our snapshots.
    let disk = pristine.crash(None);
    for name in [LOG, WITNESS] {
        disk.set_bytes(name, other.bytes(name));
        let error = check(&disk, &options, "another log").await.unwrap_err();
        assert!(error.to_string().contains("belongs to cluster"), "{error}");
    }

    // A newer release's snapshot must not be set aside as damaged.
    let disk = pristine.crash(None);
    let name = snapshots(&pristine).pop().unwrap();
    let mut newer = pristine.bytes(&name);
    newer[4] = 2;
    disk.set_bytes(&name, newer);
    let error = check(&disk, &options, "a newer snapshot").await.unwrap_err();
    assert!(matches!(error, OpenError::NewerFormat { found: 2, known: 1, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_log_beside_snapshots_is_not_a_new_cluster() {
    let options = NodeOptions { snapshot_every: 20, ..NodeOptions::default() };
    let disk = written(&options, false).await;
    shardfeed_host::Disk::remove(&disk, LOG).unwrap();
    let error = check(&disk, &options, "no log").await.unwrap_err();
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
}

fn snapshots(disk: &FaultyDisk) -> Vec<String> {
    let mut names = shardfeed_host::Disk::list(disk).unwrap();
    names.retain(|name| name.ends_with(".snap"));
    names
}
