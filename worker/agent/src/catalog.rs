//! Datasets of a cluster: registered once, scanned by its workers, opened here from their results.

mod chunks;
mod entries;
mod listing;
mod opening;
mod samples;
mod scan;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use shardfeed_pipeline::SampleProgram;
use shardfeed_plan::{ChangeStamp, ContentDigest, Digest, Shard};
use shardfeed_proto::chunk::{EntriesChunk, FileEntry};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::DatasetState;
use shardfeed_proto::{ErrorKind, WireError, digest_from};
use shardfeed_socket::Peer;
use shardfeed_source::{
    CacheOptions, CountedFile, Dataset, DatasetFile, Entries, FileRules, Found, HeldMap, LoadError,
    Lock, OnProgress, OpenProgress, Rights, SampleMaps, ScanProgress, ScanStage, discover,
    is_remote, local_stamps, user_of, waiting,
};

use crate::catalog::chunks::{get_chunk, put_chunk};
use crate::catalog::entries::{indexed, invalid, listed_of, stamp_of_entry};
use crate::catalog::listing::Listing;
use crate::catalog::opening::Openings;
use crate::catalog::samples::{program_of, samples_of};
use crate::cluster::session::Session;

pub use opening::{Opened, SampleSource, Source};
pub use samples::{ShardMaps, maps_of_shards};
pub use scan::Scanner;

/// First and longest pause between queries of a dataset that is being scanned.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// Maximum number of remembered datasets, shared by trainers: more than a mixture has.
const OPEN_MAX: usize = 4096;

/// Time without progress after which slow storage is reported.
const IDLE_SHOWN: Duration = Duration::from_secs(2);

/// Maximum number of attempts to add a listing: the first without its chunks, later ones in case
/// the leader changed after the chunks were put.
const LISTINGS_MAX: u32 = 5;

/// Opens datasets, each once for all trainers that use it.
#[derive(Debug)]
pub struct Catalog {
    session: Arc<Session>,
    cache: CacheOptions,
    open: Lock<Vec<(String, ContentDigest, Weak<Dataset>)>>,
    openings: Openings,
}

impl Catalog {
    /// Creates a catalog of the session's cluster.
    /// - `cache`: location of the indexes on this host.
    pub fn new(session: Arc<Session>, cache: CacheOptions) -> Self {
        Self { session, cache, open: Lock::default(), openings: Openings::default() }
    }

    /// Rejects a source that names another index than this worker has.
    /// - `named`: path or URL; empty: none.
    pub(crate) fn check_index(&self, named: &str) -> Result<(), LoadError> {
        let own = self.cache.index.as_ref().map(ToString::to_string);
        if named.is_empty() || own.as_deref() == Some(named) {
            return Ok(());
        }
        let own = own.map_or_else(|| "none".to_owned(), |own| format!("{own:?}"));
        Err(LoadError::Option(format!(
            "index={named:?}: the worker of this host has {own}; name the same one as the workers, \
             start all of them with `--index {named}`, or leave index= out"
        )))
    }

    /// Opens a dataset; registers, scans and counts it first if necessary.
    /// - `peer`: the trainer's process, which must be able to read the files; `None`: this process.
    ///
    /// # Errors  The dataset or its files do not exist; a file is damaged or differs from the
    /// scanned one; no coordinator answers; `Interrupted`.
    pub fn open(
        &self,
        source: &SampleSource,
        peer: Option<Peer>,
        progress: OnProgress<'_>,
    ) -> Result<Opened, LoadError> {
        let wanted = (source.clone(), user_of(peer));
        self.openings.open(&wanted, progress, |progress| self.open_alone(source, peer, progress))
    }

