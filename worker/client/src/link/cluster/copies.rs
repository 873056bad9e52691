//! Copies of batches, for a trainer that holds many.

use std::time::{Duration, Instant};

use shardfeed_handoff::{SlotPool, SlotPoolStats};
use shardfeed_pipeline::Batch;
use shardfeed_source::LoadError;

/// Number of copies that are kept for reuse.
const COPIES_KEPT: usize = 2;

/// Copies of batches, in memory of this process.
pub(super) struct Copies {
    slots: SlotPool,
    pub(super) made: u64,
    /// Time that copying the last returned batch took.
    time: Duration,
}

impl Copies {
    pub(super) fn new() -> Self {
        Self { slots: SlotPool::new(COPIES_KEPT), made: 0, time: Duration::ZERO }
    }

    /// Copies a batch.
    /// - `held`: batches that the trainer may hold without copies.
    pub(super) fn copy(&mut self, mut batch: Batch, held: usize) -> Result<Batch, LoadError> {
        if self.made == 0 {
            tracing::warn!(held, "the trainer holds on to many batches; further ones are copied");
        }
        self.made += 1;
        let begun = Instant::now();
        let bytes = batch.slot.size_bytes();
        let copied = batch.slot.copy_into(&self.slots, bytes);
        self.time = begun.elapsed();
        batch.slot =
            copied.map_err(|source| LoadError::Io { file: "a copy of a batch".into(), source })?;
        Ok(batch)
    }

    /// Takes the time that copying the last returned batch took.
    pub(super) fn take_time(&mut self) -> Duration {
        std::mem::take(&mut self.time)
    }

    pub(super) fn stats(&self) -> SlotPoolStats {
        self.slots.stats()
    }
}
