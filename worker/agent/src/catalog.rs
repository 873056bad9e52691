//! Datasets of a cluster: registered once, scanned by its workers, opened here from what they found.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use shardfeed_plan::{ChangeStamp, ContentDigest, Corrupt, Digest};
use shardfeed_proto::chunk::{EntriesChunk, FileEntry, LeftOutEntry, REASON_BYTES_MAX};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::DatasetState;
use shardfeed_proto::{ErrorKind, WireError, digest_from};
use shardfeed_tfrecord::{Break, Compression, FOOTER_BYTES, HEADER_BYTES, Mark, ShardIndex};

use crate::cache::CacheOptions;
use crate::cluster::Session;
use crate::cluster::coordinator::Clients;
use crate::dataset::{Dataset, FileRules, LeftOut, leave_out};
use crate::discover::{Found, discover};
use crate::error::LoadError;
use crate::index::{ScanProgress, ScanStage, Seed, Seeds, look, stamp};
use crate::remote::is_remote;

/// Waits between looks at a dataset that is being scanned: the first, and the longest.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// Datasets that are kept in mind while somebody uses them.
const OPEN_MAX: usize = 64;

/// What a trainer asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A dataset by its name.
    Named(String),
    /// Files, which become a dataset of that content.
    Files {
        /// Absolute paths, globs or URLs.
        patterns: Vec<String>,
        /// How they are compressed, and what is left out of damaged ones.
        rules: FileRules,
    },
}

/// How far opening is, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenProgress {
    /// What is waited for; empty if nothing is in the way.
    pub note: String,
    /// How far the scan is.
    pub scan: ScanProgress,
}

/// Told now and then; returning `false` gives up.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(&OpenProgress) -> bool;

/// A dataset that is open, and its name.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Its name in the cluster.
    pub name: String,
    /// How its files are read, as it was registered.
    pub rules: FileRules,
    /// What it is.
    pub dataset: Arc<Dataset>,
}

/// Opens datasets, each once for all trainers that use it.
#[derive(Debug)]
pub struct Catalog {
    session: Arc<Session>,
    cache: CacheOptions,
    open: Mutex<Vec<(String, ContentDigest, Weak<Dataset>)>>,
}

impl Catalog {
    /// A catalog of the session's cluster.
    /// - `cache`: where indexes are kept on this host.
    pub fn new(session: Arc<Session>, cache: CacheOptions) -> Self {
        Self { session, cache, open: Mutex::default() }
    }

