//! Slots: written by one owner, then viewed by arrays. The only unsafe code of the package.

use std::any::Any;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::layout::BufferRange;
use crate::mapping::Mapping;
use crate::memory::{Mapped, Memory};
use crate::pool::{SharedPool, SlotPool};
use crate::region::{MemoryRegion, RegionHandle};

#[derive(Debug)]
pub struct Slot {
    region: Option<MemoryRegion>,
    pool: Arc<SharedPool>,
}

impl Slot {
    pub(crate) fn new(region: MemoryRegion, pool: Arc<SharedPool>) -> Self {
        Self { region: Some(region), pool }
    }

    fn region(&self) -> &MemoryRegion {
        self.region.as_ref().expect("held until dropped")
    }

    #[allow(unsafe_code)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let mapped = &self.region().mapped;
        // SAFETY: the region is mapped, readable and writable, for its whole length while `self`
        // holds it, and its size is sealed if others can map it. A pool gives a region to one slot
        // at a time and `self` is borrowed mutably, so nothing in this process views it: a slot
        // that was viewed is back in its pool only after the views' owner dropped it. A peer that
        // has mapped a sealed region has returned the slot and must not access it; one that does
        // anyway changes bytes that are only ever written here, any value of which is valid.
        unsafe { std::slice::from_raw_parts_mut(mapped.base().as_ptr(), mapped.len()) }
    }

    /// Ends the writing: from now on the slot is viewed.
    pub fn share(self) -> SharedSlot {
        SharedSlot::new(Holder::Pool(self))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.pool.give_back(region);
        }
    }
}

/// Object attached to the content of a slot, such as its copy on a device; dropped with the batch.
pub type Companion = Box<dyn Any + Send + Sync>;

/// A finished slot, viewed by arrays.
///
/// On drop it returns to its pool, or notifies its peer if it is the peer's; with a [`Hold`] on it,
/// this happens when the last hold is dropped.
#[derive(Debug)]
pub struct SharedSlot {
    held: Arc<HeldSlot>,
    companion: Option<Companion>,
}

/// Keeps a slot's memory unchanged for a reader in the background.
///
/// Nothing writes it: not its pool, to which it has not returned, and not the trainer, if the parts
/// being read are not shown to it.
#[derive(Clone, Debug)]
pub struct Hold {
    held: Arc<HeldSlot>,
}

#[derive(Debug)]
struct HeldSlot {
    /// `None` only while being dropped.
    holder: Option<Holder>,
    /// The memory is not reused.
    is_retired: AtomicBool,
}

#[derive(Debug)]
enum Holder {
    Pool(Slot),
    Import(Import),
}

impl HeldSlot {
    fn new(holder: Holder) -> Arc<Self> {
        Arc::new(Self { holder: Some(holder), is_retired: AtomicBool::new(false) })
    }

    fn holder(&self) -> &Holder {
        self.holder.as_ref().expect("held until dropped")
    }

    fn mapped(&self) -> &Mapped {
        match self.holder() {
            Holder::Pool(slot) => &slot.region().mapped,
            Holder::Import(import) => &import.mapping.mapped,
        }
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        if let Some(Holder::Pool(mut slot)) = self.holder.take()
            && *self.is_retired.get_mut()
        {
            let region = slot.region.take().expect("held until dropped");
            slot.pool.retire(region);
        }
    }
}

impl Hold {
    /// Address of the first byte of the slot. It is valid while the hold exists.
    pub fn base(&self) -> NonNull<u8> {
        self.held.mapped().base()
    }

    pub fn size_bytes(&self) -> usize {
        self.held.mapped().len()
    }

    /// Sets the receiver of the slot's memory, still mapped, when it is no longer in use.
    ///
    /// For code that registered the memory with a device and has to undo that first. `heir` is
    /// called by any thread, and should only pass the memory on.
    /// - Returns true if none was set before; the first one stays, for all batches of this memory.
    pub fn bequeath(&self, heir: impl FnOnce(Memory) + Send + Sync + 'static) -> bool {
        self.held.mapped().bequeath(heir)
    }
}

impl SharedSlot {
    fn new(holder: Holder) -> Self {
        Self { held: HeldSlot::new(holder), companion: None }
    }

    /// Creates a view of a peer's slot.
    ///
    /// `on_drop` is called once, by any thread, and should only record that the slot is free.
    pub fn imported(mapping: Arc<Mapping>, on_drop: impl FnOnce() + Send + Sync + 'static) -> Self {
        let on_drop: OnDrop = Box::new(on_drop);
        Self::new(Holder::Import(Import { mapping, on_drop: Some(on_drop) }))
    }

