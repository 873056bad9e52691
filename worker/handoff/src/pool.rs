//! The pool that slots are taken from and returned to.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::region::{Backing, MemoryRegion, RegionId};
use crate::slot::Slot;

/// Granularity of slot sizes, so that batches of slightly different size fit the same slots.
const SLOT_STEP_BYTES: usize = 64 << 10;

/// Pool of memory for finished batches.
///
/// Free slots are kept for reuse: at most `keep` of them and, if a limit [is set](SlotPool::bound),
/// only while all slots together are within it. A trainer that holds batches gets further slots, so
/// it never waits for slots that it holds itself.
///
/// A sealed pool serves one peer, which can read everything in the regions it has mapped.
#[derive(Clone, Debug)]
pub struct SlotPool {
    shared: Arc<SharedPool>,
}

#[derive(Debug)]
pub(crate) struct SharedPool {
    keep: usize,
    backing: Backing,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    free: Vec<MemoryRegion>,
    stats: SlotPoolStats,
    /// Maximum bytes of all slots before free ones are released; `None` limits only their number.
    bytes_max: Option<usize>,
    /// Sealed regions released and not reported yet: at most eight bytes for each that existed.
    retired: Vec<RegionId>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotPoolStats {
    pub slots: usize,
    pub bytes: usize,
    /// Slots in use: being written, ready, or viewed by a trainer's arrays.
    pub in_use: usize,
    /// Number of slots created because no free one was large enough.
    pub mapped_total: u64,
}

impl SlotPool {
    /// Creates an empty pool that keeps at most `keep` free slots, in this process's own memory.
    pub fn new(keep: usize) -> Self {
        Self::backed(keep, Backing::Anonymous)
    }

    /// Creates an empty pool that keeps at most `keep` free slots, each a memfd that another
    /// process may map: see [`SharedSlot::region`](crate::SharedSlot::region).
    pub fn sealed(keep: usize) -> Self {
        Self::backed(keep, Backing::Sealed)
    }

    fn backed(keep: usize, backing: Backing) -> Self {
        Self { shared: Arc::new(SharedPool { keep, backing, state: Mutex::default() }) }
    }

    /// Takes a slot of at least `bytes`. Its content is unspecified (that of its previous use).
    ///
    /// # Errors  The system has no memory or, for a sealed pool, no descriptor for it.
    pub fn take(&self, bytes: usize) -> io::Result<Slot> {
        let region = match self.shared.take_free(bytes) {
            Some(region) => region,
            None => {
                let size = Self::slot_bytes(bytes);
                // Releases free slots, which are too small, to make space.
                self.shared.trim(size);
                let region = MemoryRegion::new(self.shared.backing, size)?;
                let mut state = self.shared.lock();
                state.stats.slots += 1;
                state.stats.in_use += 1;
                state.stats.bytes += region.len();
                state.stats.mapped_total += 1;
                region
            }
        };
        Ok(Slot::new(region, Arc::clone(&self.shared)))
    }

    /// Size of a slot created for a batch of `bytes`.
    pub fn slot_bytes(bytes: usize) -> usize {
        // Some reserve, because the next batch may be a little larger.
        let steps = bytes.max(1).checked_next_multiple_of(SLOT_STEP_BYTES).unwrap_or(usize::MAX);
        steps.saturating_add(bytes / 8)
    }

    /// Releases free slots while all slots together have more than `bytes_max`, from now on.
    pub fn bound(&self, bytes_max: usize) {
        self.shared.lock().bytes_max = Some(bytes_max);
        self.shared.trim(0);
    }

    /// Returns the regions unmapped since the last call, so that a peer can unmap them too.
    ///
    /// Until then the peer keeps their memory. Some may never have been announced to it.
    pub fn take_retired(&self) -> Vec<RegionId> {
        std::mem::take(&mut self.shared.lock().retired)
    }

    pub fn stats(&self) -> SlotPoolStats {
        self.shared.lock().stats
    }
}

impl SharedPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Each change of the state is complete when the lock is released, even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the smallest free region that is large enough.
    fn take_free(&self, bytes: usize) -> Option<MemoryRegion> {
        let mut state = self.lock();
        let best = (0..state.free.len())
            .filter(|&index| state.free[index].len() >= bytes)
            .min_by_key(|&index| state.free[index].len())?;
        state.stats.in_use += 1;
        Some(state.free.swap_remove(best))
    }

    /// Returns a region to the pool, which keeps it for another batch if the limits allow it.
    pub(crate) fn give_back(&self, region: MemoryRegion) {
        let mut state = self.lock();
        state.stats.in_use -= 1;
        let fits = state.bytes_max.is_none_or(|most| state.stats.bytes <= most);
        if state.free.len() < self.keep {
            state.free.push(region);
            drop(state);
            if !fits {
                self.trim(0);
            }
            return;
        }
        // The smallest is released: larger ones fit more batches.
        let smallest = (0..state.free.len()).min_by_key(|&index| state.free[index].len());
        let unmapped = match smallest {
            Some(index) if state.free[index].len() < region.len() => {
                std::mem::replace(&mut state.free[index], region)
            }
            _ => region,
        };
        self.let_go(state, unmapped);
    }

    /// Releases free regions, the smallest first, until `more` bytes fit or none is left.
    fn trim(&self, more: usize) {
        loop {
            let mut state = self.lock();
            let most = state.bytes_max.unwrap_or(usize::MAX);
            if state.stats.bytes.saturating_add(more) <= most {
                return;
            }
            let free = state.free.iter().enumerate();
            let Some((smallest, _)) = free.min_by_key(|(_, region)| region.len()) else {
                return;
            };
            let region = state.free.swap_remove(smallest);
            self.let_go(state, region);
        }
    }

