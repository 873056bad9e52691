//! Bytes read from a shard, shared by the records in them and reused afterwards.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Pool of read buffers; at most `keep` buffers and `keep_bytes` bytes wait for reuse.
///
/// Page faults of a fresh megabyte cost as much as half of reading it.
#[derive(Clone, Debug)]
pub struct ChunkPool {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
    shared_bytes: Arc<AtomicUsize>,
    keep: usize,
    keep_bytes: usize,
}

impl ChunkPool {
    pub fn new(keep: usize, keep_bytes: usize) -> Self {
        Self { free: Arc::default(), shared_bytes: Arc::default(), keep, keep_bytes }
    }

    /// Takes a buffer with its previous length and content.
    pub fn take(&self) -> Vec<u8> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Shares `bytes` until the last record in them is dropped.
    pub fn share(&self, bytes: Vec<u8>) -> Arc<ChunkBuffer> {
        self.shared_bytes.fetch_add(bytes.capacity(), Ordering::Relaxed);
        Arc::new(ChunkBuffer { bytes, pool: self.clone() })
    }

    /// Bytes of the buffers that some record still uses.
    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes.load(Ordering::Relaxed)
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
        self.pool.shared_bytes.fetch_sub(self.bytes.capacity(), Ordering::Relaxed);
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
        assert_eq!(pool.shared_bytes(), 120);
        drop(held);
        assert_eq!(pool.shared_bytes(), 0);
        let kept = [pool.take(), pool.take(), pool.take()].map(|buffer| buffer.capacity());
        assert_eq!(kept, [40, 40, 0]);
    }
}
