//! A dataset whose files were found and indexed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfeed_plan::{ChangeStamp, Corrupt, Digest, Manifest, Shard};
use shardfeed_tfrecord::{Break, Compression, FOOTER_BYTES, HEADER_BYTES, Mark, ShardIndex};

use crate::blocks::BlockCache;
use crate::cache::CacheOptions;
use crate::discover::{Found, discover};
use crate::error::LoadError;
use crate::index::{ScanProgress, Seeds, index_files};
use crate::remote::is_remote;
use crate::rights::Rights;
use crate::rules::FileRules;

/// A dataset's manifest and the metadata of each file, both in manifest order.
#[derive(Debug)]
pub struct Dataset {
    root: PathBuf,
    manifest: Manifest,
    files: Vec<DatasetFile>,
    blocks: Option<Arc<BlockCache>>,
    left_out: Vec<LeftOut>,
    rights: Rights,
}

/// Part of a damaged file that indexing left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Shard ordinal.
    pub shard: u32,
    /// Ordinal of the first record that is damaged, or lost with all records behind it.
    pub ordinal: u64,
    /// Offset of its header in the uncompressed file, in bytes.
    pub offset: u64,
    /// True if the whole file is left out, false if only the part from there on is.
    pub is_whole: bool,
    /// Human-readable reason.
    pub reason: String,
}

/// Results of indexing one file.
#[derive(Clone, Debug)]
pub struct DatasetFile {
    /// Absolute path, or URL.
    pub path: PathBuf,
    /// Change stamp of the file when it was indexed.
    pub stamp: ChangeStamp,
    /// Compression of the file.
    pub compression: Compression,
    /// Number of records.
    pub records: u64,
    /// Bytes of data of all records, without framing.
    pub data_bytes: u64,
    /// Bytes of data of the largest record.
    pub record_bytes_max: u64,
    /// Positions of some records, from which others are found.
    pub marks: Vec<Mark>,
}

impl Dataset {
    /// Finds the files that `patterns` name and indexes those that are not in the cache.
    /// - `progress`: called now and then; returning `false` cancels.
    ///
    /// # Errors  No file is found; a file is damaged or listed twice; `Interrupted`.
    pub fn open(
        patterns: &[String],
        rules: impl Into<FileRules>,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        let found = discover(patterns, &mut |_| progress(ScanProgress::listing(0)))?;
        Self::index(found, rules.into(), cache, &Seeds::new(), Rights::Own, progress)
    }

    /// Indexes known files of a folder.
    /// - `paths`: relative to `root`.
    ///
    /// # Errors  As [`Dataset::open`].
    pub fn open_paths(
        root: PathBuf,
        paths: Vec<String>,
        rules: FileRules,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        let found = Found { root, paths, stamps: Vec::new() };
        Self::index(found, rules, cache, &Seeds::new(), Rights::Own, progress)
    }

    /// As [`Dataset::open`], with the results of other workers: files whose change stamps still
    /// match are not scanned.
    /// - `rights`: access rights with which its files are opened, now and later.
    pub fn index(
        found: Found,
        rules: FileRules,
        cache: &CacheOptions,
        seeds: &Seeds,
        rights: Rights,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        let blocks = if is_remote(&found.root) { cache.blocks()? } else { None };
        let entries = index_files(&found, rules, cache, seeds, &rights, progress)?;
        let mut pairs: Vec<_> = found.paths.into_iter().zip(entries).collect();
        pairs.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        let mut shards = Vec::with_capacity(pairs.len());
        let mut files = Vec::with_capacity(pairs.len());
        let mut left_out = Vec::new();
        for (path, mut entry) in pairs {
            if let Some(left) = leave_out(&mut entry.index, shards.len() as u32, rules.corrupt) {
                left_out.push(left);
            }
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
        let (root, manifest) = (found.root, Manifest::new(shards)?);
        Ok(Self { root, manifest, files, blocks, left_out, rights })
    }

    /// Returns the folder or URL that its shards' paths are relative to.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns its shards and their digest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns its files, in manifest order.
    pub fn files(&self) -> &[DatasetFile] {
        &self.files
    }

    /// Returns the parts of damaged files that are left out, in manifest order.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Returns the mean bytes of a record, rounded up; 0 without records.
    pub fn record_bytes_mean(&self) -> u64 {
        let bytes: u64 = self.files.iter().map(|file| file.data_bytes).sum();
        bytes.div_ceil(self.manifest.records().max(1))
    }

    /// Returns the mean bytes of the `samples` largest records that can be held together, rounded
    /// up, where a record counts as its file's mean.
    pub fn record_bytes_together(&self, samples: u64) -> u64 {
        let mean = |file: &DatasetFile| file.data_bytes.div_ceil(file.records.max(1));
        let mut files: Vec<_> = self.files.iter().filter(|file| file.records > 0).collect();
        files.sort_unstable_by_key(|file| std::cmp::Reverse(mean(file)));
        let (mut left, mut bytes) = (samples.max(1), 0_u64);
        for file in files {
            let taken = left.min(file.records);
            bytes = bytes.saturating_add(taken.saturating_mul(mean(file)));
            left -= taken;
            if left == 0 {
                break;
            }
        }
        bytes.div_ceil((samples.max(1) - left).max(1))
    }

    /// Returns the mean bytes of an uncompressed file, rounded up.
    pub fn stream_bytes_mean(&self) -> u64 {
        let framing = (HEADER_BYTES + FOOTER_BYTES) as u64;
        let bytes: u64 = self.files.iter().map(|f| f.data_bytes + framing * f.records).sum();
        bytes.div_ceil(self.files.len().max(1) as u64)
    }

    /// Returns the access rights with which its files are opened.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// True if bytes of its files are cached on this host.
    pub fn is_cached(&self) -> bool {
        self.blocks.is_some()
    }

    /// Returns the cache for bytes of its files, if they are remote and caching is enabled.
    pub(crate) fn blocks(&self) -> Option<&Arc<BlockCache>> {
        self.blocks.as_ref()
    }

    /// True if its files are in an object store or on a web server.
    pub fn is_remote(&self) -> bool {
        is_remote(&self.root)
    }

    /// True if any file is compressed.
    pub fn is_compressed(&self) -> bool {
        self.files.iter().any(|file| file.compression != Compression::None)
    }
}

/// Removes the part that a policy leaves out from a file's index. The digest covers the remaining
/// records.
pub fn leave_out(index: &mut ShardIndex, shard: u32, corrupt: Corrupt) -> Option<LeftOut> {
    let is_whole = corrupt == Corrupt::SkipFile;
    let corrupt = index.first_corrupt.take().filter(|_| is_whole);
    let Break { ordinal, offset, message } = corrupt.or_else(|| index.broken.take())?;
    if is_whole {
        let ShardIndex { compression, data_verified, .. } = *index;
        *index = ShardIndex { data_verified, ..ShardIndex::empty(compression) };
    }
    Some(LeftOut { shard, ordinal, offset, is_whole, reason: message })
}