    fn open_alone(
        &self,
        SampleSource { source, program, corrupt, kept }: &SampleSource,
        peer: Option<Peer>,
        progress: OnProgress<'_>,
    ) -> Result<Opened, LoadError> {
        let roots = self.session.data_roots();
        let mut name = match source {
            Source::Named(name) => name.clone(),
            Source::Files { patterns, rules } => {
                let rights = Rights::of(roots, peer, patterns)?;
                match (self.list(patterns, &rights, progress), kept) {
                    (Err(LoadError::NotFound(reason)), Some(name)) => {
                        return self.open_missing(
                            name,
                            (*rules, program),
                            rights,
                            reason,
                            progress,
                        );
                    }
                    (listing, _) => self.register(&listing?, *rules, program, progress)?,
                }
            }
        };
        let mut described = self.when_ready(&name, progress)?;
        let mut base = None;
        let is_of_samples = !described.program.is_empty();
        if let (Source::Named(_), false, false) = (source, program.is_empty(), is_of_samples) {
            let rights = Rights::of(roots, peer, std::slice::from_ref(&described.root))?;
            let rules =
                FileRules::parse(&described.compression, &described.corrupt).map_err(invalid)?;
            if rules.corrupt != *corrupt {
                return Err(LoadError::Option(format!(
                    "dataset `{name}` was added with --corrupt {}, and records that this policy \
                     leaves out would be missing in the samples; pass corrupt=\"{}\"",
                    rules.corrupt, rules.corrupt
                )));
            }
            let parts = self.parts(&described, progress)?;
            let entries = || parts.iter().flat_map(|part| &part.entries);
            let root = Path::new(&described.root);
            self.check(&rights, root, entries().map(|entry| &entry.path), progress)?;
            let files = entries().map(listed_of).collect();
            let listing = Listing::of_files(described.root.clone(), files)?;
            name = self.register(&listing, rules, program, progress)?;
            described = self.when_ready(&name, progress)?;
            base = Some(parts);
        }
        if described.program != digest_of(program) {
            let message = match described.program.is_empty() {
                true => "the coordinator makes no samples of records; upgrade it".to_owned(),
                false => format!("dataset `{name}` is of samples; open its files, or name another"),
            };
            return Err(WireError::new(ErrorKind::Invalid, message).into());
        }
        let rights = Rights::of(roots, peer, std::slice::from_ref(&described.root))?;
        let content = digest_from("content", &described.content).map_err(invalid)?;
        let rules =
            FileRules::parse(&described.compression, &described.corrupt).map_err(invalid)?;
        if let Some(dataset) = self.known(&name, content, &rights, progress)? {
            self.check(
                &rights,
                dataset.root(),
                dataset.manifest().shards().iter().map(|s| &s.path),
                progress,
            )?;
            return Ok(Opened { name, rules, content, dataset, missing: None });
        }
        let parts = self.parts(&described, progress)?;
        let entries: Vec<&FileEntry> = parts.iter().flat_map(|part| &part.entries).collect();
        self.check(&rights, Path::new(&described.root), entries.iter().map(|e| &e.path), progress)?;
        let indexed = self.index(&described, rules, &entries, rights.clone(), progress);
        let mut dataset = match (indexed, source, kept) {
            (Err(error), Source::Named(_), Some(_)) if error.is_missing_file() => {
                let (of, reason) = ((rules, program.as_slice()), error.to_string());
                return self.open_missing(&name, of, rights, reason, progress);
            }
            (indexed, ..) => indexed?,
        };
        let base = base.iter().flatten().flat_map(|part| &part.entries).zip(&entries);
        for (of_base, entry) in base {
            if of_base.digest != entry.digest || of_base.records != entry.records {
                return Err(other_content(&dataset, &described.name, entry));
            }
        }
        if !program.is_empty() {
            let program = program_of(program)?;
            dataset = self.with_samples(dataset, (program, content), parts, progress)?;
        } else if dataset.manifest().digest() != content {
            let message = format!(
                "dataset `{name}`: its chunks do not hold its content; add it under another name"
            );
            return Err(WireError::new(ErrorKind::Corrupt, message).into());
        }
        let dataset = Arc::new(dataset);
        let mut open = self.open.lock();
        open.retain(|(_, _, dataset)| dataset.strong_count() > 0);
        open.truncate(OPEN_MAX);
        open.push((name.clone(), content, Arc::downgrade(&dataset)));
        Ok(Opened { name, rules, content, dataset, missing: None })
    }

