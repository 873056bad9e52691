//! Scanning for the cluster: this worker takes parts of datasets that are new, lists or scans them,
//! and tells what it found.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use shardfeed_plan::ChangeStamp;
use shardfeed_proto::chunk::{ChunkError, EntriesChunk, FileEntry, ListedFile, ListingChunk};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::scan_task::Work;
use shardfeed_proto::{ErrorKind, WireError};

use crate::cache::{Cache, CacheOptions};
use crate::catalog::{entry_of, get_chunk, invalid, rules_of};
use crate::cluster::Session;
use crate::cluster::coordinator::Clients;
use crate::dataset::FileRules;
use crate::discover::{Found, discover};
use crate::error::LoadError;
use crate::index::{ScanProgress, Seeds, index_into, stamp};

/// How often it is looked whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Files of one part: few enough that several workers share a small dataset, many enough that a
/// large one has not too many parts.
const PART_FILES: (usize, usize) = (64, 512);

/// Parts of a large dataset.
const PARTS: usize = 1024;

/// A report is made so often at most when the coordinator no longer has a chunk that was put: it may have
/// been put on a node that does not lead any more.
const REPORTS_MAX: u32 = 4;

/// Bytes of one part at most, unless it is one file.
const PART_BYTES: u64 = 16 << 30;

/// Scans for the cluster until dropped.
#[derive(Debug)]
pub struct Scanner {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scanner {
    /// Starts to take scans.
    ///
    /// # Errors  The system has no threads.
    pub fn start(session: Arc<Session>, cache: CacheOptions) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let scan = Scan { session, cache, kept: RefCell::default(), stop: Arc::clone(&stop) };
        let thread = std::thread::Builder::new().name("shardfeed-scans".into());
        Ok(Self { stop, thread: Some(thread.spawn(move || scan.run())?) })
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        // The thread ends by itself within a moment; a read that hangs must hold nobody up.
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.take());
    }
}

struct Scan {
    session: Arc<Session>,
    cache: CacheOptions,
    /// What is kept of the folder whose part was scanned last: others of its parts follow.
    kept: RefCell<Option<(PathBuf, Cache)>>,
    stop: Arc<AtomicBool>,
}

impl Scan {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn run(self) {
        while !self.is_stopped() {
            if !self.session.wait_for_scans(LOOK_EVERY) {
                continue;
            }
            loop {
                match self.take() {
                    Ok(tasks) if tasks.is_empty() => {
                        self.kept.take();
                        break;
                    }
                    Ok(tasks) => tasks.iter().for_each(|task| self.work(task)),
                    Err(error) => {
                        tracing::debug!(%error, "no scans could be taken");
                        break;
                    }
                }
            }
        }
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl Fn(Clients, Option<wire::Context>) -> crate::cluster::coordinator::Answer<T>,
    ) -> Result<T, WireError> {
        self.session.coordinator().call(&mut |_| !self.is_stopped(), call)
    }

    fn take(&self) -> Result<Vec<wire::ScanTask>, WireError> {
        let session = self.session.id(&mut |_| !self.is_stopped())?;
        let response: wire::TakeScansResponse = self.call(|mut clients, context| {
            let request = wire::TakeScansRequest { context, session, most: 1 };
            Box::pin(async move { clients.worker.take_scans(request).await })
        })?;
        Ok(response.tasks)
    }

    fn work(&self, task: &wire::ScanTask) {
        let Some(session) = self.session.shared().current_id() else {
            return;
        };
        let told = match self.find(session, task) {
            Ok(()) => Ok(()),
            Err(LoadError::Interrupted) => return,
            // A part that another worker took over in the meantime is none of ours.
            Err(LoadError::Wire(error)) if error.kind == ErrorKind::Fenced => Err(error),
            Err(error) if self.is_stopped() => Err(error.to_wire()),
            Err(error) => self.fail(session, task, &error.to_wire()),
        };
        self.session.set_scans(vec![]);
        if let Err(error) = told {
            tracing::info!(dataset = task.dataset, %error, "a scan was not reported");
        }
    }