    /// Removes a region from the pool permanently.
    pub(crate) fn retire(&self, region: MemoryRegion) {
        let mut state = self.lock();
        state.stats.in_use -= 1;
        self.let_go(state, region);
    }

    fn let_go(&self, mut state: MutexGuard<'_, PoolState>, region: MemoryRegion) {
        state.stats.slots -= 1;
        state.stats.bytes -= region.len();
        state.retired.extend(region.id());
        // Unmapping takes too long to do it under the lock.
        drop(state);
        drop(region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(keep: usize) -> [SlotPool; 2] {
        [SlotPool::new(keep), SlotPool::sealed(keep)]
    }

    #[test]
    fn a_dropped_slot_is_taken_again() {
        for pool in pools(2) {
            let slot = pool.take(100_000).unwrap().share();
            let (base, id) = (slot.base(), slot.region().map(|region| region.id));
            drop(slot);
            let again = pool.take(90_000).unwrap().share();
            assert_eq!((again.base(), again.region().map(|region| region.id)), (base, id));
            assert_eq!(pool.stats().mapped_total, 1);
            assert_eq!(pool.take_retired(), []);
        }
    }

    #[test]
    fn a_trainer_that_holds_every_batch_gets_more_and_leaves_nothing_behind() {
        for pool in pools(2) {
            let held: Vec<_> = (0..10).map(|_| pool.take(1).unwrap().share()).collect();
            assert_eq!((pool.stats().slots, pool.stats().in_use), (10, 10));
            drop(held);
            let stats = pool.stats();
            assert_eq!((stats.slots, stats.in_use), (2, 0));
            assert!(stats.bytes <= 2 * SLOT_STEP_BYTES);
        }
    }

    #[test]
    fn larger_slots_push_out_smaller_ones_which_are_told() {
        let pool = SlotPool::sealed(1);
        let (small, large) = (pool.take(1).unwrap().share(), pool.take(1 << 20).unwrap());
        let small_id = small.region().unwrap().id;
        drop(small);
        assert_eq!(pool.take_retired(), []);
        drop(large);
        assert_eq!(pool.take_retired(), [small_id]);
        assert_eq!(pool.take_retired(), []);
        pool.take(1 << 20).unwrap();
        assert_eq!(pool.stats().mapped_total, 2);
    }

    #[test]
    fn free_slots_are_let_go_while_all_have_more_than_the_bound() {
        for pool in pools(8) {
            let step = SlotPool::slot_bytes(1);
            pool.bound(3 * step);
            let mut held: Vec<_> = (0..5).map(|_| pool.take(1).unwrap()).collect();
            assert_eq!(pool.stats().bytes, 5 * step, "slots in use are not bounded");
            held.truncate(2);
            let stats = pool.stats();
            assert_eq!((stats.slots, stats.in_use, stats.bytes), (3, 2, 3 * step));
            drop(held);
            let large = pool.take(2 * step).unwrap();
            assert_eq!(pool.stats().slots, 1, "small ones make room for one that they do not fit");
            drop(large);
            pool.bound(0);
            assert_eq!(pool.stats(), SlotPoolStats { mapped_total: 6, ..Default::default() });
        }
    }

    #[test]
    fn a_retired_slot_is_never_taken_again() {
        for pool in pools(2) {
            let slot = pool.take(1).unwrap().share();
            let id = slot.region().map(|region| region.id);
            slot.retire();
            assert_eq!(pool.stats(), SlotPoolStats { mapped_total: 1, ..Default::default() });
            assert_eq!(pool.take_retired(), Vec::from_iter(id));
            let next = pool.take(1).unwrap().share();
            assert!(id.is_none() || next.region().map(|region| region.id) != id);
        }
    }

    #[test]
    fn a_slot_that_is_held_goes_back_with_the_last_hold() {
        for pool in pools(2) {
            let slot = pool.take(1).unwrap().share();
            let (hold, base) = (slot.hold(), slot.base());
            let second = hold.clone();
            drop(slot);
            drop(hold);
            assert_eq!((pool.stats().in_use, second.base()), (1, base), "it is not used again");
            assert_ne!(pool.take(1).unwrap().share().base(), base);
            drop(second);
            assert_eq!(pool.stats().in_use, 0);
            let slot = pool.take(1).unwrap().share();
            let hold = slot.hold();
            slot.retire();
            assert_eq!(pool.stats().in_use, 1);
            drop(hold);
            assert_eq!(pool.stats().slots, 1, "a retired slot is gone once it has no readers");
        }
    }

    #[test]
    fn what_goes_with_a_slot_goes_with_its_copy_or_its_end() {
        let [pool, copies] = pools(2);
        let mut slot = pool.take(10).unwrap().share();
        let content = Arc::new(());
        *slot.companion() = Some(Box::new(Arc::clone(&content)));
        let mut copy = slot.copy_into(&copies, 10).unwrap();
        assert!(slot.companion().is_none() && copy.companion().is_some());
        drop(copy);
        assert_eq!(Arc::strong_count(&content), 1);
    }

    #[test]
    fn slots_outlive_their_pool() {
        for pool in pools(2) {
            let mut slot = pool.take(10).unwrap();
            drop(pool);
            slot.bytes_mut()[..10].fill(7);
            drop(slot.share());
        }
    }
}
