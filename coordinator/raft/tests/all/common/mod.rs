//! Shared parts of the tests: a machine that records every command, and a disk that fails on
//! purpose.

pub(crate) mod cluster;
mod faulty;
pub(crate) mod net;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed_host::{Disk, Host, RealHost};
use shardfeed_raft::{Footing, Machine, MachineError, Node, NodeOptions, OpenError, ProposeError};

use net::Net;

pub(crate) use faulty::{Fault, FaultyDisk};

/// Records every command in order, and answers with the number of commands.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) applied: Vec<(u64, Vec<u8>)>,
}

impl Ledger {
    pub(crate) fn commands(&self) -> Vec<String> {
        let text = |command: &Vec<u8>| String::from_utf8_lossy(command).into_owned();
        self.applied.iter().map(|(_, command)| text(command)).collect()
    }
}

impl Machine for Ledger {
    /// Number of commands so far.
    type Answer = usize;

    fn apply(&mut self, index: u64, command: &[u8]) -> Result<usize, MachineError> {
        if let Some((last, _)) = self.applied.last() {
            assert!(*last < index, "index {index} after {last}");
        }
        if command == b"panic" {
            panic!("as requested");
        }
        if command == b"of a later release" {
            return Err(MachineError::new("this release has no such command"));
        }
        self.applied.push((index, command.to_vec()));
        Ok(self.applied.len())
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, command) in &self.applied {
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&(command.len() as u64).to_le_bytes());
            out.extend_from_slice(command);
        }
        out
    }

    fn restore(&mut self, mut snapshot: &[u8]) -> Result<(), MachineError> {
        let mut applied = Vec::new();
        while !snapshot.is_empty() {
            let cut = || MachineError::new("the ledger is cut off");
            let (head, rest) = snapshot.split_at_checked(16).ok_or_else(cut)?;
            let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
            let (command, rest) = rest.split_at_checked(number(8) as usize).ok_or_else(cut)?;
            applied.push((number(0), command.to_vec()));
            snapshot = rest;
        }
        self.applied = applied;
        Ok(())
    }
}

/// Opens a node of a cluster of one.
pub(crate) async fn open_alone<M: Machine>(
    disk: Arc<dyn Disk>,
    options: &NodeOptions,
    machine: M,
) -> Result<Node<M>, OpenError> {
    let (host, peers) = (Arc::new(RealHost), Net::default().peers(1));
    let footing = Footing { host, disk, peers, syncs: None };
    Node::open(footing, options.clone(), machine).await
}

pub(crate) async fn open_on(
    disk: &FaultyDisk,
    options: &NodeOptions,
) -> Result<Node<Ledger>, OpenError> {
    open_alone(Arc::new(disk.clone()), options, Ledger::default()).await
}

pub(crate) async fn open_in(dir: &Path, options: &NodeOptions) -> Result<Node<Ledger>, OpenError> {
    open_alone(RealHost.disk(dir).unwrap(), options, Ledger::default()).await
}

pub(crate) async fn open(dir: &Path, options: &NodeOptions) -> Node<Ledger> {
    open_in(dir, options).await.unwrap()
}

pub(crate) async fn propose(node: &Node<Ledger>, from: usize, to: usize) {
    for number in from..to {
        let applied = node.propose(number.to_string().into_bytes()).await.unwrap();
        assert_eq!(applied.answer, number + 1);
    }
}

/// Proposes all commands at once.
pub(crate) async fn propose_all(
    node: &Node<Ledger>,
    commands: impl IntoIterator<Item = Vec<u8>>,
) -> Vec<Result<u64, ProposeError>> {
    let answers = commands.into_iter().map(|command| node.propose(command));
    let answers = futures::future::join_all(answers).await;
    answers.into_iter().map(|answer| Ok(answer?.index)).collect()
}

pub(crate) fn numbers(to: usize) -> Vec<String> {
    (0..to).map(|number| number.to_string()).collect()
}

/// Waits until `holds` is true; fails with `what`.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::task::yield_now().await;
    }
}

/// Waits until `holds` is true, without keeping a core busy.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Longer than any step takes on a machine that is busy with other work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