    fn find(&self, session: u64, task: &wire::ScanTask) -> Result<(), LoadError> {
        let rules = rules_of(&task.compression, &task.corrupt)?;
        match &task.work {
            None => Err(invalid("a task without work")),
            Some(Work::List(list)) => again(|| self.list(session, task, &list.patterns)),
            Some(Work::Scan(scan)) => self.scan(session, task, scan, rules),
        }
    }

    fn list(
        &self,
        session: u64,
        task: &wire::ScanTask,
        patterns: &[String],
    ) -> Result<(), LoadError> {
        let found = discover(patterns, &mut || !self.is_stopped())?;
        let mut files = Vec::with_capacity(found.paths.len());
        for (index, path) in found.paths.into_iter().enumerate() {
            let stamp = match found.stamps.get(index) {
                Some(stamp) => stamp.clone(),
                None => stamp(&found.root.join(&path))?,
            };
            files.push(ListedFile { path, size: stamp.size_bytes, etag: stamp.etag });
        }
        files.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        let mut parts = Vec::new();
        for files in cut(files) {
            let (count, bytes) = (files.len() as u64, files.iter().map(|file| file.size).sum());
            let content = ListingChunk::new(files).encode().map_err(invalid)?;
            let chunk = self.put(&content)?;
            parts.push(wire::report_listing_request::Part { chunk, files: count, bytes });
        }
        let root = found.root.display().to_string();
        let request = wire::ReportListingRequest {
            context: None,
            session,
            dataset: task.dataset.clone(),
            fencing: task.fencing,
            root,
            parts,
        };
        let _: wire::ReportListingResponse = self.call(|mut clients, context| {
            let request = wire::ReportListingRequest { context, ..request.clone() };
            Box::pin(async move { clients.worker.report_listing(request).await })
        })?;
        Ok(())
    }

    fn scan(
        &self,
        session: u64,
        task: &wire::ScanTask,
        scan: &wire::scan_task::Scan,
        rules: FileRules,
    ) -> Result<(), LoadError> {
        let listing = get_chunk(&self.session, &scan.chunk, &mut |_| !self.is_stopped())?;
        let listing = ListingChunk::decode(&listing).map_err(invalid)?;
        let root = PathBuf::from(&scan.root);
        // With an ETag the listing has said all; others are looked at.
        let known = listing.files.iter().map(|file| {
            let etag = Some(file.etag.clone()?);
            Some(ChangeStamp { size_bytes: file.size, modified_ns: 0, etag })
        });
        let stamps = known.collect::<Option<Vec<_>>>().unwrap_or_default();
        let paths = listing.files.into_iter().map(|file| file.path).collect();
        let found = Found { root, paths, stamps };
        let mut progress = |state: ScanProgress| {
            self.session.set_scans(vec![wire::ScanProgress {
                dataset: task.dataset.clone(),
                fencing: task.fencing,
                part: scan.part,
                files: state.files as u64,
                bytes: state.bytes,
            }]);
            !self.is_stopped()
        };
        let kept = self.kept.take().filter(|(root, cache)| *root == found.root && cache.is_kept());
        let mut cache = match kept {
            Some((_, cache)) => cache,
            None => Cache::open(&self.cache.folder, &found.root)?,
        };
        index_into(&mut cache, &found, rules, &self.cache, &Seeds::new(), &mut progress)?;
        let entry = |path: &String| {
            let entry = &cache.entries()[path];
            entry_of(&found.root, path, &entry.stamp, entry.index.clone(), rules.corrupt)
        };
        let entries: Vec<_> = found.paths.iter().map(entry).collect();
        self.kept.replace(Some((found.root, cache)));
        let records = entries.iter().map(|entry| entry.records).sum();
        let content = encode(entries)?;
        again(|| {
            let request = wire::ReportScanRequest {
                context: None,
                session,
                dataset: task.dataset.clone(),
                fencing: task.fencing,
                part: scan.part,
                chunk: self.put(&content)?,
                records,
            };
            let _: wire::ReportScanResponse = self.call(|mut clients, context| {
                let request = wire::ReportScanRequest { context, ..request.clone() };
                Box::pin(async move { clients.worker.report_scan(request).await })
            })?;
            Ok(())
        })
    }

