//! State machine that the log drives.

use std::any::Any;

use sha2::{Digest, Sha256};

/// Deterministic state machine: its state depends only on the commands applied. The node owns it,
/// applies each index once and in order, and replays the log after a restart.
pub trait Machine: Send + Sync + 'static {
    /// Answer to a command's proposer, which never leaves the process.
    type Answer: Send + Sync + 'static;

    /// Applies one command and returns its answer.
    /// - `index`: the command's position in the log, strictly increasing, with gaps for the log's
    ///   own entries. `command`: the proposed bytes.
    /// - Returns the answer for the proposer, rejections included.
    ///
    /// Must not panic: every replica and every replay would also panic.
    /// # Errors  [`MachineError`] if this machine does not know the command, such as one of a later
    /// release. The node stops before it: skipping it would make this replica diverge.
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Self::Answer, MachineError>;

    /// Encodes the whole state, in the machine's own versioned encoding.
    fn snapshot(&self) -> Vec<u8>;

    /// Returns a hash of the state: equal on replicas that applied the same entries. The default
    /// hashes the snapshot.
    fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.snapshot()).into()
    }

    /// Replaces the state with one that `snapshot` encoded, on this or another node.
    /// # Errors  [`MachineError`] if the bytes are no state; the node then refuses to open.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), MachineError>;
}

/// A machine whose answers have any type, so that consensus is compiled only once.
pub(crate) trait AnyMachine: Send + Sync + 'static {
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<AnyAnswer, MachineError>;
    fn snapshot(&self) -> Vec<u8>;
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), MachineError>;
}

pub(crate) type AnyAnswer = Box<dyn Any + Send + Sync>;

impl<M: Machine> AnyMachine for M {
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<AnyAnswer, MachineError> {
        Ok(Box::new(Machine::apply(self, index, command)?))
    }

    fn snapshot(&self) -> Vec<u8> {
        Machine::snapshot(self)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), MachineError> {
        Machine::restore(self, snapshot)
    }
}

/// Reason why a machine cannot read a snapshot or a command, with the field or version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MachineError {
    pub message: String,
}

impl MachineError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}
