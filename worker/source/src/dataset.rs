mod bits;
mod costs;
mod counting;
mod grouping;
mod kept_files;
mod kept_maps;
mod map_names;
mod mixed;
mod pack_counts;
mod samples;
pub(crate) mod scan_count;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfeed_pipeline::SampleProgram;
use shardfeed_plan::{ChangeStamp, ContentDigest, Corrupt, Digest, Manifest, Sample, Shard};
use shardfeed_tfrecord::{Break, Compression, FOOTER_BYTES, HEADER_BYTES, Mark, ShardIndex};

use crate::blocks::BlockCache;
use crate::cache::{Cache, CacheOptions, Entries, IndexedFile};
use crate::discover::{Found, discover};
use crate::error::LoadError;
use crate::index::{ScanProgress, index_into};
use crate::remote::is_remote;
use crate::rights::Rights;
use crate::rules::FileRules;
use scan_count::ScanCounter;

pub use grouping::Grouping;
pub use kept_files::{keep_dataset, keep_files, kept_dataset};
pub use mixed::{Mixed, OpenSource, SourceVersion};
pub use samples::{
    CountedFile, DamagedRecord, HeldMap, MapRef, PackTally, RowTally, SampleMap, SampleMaps,
    SamplePart, SamplePlace, SampleTally, WindowTally,
};

/// A dataset's manifest and the metadata of each file, both in manifest order.
#[derive(Clone, Debug)]
pub struct Dataset {
    root: PathBuf,
    manifest: Manifest,
    files: Vec<DatasetFile>,
    pub(crate) blocks: Option<Arc<BlockCache>>,
    left_out: Vec<LeftOut>,
    rights: Rights,
    /// `None`: every record is a sample.
    samples: Option<Arc<SampleMaps>>,
    /// The sources of a mixture, whose shards these are.
    mixed: Option<Arc<Mixed>>,
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
    pub reason: String,
}

/// Results of indexing one file.
#[derive(Clone, Debug)]
pub struct DatasetFile {
    /// Absolute path, or URL.
    pub path: PathBuf,
    /// Change stamp of the file when it was indexed.
    pub stamp: ChangeStamp,
    /// Time of the last change of a local file or its attributes, ns since 1970; otherwise 0.
    pub(crate) changed_ns: i128,
    pub compression: Compression,
    pub records: u64,
    /// Bytes of data of all records, without framing.
    pub data_bytes: u64,
    pub record_bytes_max: u64,
    /// Positions of some records, from which others are found; that of the first one is known.
    pub marks: Vec<Mark>,
}

impl DatasetFile {
    /// Returns the bytes of its indexed records with their framing, uncompressed.
    pub fn stream_bytes(&self) -> u64 {
        self.data_bytes.saturating_add(self.records * (HEADER_BYTES + FOOTER_BYTES) as u64)
    }

    /// True if it is in an object store or on a web server.
    pub fn is_remote(&self) -> bool {
        is_remote(&self.path)
    }
}

impl Dataset {
    /// Finds the files that `patterns` name and indexes those that are not in the cache.
    /// - `program`: its samples are those of the dataset; files to be indexed are counted, too.
    /// - `progress`: called now and then; returning `false` cancels.
    ///
    /// # Errors  No file is found; a file is damaged or listed twice; `Interrupted`; as
    /// [`Dataset::with_samples`].
    pub fn open(
        patterns: &[String],
        rules: FileRules,
        program: Option<&Arc<SampleProgram>>,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        let found = discover(patterns, &mut |_| progress(ScanProgress::listing(0)))?;
        let count = ScanCounter::of(&found.root, program, cache);
        let (none, of) = (Entries::new(), (rules, cache));
        let dataset = Self::indexed(found, of, &none, (Rights::Own, count), progress)?;
        match program {
            Some(program) => dataset.with_samples(program, rules.corrupt, cache, progress),
            None => Ok(dataset),
        }
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
        let found = Found::new(root, paths, Vec::new());
        Self::index(found, rules, cache, &Entries::new(), Rights::Own, progress)
    }

