//! Slots: written by one, then viewed by arrays. The only unsafe code of the package.

use std::any::Any;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::layout::BufferRange;
use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::pool::{Shared, SlotPool};
use crate::region::{Region, RegionHandle};

/// A slot that is being written.
#[derive(Debug)]
pub struct Slot {
    region: Option<Region>,
    pool: Arc<Shared>,
}

impl Slot {
    pub(crate) fn new(region: Region, pool: Arc<Shared>) -> Self {
        Self { region: Some(region), pool }
    }

    fn region(&self) -> &Region {
        self.region.as_ref().expect("held until dropped")
    }

    /// Its bytes.
    #[allow(unsafe_code)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let region = self.region();
        // SAFETY: the region is mapped, readable and writable, for its whole length for as long as
        // `self` holds it, and its size is sealed if others can map it. A pool gives a region to one
        // slot at a time and `self` is borrowed mutably, so nothing in this process views it: a slot
        // that was viewed is back in its pool only after the views' owner dropped it. A peer that
        // has mapped a sealed region has given the slot back and must not touch it; one that does
        // anyway changes bytes that are only ever written here, any value of which is valid.
        unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr(), region.len()) }
    }

    /// Ends the writing: from here on the slot is viewed.
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

/// What goes with the content of a slot, such as its copy on a device: made by whoever knows what it
/// is, and dropped with the batch.
pub type Companion = Box<dyn Any + Send + Sync>;

/// A finished slot, viewed by arrays. When dropped it returns to its pool or, if it is a peer's, its
/// peer is told; if somebody has a [`Hold`] on it, with the last of these.
#[derive(Debug)]
pub struct SharedSlot {
    held: Arc<Held>,
    companion: Option<Companion>,
}

/// Keeps a slot's memory as it is for somebody who reads it in the background. Nobody writes it: not its
/// pool, which has not got it back, and not the trainer, if what is read is not shown to it.
#[derive(Clone, Debug)]
pub struct Hold {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    /// Taken when dropped.
    holder: Option<Holder>,
    /// It is not used again.
    is_retired: AtomicBool,
}

#[derive(Debug)]
enum Holder {
    Pool(Slot),
    Import(Import),
}

impl Held {
    fn new(holder: Holder) -> Arc<Self> {
        Arc::new(Self { holder: Some(holder), is_retired: AtomicBool::new(false) })
    }

    fn holder(&self) -> &Holder {
        self.holder.as_ref().expect("held until dropped")
    }

    fn base(&self) -> NonNull<u8> {
        match self.holder() {
            Holder::Pool(slot) => slot.region().base(),
            Holder::Import(import) => import.mapping.base(),
        }
    }

    fn size_bytes(&self) -> usize {
        match self.holder() {
            Holder::Pool(slot) => slot.region().len(),
            Holder::Import(import) => import.mapping.size_bytes(),
        }
    }
}

impl Drop for Held {
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
    /// Address of the first byte of the slot. It stays valid while the hold lives.
    pub fn base(&self) -> NonNull<u8> {
        self.held.base()
    }

    /// Bytes of the slot.
    pub fn size_bytes(&self) -> usize {
        self.held.size_bytes()
    }

    /// Names who gets the slot's memory, still mapped, when nobody needs it any more: one who made it
    /// known to a device and has to take that back first. `heir` is called by any thread, and should
    /// only pass the memory on.
    /// - Returns whether nobody was named before; the first one stays, for all batches of this memory.
    pub fn bequeath(&self, heir: impl FnOnce(Memory) + Send + Sync + 'static) -> bool {
        match self.held.holder() {
            Holder::Pool(slot) => slot.region().mapped().bequeath(heir),
            Holder::Import(import) => import.mapping.mapped().bequeath(heir),
        }
    }
}

impl SharedSlot {
    fn new(holder: Holder) -> Self {
        Self { held: Held::new(holder), companion: None }
    }

    /// A view of a peer's slot; `on_drop` is called once, by the thread that drops the slot, and
    /// should only note that the slot is free.
    pub fn imported(mapping: Arc<Mapping>, on_drop: impl FnOnce() + Send + Sync + 'static) -> Self {
        let on_drop: OnDrop = Box::new(on_drop);
        Self::new(Holder::Import(Import { mapping, on_drop: Some(on_drop) }))
    }

    /// Keeps the memory as it is, also when the slot is dropped meanwhile.
    pub fn hold(&self) -> Hold {
        Hold { held: Arc::clone(&self.held) }
    }

    /// What goes with the content, if somebody put it there.
    pub fn companion(&mut self) -> &mut Option<Companion> {
        &mut self.companion
    }

    /// Address of its first byte. It stays valid while the slot lives; the trainer's arrays may
    /// write through it, as the batch is theirs alone.
    pub fn base(&self) -> NonNull<u8> {
        self.held.base()
    }

    /// Bytes of the slot. There is no way to read them from here: once a batch is handed out they
    /// are the trainer's to write.
    pub fn size_bytes(&self) -> usize {
        self.held.size_bytes()
    }

    /// What another process needs to view this slot; none unless it is of a sealed pool.
    pub fn region(&self) -> Option<RegionHandle<'_>> {
        match self.held.holder() {
            Holder::Pool(slot) => slot.region().handle(),
            Holder::Import(_) => None,
        }
    }

    /// Closes the descriptor of a slot that its peer has got, now and for all batches to come: so slots use
    /// none of those that a process may have. Nobody may have a [`Hold`] on it.
    pub fn close_descriptor(&mut self) {
        if let Some(held) = Arc::get_mut(&mut self.held)
            && let Some(Holder::Pool(Slot { region: Some(region), .. })) = &mut held.holder
        {
            region.close_descriptor();
        }
    }

    /// Ends the slot without reuse, for one who cannot know whether a peer still views it, because
    /// the connection broke: the memory lives on in the peer's mapping only. A peer's own slot is
    /// given back as if dropped.
    pub fn retire(self) {
        self.held.is_retired.store(true, Ordering::Relaxed);
    }

    /// Copies a buffer out, before any array views the slot: see [`SharedSlot::copy_into`].
    ///
    /// # Panics  If the slot has no such bytes.
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

    /// Copies the first `bytes` into a slot of `pool`, before any array views this one; drop this one
    /// then, and its owner has it back. What goes with the content goes with the copy.
    ///
    /// That nothing views it is what `&mut self` says: arrays hold the slot they view, so a slot that
    /// can be borrowed mutably has none.
    ///
    /// # Errors  The system has no memory for the copy; this slot is as good as before.
    ///
    /// # Panics  If the slot has fewer than `bytes`.
    #[allow(unsafe_code)]
    pub fn copy_into(&mut self, pool: &SlotPool, bytes: usize) -> io::Result<SharedSlot> {
        assert!(bytes <= self.size_bytes(), "a slot of {} has no {bytes}", self.size_bytes());
        let mut copy = pool.take(bytes)?;
        let target = &mut copy.bytes_mut()[..bytes];
        // SAFETY: the source is mapped for at least `bytes` (asserted) while `self` lives, the target
        // is a slice of `bytes`; they are different mappings of different memory, as a pool never
        // gives out a region that is in use. `self` is borrowed mutably, so nothing in this process
        // writes the source; whoever has a hold on it only reads. Its worker finished writing before announcing it; one that does not
        // keep to that changes bytes under the copy, any value of which is valid, and no reference
        // to the source is made.
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
