//! Scanning for the cluster: claims parts of new datasets, lists or scans them, and reports.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shardfeed_pipeline::SampleProgram;
use shardfeed_plan::ChangeStamp;
use shardfeed_proto::chunk::{ChunkError, EntriesChunk, ListingChunk};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::scan_task::Work;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_source::{
    Cache, CacheOptions, Dataset, FileRules, Found, LoadError, Lock, Rights, ScanProgress,
    ScanStage, SharedIndex, discover, is_remote,
};

use crate::catalog::chunks::{get_chunk, put_chunk};
use crate::catalog::entries::{entry_of, invalid};
use crate::catalog::listing::Listing;
use crate::catalog::samples::{program_of, with_samples};
use crate::cluster::coordinator::Request;
use crate::cluster::running_scan::RunningScan;
use crate::cluster::session::Session;

/// Maximum number of concurrent listings and scans: one that waits for storage must not block
/// others. Each uses its own threads.
const SCANS_AT_ONCE: usize = 4;

/// Maximum number of threads that hang in storage after the coordinator reassigned their scans;
/// beyond it no task is claimed.
const HANGING_MAX: usize = 64;

/// Maximum time that a wait for another process's scan of the same folder counts as progress.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(600);

/// Maximum number of reports when the coordinator lacks a chunk that was put: it may have been put
/// on a node that no longer leads.
const REPORTS_MAX: u32 = 4;

/// Scans for the cluster until dropped.
#[derive(Debug)]
pub struct Scanner {
    session: Arc<Session>,
    stop: Arc<AtomicBool>,
}

impl Scanner {
    /// Starts to claim scans.
    ///
    /// # Errors  The system has no threads.
    pub fn start(session: Arc<Session>, cache: CacheOptions) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (kept, of_loop) = (Lock::default(), Arc::clone(&session));
        let scan = Arc::new(ScanLoop { session: of_loop, cache, kept, stop: Arc::clone(&stop) });
        // Not joined when this is dropped, as a hung read must not block the caller.
        std::thread::Builder::new().name("shardfeed-scans".into()).spawn(move || scan.run())?;
        Ok(Self { session, stop })
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.session.look_for_scans();
    }
}

struct ScanLoop {
    session: Arc<Session>,
    cache: CacheOptions,
    /// Cache of the folder whose part was scanned last: its other parts are likely next.
    kept: Lock<Option<(PathBuf, Cache)>>,
    stop: Arc<AtomicBool>,
}

impl ScanLoop {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn run(self: Arc<Self>) {
        while !self.is_stopped() {
            self.session.wait_for_scans();
            while self.has_turn() {
                match self.take() {
                    Ok(tasks) if tasks.is_empty() => {
                        if self.session.scans().is_empty() {
                            self.kept.lock().take();
                        }
                        break;
                    }
                    Ok(tasks) => tasks.into_iter().for_each(|task| self.begin(task)),
                    Err(error) => {
                        tracing::debug!(%error, "no scans could be taken");
                        break;
                    }
                }
            }
        }
    }

    fn has_turn(&self) -> bool {
        let scans = self.session.scans();
        let hanging = scans.iter().filter(|scan| scan.is_ended()).count();
        if hanging >= HANGING_MAX {
            tracing::error!(hanging, "too many scans hang in storage; this worker takes no more");
        }
        !self.is_stopped() && hanging < HANGING_MAX && scans.len() - hanging < SCANS_AT_ONCE
    }

