//! A dataset that has been found and indexed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfeed_plan::{ChangeStamp, Digest, Manifest, Shard};
use shardfeed_tfrecord::{Compression, CompressionChoice, FOOTER_BYTES, HEADER_BYTES, Mark};

use crate::blocks::BlockCache;
use crate::cache::CacheOptions;
use crate::discover::{Found, discover};
use crate::error::LoadError;
use crate::index::{ScanProgress, Seeds, index_files};
use crate::remote::is_remote;

/// A dataset's manifest and what is known of each file, both in manifest order.
#[derive(Debug)]
pub struct Dataset {
    root: PathBuf,
    manifest: Manifest,
    files: Vec<DatasetFile>,
    blocks: Option<Arc<BlockCache>>,
}

/// What indexing found in one file.
#[derive(Clone, Debug)]
pub struct DatasetFile {
    /// Absolute path, or URL.
    pub path: PathBuf,
    /// How the file looked when it was indexed.
    pub stamp: ChangeStamp,
    /// How it is compressed.
    pub compression: Compression,
    /// Records.
    pub records: u64,
    /// Bytes of data of all records, without framing.
    pub data_bytes: u64,
    /// Bytes of data of the largest record.
    pub record_bytes_max: u64,
    /// Some record starts, from which others are found.
    pub marks: Vec<Mark>,
}

impl Dataset {
    /// Finds the files that `patterns` name and indexes those that are not in the cache.
    /// - `progress`: called now and then; returning `false` gives up.
    ///
    /// # Errors  Nothing is found; a file is damaged or listed twice; `Interrupted`.
    pub fn open(
        patterns: &[String],
        compression: CompressionChoice,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        let listing = ScanProgress::listing();
        let found = discover(patterns, &mut || progress(listing))?;
        Self::index(found, compression, cache, &Seeds::new(), progress)
    }

    /// Indexes known files of a folder.
    /// - `paths`: relative to `root`.
    ///
    /// # Errors  As [`Dataset::open`].
    pub fn open_paths(
        root: PathBuf,
        paths: Vec<String>,
        compression: CompressionChoice,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        let found = Found { root, paths, stamps: Vec::new() };
        Self::index(found, compression, cache, &Seeds::new(), progress)
    }

    /// As [`Dataset::open`], with what others found: files that look as they did then are not
    /// scanned.
    pub(crate) fn index(
        found: Found,
        compression: CompressionChoice,
        cache: &CacheOptions,
        seeds: &Seeds,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        let blocks = if is_remote(&found.root) { cache.blocks()? } else { None };
        let entries = index_files(&found, compression, cache, seeds, progress)?;
        let mut pairs: Vec<_> = found.paths.into_iter().zip(entries).collect();
        pairs.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        let mut shards = Vec::with_capacity(pairs.len());
        let mut files = Vec::with_capacity(pairs.len());
        for (path, entry) in pairs {
            files.push(DatasetFile {
                path: found.root.join(&path),
                stamp: entry.stamp,
                compression: entry.index.compression,
                records: entry.index.records,
                data_bytes: entry.index.data_bytes,
                record_bytes_max: entry.index.record_bytes_max,
                marks: entry.index.marks,
            });
            let digest = Digest::from_bytes(entry.index.digest);
            shards.push(Shard { path, records: entry.index.records, digest });
        }
        Ok(Self { root: found.root, manifest: Manifest::new(shards)?, files, blocks })
    }

    /// The folder that its shards' paths are relative to, or its URL.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its shards and their digest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its files, in manifest order.
    pub fn files(&self) -> &[DatasetFile] {
        &self.files
    }

    /// Mean bytes of a record, rounded up; 0 without records.
    pub fn record_bytes_mean(&self) -> u64 {
        let bytes: u64 = self.files.iter().map(|file| file.data_bytes).sum();
        bytes.div_ceil(self.manifest.records().max(1))
    }

    /// Mean bytes of an uncompressed file, rounded up.
    pub fn stream_bytes_mean(&self) -> u64 {
        let framing = (HEADER_BYTES + FOOTER_BYTES) as u64;
        let bytes: u64 = self.files.iter().map(|f| f.data_bytes + framing * f.records).sum();
        bytes.div_ceil(self.files.len().max(1) as u64)
    }

    /// Where bytes of its files are kept, if they are remote and that is wanted.
    pub(crate) fn blocks(&self) -> Option<&Arc<BlockCache>> {
        self.blocks.as_ref()
    }

    /// Whether its files are in an object store or on a web server.
    pub fn is_remote(&self) -> bool {
        is_remote(&self.root)
    }

    /// Whether any file is compressed.
    pub fn is_compressed(&self) -> bool {
        self.files.iter().any(|file| file.compression != Compression::None)
    }
}
