//! Pass over a plain file, which skips the data of large records instead of reading it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use super::{Builder, IndexOptions, ShardIndex, index_records};
use crate::compression::{Compression, CompressionChoice, detect, read_full};
use crate::error::{ReadError, ReadErrorKind};
use crate::frame::{FOOTER_BYTES, HEADER_BYTES, decode_header, stored_crc};

/// Bytes per read while records are small.
const WINDOW_BYTES: usize = 1 << 20;

/// Records of a local file with more data are skipped. Below this size one large read costs less
/// than many small ones, with a warm or a cold cache.
const STEP_OVER_BYTES: u64 = 64 << 10;

/// Bytes read after a skip: the footer, the next header, and the rest of their page at no extra
/// cost.
const STEP_WINDOW_BYTES: usize = 4 << 10;

/// A stored file that can be read at any offset.
pub trait ReadAt {
    /// Reads at most `out.len()` bytes at `offset`; returns 0 at the end of the file.
    ///
    /// # Errors
    /// Errors of the storage.
    fn read_at(&mut self, out: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns the size of the file in bytes.
    ///
    /// # Errors
    /// Errors of the storage.
    fn size_bytes(&mut self) -> io::Result<u64>;

    /// Returns the number of bytes up to which reading is cheaper than skipping: the cost of one
    /// more request in terms of bandwidth.
    fn step_over_bytes(&self) -> u64;
}

impl ReadAt for File {
    fn read_at(&mut self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, out, offset)
    }

    fn size_bytes(&mut self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn step_over_bytes(&self) -> u64 {
        STEP_OVER_BYTES
    }
}

/// Indexes a stored file at any location; `name` is used in errors.
///
/// - `on_progress`: called with the bytes of the file passed so far (compressed bytes of a
///   compressed file).
///
/// # Errors
/// The file is unreadable; otherwise the first damage found, unless `keep_going` is set.
pub fn index_source(
    source: &mut dyn ReadAt,
    name: &str,
    options: &IndexOptions,
    on_progress: &mut dyn FnMut(u64),
) -> Result<ShardIndex, ReadError> {
    let compression = match options.compression {
        CompressionChoice::Fixed(compression) => compression,
        CompressionChoice::Auto => {
            let mut first = [0; HEADER_BYTES];
            let end = read_at_full(source, &mut first, 0)
                .map_err(|error| ReadError::at_record(name, 0, 0, ReadErrorKind::Io(error)))?;
            detect(&first[..end])
        }
    };
    if compression == Compression::None && !options.verify_data {
        let mut walk = FileWindow::new(source);
        return walk.index(name, options, on_progress);
    }
    let options = IndexOptions { compression: compression.into(), ..options.clone() };
    index_records(FromStart { source, offset: 0 }, name, &options, on_progress)
}

/// Reads a stored file sequentially, from an offset on.
pub(super) struct FromStart<'a> {
    pub(super) source: &'a mut dyn ReadAt,
    pub(super) offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read_at(out, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// Window on a file that moves forward.
struct FileWindow<'a> {
    file: &'a mut dyn ReadAt,
    window: Vec<u8>,
    offset: u64,
    /// Number of filled bytes in the window.
    filled: usize,
}

impl<'a> FileWindow<'a> {
    fn new(file: &'a mut dyn ReadAt) -> Self {
        Self { file, window: vec![0; WINDOW_BYTES], offset: 0, filled: 0 }
    }

    fn index(
        &mut self,
        name: &str,
        options: &IndexOptions,
        on_progress: &mut dyn FnMut(u64),
    ) -> Result<ShardIndex, ReadError> {
        let mut builder = Builder::new(Compression::None, options);
        let mut window_offset = 0;
        loop {
            let at = builder.index.stream_bytes;
            match self.step(at, options.record_bytes_max) {
                Ok(Some((length, crc))) => builder.push(length, crc),
                Ok(None) => {
                    on_progress(at);
                    return Ok(builder.finish());
                }
                Err(kind) => {
                    let error = ReadError::at_record(name, at, builder.index.records, kind);
                    return builder.end_at(error, options);
                }
            }
            if self.offset != window_offset {
                window_offset = self.offset;
                on_progress(builder.index.stream_bytes);
            }
        }
    }

    /// Returns the length and the stored data checksum of the record at `at`; `None` at the end.
    fn step(
        &mut self,
        at: u64,
        record_bytes_max: u64,
    ) -> Result<Option<(u64, u32)>, ReadErrorKind> {
        let bytes = self.read(at, HEADER_BYTES, WINDOW_BYTES)?;
        let Some(header) = bytes.first_chunk() else {
            let missing = (HEADER_BYTES - bytes.len()) as u64;
            return if bytes.is_empty() {
                Ok(None)
            } else {
                Err(ReadErrorKind::TruncatedHeader { missing })
            };
        };
        let length = decode_header(header)?;
        if length > record_bytes_max {
            return Err(ReadErrorKind::TooLarge { length, limit: record_bytes_max });
        }
        let steps = length > self.file.step_over_bytes();
        let want = if steps { STEP_WINDOW_BYTES } else { WINDOW_BYTES };
        let data_at = at + HEADER_BYTES as u64;
        // A length that exceeds any file leaves nothing to read there.
        let footer = match data_at.checked_add(length) {
            Some(footer_at) => self.read(footer_at, FOOTER_BYTES, want)?,
            None => &[],
        };
        match stored_crc(footer) {
            Some(crc) => Ok(Some((length, crc))),
            None => {
                let size = self.file.size_bytes().map_err(ReadErrorKind::Io)?;
                let available = size.saturating_sub(data_at);
                Err(ReadErrorKind::TruncatedData { length, available })
            }
        }
    }

    /// Returns the bytes at `at`: `count` or more, fewer only at the end of the file. If they are
    /// not in the window, it moves there and is filled up to `want` bytes.
    fn read(&mut self, at: u64, count: usize, want: usize) -> Result<&[u8], ReadErrorKind> {
        let inside = |walk: &Self| {
            let start = usize::try_from(at.checked_sub(walk.offset)?).ok()?;
            (start.checked_add(count)? <= walk.filled).then_some(start)
        };
        let start = match inside(self) {
            Some(start) => start,
            None => {
                // If the read fails, the window is empty.
                (self.offset, self.filled) = (at, 0);
                self.filled = read_at_full(self.file, &mut self.window[..want], at)
                    .map_err(ReadErrorKind::Io)?;
                0
            }
        };
        Ok(&self.window[start..self.filled])
    }
}

/// Reads at `offset` until `out` is full or the file ends; returns the number of bytes read.
fn read_at_full(source: &mut dyn ReadAt, out: &mut [u8], offset: u64) -> io::Result<usize> {
    // Offsets above the system's maximum are past the end of any file.
    if offset > i64::MAX as u64 {
        return Ok(0);
    }
    read_full(&mut FromStart { source, offset }, out)
}
