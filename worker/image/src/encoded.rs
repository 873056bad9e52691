//! An image file with its header read.

use serde::{Deserialize, Serialize};

use crate::error::ImageError;
use crate::jpeg::Jpeg;
use crate::png::Png;
use crate::region::{Region, Size};

/// Maximum pixels of an image; a larger number in a header is treated as a mistake or an attack.
pub const PIXELS_MAX: usize = 1 << 26;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// uint8.
    #[default]
    Eight,
    /// uint16, in the machine's byte order.
    Sixteen,
}

impl Depth {
    pub fn bytes(self) -> usize {
        match self {
            Self::Eight => 1,
            Self::Sixteen => 2,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Sound,
    /// The library issued a warning and decoded the data anyway.
    Suspect,
}

/// Target format of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// 1: grey; 3: red, green, blue; 4: with alpha.
    pub channels: usize,
    pub depth: Depth,
}

impl Decoding {
    pub fn pixel_bytes(self) -> usize {
        self.channels * self.depth.bytes()
    }
}

/// An image file with its header read.
pub struct Encoded<'a>(File<'a>);

enum File<'a> {
    Jpeg(Jpeg<'a>),
    Png(Box<Png<'a>>),
}

impl<'a> Encoded<'a> {
    /// Reads the header.
    ///
    /// # Errors  The header is invalid, the image too large, or it cannot be decoded as `decoding`.
    pub fn open(bytes: &'a [u8], decoding: Decoding) -> Result<Self, ImageError> {
        let file = match bytes {
            [0xff, 0xd8, 0xff, ..] => File::Jpeg(Jpeg::open(bytes, decoding)?),
            [0x89, b'P', b'N', b'G', ..] => File::Png(Box::new(Png::open(bytes, decoding)?)),
            _ => {
                let begin = bytes[..bytes.len().min(8)].to_vec();
                return Err(ImageError::Format { begin, len: bytes.len() });
            }
        };
        Ok(Self(file))
    }

    pub fn size(&self) -> Size {
        match &self.0 {
            File::Jpeg(jpeg) => jpeg.size(),
            File::Png(png) => png.size(),
        }
    }

    /// Returns the region that has to be decoded for `region`, which it contains.
    pub fn needed(&self, region: Region) -> Region {
        debug_assert!(region.lies_in(self.size()), "{region:?} lies in {:?}", self.size());
        match &self.0 {
            File::Jpeg(jpeg) => jpeg.needed(region),
            // PNG always decodes the whole image.
            File::Png(_) => Region::all(self.size()),
        }
    }

    /// Bytes that the decoder holds in addition to the returned pixels.
    pub fn held_bytes(&self) -> usize {
        match &self.0 {
            File::Jpeg(jpeg) => jpeg.held_bytes(),
            File::Png(_) => 0,
        }
    }

    /// Decodes `region`, as returned by [`Encoded::needed`], to `out`, which has exactly its size.
    ///
    /// The orientation in the file's metadata is ignored.
    ///
    /// # Errors  The data of the region is damaged, or of an unsupported kind.
    pub fn decode(self, region: Region, out: &mut [u8]) -> Result<Health, ImageError> {
        match self.0 {
            File::Jpeg(jpeg) => jpeg.decode(region, out),
            File::Png(png) => {
                debug_assert_eq!(region, Region::all(png.size()), "nothing else is ever needed");
                png.decode(out).map(|()| Health::Sound)
            }
        }
    }
}

/// Rejects sizes that are too large before memory is allocated.
pub(crate) fn check_size(size: Size) -> Result<(), ImageError> {
    if size.pixels() > PIXELS_MAX {
        return Err(ImageError::TooLarge { size, pixels_max: PIXELS_MAX });
    }
    Ok(())
}