    /// Opens a dataset whose files are gone, from the results that the coordinators keep.
    ///
    /// # Errors  `NotFound` with `reason`: the coordinators do not have it, or the trainer is of
    /// another user, whose right to read the files cannot be checked.
    fn open_missing(
        &self,
        name: &str,
        (rules, program): (FileRules, &[u8]),
        rights: Rights,
        reason: String,
        progress: OnProgress<'_>,
    ) -> Result<Opened, LoadError> {
        if rights != Rights::Own {
            return Err(LoadError::NotFound(reason));
        }
        let request = wire::GetDatasetRequest { context: None, name: name.to_owned() };
        let described = match self.session.coordinator().call(&mut waiting(progress), &request) {
            Err(error) if error.kind == ErrorKind::NotFound => None,
            answer => answer?.dataset,
        };
        let is_it = |of: &wire::Dataset| {
            of.state() == DatasetState::Ready && of.program == digest_of(program)
        };
        let Some(described) = described.filter(is_it) else {
            return Err(LoadError::NotFound(reason));
        };
        let parts = self.parts(&described, progress)?;
        let entries = || parts.iter().flat_map(|part| &part.entries);
        let paths = entries().map(|entry| entry.path.clone()).collect();
        let known = entries().map(|entry| indexed(entry, rules).transpose());
        let Some(known) = known.collect::<Option<Result<Entries, _>>>().transpose()? else {
            return Err(LoadError::NotFound(reason));
        };
        let found = Found::new(PathBuf::from(&described.root), paths, vec![]);
        let entry = |path: &str| (*known[path]).clone();
        let mut dataset = Dataset::of_entries(found, entry, (rules, &self.cache), rights)?;
        let content = digest_from("content", &described.content).map_err(invalid)?;
        if !program.is_empty() {
            let program = program_of(program)?;
            dataset = self.with_samples(dataset, (program, content), parts, progress)?;
        }
        let (name, dataset, missing) = (name.to_owned(), Arc::new(dataset), Some(reason));
        Ok(Opened { name, rules, content, dataset, missing })
    }

    /// Returns a dataset with its samples, from the cache of this host or the coordinator's chunks.
    /// - `content`: digest of these samples.
    fn with_samples(
        &self,
        dataset: Dataset,
        (program, content): (Arc<SampleProgram>, ContentDigest),
        parts: Vec<EntriesChunk>,
        progress: OnProgress<'_>,
    ) -> Result<Dataset, LoadError> {
        let dataset = Arc::new(dataset);
        let file = |(shard, file): (&Shard, &DatasetFile)| CountedFile {
            records: shard.records,
            data_bytes: file.data_bytes,
            digest: shard.digest,
        };
        let files = dataset.manifest().shards().iter().zip(dataset.files()).map(file);
        let files: Vec<CountedFile> = files.collect();
        let known = self.known_maps(&dataset, &program, &parts, progress)?;
        let (mut samples, mut is_new) = (SampleMaps::default(), false);
        let (mut known, mut files) = (known.into_iter(), files.into_iter());
        for part in parts {
            let known = known.by_ref().take(part.entries.len()).collect();
            let files: Vec<_> = files.by_ref().take(part.entries.len()).collect();
            match known_samples(&part, &files, known) {
                Ok(known) => {
                    samples.extend(known);
                    continue;
                }
                Err(entry) if part.maps.is_empty() => return Err(self.lacks_map(entry)),
                Err(_) => is_new = true,
            }
            let mut maps = Vec::new();
            for map in &part.maps {
                maps.extend(get_chunk(&self.session, map.as_bytes(), &mut waiting(progress))?);
                if !progress(&at(ScanStage::Counting)) {
                    return Err(LoadError::Interrupted);
                }
            }
            let program = Arc::clone(&program);
            let read = move || samples_of(&part, &maps, &files, &program);
            samples.extend(counting(progress, read)?);
        }
        let dataset = Arc::unwrap_or_clone(dataset).with_maps(&program, Arc::new(samples))?;
        let cache = self.cache.clone();
        counting(progress, move || {
            if dataset.content() != content {
                return Err(invalid("sample maps of another dataset"));
            }
            let dataset = Arc::new(dataset);
            if is_new {
                dataset.keep_samples(&program, &cache);
            }
            Ok(Arc::unwrap_or_clone(dataset))
        })
    }

