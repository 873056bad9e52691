//! Errors of files, with their location.

use std::path::Path;
use std::{fmt, io};

use crate::compression::DecompressError;
use crate::frame::LengthCrcMismatch;

/// Error of a record: the reason, the file, the record and the offset.
///
/// `Display` shows reason and location; [`ReadError::hint`] returns the remedy.
#[derive(Debug)]
pub struct ReadError {
    /// Path or URL of the file as the user gave it.
    pub file: String,
    /// Offset of the record's header in the uncompressed stream, in bytes.
    pub offset: u64,
    /// Ordinal of the record in the file, from 0.
    pub ordinal: u64,
    pub kind: ReadErrorKind,
}

/// Kind of error of a record or its file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadErrorKind {
    /// The first header is invalid: most likely the file is not a TFRecord file.
    #[error("not a TFRecord file: the checksum of the first record's length is wrong")]
    NotATfrecord { stored: u32, computed: u32 },
    /// A later header is invalid. The rest of the file cannot be read, because the format has no
    /// marker to resynchronize at.
    #[error(
        "corrupt record: its length does not match its checksum (stored {stored:#010x}, \
         computed {computed:#010x})"
    )]
    LengthCrc { stored: u32, computed: u32 },
    /// The data is damaged. Later records can still be read.
    #[error(
        "corrupt record: its {length} bytes do not match their checksum (stored {stored:#010x}, \
         computed {computed:#010x})"
    )]
    DataCrc { length: u64, stored: u32, computed: u32 },
    #[error("truncated: the file ends {missing} bytes before the end of a record's 12-byte header")]
    TruncatedHeader { missing: u64 },
    #[error(
        "truncated: the record has {length} bytes and a 4-byte checksum, the file ends after \
         {available} of them"
    )]
    TruncatedData {
        /// Bytes of data according to the header.
        length: u64,
        /// Bytes that follow the header, of the data and its checksum.
        available: u64,
    },
    /// The record exceeds the reader's limit. Later records can still be read.
    #[error("the record has {length} bytes, over the limit of {limit}")]
    TooLarge {
        /// Bytes of data according to the header, whose checksum is valid.
        length: u64,
        /// The reader's `record_bytes_max`.
        limit: u64,
    },
    #[error(transparent)]
    Decompress(DecompressError),
    #[error("cannot open: {0}")]
    Open(io::Error),
    #[error("cannot read: {0}")]
    Io(io::Error),
}

impl ReadError {
    /// Returns the remedy, as one sentence.
    pub fn hint(&self) -> &'static str {
        match &self.kind {
            ReadErrorKind::NotATfrecord { .. } => {
                "check that this is a TFRecord file; gzip and zlib are recognised, other compression \
                 must be unpacked first"
            }
            ReadErrorKind::LengthCrc { .. } => {
                "copy the file again from its source; the records before this one are good, nothing \
                 after it can be found"
            }
            ReadErrorKind::DataCrc { .. } => {
                "copy the file again from its source; the records after this one are readable"
            }
            ReadErrorKind::TruncatedHeader { .. } | ReadErrorKind::TruncatedData { .. } => {
                "the copy or the writer stopped early, or is still writing: copy the file again; the \
                 records before this one are good"
            }
            ReadErrorKind::TooLarge { .. } => {
                "write it as several smaller records; a reader of your own may raise `record_bytes_max`"
            }
            ReadErrorKind::Decompress { .. } => {
                "copy the file again from its source, and check that it was written in this scheme"
            }
            ReadErrorKind::Open(error) if error.kind() == io::ErrorKind::NotFound => {
                "check the path, as seen from the machine that reads"
            }
            ReadErrorKind::Open(_) | ReadErrorKind::Io(_) => {
                "check the disk, the mount and the permissions"
            }
        }
    }

    /// Returns true if reading failed, false if the data is invalid.
    pub fn is_io(&self) -> bool {
        matches!(self.kind, ReadErrorKind::Open(_) | ReadErrorKind::Io(_))
    }

    /// Returns the error for a file that cannot be opened.
    pub(crate) fn open(path: &Path, error: io::Error) -> Self {
        Self::at_record(&path.to_string_lossy(), 0, 0, ReadErrorKind::Open(error))
    }

    /// Returns the error for a record; an invalid length in the first header becomes
    /// `NotATfrecord`.
    pub(crate) fn at_record(file: &str, offset: u64, ordinal: u64, kind: ReadErrorKind) -> Self {
        let kind = match kind {
            ReadErrorKind::LengthCrc { stored, computed } if offset == 0 => {
                ReadErrorKind::NotATfrecord { stored, computed }
            }
            kind => kind,
        };
        Self { file: file.to_owned(), offset, ordinal, kind }
    }
}

impl From<LengthCrcMismatch> for ReadErrorKind {
    fn from(LengthCrcMismatch { stored, computed }: LengthCrcMismatch) -> Self {
        Self::LengthCrc { stored, computed }
    }
}

impl From<io::Error> for ReadErrorKind {
    /// Unwraps the decompressor's error from the [`io::Error`] that carried it through `Read`.
    fn from(error: io::Error) -> Self {
        match error.downcast::<DecompressError>() {
            Ok(error) => Self::Decompress(error),
            Err(error) => Self::Io(error),
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, ordinal, kind } = self;
        match kind {
            ReadErrorKind::Open(_) => write!(f, "{file}: {kind}"),
            _ => write!(f, "{file}: {kind}, in record {ordinal} at byte {offset}"),
        }
    }
}

impl std::error::Error for ReadError {}
