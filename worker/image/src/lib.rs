//! Images: decoding, regions, and resizing.
//!
//! Works on bytes in memory that the caller provides. This crate never depends on records, columns
//! or jobs, and checks the number of pixels before it allocates memory for them.
//!
//! Start at [`Encoded`], an image file with its header read, and [`Resizer`].
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

/// Version of the pixel contract: the supported image files, and their decoded pixels.
///
/// A job pins this version, not the libraries'. docs/OPERATORS.md, Images, has the contract.
pub const PIXEL_CONTRACT: &str = "pixels/1";

/// Library that decodes JPEGs: its version, and whether it was compiled with SIMD.
pub const JPEG_LIBRARY: &str = env!("SHARDFEED_JPEG_LIBRARY");
