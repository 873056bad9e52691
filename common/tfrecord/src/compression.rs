//! Whole-file compression: names, detection and decompression.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use flate2::{Decompress, FlushDecompress, Status};
use serde::{Deserialize, Serialize};

use crate::error::{ReadError, ReadErrorKind};
use crate::frame::{HEADER_BYTES, decode_header};

/// Bytes that are read from the source at a time.
const INPUT_BYTES: usize = 256 << 10;

/// Compression of a file. The framing is inside: offsets are those of the uncompressed stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not compressed: records can be read by offset.
    #[default]
    None,
    /// RFC 1952, TensorFlow's `GZIP`.
    Gzip,
    /// RFC 1950, TensorFlow's `ZLIB`.
    Zlib,
}

/// Compression setting of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompressionChoice {
    /// Detect it from the first bytes; see [`detect`].
    #[default]
    Auto,
    /// Use the given compression.
    #[serde(untagged)]
    Fixed(Compression),
}

/// Error for an unknown compression name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compression {name:?}; use one of none, gzip, zlib{}", if *.auto { ", auto" } else { "" })]
pub struct UnknownCompression {
    pub name: String,
    /// True if `auto` would have been valid.
    pub auto: bool,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
        })
    }
}

impl FromStr for Compression {
    type Err = UnknownCompression;

    /// Accepts our names and TensorFlow's (`""`, `"GZIP"`, `"ZLIB"`).
    fn from_str(name: &str) -> Result<Self, UnknownCompression> {
        match name.to_ascii_lowercase().as_str() {
            "" | "none" => Ok(Self::None),
            "gzip" => Ok(Self::Gzip),
            "zlib" => Ok(Self::Zlib),
            _ => Err(UnknownCompression { name: name.to_owned(), auto: false }),
        }
    }
}

impl From<Compression> for CompressionChoice {
    fn from(compression: Compression) -> Self {
        Self::Fixed(compression)
    }
}

impl fmt::Display for CompressionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Fixed(compression) => compression.fmt(f),
        }
    }
}

impl FromStr for CompressionChoice {
    type Err = UnknownCompression;

    fn from_str(name: &str) -> Result<Self, UnknownCompression> {
        if name.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        name.parse().map(Self::Fixed).map_err(|error| UnknownCompression { auto: true, ..error })
    }
}

/// Detects the compression of a file from its first bytes, ideally 12 or more.
///
/// A valid length checksum means a plain TFRecord file, even if the bytes also match another
/// format. A file without it and without the magic bytes of gzip or zlib counts as plain too, so
/// that the error is about the framing.
pub fn detect(first: &[u8]) -> Compression {
    if first.first_chunk::<HEADER_BYTES>().is_some_and(|header| decode_header(header).is_ok()) {
        return Compression::None;
    }
    match *first {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [method, flags, ..] if is_zlib_header(method, flags) => Compression::Zlib,
        _ => Compression::None,
    }
}

/// Checks for deflate, a window of at most 32 KiB, no preset dictionary, and valid check bits.
fn is_zlib_header(method: u8, flags: u8) -> bool {
    method & 0x0f == 8
        && method >> 4 <= 7
        && flags & 0x20 == 0
        && u16::from_be_bytes([method, flags]).is_multiple_of(31)
}

/// Error for a compressed stream that is damaged, truncated, or followed by other data. It is
/// wrapped in an [`io::Error`] of kind `InvalidData`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decompress the {scheme} stream: {message}")]
pub struct DecompressError {
    pub scheme: Compression,
    pub message: String,
}

/// Decompresses a source.
///
/// Concatenated gzip members and concatenated zlib streams are read as one stream. As with gzip's
/// own tools, zeros that pad the end of a gzip file are skipped. Any other trailing data is an
/// error, and so is a stream that ends early: a truncated file is never mistaken for a short one.
/// An empty source is an empty stream. Data before the damage is returned first, regardless of the
/// size of the reads.
pub struct Decoder<R> {
    source: R,
    compression: Compression,
    input: Box<[u8]>,
    /// `input[at..end]` has been read from the source and not been used.
    at: usize,
    end: usize,
    /// Current member; none between members.
    member: Option<Decompress>,
    members: u64,
}