    /// Keeps the memory unchanged, even if the slot is dropped.
    pub fn hold(&self) -> Hold {
        Hold { held: Arc::clone(&self.held) }
    }

    /// Object attached to the content, if one was set.
    pub fn companion(&mut self) -> &mut Option<Companion> {
        &mut self.companion
    }

    /// Address of the first byte. It is valid while the slot exists; the trainer's arrays may write
    /// through it, because the batch belongs to the trainer.
    pub fn base(&self) -> NonNull<u8> {
        self.held.mapped().base()
    }

    /// Size of the slot in bytes. The bytes cannot be read from here: once a batch is handed out,
    /// the trainer may write them.
    pub fn size_bytes(&self) -> usize {
        self.held.mapped().len()
    }

    /// Information for another process to view this slot; `None` unless it is from a sealed pool.
    pub fn region(&self) -> Option<RegionHandle<'_>> {
        match self.held.holder() {
            Holder::Pool(slot) => slot.region().handle(),
            Holder::Import(_) => None,
        }
    }

    /// Closes the descriptor of a slot that its peer has received, for this and all later batches,
    /// so that slots use none of the process's descriptors. There must be no [`Hold`] on it.
    pub fn close_descriptor(&mut self) {
        if let Some(held) = Arc::get_mut(&mut self.held)
            && let Some(Holder::Pool(Slot { region: Some(region), .. })) = &mut held.holder
        {
            region.close_descriptor();
        }
    }

    /// Ends the slot without reuse, if it is unknown whether a peer still views it because the
    /// connection broke: its memory stays with the peer. A peer's own slot is dropped as usual.
    pub fn retire(self) {
        self.held.is_retired.store(true, Ordering::Relaxed);
    }

    /// Copies a buffer out, before any array views the slot: see [`SharedSlot::copy_into`].
    ///
    /// # Panics  If the range is beyond the slot.
    #[allow(unsafe_code)]
    pub fn read(&mut self, range: &BufferRange) -> Vec<u8> {
        let end = range.start.checked_add(range.len);
        assert!(end.is_some_and(|end| end <= self.size_bytes()), "{range:?} is beyond the slot");
        let mut copy = vec![0; range.len];
        // SAFETY: as in `copy_into`; the source has these bytes (asserted), the target is new.
        unsafe {
            let source = self.base().as_ptr().add(range.start);
            std::ptr::copy_nonoverlapping(source, copy.as_mut_ptr(), range.len);
        }
        copy
    }

    /// Copies the first `bytes` into a slot of `pool`, before any array views this slot.
    ///
    /// Drop this slot afterwards to return it to its owner. The attached object moves to the copy.
    ///
    /// `&mut self` guarantees that nothing views it: arrays hold the slot they view, so a slot that
    /// can be borrowed mutably has none.
    ///
    /// # Errors  The system has no memory for the copy; this slot is unchanged.
    ///
    /// # Panics  If the slot has fewer than `bytes`.
    #[allow(unsafe_code)]
    pub fn copy_into(&mut self, pool: &SlotPool, bytes: usize) -> io::Result<SharedSlot> {
        assert!(bytes <= self.size_bytes(), "a slot of {} has no {bytes}", self.size_bytes());
        let mut copy = pool.take(bytes)?;
        let target = &mut copy.bytes_mut()[..bytes];
        // SAFETY: the source is mapped for at least `bytes` (asserted) while `self` exists, the
        // target is a slice of `bytes`; they are different mappings of different memory, as a pool
        // never returns a region that is in use. `self` is borrowed mutably, so nothing in this
        // process writes the source; holders of a hold only read. Its worker finished writing
        // before announcing it; one that violates this changes bytes during the copy, any value of
        // which is valid, and no reference to the source is created.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base().as_ptr(), target.as_mut_ptr(), bytes);
        }
        let mut shared = copy.share();
        shared.companion = self.companion.take();
        Ok(shared)
    }
}

type OnDrop = Box<dyn FnOnce() + Send + Sync>;

struct Import {
    mapping: Arc<Mapping>,
    on_drop: Option<OnDrop>,
}

impl Drop for Import {
    fn drop(&mut self) {
        if let Some(on_drop) = self.on_drop.take() {
            on_drop();
        }
    }
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import").field("mapping", &self.mapping).finish_non_exhaustive()
    }
}
