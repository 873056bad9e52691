//! Slots and the pool that they return to.

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::MmapMut;

/// Slots grow in steps of this, so that batches of slightly different size fit the same ones.
const SLOT_STEP_BYTES: usize = 64 << 10;

/// Memory of finished batches. Free slots are kept for reuse, at most `keep` of them; a trainer
/// that holds on to batches gets further slots, so it never waits for itself.
#[derive(Clone, Debug)]
pub struct SlotPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    keep: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<MmapMut>,
    stats: SlotPoolStats,
}

/// What a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotPoolStats {
    /// Slots that exist, free and in use.
    pub slots: usize,
    /// Bytes of these.
    pub bytes: usize,
    /// Slots in use: being written, ready, or viewed by a trainer's arrays.
    pub in_use: usize,
    /// Times a slot was mapped anew because no free one was large enough.
    pub mapped_total: u64,
}

impl SlotPool {
    /// An empty pool that keeps at most `keep` free slots.
    pub fn new(keep: usize) -> Self {
        Self { shared: Arc::new(Shared { keep, state: Mutex::default() }) }
    }

    /// A slot of at least `bytes`. Its content is whatever was there before.
    ///
    /// # Errors  The system has no memory for it.
    pub fn take(&self, bytes: usize) -> io::Result<Slot> {
        let reused = {
            let mut state = self.shared.lock();
            let best = (0..state.free.len())
                .filter(|&index| state.free[index].len() >= bytes)
                .min_by_key(|&index| state.free[index].len());
            best.map(|index| {
                state.stats.in_use += 1;
                state.free.swap_remove(index)
            })
        };
        let region = match reused {
            Some(region) => region,
            None => {
                // One more step than asked for: the next batch may be a little larger.
                let size = bytes.max(1).next_multiple_of(SLOT_STEP_BYTES) + bytes / 8;
                let region = MmapMut::map_anon(size)?;
                let mut state = self.shared.lock();
                state.stats.slots += 1;
                state.stats.in_use += 1;
                state.stats.bytes += region.len();
                state.stats.mapped_total += 1;
                region
            }
        };
        Ok(Slot { region: Some(region), pool: Arc::clone(&self.shared) })
    }

    /// What the pool holds now.
    pub fn stats(&self) -> SlotPoolStats {
        self.shared.lock().stats
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete when the lock is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot that is being written.
#[derive(Debug)]
pub struct Slot {
    region: Option<MmapMut>,
    pool: Arc<Shared>,
}

impl Slot {
    /// Its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.region.as_mut().expect("held until dropped")
    }

    /// Ends the writing: from here on the slot is viewed.
    pub fn share(mut self) -> SharedSlot {
        let region = self.region.as_mut().expect("held until dropped");
        let base = NonNull::new(region.as_mut_ptr()).expect("a mapping is not at address 0");
        SharedSlot { base, len: region.len(), _slot: self }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(region) = self.region.take() else {
            return;
        };
        let mut state = self.pool.lock();
        state.stats.in_use -= 1;
        if state.free.len() < self.pool.keep {
            state.free.push(region);
            return;
        }
        // The smallest goes: larger ones fit more batches.
        let smallest = (0..state.free.len()).min_by_key(|&index| state.free[index].len());
        let unmapped = match smallest {
            Some(index) if state.free[index].len() < region.len() => {
                std::mem::replace(&mut state.free[index], region)
            }
            _ => region,
        };
        state.stats.slots -= 1;
        state.stats.bytes -= unmapped.len();
        drop(state);
        drop(unmapped);
    }
}

/// A finished slot, viewed by arrays. It returns to its pool when dropped.
#[derive(Debug)]
pub struct SharedSlot {
    base: NonNull<u8>,
    len: usize,
    /// Gives the region back when dropped.
    _slot: Slot,
}

#[allow(unsafe_code)]
// SAFETY: `base` points into the mapping that `_slot` owns, which does not move when the handle
// does. No safe method reads or writes through it.
unsafe impl Send for SharedSlot {}
#[allow(unsafe_code)]
// SAFETY: as above; a shared reference gives an address and a size, no access.
unsafe impl Sync for SharedSlot {}

impl SharedSlot {
    /// Address of its first byte. It stays valid while the slot lives; the trainer's arrays may
    /// write through it, as the batch is theirs alone.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes of the slot. There is no way to read them from here: once a batch is handed out they
    /// are the trainer's to write.
    pub fn size_bytes(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_slot_is_taken_again() {
        let pool = SlotPool::new(2);
        let slot = pool.take(100_000).unwrap().share();
        let base = slot.base();
        drop(slot);
        let again = pool.take(90_000).unwrap().share();
        assert_eq!(again.base(), base);
        assert_eq!(pool.stats().mapped_total, 1);
    }

    #[test]
    fn a_trainer_that_holds_every_batch_gets_more_and_leaves_nothing_behind() {
        let pool = SlotPool::new(2);
        let held: Vec<_> = (0..10).map(|_| pool.take(1).unwrap().share()).collect();
        assert_eq!((pool.stats().slots, pool.stats().in_use), (10, 10));
        drop(held);
        let stats = pool.stats();
        assert_eq!((stats.slots, stats.in_use), (2, 0));
        assert!(stats.bytes <= 2 * SLOT_STEP_BYTES);
    }

    #[test]
    fn larger_slots_push_out_smaller_ones() {
        let pool = SlotPool::new(1);
        let (small, large) = (pool.take(1).unwrap(), pool.take(1 << 20).unwrap());
        drop(small);
        drop(large);
        pool.take(1 << 20).unwrap();
        assert_eq!(pool.stats().mapped_total, 2);
    }
}
