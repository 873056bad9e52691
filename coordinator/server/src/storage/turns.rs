//! Permits for sending chunks to other nodes, by node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

/// Maximum chunks in transit to one node: 16 MiB.
const PUSHES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    nodes: Mutex<BTreeMap<u64, Arc<Semaphore>>>,
}

impl Turns {
    pub(super) fn of(&self, node: u64) -> Arc<Semaphore> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(nodes.entry(node).or_insert_with(|| Arc::new(Semaphore::new(PUSHES_MAX))))
    }
}
