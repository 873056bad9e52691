//! The files that patterns named, kept on this host and in an index: a source whose files are gone
//! has the samples that it had, so that a stage of a mixture that ended needs no files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfeed_pipeline::SampleProgram;
use shardfeed_plan::{ChangeStamp, Digest, Manifest, Shard};
use shardfeed_tfrecord::{Compression, ShardIndex};

use super::Dataset;
use super::samples::SampleMaps;
use crate::cache::kept::KeptObjects;
use crate::cache::object_kind::ObjectKind;
use crate::cache::{Cache, CacheOptions, Entries, IndexedFile};
use crate::discover::{Found, absolute_pattern};
use crate::error::LoadError;
use crate::index::{ScanProgress, ScanStage};
use crate::rights::Rights;
use crate::rules::FileRules;

const FILES: ObjectKind = ObjectKind("shardfeed files 1\n");
const DATASETS: ObjectKind = ObjectKind("shardfeed datasets 1\n");

/// Returns the digest of a dataset's files: of their paths and content.
pub(super) fn files_digest(manifest: &Manifest) -> Digest {
    let shard = |shard: &Shard| {
        [shard.path.as_bytes(), &[0], &shard.records.to_le_bytes(), shard.digest.as_bytes()]
            .concat()
    };
    let shards: Vec<Vec<u8>> = manifest.shards().iter().map(shard).collect();
    Digest::of_parts(shards.iter().map(Vec::as_slice))
}

/// Keeps the files that `patterns` name: in the cache of this host, and in the background in its index.
/// - `paths`: relative to `root`. `digest`: as in [`SourceVersion`](super::SourceVersion).
///
/// # Errors  There is no working directory, or it is not UTF-8.
pub fn keep_files(
    patterns: &[String],
    (root, paths, digest): (&Path, Vec<String>, Digest),
    cache: &CacheOptions,
) -> Result<(), LoadError> {
    let name = name_of(patterns)?;
    let Some(root) = root.to_str() else { return Ok(()) };
    let body = postcard::to_stdvec(&(root, paths, digest.as_bytes())).expect("plain data");
    keep(FILES, name, &body, cache);
    Ok(())
}

/// Keeps the name of a cluster's dataset of the files that `patterns` name, as [`keep_files`] does.
/// - `rules`, `program`: rules for damaged files and the encoded sample program, which are parts of
///   the dataset.
///
/// # Errors  As [`keep_files`].
pub fn keep_dataset(
    patterns: &[String],
    (rules, program): (FileRules, &[u8]),
    dataset: &str,
    cache: &CacheOptions,
) -> Result<(), LoadError> {
    keep(DATASETS, name_of_dataset(patterns, rules, program)?, dataset.as_bytes(), cache);
    Ok(())
}

