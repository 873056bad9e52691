//! Slots: the memory that finished batches are written into and that trainers' arrays view.
//!
//! A batch is laid out in one [`Slot`]; arrays view it without a copy, and it returns to its
//! [`SlotPool`] when the last of them is dropped. The slots of a sealed pool can be shared with
//! another process, which creates a [`Mapping`] of the descriptor it receives and views batches
//! through it. Code that copies a batch in the background keeps a [`Hold`] on its slot. This crate
//! never depends on the meaning of a column, the source of records, the consumer of a batch, or the
//! transport of a descriptor.
//!
//! Start at [`SlotPool`].
#![deny(unsafe_code)]

mod layout;
mod mapping;
mod memory;
mod pool;
mod region;
mod slot;

pub use layout::{BufferLayout, BufferRange, SLOT_ALIGN_BYTES};
pub use mapping::{ImportError, Mapping};
pub use memory::Memory;
pub use pool::{SlotPool, SlotPoolStats};
pub use region::{RegionHandle, RegionId};
pub use slot::{Companion, Hold, SharedSlot, Slot};
