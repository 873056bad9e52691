//! What the log drives.

use sha2::{Digest, Sha256};

/// A deterministic state machine: its state follows from the commands applied, and nothing else.
/// The node owns it, applies each index once and in order, and replays the log into it after a restart.
pub trait Machine: Send + Sync + 'static {
    /// Applies one command and answers it.
    /// - `index`: the command's place in the log, strictly increasing, with gaps where the log holds
    ///   entries of its own. `command`: the bytes that were proposed. `is_asked`: whether a proposer
    ///   waits here; without one the answer may be empty.
    /// - Returns the answer for the proposer, refusals included.
    ///
    /// Must not panic: every replica and every replay would do so again.
    /// # Errors  [`MachineError`] if these bytes are no command that this machine knows, such as one of a
    /// later release. The node stops before it: to pass over it would make this replica another one.
    fn apply(
        &mut self,
        index: u64,
        command: &[u8],
        is_asked: bool,
    ) -> Result<Vec<u8>, MachineError>;

    /// Encodes the whole state, in the machine's own versioned encoding.
    fn snapshot(&self) -> Vec<u8>;

    /// A hash of the state: replicas that applied the same entries have the same. The default hashes the
    /// snapshot.
    fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.snapshot()).into()
    }

    /// Replaces the state by one that `snapshot` encoded, on this or another node.
    /// # Errors  [`MachineError`] if the bytes are not a state this machine can read; the node then
    /// refuses to open.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), MachineError>;
}

/// Why a machine cannot read a snapshot or a command: what, and in which field or version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MachineError {
    /// What is wrong with the bytes, in the machine's words.
    pub message: String,
}

impl MachineError {
    /// Makes an error from what is wrong with the bytes.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}
