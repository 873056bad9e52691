//! What can be wrong with a file, and where.

use std::path::Path;
use std::{fmt, io};

use crate::compression::{Compression, DecompressError};

/// Why a record could not be read: what is wrong, and in which record at which byte of which file.
///
/// `Display` says what and where; [`ReadError::hint`] says what to do about it.
#[derive(Debug)]
pub struct ReadError {
    /// The file, as users know it.
    pub file: String,
    /// Where the record's header starts, in bytes of the uncompressed stream.
    pub offset: u64,
    /// The record's number in the file, from 0.
    pub ordinal: u64,
    /// What is wrong.
    pub kind: ReadErrorKind,
}

/// What is wrong with a record or its file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadErrorKind {
    /// The first header is wrong: most likely this was never a TFRecord file.
    #[error("not a TFRecord file: the checksum of the first record's length is wrong")]
    NotATfrecord {
        /// Masked CRC found in the header.
        stored: u32,
        /// Masked CRC of the length bytes.
        computed: u32,
    },
    /// A later header is wrong. The rest of the file cannot be read: there is no mark to find again.
    #[error(
        "corrupt record: its length does not match its checksum (stored {stored:#010x}, \
         computed {computed:#010x})"
    )]
    LengthCrc {
        /// Masked CRC found in the header.
        stored: u32,
        /// Masked CRC of the length bytes.
        computed: u32,
    },
    /// The data is damaged. Later records can still be read.
    #[error(
        "corrupt record: its {length} bytes do not match their checksum (stored {stored:#010x}, \
         computed {computed:#010x})"
    )]
    DataCrc {
        /// Bytes of data.
        length: u64,
        /// Masked CRC found after the data.
        stored: u32,
        /// Masked CRC of the data.
        computed: u32,
    },
    /// The file ends inside a header.
    #[error("truncated: the file ends {missing} bytes before the end of a record's 12-byte header")]
    TruncatedHeader {
        /// Bytes of the header that are not there.
        missing: u64,
    },
    /// The file ends inside a record.
    #[error(
        "truncated: the record has {length} bytes and a 4-byte checksum, the file ends after \
         {available} of them"
    )]
    TruncatedData {
        /// Bytes of data that the header promises.
        length: u64,
        /// Bytes that follow the header, of the data and its checksum.
        available: u64,
    },
    /// The record is over the limit that the reader was given. Later records can still be read.
    #[error("the record has {length} bytes, over the limit of {limit}")]
    TooLarge {
        /// Bytes of data that the header says, with a right checksum.
        length: u64,
        /// The reader's `record_bytes_max`.
        limit: u64,
    },
    /// The compressed stream is damaged, cut short, or followed by something else.
    #[error("cannot decompress the {scheme} stream: {message}")]
    Decompress {
        /// The scheme that was asked for or detected.
        scheme: Compression,
        /// What the decompressor says.
        message: String,
    },
    /// The file cannot be opened.
    #[error("cannot open: {0}")]
    Open(io::Error),
    /// The operating system or the source failed.
    #[error("cannot read: {0}")]
    Io(io::Error),
}

impl ReadError {
    /// What a person can do about it, as one sentence.
    #[must_use]
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

    /// Whether the next record can be found although this one is lost.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        matches!(self.kind, ReadErrorKind::DataCrc { .. } | ReadErrorKind::TooLarge { .. })
    }

    /// Whether reading failed, rather than what was read being wrong.
    #[must_use]
    pub fn is_io(&self) -> bool {
        matches!(self.kind, ReadErrorKind::Open(_) | ReadErrorKind::Io(_))
    }

    /// The file at `path` could not be opened.
    pub(crate) fn open(path: &Path, error: io::Error) -> Self {
        Self::at_record(&path.to_string_lossy(), 0, 0, ReadErrorKind::Open(error))
    }

    /// An error in a record; a bad length in the very first header says so.
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

impl From<io::Error> for ReadErrorKind {
    /// Takes the decompressor's complaint out of the [`io::Error`] that carried it through `Read`.
    fn from(error: io::Error) -> Self {
        match error.downcast::<DecompressError>() {
            Ok(DecompressError { scheme, message }) => Self::Decompress { scheme, message },
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