/// Returns the name that [`keep_dataset`] kept.
///
/// # Errors  The index cannot be read; `Interrupted`.
pub fn kept_dataset(
    patterns: &[String],
    (rules, program): (FileRules, &[u8]),
    cache: &CacheOptions,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<String>, LoadError> {
    let body = kept(DATASETS, &name_of_dataset(patterns, rules, program)?, cache, go_on)?;
    Ok(body.and_then(|body| String::from_utf8(body).ok()))
}

fn keep(kind: ObjectKind, name: String, body: &[u8], cache: &CacheOptions) {
    let (object, kept) = (kind.encode(&name, body), KeptObjects::new(cache));
    if kept.here(kind, &name).as_ref() != Some(&object) {
        kept.keep(kind, [(&name, object.clone())]);
    }
    let Some(index) = cache.index.clone() else { return };
    let keep = move || {
        let name = kind.in_index(&name);
        let known = index.read(std::slice::from_ref(&name), &mut || true).unwrap_or_default();
        if known.first() != Some(&Some(object.clone())) {
            // It warns if the index cannot be written.
            let _ = index.offer(&name, &object, &mut || true);
        }
    };
    // Not joined: a store that hangs must not delay the first batch. The next start writes it, too.
    let _ = std::thread::Builder::new().name("shardfeed-keep".into()).spawn(keep);
}

fn kept(
    kind: ObjectKind,
    name: &str,
    cache: &CacheOptions,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Vec<u8>>, LoadError> {
    let decode = |object: &[u8]| kind.decode(name, object).map(<[u8]>::to_vec);
    KeptObjects::of_hints(cache).find(kind, name, go_on, decode)
}

impl Dataset {
    /// Returns a dataset of files that are gone, of which no record is read.
    /// - `shards`: path and number of records of each.
    ///
    /// # Errors  The block cache of a remote folder cannot be opened.
    pub fn of_missing(
        root: PathBuf,
        shards: &[(String, u64)],
        rules: (FileRules, &CacheOptions),
    ) -> Result<Self, LoadError> {
        let records: BTreeMap<_, _> = shards.iter().cloned().collect();
        let entry = |path: &str| {
            let stamp = ChangeStamp { size_bytes: 0, modified_ns: 0, etag: None };
            let empty = ShardIndex::empty(Compression::None);
            let (digest, data_verified) = ([0; 32], true);
            let index = ShardIndex { records: records[path], digest, data_verified, ..empty };
            IndexedFile::new(stamp, rules.0, index)
        };
        let found = Found::new(root, records.keys().cloned().collect(), vec![]);
        Self::of_entries(found, entry, rules, Rights::Own)
    }

    /// Returns the dataset of files that `patterns` named before, without the files; `None` if their
    /// records or samples are not kept, or those of other files under their names are.
    ///
    /// # Errors  The index cannot be read; `Interrupted`.
    pub fn kept(
        patterns: &[String],
        rules: FileRules,
        program: Option<&Arc<SampleProgram>>,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Option<Self>, LoadError> {
        let waiting = ScanProgress::at(ScanStage::Listing);
        let body = kept(FILES, &name_of(patterns)?, cache, &mut || progress(waiting))?;
        let found: Option<(PathBuf, Vec<String>, [u8; 32])> =
            body.and_then(|body| postcard::from_bytes(&body).ok());
        let Some((root, paths, digest)) = found else { return Ok(None) };
        let found = Found::new(root, paths, vec![]);
        let mut known = Cache::open(&cache.folder, &found.root);
        known.refresh();
        let shared = match &cache.index {
            Some(index) => index.entries(&found.root, &mut || progress(waiting))?,
            None => Entries::new(),
        };
        let entry = |path: &str| {
            let entry = known.entries.get(path).or_else(|| shared.get(path));
            entry.filter(|entry| entry.suits(rules))
        };
        if found.paths.iter().any(|path| entry(path).is_none()) {
            return Ok(None);
        }
        let entry = |path: &str| (**entry(path).expect("all are known")).clone();
        let dataset = Self::of_entries(found, entry, (rules, cache), Rights::Own)?;
        // Other files may have had these names since.
        if files_digest(&dataset.manifest) != Digest::from_bytes(digest) {
            return Ok(None);
        }
        let Some(program) = program else { return Ok(Some(dataset)) };
        let dataset = Arc::new(dataset);
        let maps = dataset.known_maps(program, cache, progress)?;
        let Some(maps) = maps.into_iter().collect() else { return Ok(None) };
        let maps = SampleMaps::new(maps, vec![], 0);
        Arc::unwrap_or_clone(dataset).with_maps(program, Arc::new(maps)).map(Some)
    }
}

fn name_of(patterns: &[String]) -> Result<String, LoadError> {
    let absolute = patterns.iter().map(|pattern| absolute_pattern(pattern));
    let absolute = absolute.collect::<Result<Vec<_>, _>>()?;
    Ok(Digest::of_parts([absolute.join("\n").as_bytes()]).to_string()[..32].to_owned())
}

fn name_of_dataset(
    patterns: &[String],
    FileRules { compression, corrupt }: FileRules,
    program: &[u8],
) -> Result<String, LoadError> {
    let of = format!("{} {compression} {corrupt}\0", name_of(patterns)?);
    Ok(Digest::of_parts([of.as_bytes(), program]).to_string()[..32].to_owned())
}
