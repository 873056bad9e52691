//! Messages about a log that cannot be opened or continued, word by word.

use crate::common::{Fault, FaultyDisk, open, open_alone, open_on, propose, until};
use shardfeed_host::Disk;
use shardfeed_raft::{NodeOptions, OpenError};

const LOG: &str = "log.redb";
const WITNESS: &str = "log.witness";

/// Returns a disk with two snapshots and a log, and the id of their cluster.
async fn written(options: &NodeOptions) -> (FaultyDisk, String) {
    let disk = FaultyDisk::default();
    let node = open_on(&disk, options).await.unwrap();
    propose(&node, 0, 60).await;
    // The log is purged after the second snapshot.
    until("a log that does not begin at its start", || node.status().purged.is_some()).await;
    let cluster = node.cluster_id().to_owned();
    node.shutdown().await;
    (disk.crash(None), cluster)
}

fn snapshots(disk: &FaultyDisk) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.retain(|name| name.ends_with(".snap"));
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_log_that_cannot_be_opened_is_named_with_what_to_do() {
    const RESTORE: &str = "keep a copy of the directory and restore it from a backup, or let the node \
                           rejoin empty under a new node id";
    const ELSEWHERE: &str = "give the node an empty directory or the one it had before";
    let options = NodeOptions { snapshot_every: 20, ..NodeOptions::default() };
    let (pristine, ours) = written(&options).await;
    let (other, theirs) = written(&options).await;
    let said = async |change: &dyn Fn(&FaultyDisk), options: &NodeOptions| {
        let disk = pristine.crash(None);
        change(&disk);
        let error: OpenError = open_on(&disk, options).await.unwrap_err();
        error.to_string().replace(&ours, "OURS").replace(&theirs, "THEIRS")
    };
    let text = |disk: &FaultyDisk| disk.set_bytes(LOG, b"once upon a time".repeat(1000));
    assert_eq!(
        said(&text, &options).await,
        format!("faulty:/{LOG} is damaged: Not a redb database: magic number mismatch; {RESTORE}")
    );
    let no_log = |disk: &FaultyDisk| disk.remove(LOG).unwrap();
    assert_eq!(
        said(&no_log, &options).await,
        format!("faulty:/ is damaged: there are snapshots, but `{LOG}` is missing; {RESTORE}")
    );
    let no_witness = |disk: &FaultyDisk| disk.remove(WITNESS).unwrap();
    assert_eq!(
        said(&no_witness, &options).await,
        format!(
            "faulty:/{LOG} is damaged: its witness: the file `{WITNESS}` is missing or has another \
             length; {RESTORE}"
        )
    );
    let bad_witness = |disk: &FaultyDisk| {
        let bytes = disk.bytes(WITNESS).len();
        disk.set_bytes(WITNESS, vec![7; bytes]);
    };
    assert_eq!(
        said(&bad_witness, &options).await,
        format!(
            "faulty:/{LOG} is damaged: its witness: no slot of `{WITNESS}` is right: it does not begin \
             like one of our files; {RESTORE}"
        )
    );
    let other_log = |disk: &FaultyDisk| {
        for name in [LOG, WITNESS] {
            disk.set_bytes(name, other.bytes(name));
        }
    };
    let name = snapshots(&pristine).pop().unwrap();
    assert_eq!(
        said(&other_log, &options).await,
        format!(
            "faulty:/{name} is not ours: it belongs to cluster OURS, not to THEIRS; {ELSEWHERE}"
        )
    );
    let newer = |disk: &FaultyDisk| {
        let mut newer = pristine.bytes(&name);
        newer[4] = 2;
        disk.set_bytes(&name, newer);
    };
    assert_eq!(
        said(&newer, &options).await,
        format!(
            "faulty:/{name} has format version 2, this release knows up to 1; run the release that \
             wrote it, or a newer one"
        )
    );
    let cut = |disk: &FaultyDisk| {
        for name in snapshots(disk) {
            let mut cut = disk.bytes(&name);
            cut.pop();
            disk.set_bytes(&name, cut);
        }
    };
    let gap = said(&cut, &options).await;
    let begins = "faulty:/ is damaged: the log begins at entry ";
    let ends = format!(", the newest good snapshot ends before entry 0; {RESTORE}");
    assert!(gap.starts_with(begins) && gap.ends_with(&ends), "{gap}");
    let as_it_is = |_: &FaultyDisk| {};
    let named = NodeOptions { cluster_name: "other".to_owned(), ..options.clone() };
    assert_eq!(
        said(&as_it_is, &named).await,
        format!(
            "faulty:/{LOG} is not ours: it is the log of node 1 of `shardfeed`, the options say node 1 \
             of `other`; {ELSEWHERE}"
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stopped_says_why_and_what_to_do() {
    const REPAIR: &str = "repair the cause and restart the process";
    let mut said = Vec::new();
    for command in ["panic", "of a later release"] {
        let dir = tempfile::tempdir().unwrap();
        let node = open(dir.path(), &NodeOptions::default()).await;
        said.push(node.propose(command.as_bytes().to_vec()).await.unwrap_err().to_string());
        node.shutdown().await;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = open(dir.path(), &NodeOptions::default()).await;
    node.clone().shutdown().await;
    said.push(node.propose(b"late".to_vec()).await.unwrap_err().to_string());
    let index = said[0].split_once("at index ").unwrap().1.split_once(';').unwrap().0.to_owned();
    assert_eq!(
        said,
        [
            format!("the node has stopped: the machine panicked at index {index}; {REPAIR}"),
            format!(
                "the node has stopped: the command at index {index} cannot be applied: this \
                 release has no such command; {REPAIR}"
            ),
            "the node is shutting down; ask another one, or this one after its restart".to_owned(),
        ]
    );

    let disk = FaultyDisk::default();
    let node = open_on(&disk, &NodeOptions::default()).await.unwrap();
    disk.set_fault(Fault::FullAfter(0));
    let full = node.propose(b"0".to_vec()).await.unwrap_err().to_string();
    assert_eq!(
        full,
        format!(
            "the node has stopped: the log could not be written: the log's database: No space left on \
             device (os error 28); {REPAIR}"
        )
    );
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_the_machine_does_not_know_is_named_with_its_release() {
    let options = NodeOptions { snapshot_every: 20, ..NodeOptions::default() };
    let (disk, _) = written(&options).await;
    // A machine of another kind represents one of an earlier release.
    #[derive(Debug, Default)]
    struct Earlier;
    impl shardfeed_raft::Machine for Earlier {
        type Answer = ();

        fn apply(&mut self, _: u64, _: &[u8]) -> Result<(), shardfeed_raft::MachineError> {
            Ok(())
        }

        fn snapshot(&self) -> Vec<u8> {
            Vec::new()
        }

        fn restore(&mut self, _: &[u8]) -> Result<(), shardfeed_raft::MachineError> {
            Err(shardfeed_raft::MachineError::new("it has format 2"))
        }
    }
    let opened = open_alone(std::sync::Arc::new(disk), &options, Earlier).await;
    assert_eq!(
        opened.unwrap_err().to_string(),
        "the state in faulty:/ cannot be restored: it has format 2; run the release that wrote it"
    );
}