    /// As [`Dataset::open`], with other workers' results: unchanged files are not scanned.
    /// - `of_others`: these results, by paths. `rights`: access rights with which its files are opened, now and later.
    pub fn index(
        found: Found,
        rules: FileRules,
        cache: &CacheOptions,
        of_others: &Entries,
        rights: Rights,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        Self::indexed(found, (rules, cache), of_others, (rights, None), progress)
    }

    fn indexed(
        found: Found,
        (rules, cache): (FileRules, &CacheOptions),
        of_others: &Entries,
        (rights, count): (Rights, Option<Arc<ScanCounter>>),
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        let mut kept = Cache::open(&cache.folder, &found.root);
        let by = (&rights, count);
        index_into(&mut kept, &found, rules, cache, of_others, by, progress)?;
        let entry = |path: &str| *kept.entries.remove(path).expect("every file was indexed");
        Self::of_entries(found, entry, (rules, cache), rights)
    }

    /// Indexes files into a cache of their folder.
    /// - `program`: its samples are counted in the same pass.
    ///
    /// # Errors  As [`Dataset::open`].
    pub fn index_into(
        kept: &mut Cache,
        found: &Found,
        (rules, cache): (FileRules, &CacheOptions),
        rights: &Rights,
        program: Option<&Arc<SampleProgram>>,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<(), LoadError> {
        let count = ScanCounter::of(&found.root, program, cache);
        index_into(kept, found, rules, cache, &Entries::new(), (rights, count), progress)
    }

    /// Returns the dataset of indexed files, which need not exist.
    /// - `entry`: called with the path of each file, in manifest order.
    ///
    /// # Errors  The block cache of a remote folder cannot be opened.
    pub fn of_entries(
        found: Found,
        mut entry: impl FnMut(&str) -> IndexedFile,
        (rules, cache): (FileRules, &CacheOptions),
        rights: Rights,
    ) -> Result<Self, LoadError> {
        let blocks = if is_remote(&found.root) { cache.blocks()? } else { None };
        let mut paths = found.paths;
        paths.sort_unstable();
        let mut shards = Vec::with_capacity(paths.len());
        let mut files = Vec::with_capacity(paths.len());
        let mut left_out = Vec::new();
        for path in paths {
            let IndexedFile { state, mut index, .. } = entry(&path);
            if let Some(left) = leave_out(&mut index, shards.len() as u32, rules.corrupt) {
                left_out.push(left);
            }
            files.push(DatasetFile {
                path: found.root.join(&path),
                stamp: state.stamp,
                changed_ns: state.inode.changed_ns,
                compression: index.compression,
                records: index.records,
                data_bytes: index.data_bytes,
                record_bytes_max: index.record_bytes_max,
                marks: index.marks,
            });
            let digest = Digest::from_bytes(index.digest);
            shards.push(Shard { path, records: index.records, digest });
        }
        let (root, manifest) = (found.root, Manifest::new(shards)?);
        let (samples, mixed) = (None, None);
        Ok(Self { root, manifest, files, blocks, left_out, rights, samples, mixed })
    }

    pub fn content(&self) -> ContentDigest {
        let digests = self.manifest.shards().iter().map(|shard| shard.digest);
        match &self.samples {
            Some(maps) => maps.content(digests),
            None => self.manifest.digest(),
        }
    }

    /// Returns the sources of the mixture that it consists of; `None` for one dataset.
    pub fn mixed(&self) -> Option<&Arc<Mixed>> {
        self.mixed.as_ref()
    }

    /// Returns the samples of its shards; `None` if every record is a sample.
    pub fn samples(&self) -> Option<&Arc<SampleMaps>> {
        self.samples.as_ref()
    }

    /// Returns the number of samples of each shard, in manifest order.
    pub fn sample_counts(&self) -> Vec<u64> {
        self.samples.as_ref().map_or_else(|| self.manifest.counts(), |maps| maps.counts())
    }

    /// Returns the place of a sample in its shard.
    pub fn place_of(&self, sample: Sample) -> SamplePlace {
        match &self.samples {
            Some(maps) => maps.place_of(sample),
            None => SamplePlace { record: sample.ordinal, part: 0 },
        }
    }

    /// Returns the index in its shard of a sample's record.
    pub fn record_of(&self, sample: Sample) -> u64 {
        self.place_of(sample).record
    }

    /// Returns the index in its shard of the record that a row was read from.
    /// - `part`: of the row.
    pub fn record_at(&self, sample: Sample, part: u32) -> u64 {
        match self.has_groups(sample.shard) {
            true => u64::from(part),
            false => self.record_of(sample),
        }
    }

    /// True if packs or windows of a shard are samples.
    fn has_groups(&self, shard: u32) -> bool {
        self.samples.as_ref().is_some_and(|maps| maps.maps()[shard as usize].is_grouped())
    }

    /// Returns the number of samples of a shard, and the bytes of their data.
    pub fn amounts(&self, shard: u32) -> (u64, u64) {
        match &self.samples {
            Some(maps) => {
                let map = &maps.maps()[shard as usize];
                (map.samples(), map.data_bytes())
            }
            None => {
                let file = &self.files[shard as usize];
                (file.records, file.data_bytes)
            }
        }
    }

    /// Returns the folder or URL of its shards' paths; of a mixture that of its first source.
    pub fn root(&self) -> &Path {
        &self.root
    }

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

    /// Returns the mean bytes of a sample's record, rounded up; 0 without samples.
    pub fn record_bytes_mean(&self) -> u64 {
        self.record_bytes_mean_of(0..self.files.len() as u32)
    }

    /// Returns the mean bytes of a sample's record in these shards, rounded up; 0 without samples.
    pub fn record_bytes_mean_of(&self, shards: Range<u32>) -> u64 {
        let (samples, bytes) = shards
            .map(|shard| self.amounts(shard))
            .fold((0, 0), |(samples, bytes): (u64, u64), (more, of)| {
                (samples + more, bytes.saturating_add(of))
            });
        bytes.div_ceil(samples.max(1))
    }

    /// Returns the mean bytes that `samples` samples of these shards take if they are held together,
    /// of the shards with the largest ones, rounded up. Rows of a record hold it once.
    pub fn record_bytes_together(&self, shards: &[u32], samples: u64) -> u64 {
        let amounts = shards.iter().map(|shard| {
            let (count, bytes) = self.amounts(*shard);
            let file = &self.files[*shard as usize];
            (count, if self.has_groups(*shard) { bytes } else { bytes.min(file.data_bytes) })
        });
        let files = amounts.filter(|(count, _)| *count > 0);
        let mut files: Vec<_> =
            files.map(|(count, bytes)| (bytes.div_ceil(count), count)).collect();
        files.sort_unstable_by_key(|(mean, _)| std::cmp::Reverse(*mean));
        let (mut left, mut bytes) = (samples.max(1), 0_u64);
        for (mean, count) in files {
            let taken = left.min(count);
            bytes = bytes.saturating_add(taken.saturating_mul(mean));
            left -= taken;
            if left == 0 {
                break;
            }
        }
        bytes.div_ceil((samples.max(1) - left).max(1))
    }

    /// Returns the access rights with which its files are opened.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Returns the access rights with which the file of a shard is opened.
    pub(crate) fn rights_of(&self, shard: u32) -> &Rights {
        self.mixed.as_ref().map_or(&self.rights, |mixed| &mixed.version(shard).rights)
    }

    /// True if bytes of its files are cached on this host.
    pub fn is_cached(&self) -> bool {
        self.blocks.is_some()
    }

    /// True if any of its files is in an object store or on a web server.
    pub fn is_remote(&self) -> bool {
        match &self.mixed {
            Some(mixed) => mixed.versions.iter().any(|version| is_remote(&version.root)),
            None => is_remote(&self.root),
        }
    }
}

/// Removes the part that a policy leaves out from a file's index; its digest covers the rest.
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
