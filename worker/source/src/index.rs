//! Indexing of a dataset's files: in parallel, once per host and unchanged file.

pub(crate) mod pass;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfeed_plan::{ChangeStamp, Corrupt};
use shardfeed_tfrecord::{
    IndexOptions, ReadAt, ReadError, ReadErrorKind, ShardIndex, index_source,
};

use crate::cache::{Cache, CacheOptions, Entries, IndexedFile};
use crate::dataset::scan_count::{ScanCounted, ScanCounter};
use crate::discover::Found;
use crate::error::LoadError;
use crate::index::pass::run_pass;
use crate::looks::file_state::{FileState, forget};
use crate::looks::{each, moved};
use crate::remote::{Reach, RemoteFile, Stop, is_remote, stamps};
use crate::rights::Rights;
use crate::rules::FileRules;
use crate::sidecar::{Fault, Sidecars};

/// Remote files scanned at once: 64, the number of concurrent requests, if one request covers a
/// file; otherwise 16, each with several requests.
const REMOTE_SCANS: (usize, usize) = (64, 16);

/// Bytes of one request while scanning, and requests in flight for one file.
const REMOTE_BLOCK: (usize, usize) = (1 << 20, 4);

/// Maximum number of warnings about files beside shards at a time; `dataset inspect` lists all.
const FAULTS_TOLD_MAX: usize = 10;

/// Interval at which the results of a scan are kept, in case the process is killed.
const KEEP_EVERY: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStage {
    /// Lists the files, and examines them and the files beside them.
    Listing,
    /// Waits for another process of this host that scans, to read its results.
    Waiting,
    Scanning,
    /// Reads indexed files to find the samples among their records.
    Counting,
    /// Done; reported once, also when no file had to be scanned.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanProgress {
    pub stage: ScanStage,
    /// Files scanned, of those that had to be; while listing, completed looks.
    pub files: usize,
    pub files_total: usize,
    pub bytes: u64,
    pub bytes_total: u64,
}

impl ScanProgress {
    pub fn at(stage: ScanStage) -> Self {
        Self { stage, files: 0, files_total: 0, bytes: 0, bytes_total: 0 }
    }

    /// Creates the progress of listing after `files` completed looks.
    pub(crate) fn listing(files: usize) -> Self {
        Self { files, ..Self::at(ScanStage::Listing) }
    }
}

/// Progress of opening a dataset, and the reason for a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenProgress {
    /// Reason for the wait; empty if nothing blocks.
    pub note: String,
    pub scan: ScanProgress,
}

impl OpenProgress {
    /// Creates the progress of a wait before anything is scanned.
    /// - `note`: reason for the wait, or an empty text.
    pub fn waiting(note: impl Into<String>) -> Self {
        Self { note: note.into(), scan: ScanProgress::at(ScanStage::Waiting) }
    }
}

/// Called while opening is in progress; returning `false` cancels.
pub type OnProgress<'a> = &'a mut dyn FnMut(&OpenProgress) -> bool;

/// Adapts a progress callback to notes about waiting.
pub fn waiting<'a>(progress: OnProgress<'a>) -> impl FnMut(&str) -> bool + 'a {
    move |note| progress(&OpenProgress::waiting(note))
}

/// A file's index in `found`, its shard index, and its state afterwards if it is local.
type Scanned = (usize, ShardIndex, Option<FileState>);

