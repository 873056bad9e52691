//! TFRecord files and the `tf.train.Example`s in them, over bytes and [`std::io`].
//!
//! Framing and checksums, whole-file compression, an index of a file in one pass, and Examples
//! parsed from the wire directly into columns. This crate never starts a thread, opens a
//! connection, reads a clock or draws a random number, and never trusts a length that it has not
//! checked: any bytes give records, or an error with file, offset and ordinal.
//!
//! Start at [`ChunkReader`], the hot path, or at the simpler [`open_records`]; then [`index_file`],
//! [`example::ExampleParser`] and [`create`].
//!
//! ```
//! use shardfeed_tfrecord::{Compression, CompressionChoice, create, open_records};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("hello.tfrecord.gz");
//! let mut writer = create(&path, Compression::Gzip)?;
//! writer.write(b"hello")?;
//! writer.finish()?;
//!
//! let mut reader = open_records(&path, CompressionChoice::Auto)?;
//! while let Some(record) = reader.next_record()? {
//!     assert_eq!((record.data, record.offset, record.ordinal), (&b"hello"[..], 0, 0));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod error;
mod frame;

mod compression;

mod chunk;
mod mmap;
mod reader;

mod writer;

mod index;

pub mod example;

pub use chunk::{Chunk, ChunkOptions, ChunkReader, RecordSpan};
pub use compression::{
    Compression, CompressionChoice, Decoder, DecompressError, UnknownCompression, detect,
};
pub use error::{ReadError, ReadErrorKind};
pub use frame::{
    DataCrcMismatch, FOOTER_BYTES, HEADER_BYTES, LengthCrcMismatch, check_data, decode_header,
    encode_footer, encode_header, masked_crc32c,
};
pub use index::{
    Break, IndexOptions, Mark, ReadAt, ShardIndex, index_file, index_records, index_source,
};
pub use mmap::{MappedFile, MappedRecords};
pub use reader::{Record, RecordReader, open_records, open_source};
pub use writer::{FileRecordWriter, NewFile, RecordWriter, create};