    /// Opens a dataset; one that is not registered or scanned yet is, first.
    ///
    /// # Errors  No such dataset or files; a file is damaged or not the one that was scanned; nobody
    /// answers; `Interrupted`.
    pub fn open(&self, source: &Source, progress: Progress<'_>) -> Result<Opened, LoadError> {
        let name = match source {
            Source::Named(name) => name.clone(),
            Source::Files { patterns, rules } => self.register(patterns, *rules, progress)?,
        };
        let described = self.when_ready(&name, progress)?;
        let content = digest_from("content", &described.content).map_err(invalid)?;
        let rules = rules_of(&described.compression, &described.corrupt)?;
        if let Some(dataset) = self.known(&name, content) {
            return Ok(Opened { name, rules, dataset });
        }
        let entries = self.entries(&described, progress)?;
        let dataset = self.index(&described, rules, &entries, progress)?;
        if dataset.manifest().digest() != content {
            let message = format!(
                "dataset `{name}`: what its chunks hold is not its content; add it under another name"
            );
            return Err(WireError::new(ErrorKind::Corrupt, message).into());
        }
        let dataset = Arc::new(dataset);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, _, dataset)| dataset.strong_count() > 0);
        open.truncate(OPEN_MAX);
        open.push((name.clone(), content, Arc::downgrade(&dataset)));
        Ok(Opened { name, rules, dataset })
    }

    fn known(&self, name: &str, content: ContentDigest) -> Option<Arc<Dataset>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |entry: &&(String, ContentDigest, Weak<Dataset>)| entry.0 == name && entry.1 == content;
        let dataset = open.iter().find(same)?.2.upgrade()?;
        if dataset.is_remote() {
            // Whatever a store sends is compared with the stamp that was indexed.
            return Some(dataset);
        }
        // A file that was written anew since is looked at again.
        let fresh =
            |file: &crate::DatasetFile| stamp(&file.path).is_ok_and(|now| now == file.stamp);
        dataset.files().iter().all(fresh).then_some(dataset)
    }

    /// Registers files under a name that is made of what they look like now.
    fn register(
        &self,
        patterns: &[String],
        rules: FileRules,
        progress: Progress<'_>,
    ) -> Result<String, LoadError> {
        let FileRules { compression, corrupt } = rules;
        let found = {
            let mut waiting = waiting(progress);
            discover(patterns, &mut || waiting(""))?
        };
        let mut looks = vec![format!("{}\n{compression}\n", found.root.display())];
        for (index, path) in found.paths.iter().enumerate() {
            let look = match found.stamps.get(index) {
                Some(stamp) => format!("{stamp:?}"),
                None => look(&found.root.join(path))?,
            };
            looks.push(format!("{path}\0{look}\n"));
        }
        if corrupt.skips() {
            // The same files under another policy are another dataset.
            looks.push(format!("{corrupt}\n"));
        }
        let digest = Digest::of_parts(looks.iter().map(String::as_bytes)).to_string();
        let name = format!("files-{}", &digest[..24]);
        let mut waiting = waiting(progress);
        self.session.coordinator().call(&mut waiting, |mut clients: Clients, context| {
            let request = wire::AddDatasetRequest {
                context,
                name: name.clone(),
                patterns: patterns.to_vec(),
                compression: compression.to_string(),
                corrupt: corrupt.to_string(),
            };
            Box::pin(async move { clients.admin.add_dataset(request).await })
        })?;
        self.session.look_for_scans();
        Ok(name)
    }

    fn when_ready(&self, name: &str, progress: Progress<'_>) -> Result<wire::Dataset, LoadError> {
        let mut pause = LOOK_EVERY.0;
        loop {
            let response: wire::GetDatasetResponse = {
                let mut waiting = waiting(progress);
                self.session.coordinator().call(&mut waiting, |mut clients: Clients, context| {
                    let request = wire::GetDatasetRequest { context, name: name.to_owned() };
                    Box::pin(async move { clients.admin.get_dataset(request).await })
                })?
            };
            let Some(dataset) = response.dataset else {
                return Err(invalid("GetDataset gave no dataset"));
            };
            match dataset.state() {
                DatasetState::Ready => return Ok(dataset),
                DatasetState::Failed => {
                    return Err(WireError::from_message(dataset.failure).into());
                }
                _ if !progress(&progress_of(&dataset)) => return Err(LoadError::Interrupted),
                _ => {}
            }
            // It may be the only one who would scan, and would get nothing to read afterwards.
            if let Some(refusal) = self.session.refusal() {
                return Err(refusal.into());
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LOOK_EVERY.1);
        }
    }

    fn entries(
        &self,
        described: &wire::Dataset,
        progress: Progress<'_>,
    ) -> Result<Vec<FileEntry>, LoadError> {
        let mut entries = Vec::new();
        for digest in &described.chunks {
            let mut waiting = waiting(progress);
            let chunk = get_chunk(&self.session, digest, &mut waiting)?;
            entries.extend(EntriesChunk::decode(&chunk).map_err(invalid)?.entries);
        }
        Ok(entries)
    }

    fn index(
        &self,
        described: &wire::Dataset,
        rules: FileRules,
        entries: &[FileEntry],
        progress: Progress<'_>,
    ) -> Result<Dataset, LoadError> {
        let paths = entries.iter().map(|entry| entry.path.clone()).collect();
        let root = PathBuf::from(&described.root);
        // Remote files need no look: each answer of the store is compared with the stamp they had.
        let stamps = match is_remote(&root) {
            true => entries.iter().map(stamp_of_entry).collect(),
            false => Vec::new(),
        };
        let found = Found { root, paths, stamps };
        let seeds = entries.iter().filter_map(|entry| seed(entry, rules).transpose());
        let seeds = seeds.collect::<Result<Seeds, _>>()?;
        let mut scanning =
            |scan: ScanProgress| progress(&OpenProgress { note: String::new(), scan });
        let dataset = Dataset::index(found, rules, &self.cache, &seeds, &mut scanning)?;
        for (shard, entry) in dataset.manifest().shards().iter().zip(entries) {
            if shard.digest != entry.digest || shard.records != entry.records {
                return Err(other_content(&dataset, &described.name, entry));
            }
        }
        Ok(dataset)
    }
}

fn other_content(dataset: &Dataset, name: &str, entry: &FileEntry) -> LoadError {
    let file = dataset.root().join(&entry.path).display().to_string();
    let message = format!(
        "{file}: is not the file that was scanned for dataset `{name}`: its records are others; a \
         dataset never changes, so add the files under another name"
    );
    WireError { file: Some(file), ..WireError::new(ErrorKind::Changed, message) }.into()
}

