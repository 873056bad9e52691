//! An image file whose header was read.

use serde::{Deserialize, Serialize};

use crate::error::ImageError;
use crate::jpeg::Jpeg;
use crate::png::Png;
use crate::region::{Region, Size};
#[cfg(feature = "turbojpeg")]
use crate::turbo::Turbo;

/// Pixels of an image at most; what a header says beyond that is a mistake, or an attack.
pub const PIXELS_MAX: usize = 1 << 26;

/// Bits of a sample.
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
    /// Bytes of a sample.
    pub fn bytes(self) -> usize {
        match self {
            Self::Eight => 1,
            Self::Sixteen => 2,
        }
    }
}

/// What decodes JPEGs; two of them differ in the last bits of some pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JpegDecoder {
    /// zune-jpeg: in every build.
    #[default]
    #[serde(rename = "zune-jpeg")]
    Zune,
    /// libjpeg-turbo, but images of four colours (CMYK, YCCK) by zune-jpeg: in builds with the feature
    /// `turbojpeg`.
    #[serde(rename = "turbojpeg")]
    Turbo,
}

impl JpegDecoder {
    /// All that there are, in any build.
    pub const ALL: [Self; 2] = [Self::Zune, Self::Turbo];

    /// Its name, which is part of a job's identity.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zune => "zune-jpeg",
            Self::Turbo => "turbojpeg",
        }
    }

    /// Whether this build has it.
    pub fn is_built(self) -> bool {
        match self {
            Self::Zune => true,
            Self::Turbo => cfg!(feature = "turbojpeg"),
        }
    }

    /// Those of this build.
    pub fn built() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|decoder| decoder.is_built())
    }

    /// Names of those, for people.
    pub fn names_built() -> String {
        Vec::from_iter(Self::built().map(Self::name)).join(", ")
    }
}

/// What an image is decoded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// 1: grey; 3: red, green, blue; 4: with alpha.
    pub channels: usize,
    /// Bits of a sample.
    pub depth: Depth,
    /// What decodes JPEGs.
    pub jpeg: JpegDecoder,
}

impl Decoding {
    /// Bytes of one pixel.
    pub fn pixel_bytes(self) -> usize {
        self.channels * self.depth.bytes()
    }
}

/// An image file whose header was read.
pub struct Encoded<'a>(File<'a>);

enum File<'a> {
    Jpeg(Box<Jpeg<'a>>),
    #[cfg(feature = "turbojpeg")]
    Turbo(Turbo<'a>),
    Png(Box<Png<'a>>),
}

impl<'a> File<'a> {
    fn jpeg(bytes: &'a [u8], decoding: Decoding) -> Result<Self, ImageError> {
        match decoding.jpeg {
            JpegDecoder::Zune => {}
            #[cfg(feature = "turbojpeg")]
            JpegDecoder::Turbo => {
                if let Some(turbo) = Turbo::open(bytes, decoding)? {
                    return Ok(Self::Turbo(turbo));
                }
            }
            #[cfg(not(feature = "turbojpeg"))]
            JpegDecoder::Turbo => return Err(ImageError::NoDecoder(decoding.jpeg)),
        }
        Ok(Self::Jpeg(Box::new(Jpeg::open(bytes, decoding)?)))
    }
}

impl<'a> Encoded<'a> {
    /// Reads the header.
    ///
    /// # Errors  What the header says is wrong, too large, or not to be had as `decoding`.
    pub fn open(bytes: &'a [u8], decoding: Decoding) -> Result<Self, ImageError> {
        let file = match bytes {
            [0xff, 0xd8, 0xff, ..] => File::jpeg(bytes, decoding)?,
            [0x89, b'P', b'N', b'G', ..] => File::Png(Box::new(Png::open(bytes, decoding)?)),
            _ => {
                let begin = bytes[..bytes.len().min(8)].to_vec();
                return Err(ImageError::Format { begin, len: bytes.len() });
            }
        };
        Ok(Self(file))
    }

    /// What the header says.
    pub fn size(&self) -> Size {
        match &self.0 {
            File::Jpeg(jpeg) => jpeg.size(),
            #[cfg(feature = "turbojpeg")]
            File::Turbo(turbo) => turbo.size(),
            File::Png(png) => png.size(),
        }
    }

    /// What has to be decoded to have `region`: at least that.
    pub fn needed(&self, region: Region) -> Region {
        debug_assert!(region.lies_in(self.size()), "{region:?} lies in {:?}", self.size());
        match &self.0 {
            #[cfg(feature = "turbojpeg")]
            File::Turbo(turbo) => turbo.needed(region),
            // These can leave nothing out.
            File::Jpeg(_) | File::Png(_) => Region::all(self.size()),
        }
    }

    /// Decodes `region`, one that [`Encoded::needed`] gave, to `out`, which has exactly its bytes.
    /// An orientation in the file's metadata changes nothing.
    ///
    /// # Errors  The data of the region is damaged, or of a kind that is not supported.
    pub fn decode(self, region: Region, out: &mut [u8]) -> Result<(), ImageError> {
        match self.0 {
            #[cfg(feature = "turbojpeg")]
            File::Turbo(turbo) => turbo.decode(region, out),
            File::Jpeg(jpeg) => {
                debug_assert_eq!(region, Region::all(jpeg.size()), "nothing else is ever needed");
                jpeg.decode(out)
            }
            File::Png(png) => {
                debug_assert_eq!(region, Region::all(png.size()), "nothing else is ever needed");
                png.decode(out)
            }
        }
    }
}

/// Refuses sizes that nothing is allocated for.
pub(crate) fn check_size(size: Size) -> Result<(), ImageError> {
    if size.pixels() > PIXELS_MAX {
        return Err(ImageError::TooLarge { size, pixels_max: PIXELS_MAX });
    }
    Ok(())
}
