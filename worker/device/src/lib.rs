//! Copies batches to a GPU before the trainer requests them.
//!
//! One thread in the trainer's process copies finished batches into a few device slots ahead of the
//! trainer, on a separate stream, in the context that the trainer's framework uses. No other thread
//! calls the driver. The driver is loaded when a device is opened; building needs none. This crate
//! never depends on the meaning of a column, the source of batches, or Python.
//!
//! After the copy, kernels in `kernels/` can cast, normalize and transpose parts of a batch
//! ([`Change`]).
//!
//! Start at [`Device`], or at [`Ring`] for the decisions that need no driver.
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
pub use handle::{BatchSource, Device, DeviceBatch, DeviceStats, Work};
pub use kernels::{Change, Float, NUMBERS_MAX, Number, Step};
pub use ring::{BatchId, Begin, Ring, SlotIndex, SlotState};
pub use stream::ConsumerStream;
