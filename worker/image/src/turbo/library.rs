//! libjpeg-turbo's own functions. The only unsafe code of the package.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as tj;

use crate::region::{Region, Size};

/// Progressive scans at most: each is a pass over all coefficients. Encoders make some ten.
const SCANS_MAX: c_int = 100;

/// What a file's header says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) size: Size,
    /// Bits of a sample.
    pub(super) precision: c_int,
    pub(super) colors: Colors,
    /// Pixels of a row that are stored together; a part begins at a multiple of it. `None`: no part
    /// of it can be decoded alone.
    pub(super) unit_width: Option<usize>,
    pub(super) is_progressive: bool,
    pub(super) is_lossless: bool,
    pub(super) is_arithmetic: bool,
}

/// What is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colors {
    /// Grey, or three colours.
    UpToThree,
    /// CMYK or YCCK.
    Four,
}

/// What is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pixels {
    Grey,
    Rgb,
    Rgba,
}

impl Pixels {
    fn format(self) -> c_int {
        match self {
            Self::Grey => tj::TJPF_TJPF_GRAY,
            Self::Rgb => tj::TJPF_TJPF_RGB,
            Self::Rgba => tj::TJPF_TJPF_RGBA,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
            Self::Rgba => 4,
        }
    }
}

/// One of libjpeg-turbo's decompressors.
pub(super) struct Decompressor(NonNull<c_void>);

impl Decompressor {
    /// # Errors  There is no memory for it.
    pub(super) fn new() -> Result<Self, String> {
        // SAFETY: it takes a number and gives a decompressor of our own, or null.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let decompressor = Self(NonNull::new(handle).ok_or("no memory for a decoder")?);
        // What it only warns of is lost data: pixels that nobody wrote, or that are not those that were.
        decompressor.set(tj::TJPARAM_TJPARAM_STOPONWARNING, 1)?;
        decompressor.set(tj::TJPARAM_TJPARAM_SCANLIMIT, SCANS_MAX)?;
        // Colour profiles are not looked at.
        decompressor.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, 0)?;
        // What decides on pixels is said, though these are its defaults.
        decompressor.set(tj::TJPARAM_TJPARAM_FASTDCT, 0)?;
        decompressor.set(tj::TJPARAM_TJPARAM_FASTUPSAMPLE, 0)?;
        Ok(decompressor)
    }

    fn set(&self, parameter: tj::TJPARAM, value: c_int) -> Result<(), String> {
        // SAFETY: the decompressor lives as long as `self`; other parameters and values are refused.
        let status = unsafe { tj::tj3Set(self.0.as_ptr(), parameter as c_int, value) };
        self.checked(status)
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the decompressor lives as long as `self`; it answers -1 to what it does not know.
        unsafe { tj::tj3Get(self.0.as_ptr(), parameter as c_int) }
    }

    fn checked(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the decompressor lives as long as `self`, its message until the next call of it, and
        // is copied before that. It is never null and ends with a zero byte.
        let message = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.0.as_ptr())) };
        let message = message.to_string_lossy();
        let what = message.split_once("(): ").map_or(&*message, |(_, what)| what);
        Err(what.replace('\n', " "))
    }

    /// Reads the header of `jpeg`.
    pub(super) fn header(&mut self, jpeg: &[u8]) -> Result<Header, String> {
        // SAFETY: it reads `jpeg.len()` bytes at most, from memory that is borrowed for the call, and
        // keeps no pointer that it uses afterwards: `decode` gives it the bytes again.
        let status = unsafe {
            tj::tj3DecompressHeader(self.0.as_ptr(), jpeg.as_ptr(), jpeg.len() as tj::size_t)
        };
        self.checked(status)?;
        let side = |parameter| usize::try_from(self.get(parameter)).ok().filter(|&side| side > 0);
        let (height, width) =
            (side(tj::TJPARAM_TJPARAM_JPEGHEIGHT), side(tj::TJPARAM_TJPARAM_JPEGWIDTH));
        let (Some(height), Some(width)) = (height, width) else {
            return Err("it has no image".to_owned());
        };
        let colors = match self.get(tj::TJPARAM_TJPARAM_COLORSPACE) as tj::TJCS {
            tj::TJCS_TJCS_CMYK | tj::TJCS_TJCS_YCCK => Colors::Four,
            _ => Colors::UpToThree,
        };
        let unit_width = match self.get(tj::TJPARAM_TJPARAM_SUBSAMP) {
            tj::TJSAMP_TJSAMP_444
            | tj::TJSAMP_TJSAMP_GRAY
            | tj::TJSAMP_TJSAMP_440
            | tj::TJSAMP_TJSAMP_441 => Some(8),
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => Some(16),
            tj::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        };
        Ok(Header {
            size: Size { height, width },
            precision: self.get(tj::TJPARAM_TJPARAM_PRECISION),
            colors,
            unit_width,
            is_progressive: self.get(tj::TJPARAM_TJPARAM_PROGRESSIVE) == 1,
            is_lossless: self.get(tj::TJPARAM_TJPARAM_LOSSLESS) == 1,
            is_arithmetic: self.get(tj::TJPARAM_TJPARAM_ARITHMETIC) == 1,
        })
    }

    /// Decodes `region` of `jpeg`, the bytes that `header` was read from.
    /// - `out`: exactly the bytes of the region.
    pub(super) fn decode(
        &mut self,
        jpeg: &[u8],
        header: &Header,
        region: Region,
        pixels: Pixels,
        out: &mut [u8],
    ) -> Result<(), String> {
        let Region { top, left, size } = region;
        let (right, bottom) = (left + size.width, top + size.height);
        assert!(
            right <= header.size.width && bottom <= header.size.height,
            "{region:?} lies in it"
        );
        let pitch = size.width * pixels.bytes();
        assert_eq!(out.len(), size.height * pitch, "room for {region:?}");
        let number = |number: usize| c_int::try_from(number).expect("sides are 65,535 at most");
        if region != Region::all(header.size) {
            let (x, y, w, h) = (number(left), number(top), number(size.width), number(size.height));
            // SAFETY: the decompressor lives as long as `self`. It takes a region, and refuses one that
            // does not lie in the image, or does not begin where it may.
            let status =
                unsafe { tj::tj3SetCroppingRegion(self.0.as_ptr(), tj::tjregion { x, y, w, h }) };
            self.checked(status)?;
        }
        // SAFETY: it reads `jpeg.len()` bytes at most, from memory that is borrowed for the call. It reads
        // the header again, from the same bytes, so it writes the region that was asserted above: so many
        // rows of so many bytes, which are all of `out`. Nothing of either is kept.
        let status = unsafe {
            let (bytes, len) = (jpeg.as_ptr(), jpeg.len() as tj::size_t);
            let (handle, format) = (self.0.as_ptr(), pixels.format());
            tj::tj3Decompress8(handle, bytes, len, out.as_mut_ptr(), number(pitch), format)
        };
        self.checked(status)
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: it is ours alone and is not used afterwards.
        unsafe { tj::tj3Destroy(self.0.as_ptr()) }
    }
}
