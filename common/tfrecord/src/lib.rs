//! TFRecord files and the `tf.train.Example`s in them, over bytes and [`std::io`].
//!
//! Framing and checksums, whole-file compression, an index of a file in one pass, and Examples
//! parsed from the wire directly into columns. This crate never starts a thread, opens a
//! connection, reads a clock or draws a random number, and never trusts a length that it has not
//! checked: any bytes give records, or an error with file, offset and ordinal.
//!
//! Start at [`ChunkReader`]; then [`index_source`], [`example::ExampleParser`] and [`create`].
//!
//! ```
//! use shardfeed_tfrecord::{
//!     ChunkOptions, ChunkReader, Compression, CompressionChoice, create, open_source,
//! };
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("hello.tfrecord.gz");
//! let mut writer = create(&path, Compression::Gzip)?;
//! writer.write(b"hello")?;
//! writer.finish()?;
//!
//! let source = open_source(&path, CompressionChoice::Auto)?;
//! let mut reader = ChunkReader::new(source, "hello.tfrecord.gz", ChunkOptions::default());
//! while let Some(chunk) = reader.next_chunk()? {
//!     assert_eq!(chunk.iter().collect::<Vec<_>>(), [b"hello"]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod error;
mod frame;

mod compression;

mod chunk;

mod writer;

mod index;

pub mod example;

pub use chunk::{Chunk, ChunkOptions, ChunkReader, RecordSpan};
pub use compression::{
    Compression, CompressionChoice, Decoder, DecompressError, UnknownCompression, detect,
    open_source,
};
pub use error::{ReadError, ReadErrorKind};
pub use frame::{
    DataCrcMismatch, FOOTER_BYTES, HEADER_BYTES, LengthCrcMismatch, check_data, decode_header,
    encode_footer, encode_header, masked_crc32c,
};
pub use index::{
    Break, IndexOptions, Mark, ReadAt, ShardIndex, index_chunks, index_records, index_source,
};
pub use writer::{FileRecordWriter, NewFile, RecordWriter, create};
