//! A process that is killed with SIGKILL while it proposes keeps every acknowledged command.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::open;
use shardfeed_raft::NodeOptions;

const TEST: &str = "kill::what_was_acknowledged_survives_kill_9";
const CHILD_DIR: &str = "SHARDFEED_RAFT_TEST_CHILD_DIR";

fn kill_options() -> NodeOptions {
    NodeOptions { snapshot_every: 300, ..NodeOptions::default() }
}

/// Proposes for ever from 16 clients, and prints a line for every acknowledgement.
async fn child(dir: &Path) {
    let node = open(dir, &kill_options()).await;
    let mut proposers = tokio::task::JoinSet::new();
    for proposer in 0..16 {
        let node = node.clone();
        proposers.spawn(async move {
            for number in 0.. {
                let command = format!("{}/{proposer}/{number}", std::process::id());
                let applied = node.propose(command.clone().into_bytes()).await.unwrap();
                let mut out = std::io::stdout().lock();
                writeln!(out, "acknowledged {} {command}", applied.index).unwrap();
                out.flush().unwrap();
            }
        });
    }
    proposers.join_all().await;
}

/// Runs a child until it has acknowledged `count` commands, kills it, and returns its
/// acknowledgements.
fn run_and_kill(dir: &Path, count: usize) -> Vec<(u64, String)> {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    let mut take = |line: String| {
        // A line that the kill truncated is not an acknowledgement.
        let words: Vec<_> = line.split(' ').collect();
        if let ["acknowledged", index, command] = words[..] {
            acknowledged.push((index.parse().unwrap(), command.to_owned()));
        }
        acknowledged.len()
    };
    for line in lines.by_ref() {
        if take(line.unwrap()) >= count {
            break;
        }
    }
    process.kill().unwrap();
    for line in lines {
        take(line.unwrap());
    }
    process.wait().unwrap();
    // The last line may be truncated within its command.
    acknowledged.pop();
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill_9() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        child(Path::new(&dir)).await;
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    for round in 0..6 {
        for (index, command) in run_and_kill(dir.path(), 40 + round * 150) {
            assert_eq!(
                acknowledged.insert(index, command.into_bytes()),
                None,
                "index {index} twice"
            );
        }
        let node = open(dir.path(), &kill_options()).await;
        let applied: BTreeMap<_, _> = node.read(|ledger| ledger.applied.iter().cloned().collect());
        for (index, command) in &acknowledged {
            assert_eq!(applied.get(index), Some(command), "index {index} after round {round}");
        }
        node.shutdown().await;
    }
    assert!(acknowledged.len() > 2_000, "only {}", acknowledged.len());
}
