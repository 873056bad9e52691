//! A remote file: random access, and read-ahead for sequential reads.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use shardfeed_tfrecord::ReadAt;

use super::fetch::{Pending, RemoteObject, Stop};
use crate::error::LoadError;

/// Maximum bytes of a non-sequential read that is made alone, without reading ahead after it.
const ALONE_BYTES: usize = 64 << 10;

/// Bandwidth cost of an additional request: about 40 ms at 100 MB/s.
const STEP_OVER_BYTES: u64 = 4 << 20;

/// A remote file being read.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    object: Arc<RemoteObject>,
    block_bytes: u64,
    /// Maximum number of requests in flight.
    ahead: usize,
    /// Current bytes, and their offset.
    current: (u64, Bytes),
    /// Contiguous ranges in flight; they follow the current bytes, unless a range was skipped.
    pending: VecDeque<Pending>,
    stop: Stop,
}

impl RemoteFile {
    pub(crate) fn new(
        object: Arc<RemoteObject>,
        block_bytes: usize,
        ahead: usize,
        stop: Stop,
    ) -> Self {
        let current = (0, Bytes::new());
        let block_bytes = block_bytes.max(1) as u64;
        Self { object, block_bytes, ahead, current, pending: VecDeque::new(), stop }
    }

    /// Starts to read ahead at `offset`, where the first read will be.
    pub(crate) fn prime(&mut self, offset: u64) {
        self.current = (offset, Bytes::new());
        self.pending.clear();
        self.top_up();
    }

    /// Reads at most `out.len()` bytes at `offset`; returns 0 at the end of the file.
    pub(crate) fn read(&mut self, out: &mut [u8], offset: u64) -> Result<usize, LoadError> {
        let size = self.object.size_bytes();
        if offset >= size || out.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(here) = self.in_hand(offset) {
                let count = here.len().min(out.len());
                out[..count].copy_from_slice(&here[..count]);
                return Ok(count);
            }
            if offset == self.behind() && self.pending.is_empty() {
                self.top_up();
            }
            match self.pending.pop_front() {
                Some(pending) if pending.range.contains(&offset) => self.take(&pending)?,
                // The skipped range was in flight already.
                Some(pending)
                    if pending.range.end <= offset
                        && self.pending.back().is_some_and(|last| offset < last.range.end) => {}
                _ => self.jump(out.len(), offset)?,
            }
        }
    }

    fn in_hand(&self, offset: u64) -> Option<&[u8]> {
        let (start, bytes) = &self.current;
        let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
        bytes.get(from..).filter(|bytes| !bytes.is_empty())
    }

    fn behind(&self) -> u64 {
        self.current.0 + self.current.1.len() as u64
    }

    fn take(&mut self, pending: &Pending) -> Result<(), LoadError> {
        let bytes = pending.wait(&self.stop)?;
        self.current = (pending.range.start, bytes);
        self.top_up();
        Ok(())
    }

    /// Reads at an offset that is not being read ahead.
    fn jump(&mut self, count: usize, offset: u64) -> Result<(), LoadError> {
        self.pending.clear();
        if count > ALONE_BYTES {
            self.prime(offset);
            return Ok(());
        }
        let end = (offset + count as u64).min(self.object.size_bytes());
        let alone = self.object.begin(offset..end, &self.stop);
        self.current = (offset, alone.wait(&self.stop)?);
        Ok(())
    }

    /// Requests the ranges that follow, up to the number of requests in flight.
    fn top_up(&mut self) {
        let size = self.object.size_bytes();
        while self.pending.len() < self.ahead.max(1) {
            let start = self.pending.back().map_or(self.behind(), |last| last.range.end);
            if start >= size {
                return;
            }
            self.pending.push_back(self.object.begin(self.block_at(start, size), &self.stop));
        }
    }

    /// Returns the block from `start` on; blocks end at multiples of their size.
    fn block_at(&self, start: u64, size: u64) -> Range<u64> {
        let end = (start / self.block_bytes + 1) * self.block_bytes;
        start..end.min(size)
    }
}

impl ReadAt for RemoteFile {
    fn read_at(&mut self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read(out, offset).map_err(io::Error::other)
    }

    fn size_bytes(&mut self) -> io::Result<u64> {
        Ok(self.object.size_bytes())
    }

    fn step_over_bytes(&self) -> u64 {
        STEP_OVER_BYTES
    }
}
