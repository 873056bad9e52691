//! View into a coordinator, for tests and simulations that check its state.

use std::sync::Arc;

use shardfeed_raft::Status;
use shardfeed_scheduler::State;

use crate::leader::core::Core;
use crate::server::Running;

/// Read-only view of a coordinator. It keeps the viewed data in memory.
#[derive(Clone, Debug)]
pub struct Inspector {
    core: Arc<Core>,
}

impl Running {
    pub fn inspector(&self) -> Inspector {
        Inspector { core: Arc::clone(&self.core) }
    }
}

impl Inspector {
    pub fn status(&self) -> Status {
        self.core.node.status()
    }

    /// Returns the last applied index, and the hash of the state there.
    pub fn state_hash(&self) -> (u64, [u8; 32]) {
        self.core.node.state_hash()
    }

    /// Runs `view` on the applied state, under its lock: `view` must be short.
    pub fn read<T>(&self, view: impl FnOnce(&State) -> T) -> T {
        self.core.read(view)
    }

    /// True if it answers as the leader.
    pub fn is_ready(&self) -> bool {
        self.core.available().is_ok()
    }
}
