//! A look inside a coordinator, for whoever checks that it is as it must be: tests and simulations.

use std::sync::Arc;

use shardfeed_raft::Status;
use shardfeed_scheduler::State;

use crate::core::Core;
use crate::server::Running;

/// A coordinator, seen from inside. It changes nothing, and keeps what it looks at in memory.
#[derive(Clone, Debug)]
pub struct Inspector {
    core: Arc<Core>,
}

impl Running {
    /// A look inside.
    pub fn inspector(&self) -> Inspector {
        Inspector { core: Arc::clone(&self.core) }
    }
}

impl Inspector {
    /// The node's place in the log and the cluster.
    pub fn status(&self) -> Status {
        self.core.node.status()
    }

    /// The last applied index, and the hash of the state there.
    pub fn state_hash(&self) -> (u64, [u8; 32]) {
        self.core.node.state_hash()
    }

    /// Looks at the applied state, under its lock: be short.
    pub fn read<T>(&self, view: impl FnOnce(&State) -> T) -> T {
        self.core.read(view)
    }

    /// Whether it answers as the leader.
    pub fn is_ready(&self) -> bool {
        self.core.available().is_ok()
    }
}
