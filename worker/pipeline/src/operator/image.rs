//! Operators on images: decode, crop, flip, resize and change colours.
//!
//! Image sizes differ from row to row until an operator makes them equal. The operators before that
//! are declared but not run separately: a row passes through the whole chain at once, so that no
//! more of an image is decoded than needed, and each thread has only one image in memory.

mod bounds;
mod chain;
mod color_jitter;
mod crop;
mod decode;
mod flip;
mod resize;
mod turned;

pub(crate) use chain::Chain;
pub(crate) use color_jitter::ColorJitter;
pub(crate) use crop::{Crop, RandomCrop, RandomResizedCrop};
pub(crate) use decode::DecodeImage;
pub(crate) use flip::Flip;
pub(crate) use resize::Resize;
pub use turned::Axis;
