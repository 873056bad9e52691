//! Bytes that were read from a shard, shared by the records in them and used again afterwards.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers of read bytes, at most `keep` of them and `keep_bytes` waiting for reuse: a fresh megabyte
/// costs as much in page faults as half of reading it.
#[derive(Clone, Debug)]
pub struct ChunkPool {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
    keep: usize,
    keep_bytes: usize,
}

impl ChunkPool {
    /// An empty pool.
    pub fn new(keep: usize, keep_bytes: usize) -> Self {
        Self { free: Arc::default(), keep, keep_bytes }
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
        let kept: usize = free.iter().map(Vec::capacity).sum();
        let fits = kept.saturating_add(self.bytes.capacity()) <= self.pool.keep_bytes;
        if free.len() < self.pool.keep && fits {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_few_buffers_and_no_large_one() {
        let pool = ChunkPool::new(2, 100);
        drop(pool.share(vec![0; 40]));
        drop(pool.share(vec![0; 1000]));
        let kept = [pool.take(), pool.take(), pool.take()].map(|buffer| buffer.capacity());
        assert_eq!(kept, [40, 0, 0]);
        let held = [40, 40, 40].map(|bytes| pool.share(vec![0; bytes]));
        drop(held);
        let kept = [pool.take(), pool.take(), pool.take()].map(|buffer| buffer.capacity());
        assert_eq!(kept, [40, 40, 0]);
    }
}
