//! What is wrong with an image.

use crate::region::Size;

/// Why bytes are no image that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// It is of no format that is known.
    #[error(
        "neither JPEG nor PNG: {len} bytes that begin with \"{}\"; other formats have to be converted when \
         the dataset is written", .begin.escape_ascii()
    )]
    Format {
        /// Its first bytes.
        begin: Vec<u8>,
        /// How many bytes there are.
        len: usize,
    },
    /// It is not whole, or not as its format says.
    #[error("damaged {format} of {len} bytes: {what}")]
    Damaged {
        /// JPEG or PNG.
        format: &'static str,
        /// How many bytes there are.
        len: usize,
        /// What the decoder says.
        what: String,
    },
    /// It is of a kind that the decoder does not do.
    #[error("{format} of a kind that is not supported: {what}")]
    Unsupported {
        /// JPEG or PNG.
        format: &'static str,
        /// What it is.
        what: String,
    },
    /// It has more pixels than an image may have.
    #[error("{}x{} pixels, more than the {pixels_max} that an image may have", .size.height, .size.width)]
    TooLarge {
        /// What its header says.
        size: Size,
        /// What is allowed.
        pixels_max: usize,
    },
    /// It has 8 bits, and 16 are asked for.
    #[error("a JPEG has 8 bits a sample; decode it to uint8")]
    Depth,
}
