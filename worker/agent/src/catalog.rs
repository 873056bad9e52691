//! Datasets of a cluster: registered once, scanned by its workers, opened here from what they found.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use shardfeed_plan::{ChangeStamp, ContentDigest, Digest};
use shardfeed_proto::chunk::{EntriesChunk, FileEntry};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::DatasetState;
use shardfeed_proto::{ErrorKind, WireError, digest_from};
use shardfeed_tfrecord::{
    Compression, CompressionChoice, FOOTER_BYTES, HEADER_BYTES, Mark, ShardIndex,
};

use crate::cache::CacheOptions;
use crate::cluster::Session;
use crate::cluster::coordinator::Clients;
use crate::dataset::Dataset;
use crate::discover::{Found, discover};
use crate::error::LoadError;
use crate::index::{ScanProgress, ScanStage, Seeds, look, stamp};
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
        /// How they are compressed.
        compression: CompressionChoice,
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
    /// How its files are compressed, as it was registered.
    pub compression: CompressionChoice,
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
            Source::Files { patterns, compression } => {
                self.register(patterns, *compression, progress)?
            }
        };
        let described = self.when_ready(&name, progress)?;
        let content = digest_from("content", &described.content).map_err(invalid)?;
        let compression: CompressionChoice = described.compression.parse().map_err(invalid)?;
        if let Some(dataset) = self.known(&name, content) {
            return Ok(Opened { name, compression, dataset });
        }
        let entries = self.entries(&described, progress)?;
        let dataset = self.index(&described, &entries, progress)?;
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
        Ok(Opened { name, compression, dataset })
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
        compression: CompressionChoice,
        progress: Progress<'_>,
    ) -> Result<String, LoadError> {
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
        let digest = Digest::of_parts(looks.iter().map(String::as_bytes)).to_string();
        let name = format!("files-{}", &digest[..24]);
        let mut waiting = waiting(progress);
        self.session.coordinator().call(&mut waiting, |mut clients: Clients, context| {
            let request = wire::AddDatasetRequest {
                context,
                name: name.clone(),
                patterns: patterns.to_vec(),
                compression: compression.to_string(),
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
        entries: &[FileEntry],
        progress: Progress<'_>,
    ) -> Result<Dataset, LoadError> {
        let paths = entries.iter().map(|entry| entry.path.clone()).collect();
        let compression: CompressionChoice = described.compression.parse().map_err(invalid)?;
        let seeds = entries.iter().map(seed).collect::<Result<Seeds, _>>()?;
        let root = PathBuf::from(&described.root);
        // Remote files need no look: each answer of the store is compared with the stamp they had.
        let stamps = match is_remote(&root) {
            true => entries.iter().map(stamp_of_entry).collect(),
            false => Vec::new(),
        };
        let found = Found { root, paths, stamps };
        let mut scanning =
            |scan: ScanProgress| progress(&OpenProgress { note: String::new(), scan });
        let dataset = Dataset::index(found, compression, &self.cache, &seeds, &mut scanning)?;
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

/// What another worker found, as if found here.
fn seed(entry: &FileEntry) -> Result<(String, (ChangeStamp, ShardIndex)), LoadError> {
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
        corrupt_records: 0,
        broken: None,
    };
    Ok((entry.path.clone(), (stamp_of_entry(entry), index)))
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
    index: &ShardIndex,
) -> FileEntry {
    debug_assert!(root.is_absolute() || is_remote(root));
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