    /// Starts a thread for a task.
    fn begin(self: &Arc<Self>, task: wire::ScanTask) {
        let running = Arc::new(RunningScan::new(&task));
        self.session.add_scan(&running);
        let (scan, of_task) = (Arc::clone(self), Arc::clone(&running));
        let named = std::thread::Builder::new().name("shardfeed-scan".into());
        let spawned = named.spawn(move || {
            let at_work = AtWork { session: &scan.session, running: &of_task };
            scan.work(&task, &of_task);
            drop(at_work);
            // There may be more tasks to claim now.
            scan.session.look_for_scans();
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for a scan");
            self.session.remove_scan(&running);
        }
    }

    fn call<R: Request>(
        &self,
        running: Option<&RunningScan>,
        request: &R,
    ) -> Result<R::Response, WireError> {
        self.session.coordinator().call(&mut |_| self.goes_on(running), request)
    }

    fn goes_on(&self, running: Option<&RunningScan>) -> bool {
        !self.is_stopped() && !running.is_some_and(RunningScan::is_ended)
    }

    /// Returns a callback that reports progress of looks at files. While there is none, only a stop
    /// of this worker cancels: a thread that hangs in storage stays counted with this scan, whereas
    /// an abandoned one would be counted nowhere. Requests to a store have a time limit.
    fn tells<'a>(&'a self, running: &'a RunningScan) -> impl FnMut(bool) -> bool + 'a {
        move |is_moving| {
            if is_moving {
                running.beat();
            }
            self.goes_on(is_moving.then_some(running))
        }
    }

    fn take(&self) -> Result<Vec<wire::ScanTask>, WireError> {
        let session = self.session.id(&mut |_| !self.is_stopped())?;
        let request = wire::ClaimScansRequest { context: None, session, most: 1 };
        Ok(self.call(None, &request)?.tasks)
    }

    fn work(&self, task: &wire::ScanTask, running: &RunningScan) {
        let Some(session) = self.session.shared.current_id() else {
            return;
        };
        let told = match self.find(session, task, running) {
            Ok(()) => Ok(()),
            Err(LoadError::Interrupted) => return,
            // A part that was reassigned to another worker meanwhile is not an error of this one.
            Err(LoadError::Wire(error)) if error.kind == ErrorKind::Fenced => Err(error),
            Err(error) if !self.goes_on(Some(running)) => Err(error.to_wire()),
            Err(error) => self.fail(session, task, &error.to_wire()),
        };
        if let Err(error) = told {
            tracing::info!(dataset = task.dataset, %error, "a scan was not reported");
        }
    }

    fn find(
        &self,
        session: u64,
        task: &wire::ScanTask,
        running: &RunningScan,
    ) -> Result<(), LoadError> {
        let rules = FileRules::parse(&task.compression, &task.corrupt).map_err(invalid)?;
        match &task.work {
            None => Err(invalid("a task without work")),
            Some(Work::List(list)) => self.list((session, task), &list.patterns, running),
            Some(Work::Scan(scan)) => {
                let program = match &task.program[..] {
                    [] => None,
                    chunk => {
                        let goes_on = &mut |_: &str| self.goes_on(Some(running));
                        Some(program_of(&get_chunk(&self.session, chunk, goes_on)?)?)
                    }
                };
                self.scan((session, task), (scan, program), rules, running)
            }
        }
    }

    fn list(
        &self,
        (session, task): (u64, &wire::ScanTask),
        patterns: &[String],
        running: &RunningScan,
    ) -> Result<(), LoadError> {
        let roots = self.session.data_roots();
        roots.check(patterns)?;
        let mut go_on = self.tells(running);
        let found = discover(patterns, &mut go_on)?;
        Rights::below(roots).check(&found.root, &found.paths, &mut go_on)?;
        let listing = Listing::of(found, &mut go_on)?;
        again(|| {
            for (_, content) in &listing.parts {
                running.beat();
                self.put(content, running)?;
            }
            let request = wire::ReportListingRequest {
                context: None,
                session,
                dataset: task.dataset.clone(),
                fencing: task.fencing,
                root: listing.root.clone(),
                parts: listing.wire_parts(),
            };
            let wire::ReportListingResponse {} = self.call(Some(running), &request)?;
            Ok(())
        })
    }

    fn scan(
        &self,
        (session, task): (u64, &wire::ScanTask),
        (scan, program): (&wire::scan_task::Scan, Option<Arc<SampleProgram>>),
        rules: FileRules,
        running: &RunningScan,
    ) -> Result<(), LoadError> {
        let roots = self.session.data_roots();
        roots.check(std::slice::from_ref(&scan.root))?;
        let goes_on = || self.goes_on(Some(running));
        let listing = get_chunk(&self.session, &scan.chunk, &mut |_| goes_on())?;
        let listing = ListingChunk::decode(&listing).map_err(invalid)?;
        let root = PathBuf::from(&scan.root);
        // Listed files with an ETag have a complete stamp; other files are examined.
        let known = listing.files.iter().map(|file| {
            let etag = Some(file.etag.clone()?);
            Some(ChangeStamp { size_bytes: file.size, modified_ns: 0, etag })
        });
        let stamps = known.collect::<Option<Vec<_>>>().unwrap_or_default();
        let paths = listing.files.into_iter().map(|file| file.path).collect();
        let found = Found::new(root, paths, stamps);
        let rights = Rights::below(roots);
        rights.check(&found.root, &found.paths, &mut self.tells(running))?;
        let (is_remote, begun) = (is_remote(&found.root), Instant::now());
        let mut progress = |state: ScanProgress| {
            running.reached(state.files as u64, state.bytes);
            // Reads of a store always end, with an error that is more specific than a stall.
            if is_remote || state.stage == ScanStage::Waiting && begun.elapsed() < LOCK_WAIT_MAX {
                running.beat();
            }
            match state.stage {
                ScanStage::Listing if !is_remote => self.goes_on(None),
                _ => goes_on(),
            }
        };
        let kept =
            self.kept.lock().take().filter(|(root, cache)| *root == found.root && cache.is_kept());
        let mut cache = match kept {
            Some((_, cache)) => cache,
            None => Cache::open(&self.cache.folder, &found.root),
        };
        let of = (rules, &self.cache);
        Dataset::index_into(&mut cache, &found, of, &rights, program.as_ref(), &mut progress)?;
        let indexed = |path: &str| cache.get(path).expect("every file was known or scanned");
        let entry = |path: &String| entry_of(&found.root, path, indexed(path), rules.corrupt);
        let entries: Vec<_> = found.paths.iter().map(entry).collect();
        let (chunk, maps) = if let Some(program) = program {
            let entry = |path: &str| indexed(path).clone();
            let dataset = Dataset::of_entries(found.clone(), entry, of, rights.clone())?;
            let mut waits = None;
            let mut last = (0, 0);
            let mut counting = |state: ScanProgress| {
                running.reached(state.files as u64, state.bytes);
                let may_wait = state.stage == ScanStage::Waiting
                    && waits.get_or_insert_with(Instant::now).elapsed() < LOCK_WAIT_MAX;
                let before = std::mem::replace(&mut last, (state.files, state.bytes));
                if is_remote || may_wait || before != last {
                    running.beat();
                }
                goes_on()
            };
            let dataset = Arc::new(dataset);
            // Maps that other workers are to find in the index are written, or the scan fails.
            let index = self.cache.index.clone().map(SharedIndex::filling);
            let cache = CacheOptions { index, ..self.cache.clone() };
            let samples = dataset.count_samples(&program, rules.corrupt, &cache, &mut counting)?;
            // Maps without damaged records only are in the index.
            let are_in_index = self.cache.index.is_some() && samples.damaged_total == 0;
            with_samples(entries, &samples, are_in_index)
        } else {
            (EntriesChunk::new(entries), vec![])
        };
        self.kept.lock().replace((found.root, cache));
        let (records, digests) = (chunk.samples(), chunk.maps.iter());
        let digests: Vec<_> = digests.map(|map| map.as_bytes().to_vec()).collect();
        let content = encode(chunk)?;
        again(|| {
            for map in &maps {
                running.beat();
                self.put(map, running)?;
            }
            running.beat();
            let request = wire::ReportScanRequest {
                context: None,
                session,
                dataset: task.dataset.clone(),
                fencing: task.fencing,
                part: scan.part,
                chunk: self.put(&content, running)?,
                records,
                maps: digests.clone(),
            };
            let wire::ReportScanResponse {} = self.call(Some(running), &request)?;
            Ok(())
        })
    }

    fn fail(
        &self,
        session: u64,
        task: &wire::ScanTask,
        error: &WireError,
    ) -> Result<(), WireError> {
        let request = wire::FailScanRequest {
            context: None,
            session,
            dataset: task.dataset.clone(),
            fencing: task.fencing,
            error: Some(error.to_message()),
        };
        self.call(None, &request).map(drop)
    }

    fn put(&self, content: &[u8], running: &RunningScan) -> Result<Vec<u8>, WireError> {
        put_chunk(&self.session, content, &mut |_| self.goes_on(Some(running)))
    }
}

/// Guard of a scan's thread: the session lists the scan until the thread ends, which may be long
/// after the end of the scan if storage hangs.
struct AtWork<'a> {
    session: &'a Session,
    running: &'a Arc<RunningScan>,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.session.remove_scan(self.running);
    }
}

/// Puts chunks and reports; repeats while a chunk is not found.
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

/// Encodes a chunk; if it is too large, with fewer damaged records and fewer marks.
fn encode(mut chunk: EntriesChunk) -> Result<Vec<u8>, LoadError> {
    loop {
        match chunk.encode() {
            Ok(content) => return Ok(content),
            Err(ChunkError::TooLarge { .. }) if !chunk.damaged.is_empty() => {
                chunk.damaged.truncate(chunk.damaged.len() / 2);
            }
            Err(error @ ChunkError::TooLarge { .. }) => {
                if chunk.entries.iter().all(|entry| entry.marks.len() <= 1) {
                    return Err(invalid(error));
                }
                for entry in &mut chunk.entries {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
