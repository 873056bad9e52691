//! Images: what their bytes are decoded to, parts of them, and other sizes of them.
//!
//! Works over bytes in memory that the caller brings. This crate must never know records, columns or
//! jobs, and allocates nothing for pixels before their number was checked.
//!
//! Start at [`Encoded`], which is an image file whose header was read, and [`Resizer`].
#![cfg_attr(not(feature = "turbojpeg"), forbid(unsafe_code))]
#![cfg_attr(feature = "turbojpeg", deny(unsafe_code))]

mod error;
mod region;

mod encoded;
mod jpeg;
mod png;
#[cfg(feature = "turbojpeg")]
mod turbo;

mod resize;

pub use encoded::{Decoding, Depth, Encoded, JpegDecoder, PIXELS_MAX};
pub use error::ImageError;
pub use region::{Region, Size, View};
pub use resize::{Method, Resizer, Sample};