impl<R: Read> Decoder<R> {
    /// Reads `source`. With [`CompressionChoice::Auto`] the first bytes decide; they are not lost.
    ///
    /// # Errors
    /// Errors of reading the first bytes; none with a fixed choice.
    pub fn new(mut source: R, choice: CompressionChoice) -> io::Result<Self> {
        let mut first = [0; HEADER_BYTES];
        let mut end = 0;
        let compression = match choice {
            CompressionChoice::Fixed(compression) => compression,
            CompressionChoice::Auto => {
                end = read_full(&mut source, &mut first)?;
                detect(&first[..end])
            }
        };
        let input_bytes = if compression == Compression::None { HEADER_BYTES } else { INPUT_BYTES };
        let mut input = vec![0; input_bytes].into_boxed_slice();
        input[..end].copy_from_slice(&first[..end]);
        Ok(Self { source, compression, input, at: 0, end, member: None, members: 0 })
    }

    /// Returns the compression in use, as given or detected.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    fn read_plain(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.end {
            return self.source.read(out);
        }
        let taken = out.len().min(self.end - self.at);
        out[..taken].copy_from_slice(&self.input[self.at..self.at + taken]);
        self.at += taken;
        Ok(taken)
    }

    /// Reads more compressed bytes if none are left; returns false at the end of the source.
    fn fill(&mut self) -> io::Result<bool> {
        while self.at == self.end {
            match self.source.read(&mut self.input) {
                Ok(0) => return Ok(false),
                Ok(read) => (self.at, self.end) = (0, read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Starts the next member; returns false at a valid end of the source.
    fn start_member(&mut self) -> io::Result<bool> {
        loop {
            if !self.fill()? {
                return Ok(false);
            }
            let first = self.input[self.at];
            let gzip = self.compression == Compression::Gzip;
            if gzip && first == 0 && self.members > 0 {
                self.at += 1;
                continue;
            }
            if (gzip && first != 0x1f) || (!gzip && first & 0x0f != 8) {
                return Err(self.error(if self.members == 0 {
                    "it does not start like one"
                } else {
                    "after its end come bytes that are not another one"
                }));
            }
            self.member = Some(if gzip { Decompress::new_gzip(15) } else { Decompress::new(true) });
            self.members += 1;
            return Ok(true);
        }
    }

    fn read_compressed(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if self.member.is_none() && !self.start_member()? {
                return Ok(0);
            }
            let more = self.fill()?;
            let Some(member) = &mut self.member else {
                continue;
            };
            let (read_before, written_before) = (member.total_in(), member.total_out());
            let input = &self.input[self.at..self.end];
            let result = member.decompress(input, out, FlushDecompress::None);
            // Both fit into usize: they are bounded by the lengths of `input` and `out`.
            let read = (member.total_in() - read_before) as usize;
            let written = (member.total_out() - written_before) as usize;
            self.at += read;
            match result {
                Ok(Status::StreamEnd) => self.member = None,
                Ok(Status::Ok | Status::BufError) if !more && written == 0 => {
                    return Err(self.error("the file ends in the middle of it"));
                }
                Ok(Status::Ok | Status::BufError) => {}
                // Return the data before the damage; the next read fails again.
                Err(_) if written > 0 => {}
                Err(error) => {
                    // On a repeated call, or in its fast loop, the library does not report the
                    // cause.
                    let message = error.message().filter(|said| !said.contains("bad state"));
                    return Err(self.error(message.unwrap_or("the bytes are damaged")));
                }
            }
            if written > 0 {
                return Ok(written);
            }
        }
    }

    fn error(&self, message: impl Into<String>) -> io::Error {
        let error = DecompressError { scheme: self.compression, message: message.into() };
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.compression {
            Compression::None => self.read_plain(out),
            Compression::Gzip | Compression::Zlib => self.read_compressed(out),
        }
    }
}

impl<R> fmt::Debug for Decoder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("compression", &self.compression).finish_non_exhaustive()
    }
}

/// Opens a file to read its uncompressed bytes.
///
/// # Errors
/// The file is missing or unreadable; the error contains its path.
pub fn open_source(path: &Path, choice: CompressionChoice) -> Result<Decoder<File>, ReadError> {
    let source = File::open(path).map_err(|error| ReadError::open(path, error))?;
    Decoder::new(source, choice).map_err(|error| {
        ReadError::at_record(&path.to_string_lossy(), 0, 0, ReadErrorKind::from(error))
    })
}

/// Reads until `out` is full or the source ends; returns the number of bytes read.
pub(crate) fn read_full(source: &mut impl Read, out: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < out.len() {
        match source.read(&mut out[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests;
