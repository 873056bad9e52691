use crate::region::Size;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    #[error(
        "neither JPEG nor PNG: {len} bytes that begin with \"{}\"; other formats have to be converted when \
         the dataset is written", .begin.escape_ascii()
    )]
    Format {
        /// First bytes.
        begin: Vec<u8>,
        len: usize,
    },
    #[error("damaged {format} of {len} bytes: {what}")]
    Damaged {
        /// JPEG or PNG.
        format: &'static str,
        len: usize,
        what: String,
    },
    #[error("{format} of a kind that is not supported: {what}")]
    Unsupported {
        /// JPEG or PNG.
        format: &'static str,
        what: String,
    },
    #[error("{}x{} pixels, more than the {pixels_max} that an image may have", .size.height, .size.width)]
    TooLarge { size: Size, pixels_max: usize },
    #[error("a JPEG has 8 bits a sample; decode it to uint8")]
    Depth,
}