/// A chunk by its digest.
pub(crate) fn get_chunk(
    session: &Session,
    digest: &[u8],
    waiting: &mut dyn FnMut(&str) -> bool,
) -> Result<Vec<u8>, WireError> {
    let response: wire::GetChunkResponse =
        session.coordinator().call(waiting, |mut clients: Clients, context| {
            let request = wire::GetChunkRequest { context, digest: digest.to_vec() };
            Box::pin(async move { clients.worker.get_chunk(request).await })
        })?;
    Ok(response.content)
}

/// How a dataset's files are read, as it was registered.
pub(crate) fn rules_of(compression: &str, corrupt: &str) -> Result<FileRules, LoadError> {
    let corrupt = match corrupt {
        "" => Corrupt::Error,
        corrupt => corrupt.parse().map_err(invalid)?,
    };
    Ok(FileRules { compression: compression.parse().map_err(invalid)?, corrupt })
}

/// What another worker found, as if found here; `None`: it did not keep enough of it.
fn seed(entry: &FileEntry, rules: FileRules) -> Result<Option<(String, Seed)>, LoadError> {
    let FileEntry { path, left_out, .. } = entry.clone();
    if left_out.as_ref().is_some_and(|left| left.is_whole) {
        return Ok(None);
    }
    let broken = left_out.map(|left| {
        let LeftOutEntry { ordinal, offset, reason: message, .. } = left;
        Break { ordinal, offset, message }
    });
    let compression: Compression = entry.compression.parse().map_err(invalid)?;
    let framing = (HEADER_BYTES + FOOTER_BYTES) as u64;
    let marks = entry.marks.iter().map(|&(ordinal, offset)| Mark { ordinal, offset });
    let index = ShardIndex {
        compression,
        records: entry.records,
        data_bytes: entry.data_bytes,
        record_bytes_max: entry.record_bytes_max,
        stream_bytes: entry.data_bytes.saturating_add(framing.saturating_mul(entry.records)),
        digest: *entry.digest.as_bytes(),
        marks: marks.collect(),
        data_verified: rules.corrupt == Corrupt::SkipFile,
        corrupt_records: 0,
        first_corrupt: None,
        broken,
    };
    Ok(Some((path, (stamp_of_entry(entry), index))))
}

fn stamp_of_entry(entry: &FileEntry) -> ChangeStamp {
    let FileEntry { size_bytes, modified_ns, .. } = *entry;
    ChangeStamp { size_bytes, modified_ns, etag: entry.etag.clone() }
}

/// What was found here, for others.
pub(crate) fn entry_of(
    root: &Path,
    path: &str,
    stamp: &ChangeStamp,
    mut index: ShardIndex,
    corrupt: Corrupt,
) -> FileEntry {
    debug_assert!(root.is_absolute() || is_remote(root));
    let left_out = leave_out(&mut index, 0, corrupt).map(|left| {
        let LeftOut { ordinal, offset, is_whole, mut reason, .. } = left;
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        LeftOutEntry { ordinal, offset, is_whole, reason }
    });
    FileEntry {
        path: path.to_owned(),
        size_bytes: stamp.size_bytes,
        modified_ns: stamp.modified_ns,
        etag: stamp.etag.clone(),
        compression: index.compression.to_string(),
        records: index.records,
        data_bytes: index.data_bytes,
        record_bytes_max: index.record_bytes_max,
        digest: Digest::from_bytes(index.digest),
        marks: index.marks.iter().map(|mark| (mark.ordinal, mark.offset)).collect(),
        left_out,
    }
}

fn progress_of(dataset: &wire::Dataset) -> OpenProgress {
    let scan = ScanProgress {
        stage: ScanStage::Scanning,
        files: dataset.files_scanned as usize,
        files_total: dataset.files as usize,
        bytes: dataset.bytes_scanned,
        bytes_total: dataset.bytes,
    };
    OpenProgress { note: String::new(), scan }
}

/// Tells a caller's progress what is waited for.
fn waiting<'a>(progress: Progress<'a>) -> impl FnMut(&str) -> bool + 'a {
    let scan = ScanProgress {
        stage: ScanStage::Waiting,
        files: 0,
        files_total: 0,
        bytes: 0,
        bytes_total: 0,
    };
    move |note| progress(&OpenProgress { note: note.to_owned(), scan })
}

pub(crate) fn invalid(error: impl std::fmt::Display) -> LoadError {
    let message = format!("the coordinator's answer makes no sense: {error}");
    WireError::new(ErrorKind::Unspecified, message).into()
}
