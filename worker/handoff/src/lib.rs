//! Slots: the memory that finished batches are written into and that trainers' arrays view.
//!
//! A batch is laid out in one [`Slot`]; arrays view it without a copy and give it back to its
//! [`SlotPool`] when the last of them is dropped. This crate must never know what a column means,
//! where records come from, or who waits for a batch.
//!
//! Start at [`SlotPool`].
#![deny(unsafe_code)]

mod layout;
mod slot;

pub use layout::{BufferRange, Layout, SLOT_ALIGN_BYTES};
pub use slot::{SharedSlot, Slot, SlotPool, SlotPoolStats};