/// Indexes the files of `found`; afterwards `cache`, of their folder, has an entry for each.
/// - `of_others`: results of other workers: used for files whose change stamps still match.
/// - `rights`: access rights with which they are opened. `count`: takes part in scans.
/// - `progress`: called now and then from this thread; returning `false` cancels.
///
/// # Errors  The first damaged file by name; `Interrupted`.
pub(crate) fn index_into(
    cache: &mut Cache,
    found: &Found,
    rules: FileRules,
    options: &CacheOptions,
    of_others: &Entries,
    (rights, count): (&Rights, Option<Arc<ScanCounter>>),
    progress: &mut dyn FnMut(ScanProgress) -> bool,
) -> Result<(), LoadError> {
    let missing = |states: &[FileState], known: &Entries| missing(found, states, known, rules);
    cache.refresh();
    let mut state = ScanProgress::at(ScanStage::Done);
    let is_remote = is_remote(&found.root);
    let mut states = FileState::all(found, &mut |done| progress(ScanProgress::listing(done)))?;
    let mut added = Vec::new();
    if !missing(&states, &cache.entries).is_empty() {
        let waiting = ScanProgress { stage: ScanStage::Waiting, ..state };
        let _lock = cache.lock(|| progress(waiting))?;
        cache.refresh();
        let mut wanted = missing(&states, &cache.entries);
        // Each answer of a store is compared with its stamp; a local file is examined again, unless
        // another process indexed it while this one waited.
        if !is_remote && !wanted.is_empty() {
            let paths = wanted.iter().map(|&file| found.root.join(&found.paths[file])).collect();
            let go_on = &mut |done| progress(ScanProgress::listing(done));
            let looks = each(paths, go_on, |path: &PathBuf| FileState::of(path))?;
            for (&file, look) in wanted.iter().zip(looks) {
                states.to_mut()[file] = look?;
            }
            wanted = missing(&states, &cache.entries);
        }
        let shared = match (&options.index, wanted.is_empty()) {
            (Some(index), false) => index.entries(&found.root, &mut || progress(waiting))?,
            _ => Entries::new(),
        };
        let needed = (&wanted[..], &cache.entries);
        let mut new = adopt(found, &states, of_others, rules, needed);
        new.extend(adopt(found, &states, &shared, rules, needed));
        let is_new = |file: &usize| !new.contains_key(&found.paths[*file]);
        let scan: Vec<_> = wanted.into_iter().filter(is_new).collect();
        state.files_total = scan.len();
        state.bytes_total = scan.iter().map(|&file| states[file].stamp.size_bytes).sum();
        let remote = match is_remote {
            false => None,
            true => Some(RemoteScan::new(found, &scan, &states, options)?),
        };
        if !new.is_empty() {
            cache.add(new);
        }
        let mut records = Vec::new();
        // Results are kept even if another file is damaged, or if the process ends before the scan.
        let keep = &mut |scanned: Vec<Scanned>| {
            let mut new = Entries::new();
            for (file, index, after) in scanned {
                let path = found.paths[file].clone();
                let after = after.unwrap_or_else(|| states[file].clone());
                if after.stamp != states[file].stamp {
                    let (indexed, found) = (states[file].stamp.clone(), Some(after.stamp));
                    return Err(LoadError::changed(path, indexed, found));
                }
                records.push((file, index.records));
                added.push(path.clone());
                let compression = rules.compression.to_string();
                let entry = IndexedFile { state: after, compression, index };
                new.insert(path, Box::new(entry));
            }
            if !new.is_empty() {
                cache.add(new);
            }
            Ok(())
        };
        let by = (rules, rights, count);
        let failed = scan_all(found, &scan, remote, by, (&mut state, progress), keep);
        if !matches!(failed, Some(LoadError::Interrupted)) {
            hear_others(found, &records, progress)?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
    }
    if let Some(index) = &options.index {
        let added = if index.is_filling { &found.paths } else { &added };
        let entry = |path: &String| (path.clone(), cache.entries[path].clone());
        let added = added.iter().map(entry).collect();
        index.add(&found.root, added, &mut || progress(state))?;
    }
    match progress(ScanProgress { stage: ScanStage::Done, ..state }) {
        true => Ok(()),
        false => Err(LoadError::Interrupted),
    }
}

/// Warns if a file beside the scanned shards states another number of records. A shard that was cut
/// off between two records looks intact on its own.
///
/// # Errors  `Interrupted`.
fn hear_others(
    found: &Found,
    scanned: &[(usize, u64)],
    progress: &mut dyn FnMut(ScanProgress) -> bool,
) -> Result<(), LoadError> {
    let paths: Vec<_> = scanned.iter().map(|(file, _)| found.paths[*file].clone()).collect();
    let go_on = &mut |done| progress(ScanProgress::listing(done));
    let sidecars = Sidecars::beside(&found.root, &paths, go_on)?;
    let disagreements = scanned
        .iter()
        .enumerate()
        .flat_map(|(shard, (_, records))| sidecars.disagreements(shard, &paths[shard], *records));
    for Fault { file, what } in
        sidecars.faults().iter().cloned().chain(disagreements).take(FAULTS_TOLD_MAX)
    {
        tracing::warn!(file = %file.display(), "a file beside the shards {what}; the shards' content is used");
    }
    Ok(())
}

/// Returns the results of other hosts for files whose change stamps still match.
fn adopt(
    found: &Found,
    states: &[FileState],
    of_others: &Entries,
    rules: FileRules,
    (wanted, known): (&[usize], &Entries),
) -> Entries {
    let mut adopted = Entries::new();
    for &file in wanted {
        let (path, state) = (&found.paths[file], &states[file]);
        // A file that this host knew is scanned again: its stamp may have been set back.
        if let Some(entry) = of_others.get(path)
            && entry.state.stamp == state.stamp
            && entry.suits(rules)
            && !known.contains_key(path)
        {
            let entry = IndexedFile { state: state.clone(), ..(**entry).clone() };
            adopted.insert(path.clone(), Box::new(entry));
        }
    }
    adopted
}

impl FileState {
    /// Returns the states of all files of a dataset, none of them under two names.
    fn all<'a>(
        found: &'a Found,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Cow<'a, [Self]>, LoadError> {
        if is_remote(&found.root) {
            if found.stamps.len() == found.paths.len() {
                return Ok(found.stamps.iter().cloned().map(Self::remote).collect());
            }
            let url = |path: &String| found.root.join(path).display().to_string();
            let urls: Vec<_> = found.paths.iter().map(url).collect();
            let seen = stamps(&urls, &mut || go_on(0))?;
            return Ok(seen.into_iter().map(|(_, stamp)| Self::remote(stamp)).collect());
        }
        let states = Self::local(found, go_on)?;
        let mut seen = BTreeMap::new();
        for (path, state) in found.paths.iter().zip(&*states) {
            let identity = (state.inode.device, state.inode.number);
            if let Some(other) = seen.insert(identity, path) {
                return Err(LoadError::Option(format!(
                    "`{path}` and `{other}` are one file; a file is read once an epoch, so name it once"
                )));
            }
        }
        Ok(states)
    }

    /// Returns the states of local files when they were found, or their current ones.
    fn local<'a>(
        found: &'a Found,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Cow<'a, [Self]>, LoadError> {
        if found.states.len() == found.paths.len() {
            return Ok(found.states.as_slice().into());
        }
        let root = found.root.clone();
        let look = move |path: &String| Self::of(&root.join(path));
        each(found.paths.clone(), go_on, look)?.into_iter().collect()
    }
}

/// Returns sizes and change times of regular files; times are in ns since 1970. Unlike the
/// modification time, a user cannot set the change time back.
/// - `go_on`: called during the looks, with `true` if one was completed; `false` cancels.
pub fn changes(
    found: &Found,
    go_on: &mut dyn FnMut(bool) -> bool,
) -> Result<Vec<(u64, i128)>, LoadError> {
    let states = FileState::local(found, &mut moved(go_on))?;
    Ok(states.iter().map(|state| (state.stamp.size_bytes, state.inode.changed_ns)).collect())
}

/// Returns the current change stamp of each local file, or the reason why it has none.
/// - `go_on`: called during the looks; `false` cancels.
pub fn local_stamps(
    paths: Vec<PathBuf>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<Result<ChangeStamp, LoadError>>, LoadError> {
    each(paths, &mut |_| go_on(), |path: &PathBuf| FileState::of(path).map(|state| state.stamp))
}

/// Returns the files without a valid entry that has what the rules need.
fn missing(found: &Found, states: &[FileState], known: &Entries, rules: FileRules) -> Vec<usize> {
    let good = |&file: &usize| {
        let entry = known.get(&found.paths[file]);
        entry.is_some_and(|entry| entry.state == states[file] && entry.suits(rules))
    };
    (0..found.paths.len()).filter(|file| !good(file)).collect()
}

fn scan_all(
    found: &Found,
    files: &[usize],
    remote: Option<RemoteScan>,
    (rules, rights, count): (FileRules, &Rights, Option<Arc<ScanCounter>>),
    (state, progress): (&mut ScanProgress, &mut dyn FnMut(ScanProgress) -> bool),
    keep: &mut dyn FnMut(Vec<Scanned>) -> Result<(), LoadError>,
) -> Option<LoadError> {
    let paths = files.iter().map(|&file| (file, found.root.join(&found.paths[file]))).collect();
    let threads = remote.as_ref().map(|remote| remote.threads);
    let (rights, stop) = (rights.clone(), Stop::default());
    let scan = Arc::new(SharedScan { paths, remote, rules, rights, count, stop });
    state.stage = ScanStage::Scanning;
    let mut kept = Instant::now();
    let go_on = |state: &ScanProgress, results: &mut Vec<Scanned>| {
        let mut done = Ok(());
        if kept.elapsed() > KEEP_EVERY {
            done = keep(std::mem::take(results));
            kept = Instant::now();
        }
        if progress(*state) { done } else { Err(LoadError::Interrupted) }
    };
    let (of, stop) = (Arc::clone(&scan), &scan.stop);
    let work = move |number, progress: &mut dyn FnMut(u64)| of.work(number, progress);
    let path_of = |number: usize| &*scan.paths[number].1;
    let (rest, end) = run_pass(("scan", threads), state, stop, path_of, work, go_on);
    keep(rest).and(end).err()
}

struct SharedScan {
    paths: Vec<(usize, PathBuf)>,
    remote: Option<RemoteScan>,
    rules: FileRules,
    rights: Rights,
    count: Option<Arc<ScanCounter>>,
    stop: Stop,
}

/// State for scanning remote files.
struct RemoteScan {
    reach: Reach,
    stamps: Vec<ChangeStamp>,
    threads: usize,
}

impl RemoteScan {
    fn new(
        found: &Found,
        files: &[usize],
        states: &[FileState],
        options: &CacheOptions,
    ) -> Result<Self, LoadError> {
        let blocks = options.blocks()?;
        let reach = Reach::open(&found.root.display().to_string(), Arc::default(), blocks)?;
        let bytes: u64 = files.iter().map(|&file| states[file].stamp.size_bytes).sum();
        let is_small = bytes / (files.len() as u64).max(1) <= REMOTE_BLOCK.0 as u64;
        let threads = if is_small { REMOTE_SCANS.0 } else { REMOTE_SCANS.1 };
        let stamps = states.iter().map(|state| state.stamp.clone()).collect();
        Ok(Self { reach, stamps, threads })
    }

    fn open(
        &self,
        file: usize,
        url: &str,
        is_again: bool,
        stop: &Stop,
    ) -> Result<RemoteFile, LoadError> {
        let object = self.reach.object(url, self.stamps[file].clone())?;
        if is_again {
            object.forget(0..object.size_bytes());
        }
        let (block_bytes, ahead) = REMOTE_BLOCK;
        Ok(RemoteFile::new(object, block_bytes, ahead, Arc::clone(stop)))
    }
}

impl SharedScan {
    fn local(
        &self,
        path: &Path,
        options: &IndexOptions,
        is_again: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<(ShardIndex, Option<FileState>)>, LoadError> {
        let name = path.display().to_string();
        let mut file = self.rights.open(path).map_err(|error| {
            let kind = ReadErrorKind::Open(error);
            ReadError { file: name.clone(), offset: 0, ordinal: 0, kind }
        })?;
        if is_again {
            // Pages that stay in the cache are read from there again.
            let _ = forget(&file, 0..file.metadata().map_or(0, |metadata| metadata.len()));
        }
        let index = self.index(&mut file, path, options, is_again, progress)?;
        let state = FileState::of(path)?;
        Ok(index.map(|index| (index, Some(state))))
    }

    /// Returns `None` if the file is to be read again.
    fn index(
        &self,
        source: &mut dyn ReadAt,
        file: &Path,
        options: &IndexOptions,
        is_again: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<ShardIndex>, LoadError> {
        if let Some(count) = self.count.as_ref().filter(|_| !options.verify_data) {
            match count.index(source, file, options, &self.stop, progress) {
                ScanCounted::Indexed(index) => return Ok(Some(index)),
                ScanCounted::Doubtful if !is_again => return Ok(None),
                ScanCounted::Doubtful | ScanCounted::Alone => {}
            }
        }
        let name = file.display().to_string();
        Ok(Some(index_source(source, &name, options, progress)?))
    }

    /// Scans a file.
    /// - `progress`: called with the bytes read since the call before.
    fn work(&self, number: usize, progress: &mut dyn FnMut(u64)) -> Result<Scanned, LoadError> {
        let options = IndexOptions {
            compression: self.rules.compression,
            verify_data: self.rules.corrupt == Corrupt::SkipFile,
            keep_going: self.rules.corrupt.skips(),
            ..IndexOptions::default()
        };
        let (file, path) = &self.paths[number];
        let mut told = 0;
        let mut progress = |bytes: u64| {
            progress(bytes.saturating_sub(told));
            told = told.max(bytes);
        };
        let mut scan = |is_again| match &self.remote {
            None => self.local(path, &options, is_again, &mut progress),
            Some(remote) => {
                let url = path.display().to_string();
                let mut source = remote.open(*file, &url, is_again, &self.stop)?;
                let index = self.index(&mut source, path, &options, is_again, &mut progress)?;
                Ok(index.map(|index| (index, None)))
            }
        };
        // A cache or the network may have changed a file that looks damaged.
        let is_damaged = |scanned: &Result<Option<(ShardIndex, _)>, _>| match scanned {
            Ok(Some((index, _))) => index.broken.is_some() || index.corrupt_records > 0,
            Ok(None) => true,
            Err(error) => LoadError::is_damage(error),
        };
        let first = scan(false);
        let result = if is_damaged(&first) { scan(true) } else { first };
        let (index, after) = result?.ok_or(LoadError::ReaderLost)?;
        Ok((*file, index, after))
    }
}