    /// Returns the maps of a dataset's shards that this host has, or the index of this worker if
    /// those of some parts are in no chunk.
    fn known_maps(
        &self,
        dataset: &Arc<Dataset>,
        program: &Arc<SampleProgram>,
        parts: &[EntriesChunk],
        progress: OnProgress<'_>,
    ) -> Result<Vec<Option<HeldMap>>, LoadError> {
        let (dataset, program) = (Arc::clone(dataset), Arc::clone(program));
        let is_in_index = parts.iter().any(|part| part.maps.is_empty());
        let index = self.cache.index.clone().filter(|_| is_in_index);
        let cache = CacheOptions { index, ..self.cache.clone() };
        Rights::Own.run(&mut |_| progress(&at(ScanStage::Counting)), move |go_on| {
            dataset.known_maps(&program, &cache, &mut |_| go_on(true))
        })
    }

    /// Returns the error for a file whose map is in an index that this worker does not have, or that
    /// lacks it.
    fn lacks_map(&self, entry: &FileEntry) -> LoadError {
        match &self.cache.index {
            Some(index) => LoadError::Index {
                object: index.to_string(),
                reason: format!(
                    "has no sample map of `{}`, which a worker kept in its index; all workers \
                     need the same index, filled by them or by `shardfeed dataset index`",
                    entry.path
                ),
            },
            None => LoadError::Option(format!(
                "the sample map of `{}` is in the index of the worker that counted its samples; \
                 pass the same one, or another one that `shardfeed dataset index` filled: `--index` \
                 to workers, index= to sources",
                entry.path
            )),
        }
    }

