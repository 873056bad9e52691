//! Records of a plain file, read in place from the page cache.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::error::{ReadError, ReadErrorKind};
use crate::frame::{Cut, DataCrcMismatch, FOOTER_BYTES, HEADER_BYTES, check_data, cut, stored_crc};
use crate::reader::Record;

/// A plain file mapped into memory; its records are read without a copy.
///
/// Use it for files that do not change. If another process truncates the file while it is mapped,
/// access to the lost pages kills this process (SIGBUS), and no error can be returned. For this
/// reason the loader reads with [`ChunkReader`](crate::ChunkReader).
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
    file: String,
}

impl MappedFile {
    /// Maps the file at `path`, which must not be compressed.
    ///
    /// # Errors
    /// The file cannot be opened or mapped; the error contains its path.
    #[allow(unsafe_code)] // See SAFETY.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| ReadError::open(path, error))?;
        // SAFETY: the map is read-only and private to this struct, and lives as long as every slice
        // of it. Another process may still write to the file, which Rust cannot prevent: changed
        // bytes are only read as u8, for which any value is valid, and are checked before use. A
        // truncation kills the process with SIGBUS, as the type's documentation states.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| ReadError::open(path, error))?;
        Ok(Self { map, file: path.to_string_lossy().into_owned() })
    }

    /// Iterates over all records, checking lengths and data.
    ///
    /// A record with damaged data gives an error, and the next item is the record after it; any
    /// other error is the last item.
    #[must_use]
    pub fn records(&self) -> MappedRecords<'_> {
        MappedRecords { bytes: &self.map, file: &self.file, offset: 0, ordinal: 0 }
    }

    /// Returns the whole file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

/// Iterator over the records of a [`MappedFile`], in order.
#[derive(Clone, Debug)]
pub struct MappedRecords<'a> {
    /// Bytes from the next header on; empty at the end.
    bytes: &'a [u8],
    file: &'a str,
    offset: u64,
    ordinal: u64,
}

impl<'a> Iterator for MappedRecords<'a> {
    type Item = Result<Record<'a>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let (offset, ordinal) = (self.offset, self.ordinal);
        let result = match cut(self.bytes, u64::MAX) {
            Cut::Frame(data_bytes) => Ok(self.take_frame(data_bytes)),
            Cut::Bad(kind) => Err(kind),
            Cut::PartOfHeader => {
                let missing = (HEADER_BYTES - self.bytes.len()) as u64;
                Err(ReadErrorKind::TruncatedHeader { missing })
            }
            Cut::PartOfData { length } => {
                let available = (self.bytes.len() - HEADER_BYTES) as u64;
                Err(ReadErrorKind::TruncatedData { length, available })
            }
        };
        let result = match result {
            Ok(checked) => checked.map(|data| Record { data, offset, ordinal }),
            Err(kind) => {
                self.bytes = &[];
                Err(kind)
            }
        };
        Some(result.map_err(|kind| ReadError::at_record(self.file, offset, ordinal, kind)))
    }
}

impl<'a> MappedRecords<'a> {
    /// Takes the whole frame at the front and checks its data.
    fn take_frame(&mut self, data_bytes: usize) -> Result<&'a [u8], ReadErrorKind> {
        let (frame, rest) = self.bytes.split_at(HEADER_BYTES + data_bytes + FOOTER_BYTES);
        self.bytes = rest;
        self.offset += frame.len() as u64;
        self.ordinal += 1;
        let (data, footer) = frame[HEADER_BYTES..].split_at(data_bytes);
        let stored = stored_crc(footer).expect("the frame was cut with its footer");
        match check_data(data, stored) {
            Ok(()) => Ok(data),
            Err(DataCrcMismatch { stored, computed }) => {
                Err(ReadErrorKind::DataCrc { length: data_bytes as u64, stored, computed })
            }
        }
    }
}
