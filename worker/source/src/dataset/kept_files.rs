//! The files that patterns named, kept on this host and in an index: a source whose files are gone
//! has the samples that it had, so that a stage of a mixture that ended needs no files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfeed_pipeline::SampleProgram;
use shardfeed_plan::{Digest, Manifest, Shard};

use super::Dataset;
use super::samples::SampleMaps;
use crate::cache::object_kind::ObjectKind;
use crate::cache::{Cache, CacheOptions, Entries};
use crate::discover::{Found, absolute_pattern};
use crate::error::LoadError;
use crate::index::{ScanProgress, ScanStage, suits};
use crate::rights::Rights;
use crate::rules::FileRules;

const FILES: ObjectKind = ObjectKind("shardfeed files 1\n");

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
/// - `paths`: relative to `root`. `digest`: of the files, as [`SourceVersion`](super::SourceVersion)
///   has it.
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
    let object = FILES.encode(&name, &body);
    if let Some(folder) = cache.folder.folder() {
        let log = cache.log(folder.join(FILES.folder()));
        if log.read(&name).as_ref() != Some(&object) {
            log.add([(&name, object.clone())]);
        }
    }
    let Some(index) = cache.index.clone() else { return Ok(()) };
    let keep = move || {
        let name = in_index(&name);
        let known = index.read(std::slice::from_ref(&name), &mut || true).unwrap_or_default();
        if known.first() != Some(&Some(object.clone())) {
            // It warns if the index cannot be written.
            let _ = index.offer(&name, &object, &mut || true);
        }
    };
    // Not joined: a store that hangs must not delay the first batch. The next start writes it, too.
    let _ = std::thread::Builder::new().name("shardfeed-keep".into()).spawn(keep);
    Ok(())
}

impl Dataset {
    /// Returns the dataset of files that `patterns` named before, without the files; `None` if their
    /// records or samples are not kept, or those of other files under their names are.
    ///
    /// # Errors  The index cannot be read, or is damaged; `Interrupted`.
    pub fn kept(
        patterns: &[String],
        rules: FileRules,
        program: Option<&Arc<SampleProgram>>,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Option<Self>, LoadError> {
        let waiting = ScanProgress::at(ScanStage::Listing);
        let name = name_of(patterns)?;
        let log = cache.folder.folder().map(|folder| cache.log(folder.join(FILES.folder())));
        let mut object = log.and_then(|log| log.read(&name));
        if let (None, Some(index)) = (&object, &cache.index) {
            let found = index.read(&[in_index(&name)], &mut || progress(waiting))?;
            object = found.into_iter().next().flatten();
        }
        let body = object.as_ref().and_then(|object| FILES.decode(&name, object));
        let found: Option<(PathBuf, Vec<String>, [u8; 32])> =
            body.and_then(|body| postcard::from_bytes(body).ok());
        let Some((root, paths, digest)) = found else { return Ok(None) };
        let found = Found::new(root, paths, vec![]);
        let mut known = Cache::open(&cache.folder, &found.root);
        known.refresh();
        let shared = match &cache.index {
            Some(index) => index.entries(&found.root, &mut || progress(waiting))?,
            None => Entries::new(),
        };
        let compression = rules.compression.to_string();
        let entry = |path: &String| {
            let entry = known.entries().get(path).or_else(|| shared.get(path))?;
            let fits = entry.compression == compression && suits(&entry.index, rules.corrupt);
            fits.then(|| (path.clone(), entry.clone()))
        };
        let Some(entries) = found.paths.iter().map(entry).collect() else { return Ok(None) };
        let dataset = Self::of_entries(found, entries, (rules, cache), Rights::Own)?;
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

fn in_index(name: &str) -> String {
    format!("{}/{name}", FILES.folder())
}
