//! Images: what their bytes are decoded to, parts of them, and other sizes of them.
//!
//! Works over bytes in memory that the caller brings. This crate must never know records, columns or
//! jobs, and allocates nothing for pixels before their number was checked.
//!
//! Start at [`Encoded`], which is an image file whose header was read, and [`Resizer`].
#![deny(unsafe_code)]

mod error;
mod region;

mod encoded;
mod jpeg;
mod png;

mod resize;

pub use encoded::{Decoding, Depth, Encoded, Health, PIXELS_MAX};
pub use error::ImageError;
pub use region::{Region, Size, View};
pub use resize::{Method, Resizer, Sample};

/// Version of the pixel contract: which image files are decoded, and to which pixels. A job pins it, not the
/// libraries that keep it. docs/OPERATORS.md, Images, says what it promises.
pub const PIXEL_CONTRACT: &str = "pixels/1";

/// The library that decodes JPEGs: its version, and whether it was compiled with SIMD.
pub const JPEG_LIBRARY: &str = env!("SHARDFEED_JPEG_LIBRARY");
