//! Bindings to `decode.c`, called only here. The only unsafe code of the package.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uchar};
use std::marker::PhantomData;
use std::ptr::NonNull;

// Only its objects are linked; its own functions are not called.
use turbojpeg_sys as _;

use crate::region::{Region, Size};

/// Maximum progressive scans, each a pass over all coefficients. Encoders write about ten.
const SCANS_MAX: c_int = 100;

#[derive(Clone, Copy, Debug)]
pub(super) struct JpegHeader {
    pub(super) size: Size,
    /// Bits of a sample.
    pub(super) precision: i32,
    /// Number of stored components per pixel.
    pub(super) components: usize,
    pub(super) colors: Colors,
    /// Width of a unit of pixels stored together; a region begins at a multiple of it. `None`: no
    /// region can be decoded alone.
    pub(super) unit_width: Option<usize>,
    pub(super) is_progressive: bool,
    pub(super) is_lossless: bool,
    /// All coefficients are in memory before the first row is decoded.
    pub(super) is_multi_scan: bool,
}

/// Stored colour space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colors {
    /// Grey, or three colours.
    UpToThree,
    /// CMYK or YCCK.
    Four,
    Unknown,
}

/// `struct shardfeed_jpeg`.
#[repr(C)]
struct Raw {
    _private: [u8; 0],
}

/// `struct shardfeed_jpeg_header`.
#[repr(C)]
#[derive(Default)]
struct RawHeader {
    height: u32,
    width: u32,
    precision: i32,
    components: i32,
    colors: i32,
    is_progressive: i32,
    is_lossless: i32,
    is_multi_scan: i32,
    unit_width: u32,
}

/// `struct shardfeed_jpeg_region`.
#[repr(C)]
struct RawRegion {
    top: u32,
    left: u32,
    height: u32,
    width: u32,
}

unsafe extern "C" {
    fn shardfeed_jpeg_new(bytes: *const c_uchar, len: usize, scans_max: c_int) -> *mut Raw;
    fn shardfeed_jpeg_header(jpeg: *mut Raw, header: *mut RawHeader) -> c_int;
    fn shardfeed_jpeg_decode(
        jpeg: *mut Raw,
        channels: c_int,
        region: *const RawRegion,
        out: *mut c_uchar,
    ) -> c_int;
    fn shardfeed_jpeg_warnings(jpeg: *const Raw) -> c_long;
    fn shardfeed_jpeg_message(jpeg: *const Raw) -> *const c_char;
    fn shardfeed_jpeg_free(jpeg: *mut Raw);
}

pub(super) struct Decompressor<'a> {
    raw: NonNull<Raw>,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Decompressor<'a> {
    /// Creates a decompressor.
    ///
    /// # Errors  There is not enough memory.
    pub(super) fn new(jpeg: &'a [u8]) -> Result<Self, String> {
        // SAFETY: it keeps pointer and length of bytes that are borrowed while it exists, and
        // returns a decompressor owned by the caller, or null.
        let raw = unsafe { shardfeed_jpeg_new(jpeg.as_ptr(), jpeg.len(), SCANS_MAX) };
        let raw = NonNull::new(raw).ok_or("no memory for a decoder")?;
        Ok(Self { raw, bytes: PhantomData })
    }

    fn checked(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the decompressor lives as long as `self`, and its message until the next call;
        // the message is copied before that. It is never null and ends with a zero byte.
        let message = unsafe { CStr::from_ptr(shardfeed_jpeg_message(self.raw.as_ptr())) };
        Err(message.to_string_lossy().replace('\n', " "))
    }

    /// Reads the header. Call this first, and once.
    pub(super) fn header(&mut self) -> Result<JpegHeader, String> {
        let mut raw = RawHeader::default();
        // SAFETY: the decompressor lives as long as `self`, and so do the bytes it reads. It writes
        // the header, which has the C layout.
        let status = unsafe { shardfeed_jpeg_header(self.raw.as_ptr(), &mut raw) };
        self.checked(status)?;
        let colors = match raw.colors {
            1..=3 => Colors::UpToThree,
            4 | 5 => Colors::Four,
            _ => Colors::Unknown,
        };
        Ok(JpegHeader {
            size: Size { height: raw.height as usize, width: raw.width as usize },
            precision: raw.precision,
            components: raw.components.max(0) as usize,
            colors,
            unit_width: (raw.unit_width > 0).then_some(raw.unit_width as usize),
            is_progressive: raw.is_progressive != 0,
            is_lossless: raw.is_lossless != 0,
            is_multi_scan: raw.is_multi_scan != 0,
        })
    }

    /// Decodes `region` to 1, 3 or 4 channels. Call once, after [`Decompressor::header`].
    /// - `header`: result of that call. `out`: exactly the bytes of the region.
    /// - Returns the number of warnings that the library issued about the data.
    pub(super) fn decode(
        &mut self,
        header: &JpegHeader,
        region: Region,
        channels: usize,
        out: &mut [u8],
    ) -> Result<u64, String> {
        let Region { top, left, size } = region;
        let (right, bottom) = (left + size.width, top + size.height);
        assert!(matches!(channels, 1 | 3 | 4), "{channels} channels");
        assert!(
            size.pixels() > 0 && right <= header.size.width && bottom <= header.size.height,
            "{region:?} lies in it"
        );
        assert_eq!(out.len(), size.pixels() * channels, "room for {region:?}");
        let number = |number: usize| u32::try_from(number).expect("sides are 65,500 at most");
        let (top, left) = (number(top), number(left));
        let raw = RawRegion { top, left, height: number(size.height), width: number(size.width) };
        // SAFETY: the decompressor lives as long as `self`, and so do the bytes it reads. It writes
        // `height` rows of `width * channels` bytes, which are all of `out`; it rejects a region
        // that is not within the image, or does not begin at a unit.
        let status = unsafe {
            shardfeed_jpeg_decode(self.raw.as_ptr(), channels as c_int, &raw, out.as_mut_ptr())
        };
        self.checked(status)?;
        // SAFETY: the decompressor lives as long as `self`.
        Ok(unsafe { shardfeed_jpeg_warnings(self.raw.as_ptr()) }.unsigned_abs())
    }
}

impl Drop for Decompressor<'_> {
    fn drop(&mut self) {
        // SAFETY: it is owned by `self` and not used afterwards.
        unsafe { shardfeed_jpeg_free(self.raw.as_ptr()) }
    }
}
