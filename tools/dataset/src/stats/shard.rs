//! Facts about one file.

use shardfeed_tfrecord::Compression;

#[derive(Clone, Debug)]
pub(super) struct ShardFacts {
    pub(super) path: String,
    pub(super) records: u64,
    pub(super) stored_bytes: u64,
    /// Uncompressed size with framing, bytes.
    pub(super) stream_bytes: u64,
    pub(super) compression: Compression,
    /// Result of compressing records; only for uncompressed files that were selected for it.
    pub(super) sampled: Option<Sampled>,
}

/// Sizes of some records before and after compression.
#[derive(Clone, Debug)]
pub(super) struct Sampled {
    pub(super) raw_bytes: u64,
    pub(super) compressed_bytes: u64,
}
