//! Bytes that were read from a shard, shared by the records in them and used again afterwards.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers of read bytes, at most `keep` of them waiting for reuse: a fresh megabyte costs as much
/// in page faults as half of reading it.
#[derive(Clone, Debug)]
pub struct ChunkPool {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
    keep: usize,
}

impl ChunkPool {
    /// An empty pool.
    pub fn new(keep: usize) -> Self {
        Self { free: Arc::default(), keep }
    }

    /// A buffer with whatever length and content it had before.
    pub fn take(&self) -> Vec<u8> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Shares `bytes` until the last record in them is dropped.
    pub fn share(&self, bytes: Vec<u8>) -> Arc<ChunkBuffer> {
        Arc::new(ChunkBuffer { bytes, pool: self.clone() })
    }
}

/// Bytes that return to their pool when dropped.
#[derive(Debug)]
pub struct ChunkBuffer {
    bytes: Vec<u8>,
    pool: ChunkPool,
}

impl Deref for ChunkBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ChunkBuffer {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.pool.keep {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}