    fn fail(
        &self,
        session: u64,
        task: &wire::ScanTask,
        error: &WireError,
    ) -> Result<(), WireError> {
        let _: wire::FailScanResponse = self.call(|mut clients, context| {
            let request = wire::FailScanRequest {
                context,
                session,
                dataset: task.dataset.clone(),
                fencing: task.fencing,
                error: Some(error.to_message()),
            };
            Box::pin(async move { clients.worker.fail_scan(request).await })
        })?;
        Ok(())
    }

    fn put(&self, content: &[u8]) -> Result<Vec<u8>, WireError> {
        let response: wire::PutChunkResponse = self.call(|mut clients, context| {
            let request = wire::PutChunkRequest { context, content: content.to_vec() };
            Box::pin(async move { clients.worker.put_chunk(request).await })
        })?;
        Ok(response.digest)
    }
}

/// Puts and reports, once more for as long as a chunk is not found.
fn again(mut report: impl FnMut() -> Result<(), LoadError>) -> Result<(), LoadError> {
    let mut reports = 1;
    loop {
        match report() {
            Err(LoadError::Wire(error))
                if error.kind == ErrorKind::NotFound && reports < REPORTS_MAX =>
            {
                tracing::info!(%error, "a chunk is put again");
                reports += 1;
            }
            told => return told,
        }
    }
}

/// A chunk of entries; where it would be too large, with fewer marks: they only save walking.
fn encode(mut entries: Vec<FileEntry>) -> Result<Vec<u8>, LoadError> {
    loop {
        match EntriesChunk::new(entries.clone()).encode() {
            Ok(content) => return Ok(content),
            Err(error @ ChunkError::TooLarge { .. }) => {
                if entries.iter().all(|entry| entry.marks.len() <= 1) {
                    return Err(invalid(error));
                }
                for entry in &mut entries {
                    let mut index = 0;
                    entry.marks.retain(|_| {
                        index += 1;
                        index % 2 == 1
                    });
                }
            }
            Err(error) => return Err(invalid(error)),
        }
    }
}

/// Cuts a listing into parts, in its order.
fn cut(files: Vec<ListedFile>) -> Vec<Vec<ListedFile>> {
    let most = (files.len() / PARTS).clamp(PART_FILES.0, PART_FILES.1);
    let mut parts: Vec<Vec<ListedFile>> = Vec::new();
    let mut bytes = 0;
    for file in files {
        let is_full = match parts.last() {
            None => true,
            Some(part) => part.len() >= most || bytes + file.size > PART_BYTES,
        };
        if is_full {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += file.size;
        parts.last_mut().expect("just pushed").push(file);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(count: usize, size: u64) -> Vec<ListedFile> {
        (0..count)
            .map(|index| ListedFile { path: format!("{index:07}"), size, etag: None })
            .collect()
    }

    #[test]
    fn a_chunk_that_is_gone_is_put_again_a_few_times_and_nothing_else_is() {
        let tell = |kind, good_after: u32| {
            let mut reports = 0;
            let told = again(|| {
                reports += 1;
                match reports > good_after {
                    true => Ok(()),
                    false => Err(WireError::new(kind, "no").into()),
                }
            });
            (told.is_ok(), reports)
        };
        assert_eq!(tell(ErrorKind::NotFound, 0), (true, 1));
        assert_eq!(tell(ErrorKind::NotFound, 2), (true, 3));
        assert_eq!(tell(ErrorKind::NotFound, u32::MAX), (false, REPORTS_MAX));
        assert_eq!(tell(ErrorKind::Fenced, 1), (false, 1));
    }

    #[test]
    fn parts_hold_all_files_in_order_and_not_too_many() {
        for (count, size, parts) in
            [(0, 1, 0), (1, 1 << 40, 1), (65, 1, 2), (10, 8 << 30, 5), (1_000_000, 1, 1954)]
        {
            let cut = cut(files(count, size));
            assert_eq!(cut.len(), parts, "{count} files of {size}");
            let all: Vec<_> = cut.into_iter().flatten().collect();
            assert_eq!(all, files(count, size));
        }
    }
}