    fn check<'a>(
        &self,
        rights: &Rights,
        root: &Path,
        paths: impl Iterator<Item = &'a String>,
        progress: OnProgress<'_>,
    ) -> Result<(), LoadError> {
        if *rights == Rights::Own {
            return Ok(());
        }
        let mut idle = idle(format!("opening files below {}", root.display()), progress);
        let (checks, root, paths) =
            (rights.clone(), root.to_owned(), paths.cloned().collect::<Vec<_>>());
        rights.run(&mut idle, move |go_on| checks.check(&root, &paths, go_on))
    }

    fn known(
        &self,
        name: &str,
        content: ContentDigest,
        rights: &Rights,
        progress: OnProgress<'_>,
    ) -> Result<Option<Arc<Dataset>>, LoadError> {
        let dataset = {
            let open = self.open.lock();
            let same = open.iter().filter(|entry| entry.0 == name && entry.1 == content);
            let mut same = same.filter_map(|entry| entry.2.upgrade());
            // Its files are opened later with the rights that it was opened with.
            same.find(|dataset| dataset.rights() == rights)
        };
        // Each answer of a store is compared with the indexed stamp, so remote files need no check.
        let Some(dataset) = dataset else { return Ok(None) };
        if dataset.is_remote() {
            return Ok(Some(dataset));
        }
        // A dataset with a rewritten file is indexed again.
        let paths = dataset.files().iter().map(|file| file.path.clone()).collect();
        let mut waiting = waiting(progress);
        let now = local_stamps(paths, &mut || waiting(""))?;
        let is_same = |(file, now): (&DatasetFile, &Result<ChangeStamp, LoadError>)| {
            now.as_ref().is_ok_and(|now| *now == file.stamp)
        };
        Ok(dataset.files().iter().zip(&now).all(is_same).then_some(dataset))
    }

    /// Lists files that the trainer's user can read.
    fn list(
        &self,
        patterns: &[String],
        rights: &Rights,
        progress: OnProgress<'_>,
    ) -> Result<Listing, LoadError> {
        let mut idle =
            idle(format!("listing {}", patterns.first().map_or("", String::as_str)), progress);
        let (patterns, checks) = (patterns.to_vec(), rights.clone());
        rights.run(&mut idle, move |go_on| {
            let found = discover(&patterns, go_on)?;
            checks.check(&found.root, &found.paths, go_on)?;
            Listing::of(found, go_on)
        })
    }

    /// Registers files; the coordinator derives the name from exactly this set of files, and the
    /// program that makes samples of their records.
    fn register(
        &self,
        listing: &Listing,
        rules: FileRules,
        program: &[u8],
        progress: OnProgress<'_>,
    ) -> Result<String, LoadError> {
        let FileRules { compression, corrupt } = rules;
        let request = wire::AddDatasetRequest {
            context: None,
            name: String::new(),
            patterns: vec![],
            compression: compression.to_string(),
            corrupt: corrupt.to_string(),
            listing: Some(wire::add_dataset_request::Listing {
                root: listing.root.clone(),
                parts: listing.wire_parts(),
            }),
            program: digest_of(program),
        };
        let mut waiting = waiting(progress);
        let mut attempt = 1;
        loop {
            match self.session.coordinator().call(&mut waiting, &request) {
                Ok(wire::AddDatasetResponse { name }) => {
                    self.session.look_for_scans();
                    return Ok(name);
                }
                // Known files need no chunks. New ones are put again if the leader changed.
                Err(error) if error.kind == ErrorKind::NotFound && attempt < LISTINGS_MAX => {
                    attempt += 1;
                    let files = listing.parts.iter().map(|(_, content)| &content[..]);
                    for content in files.chain((!program.is_empty()).then_some(program)) {
                        put_chunk(&self.session, content, &mut waiting)?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn when_ready(&self, name: &str, progress: OnProgress<'_>) -> Result<wire::Dataset, LoadError> {
        let request = wire::GetDatasetRequest { context: None, name: name.to_owned() };
        let mut pause = LOOK_EVERY.0;
        loop {
            let response = self.session.coordinator().call(&mut waiting(progress), &request)?;
            let Some(dataset) = response.dataset else {
                return Err(invalid("GetDataset gave no dataset"));
            };
            match dataset.state() {
                DatasetState::Ready => return Ok(dataset),
                DatasetState::Failed => {
                    let mut failure = WireError::from_message(dataset.failure);
                    // A caller retries `Unreachable` errors, but this answer is final.
                    if failure.kind == ErrorKind::Unreachable {
                        failure.kind = ErrorKind::Data;
                    }
                    return Err(failure.into());
                }
                _ if !progress(&progress_of(&dataset)) => return Err(LoadError::Interrupted),
                _ => {}
            }
            // A refused worker may be the only one that could scan, and could not read the dataset
            // afterwards.
            if let Some(refusal) = self.session.refusal() {
                return Err(refusal.into());
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LOOK_EVERY.1);
        }
    }

    fn parts(
        &self,
        described: &wire::Dataset,
        progress: OnProgress<'_>,
    ) -> Result<Vec<EntriesChunk>, LoadError> {
        let mut parts = Vec::with_capacity(described.chunks.len());
        for digest in &described.chunks {
            let chunk = get_chunk(&self.session, digest, &mut waiting(progress))?;
            parts.push(EntriesChunk::decode(&chunk).map_err(invalid)?);
            // The coordinators answer: an earlier note no longer holds.
            if !progress(&at(ScanStage::Listing)) {
                return Err(LoadError::Interrupted);
            }
        }
        Ok(parts)
    }

    fn index(
        &self,
        described: &wire::Dataset,
        rules: FileRules,
        entries: &[&FileEntry],
        rights: Rights,
        progress: OnProgress<'_>,
    ) -> Result<Dataset, LoadError> {
        let paths = entries.iter().map(|entry| entry.path.clone()).collect();
        let root = PathBuf::from(&described.root);
        // Remote files need no look: each answer of the store is compared with their stamp.
        let stamps = match is_remote(&root) {
            true => entries.iter().map(|entry| stamp_of_entry(entry)).collect(),
            false => Vec::new(),
        };
        let found = Found::new(root, paths, stamps);
        let known = entries.iter().filter_map(|entry| indexed(entry, rules).transpose());
        let known = known.collect::<Result<Entries, _>>()?;
        let mut scanning =
            |scan: ScanProgress| progress(&OpenProgress { note: String::new(), scan });
        let dataset = Dataset::index(found, rules, &self.cache, &known, rights, &mut scanning)?;
        for (shard, entry) in dataset.manifest().shards().iter().zip(entries) {
            if shard.digest != entry.digest || shard.records != entry.records {
                return Err(other_content(&dataset, &described.name, entry));
            }
        }
        Ok(dataset)
    }
}

/// Returns the digest of a program as requests have it.
fn digest_of(program: &[u8]) -> Vec<u8> {
    match program {
        [] => vec![],
        program => Digest::of_parts([program]).as_bytes().to_vec(),
    }
}

/// Returns the samples of a part of which all maps are known.
/// - `known`: the map of each file, if it is known.
///
/// # Errors  The first file without one. Maps of damaged files are in chunks only.
fn known_samples<'a>(
    part: &'a EntriesChunk,
    files: &[CountedFile],
    known: Vec<Option<HeldMap>>,
) -> Result<SampleMaps, &'a FileEntry> {
    let is_damaged = part.damaged_total > 0 && !part.maps.is_empty();
    let maps = part.entries.iter().zip(files).zip(known).map(|((entry, file), map)| {
        let is_it = |map: &HeldMap| (map.samples(), map.digest(file.digest)) == entry.counted();
        map.filter(|map| !is_damaged && is_it(map)).ok_or(entry)
    });
    Ok(SampleMaps::new(maps.collect::<Result<_, _>>()?, vec![], 0))
}

/// Runs long work on a thread, and reports to `progress` that samples are counted.
fn counting<T: Send + 'static>(
    progress: OnProgress<'_>,
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    Rights::Own.run(&mut |_| progress(&at(ScanStage::Counting)), |_| work())
}

fn at(stage: ScanStage) -> OpenProgress {
    OpenProgress { note: String::new(), scan: ScanProgress::at(stage) }
}

fn other_content(dataset: &Dataset, name: &str, entry: &FileEntry) -> LoadError {
    let file = dataset.root().join(&entry.path).display().to_string();
    let message = format!(
        "{file}: is not the file that was scanned for dataset `{name}`: its records are others; a \
         dataset never changes, so add the files under another name"
    );
    WireError { file: Some(file), ..WireError::new(ErrorKind::Changed, message) }.into()
}

fn progress_of(dataset: &wire::Dataset) -> OpenProgress {
    let scan = ScanProgress {
        stage: ScanStage::Scanning,
        files: dataset.files_scanned as usize,
        files_total: dataset.files as usize,
        bytes: dataset.bytes_scanned,
        bytes_total: dataset.bytes,
    };
    OpenProgress { note: dataset.waiting.clone(), scan }
}

/// Returns a callback that reports storage without progress to `progress`.
fn idle<'a>(what: String, progress: OnProgress<'a>) -> impl FnMut(Duration) -> bool + 'a {
    let scan = ScanProgress::at(ScanStage::Scanning);
    move |idle| {
        let note = match idle >= IDLE_SHOWN {
            true => format!("{what} made no progress for {} s", idle.as_secs()),
            false => String::new(),
        };
        progress(&OpenProgress { note, scan })
    }
}
