//! Slots: the memory that finished batches are written into and that trainers' arrays view.
//!
//! A batch is laid out in one [`Slot`]; arrays view it without a copy and give it back to its
//! [`SlotPool`] when the last of them is dropped. The slots of a sealed pool can be shown to another
//! process: that one makes a [`Mapping`] of the descriptor it is sent and views batches through it.
//! Whoever copies a batch elsewhere in the background has a [`Hold`] on its slot meanwhile.
//! This crate must never know what a column means, where records come from, who waits for a batch,
//! or how a descriptor travels.
//!
//! Start at [`SlotPool`].
#![deny(unsafe_code)]

mod layout;
mod mapping;
mod memory;
mod pool;
mod region;
mod slot;

pub use layout::{BufferRange, Layout, SLOT_ALIGN_BYTES};
pub use mapping::{ImportError, Mapping};
pub use memory::Memory;
pub use pool::{SlotPool, SlotPoolStats};
pub use region::{RegionHandle, RegionId};
pub use slot::{Companion, Hold, SharedSlot, Slot};
