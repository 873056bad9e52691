//! Batches on a GPU before the trainer asks for them.
//!
//! One thread in the trainer's process copies finished batches into a few device slots ahead of the
//! trainer, on a stream of its own, in the context that the trainer's framework uses. No other thread
//! calls the driver. The driver is loaded when a device is opened; building needs none.
//! This crate must never know what a column means, where batches come from, or Python.
//!
//! On its way a batch's parts can be cast, normalized and laid out anew ([`Change`]), by kernels whose
//! text is in `kernels/`.
//!
//! Start at [`Device`], or for what is decided without a driver at [`Ring`].
#![deny(unsafe_code)]

mod error;
mod kernels;

mod copies;
mod ring;
mod stream;

mod driver;

mod agent;
mod handle;

pub use copies::{Copies, Copy, Launch};
pub use driver::device_count;
pub use error::DeviceError;
pub use handle::{Device, DeviceBatch, DeviceStats, Source, Work};
pub use kernels::{Change, Float, NUMBERS_MAX, Number, Step};
pub use ring::{BatchId, Begin, Ring, SlotIndex, SlotState};
pub use stream::ConsumerStream;
