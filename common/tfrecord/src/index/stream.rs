//! Pass over a stream: reads every byte and holds one buffer, regardless of the length of a record.

use std::cell::Cell;
use std::io::{self, Read};
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};

use super::{Break, Builder, IndexOptions, ShardIndex};
use crate::compression::Decoder;
use crate::error::{ReadError, ReadErrorKind};
use crate::frame::{DataCrcMismatch, FOOTER_BYTES, HEADER_BYTES, decode_header, mask, stored_crc};

const BUFFER_BYTES: usize = 1 << 20;

/// Indexes the records of `source`: the bytes of `file` as stored, compressed if the file is.
///
/// - `on_progress`: called with the bytes of the source read so far, each time the buffer was
///   filled.
///
/// # Errors
/// The first damage found; with `keep_going` only errors of the source.
pub fn index_records<R: Read>(
    source: R,
    file: impl Into<Arc<str>>,
    options: &IndexOptions,
    on_progress: &mut dyn FnMut(u64),
) -> Result<ShardIndex, ReadError> {
    let file = file.into();
    let consumed = Cell::new(0);
    let source = Decoder::new(Counted { source, consumed: &consumed }, options.compression)
        .map_err(|error| ReadError::at_record(&file, 0, 0, ReadErrorKind::from(error)))?;
    let mut builder = Builder::new(source.compression(), options);
    let mut told = || on_progress(consumed.get());
    let buffer = vec![0; BUFFER_BYTES];
    let mut stream =
        StreamBuffer { source, buffer, head: 0, end: 0, failed: None, told: &mut told };
    loop {
        let ShardIndex { stream_bytes, records, .. } = builder.index;
        let at = |kind| ReadError::at_record(&file, stream_bytes, records, kind);
        match stream.record(options) {
            Ok(None) => return Ok(builder.finish()),
            Ok(Some((length, stored, damage))) => {
                if let Some(DataCrcMismatch { stored, computed }) = damage {
                    let error = at(ReadErrorKind::DataCrc { length, stored, computed });
                    if !options.keep_going {
                        return Err(error);
                    }
                    builder.index.corrupt_records += 1;
                    builder.index.first_corrupt.get_or_insert_with(|| Break::of(&error));
                }
                builder.push(length, stored);
            }
            Err(kind) => return builder.end_at(at(kind), options),
        }
    }
}

/// Uncompressed bytes, of which `buffer[head..end]` are not used yet.
struct StreamBuffer<'a, R> {
    source: R,
    buffer: Vec<u8>,
    head: usize,
    end: usize,
    /// Error that ended the source; returned once the bytes before it are used.
    failed: Option<io::Error>,
    told: &'a mut dyn FnMut(),
}

impl<R: Read> StreamBuffer<'_, R> {
    /// Returns the length of the next record, its stored checksum, and the mismatch of its data if
    /// that is checked; `None` at the end.
    fn record(
        &mut self,
        options: &IndexOptions,
    ) -> Result<Option<(u64, u32, Option<DataCrcMismatch>)>, ReadErrorKind> {
        let bytes = self.ahead(HEADER_BYTES)?;
        let Some(header) = bytes.first_chunk() else {
            let missing = (HEADER_BYTES - bytes.len()) as u64;
            return match bytes.is_empty() {
                true => Ok(None),
                false => Err(ReadErrorKind::TruncatedHeader { missing }),
            };
        };
        let length = decode_header(header)?;
        if length > options.record_bytes_max {
            let limit = options.record_bytes_max;
            return Err(ReadErrorKind::TooLarge { length, limit });
        }
        self.head += HEADER_BYTES;
        let mut digest = options.verify_data.then(|| Digest::new(CrcAlgorithm::Crc32Iscsi));
        let mut left = length;
        while left > 0 {
            let bytes = self.ahead(1)?;
            if bytes.is_empty() {
                return Err(ReadErrorKind::TruncatedData { length, available: length - left });
            }
            let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if let Some(digest) = &mut digest {
                digest.update(&bytes[..count]);
            }
            self.head += count;
            left -= count as u64;
        }
        let bytes = self.ahead(FOOTER_BYTES)?;
        let Some(stored) = stored_crc(bytes) else {
            let available = length + bytes.len() as u64;
            return Err(ReadErrorKind::TruncatedData { length, available });
        };
        self.head += FOOTER_BYTES;
        let computed = digest.map(|digest| mask(digest.finalize() as u32));
        let damage = computed.filter(|computed| *computed != stored);
        Ok(Some((length, stored, damage.map(|computed| DataCrcMismatch { stored, computed }))))
    }

    /// Returns the next bytes: `count` or more, fewer only at the end of the source.
    fn ahead(&mut self, count: usize) -> Result<&[u8], ReadErrorKind> {
        if self.end - self.head < count {
            self.buffer.copy_within(self.head..self.end, 0);
            (self.head, self.end) = (0, self.end - self.head);
            while self.end < self.buffer.len() && self.failed.is_none() {
                match self.source.read(&mut self.buffer[self.end..]) {
                    Ok(0) => break,
                    Ok(read) => self.end += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => self.failed = Some(error),
                }
            }
            (self.told)();
            if let Some(error) = self.failed.take_if(|_| self.end < count) {
                return Err(ReadErrorKind::from(error));
            }
        }
        Ok(&self.buffer[self.head..self.end])
    }
}

/// Reader that counts the bytes read.
pub(super) struct Counted<'a, R> {
    pub(super) source: R,
    pub(super) consumed: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(out)?;
        self.consumed.set(self.consumed.get() + read as u64);
        Ok(read)
    }
}
