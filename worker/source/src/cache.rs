//! Results of indexing, kept on disk so that a second start scans nothing.
//!
//! There is one file for each folder that datasets are relative to, under a lock: one process of a
//! host scans, the others wait and read. An entry is valid while its file's change stamp is.
//!
//! A file is a magic and then segments. Each segment has a checksum, a length and entries; later
//! entries replace earlier ones. New results are therefore appended: a dataset that is scanned part
//! by part does not rewrite the file for each part.

pub(crate) mod kept;
pub(crate) mod object_kind;
pub(crate) mod object_log;
pub(crate) mod shared_index;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crc_fast::crc32_iscsi;
use serde::{Deserialize, Serialize};
use shardfeed_plan::{ChangeStamp, Corrupt, Digest};
use shardfeed_tfrecord::{NewFile, ShardIndex};

use crate::blocks::BlockCache;
use crate::cache::object_log::{ObjectLog, OpenLogs};
use crate::cache::shared_index::SharedIndex;
use crate::error::LoadError;
use crate::looks::file_state::FileState;
use crate::rules::FileRules;
use crate::shared::Lock;

/// First bytes of a cache file; the number is the version of the format.
const MAGIC: &[u8] = b"shardfeed index 4\n";

/// Checksum and length of a segment.
const SEGMENT_HEAD: usize = 4 + 8;

/// Minimum number of bytes that may be appended before a file is rewritten; a larger file may
/// double. Replaced entries are therefore never most of a file.
const APPENDED_MIN: u64 = 1 << 20;

/// Interval at which a waiting process retries the lock.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Age after which a temporary file is abandoned: no write takes this long. Locks of some network
/// file systems hold within one host only: a younger file may be another host's current write.
const PART_AGE: Duration = Duration::from_secs(600);

/// Location of the index cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheChoice {
    /// `SHARDFEED_CACHE_DIR` if set (`off`: no cache), else `$XDG_CACHE_HOME/shardfeed`, else
    /// `~/.cache/shardfeed`.
    #[default]
    Environment,
    Folder(PathBuf),
    /// No cache: every start scans.
    Off,
}

/// Location and limits of this host's disk cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    pub folder: CacheChoice,
    /// Maximum number of cached bytes of remote files; 0: none are cached.
    pub bytes: u64,
    /// Index that hosts share; it is asked for what this host's cache lacks.
    pub index: Option<SharedIndex>,
    /// Open files of counted samples; `None`: they are opened for each dataset.
    pub logs: Option<OpenLogs>,
}

impl From<CacheChoice> for CacheOptions {
    fn from(folder: CacheChoice) -> Self {
        Self { folder, ..Self::default() }
    }
}

impl CacheOptions {
    /// Returns the objects of a file.
    pub(crate) fn log(&self, path: PathBuf) -> Arc<ObjectLog> {
        match &self.logs {
            Some(open) => open.get(path),
            None => Arc::new(ObjectLog::open(path)),
        }
    }

    /// Returns the cache for bytes of remote files, if it is enabled and can be opened.
    ///
    /// # Errors  It is enabled, but there is no cache folder.
    pub(crate) fn blocks(&self) -> Result<Option<Arc<BlockCache>>, LoadError> {
        if self.bytes == 0 {
            return Ok(None);
        }
        match self.folder.folder() {
            Some(folder) => Ok(BlockCache::open(&folder, self.bytes).map(Arc::new)),
            None => Err(LoadError::Option(
                "cache_bytes has no folder, as nothing is to be kept; name one by cache_dir".into(),
            )),
        }
    }
}

/// Index of a file, and the state of the file that it is of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IndexedFile {
    pub(crate) state: FileState,
    /// Requested compression, in the user's notation.
    pub(crate) compression: String,
    pub(crate) index: ShardIndex,
}

impl IndexedFile {
    /// Creates the result of another host, whose files have other inodes.
    pub fn new(stamp: ChangeStamp, rules: FileRules, index: ShardIndex) -> Self {
        let compression = rules.compression.to_string();
        Self { state: FileState::remote(stamp), compression, index }
    }

    /// Returns the change stamp of the file when it was indexed.
    pub fn stamp(&self) -> &ChangeStamp {
        &self.state.stamp
    }

    pub fn index(&self) -> &ShardIndex {
        &self.index
    }

    /// True if it has what the rules need.
    pub(crate) fn suits(&self, rules: FileRules) -> bool {
        let is_suitable = match rules.corrupt {
            // Scanned again, to report its error.
            Corrupt::Error => self.index.broken.is_none(),
            Corrupt::SkipRecord => true,
            Corrupt::SkipFile => self.index.data_verified,
        };
        is_suitable && self.compression == rules.compression.to_string()
    }
}

/// Indexed files by their paths relative to a folder.
pub type Entries = BTreeMap<String, Box<IndexedFile>>;

impl CacheChoice {
    /// Returns the folder, or `None` for no cache.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        match self {
            Self::Off => None,
            Self::Folder(folder) => Some(folder.clone()),
            Self::Environment => match set("SHARDFEED_CACHE_DIR") {
                Some(value) if value == "off" => None,
                Some(value) => Some(value.into()),
                None => {
                    set("XDG_CACHE_HOME").map(|base| PathBuf::from(base).join("shardfeed")).or_else(
                        || set("HOME").map(|home| PathBuf::from(home).join(".cache/shardfeed")),
                    )
                }
            },
        }
    }
}

/// Cached entries of one folder, as of the last read.
#[derive(Debug, Default)]
pub struct Cache {
    /// `None`: nothing is cached on disk.
    file: Option<PathBuf>,
    pub(crate) entries: Entries,
    /// The file that the entries were read from.
    seen: Option<CacheFileState>,
}

#[derive(Clone, Copy, Debug)]
struct CacheFileState {
    device: u64,
    inode: u64,
    /// Bytes of complete segments; damaged or incomplete data beyond them prevents appending.
    bytes: u64,
    /// Bytes of the file when it was last written as a whole.
    whole: u64,
}

/// Exclusive right to scan one folder; released when dropped, also by the death of the process.
#[derive(Debug)]
pub(crate) struct ScanLock {
    _file: File,
}

impl Cache {
    /// Opens the cache of `root` without reading it; in memory only if the folder is unusable.
    pub fn open(choice: &CacheChoice, root: &Path) -> Self {
        let Some(folder) = choice.folder() else {
            return Self::default();
        };
        let folder = folder.join("index");
        if let Err(error) = fs::create_dir_all(&folder) {
            warn(&folder, "make the folder", &error);
            return Self::default();
        }
        let name = Digest::of_parts([root.as_os_str().as_encoded_bytes()]).to_string();
        Self { file: Some(folder.join(&name[..24])), ..Self::default() }
    }

    /// True if the entries are kept on disk, so that a later read finds them.
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Returns an indexed file, by its path relative to the folder.
    pub fn get(&self, path: &str) -> Option<&IndexedFile> {
        self.entries.get(path).map(|entry| &**entry)
    }

    /// Reads entries written since the last read. A damaged, older or unreadable cache is empty.
    pub(crate) fn refresh(&mut self) {
        let Some(path) = self.file.clone() else {
            return;
        };
        match self.read(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (self.entries, self.seen) = (Entries::new(), None);
            }
            Err(error) => self.give_up(&path, "read the index cache", &error),
        }
    }

    fn give_up(&mut self, path: &Path, action: &'static str, error: &io::Error) {
        warn(path, action, error);
        self.file = None;
    }

    fn read(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        let known = self.seen.filter(|seen| (seen.device, seen.inode) == (device, inode));
        let from = known.map_or(0, |seen| seen.bytes);
        if known.is_some() && metadata.len() == from {
            return Ok(());
        }
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut bytes)?;
        if known.is_none() {
            self.entries = Entries::new();
        }
        let found = match known {
            Some(_) => segments(&bytes, &mut self.entries),
            None => decode(&bytes, &mut self.entries),
        };
        if found.is_damaged {
            tracing::warn!(
                file = %path.display(),
                "the index cache is damaged or of another release; missing entries are scanned \
                 again"
            );
        }
        let whole = known.map_or(found.first, |seen| seen.whole);
        self.seen = Some(CacheFileState { device, inode, bytes: from + found.bytes, whole });
        Ok(())
    }

    /// Adds new entries; call it under the lock and after a read. Appends them, or rewrites the
    /// whole file. If the write fails, the file on disk is unchanged.
    pub(crate) fn add(&mut self, found: Entries) {
        let Some(path) = self.file.clone() else {
            self.entries.extend(found);
            return;
        };
        let segment = encode_segment(&found);
        self.entries.extend(found);
        let appended = self.seen.map_or(Ok(None), |seen| append(&path, seen, &segment));
        match appended.and_then(|seen| seen.map_or_else(|| self.save(&path), Ok)) {
            Ok(seen) => self.seen = Some(seen),
            Err(error) => self.give_up(&path, "write the index cache", &error),
        }
    }

    /// Replaces the file atomically.
    fn save(&self, path: &Path) -> io::Result<CacheFileState> {
        let bytes = encode(&self.entries);
        let mut file = NewFile::beside(path)?;
        file.file().write_all(&bytes)?;
        let metadata = file.file().metadata()?;
        file.finish()?;
        let (device, inode, bytes) = (metadata.dev(), metadata.ino(), bytes.len() as u64);
        Ok(CacheFileState { device, inode, bytes, whole: bytes })
    }

    /// Waits for the right to scan.
    /// - `waiting`: called while another process holds it; returning `false` cancels.
    ///
    /// - Returns `None` if nothing is kept on disk, or if the file system has no locks; then
    ///   several processes may scan the same files.
    ///
    /// # Errors  `Interrupted`.
    pub(crate) fn lock(
        &self,
        mut waiting: impl FnMut() -> bool,
    ) -> Result<Option<ScanLock>, LoadError> {
        let Some(path) = self.file.as_ref().map(|file| file.with_extension("lock")) else {
            return Ok(None);
        };
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                warn(&path, "make the lock file", &error);
                return Ok(None);
            }
        };
        loop {
            match file.try_lock() {
                Ok(()) => {
                    self.file.iter().for_each(|file| remove_old_parts(file));
                    return Ok(Some(ScanLock { _file: file }));
                }
                Err(TryLockError::WouldBlock) if !waiting() => return Err(LoadError::Interrupted),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
                Err(TryLockError::Error(error)) => {
                    warn_of(&path, "lock the index cache", &error, UNLOCKED);
                    return Ok(None);
                }
            }
        }
    }
}

/// Removes temporary files of processes that died while they wrote a file. The caller holds its lock. A
/// file that cannot be removed only wastes space.
pub(crate) fn remove_old_parts(file: &Path) {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!(".{name}.");
    let is_part = |part: &fs::DirEntry| part.file_name().to_string_lossy().starts_with(&prefix);
    let is_old = |metadata: fs::Metadata| {
        metadata.modified().is_ok_and(|written| written.elapsed().is_ok_and(|age| age > PART_AGE))
    };
    let folder = file.parent().expect("a cache file lies in a folder");
    for found in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_part(&found) && found.metadata().is_ok_and(is_old) {
            let _ = fs::remove_file(found.path());
        }
    }
}

/// Consequence and remedy if nothing can be cached in a folder.
const UNKEPT: &str = "the files are read as a whole at each start, by each process of this host; make the folder \
    writable and free some space, or set SHARDFEED_CACHE_DIR to another one";

/// Consequence and remedy if a folder has no locks.
const UNLOCKED: &str = "processes of this host that start together each read the files as a whole; set \
    SHARDFEED_CACHE_DIR to a folder on a file system with locks";

/// Warns once for each folder that nothing can be cached there.
pub(crate) fn warn(path: &Path, action: &'static str, error: &io::Error) {
    warn_of(path, action, error, UNKEPT);
}

/// Warns once for each folder about a failed action, with its consequence.
fn warn_of(path: &Path, action: &'static str, error: &io::Error, cost: &'static str) {
    static WARNED: Lock<BTreeSet<PathBuf>> = Lock::new(BTreeSet::new());
    let folder = path.parent().unwrap_or(path).to_path_buf();
    if WARNED.lock().insert(folder) {
        tracing::warn!("{}: cannot {action}: {error}; {cost}", path.display());
    }
}

/// Appends to the file that was read. Returns `None` if the file was replaced, ends with incomplete
/// data, or is due for a rewrite. It is not synced: a crash leaves at most one bad segment.
fn append(path: &Path, seen: CacheFileState, segment: &[u8]) -> io::Result<Option<CacheFileState>> {
    let bytes = seen.bytes + segment.len() as u64;
    if bytes - seen.whole.min(bytes) > seen.whole.max(APPENDED_MIN) {
        return Ok(None);
    }
    let mut file = match OpenOptions::new().append(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let now = file.metadata()?;
    if (now.dev(), now.ino(), now.len()) != (seen.device, seen.inode, seen.bytes) {
        return Ok(None);
    }
    if let Err(error) = file.write_all(segment) {
        // A partial segment has no valid checksum; the file is rewritten with the next one.
        let _ = file.set_len(seen.bytes);
        return Err(error);
    }
    Ok(Some(CacheFileState { bytes, ..seen }))
}

/// Encodes the magic and all entries as one segment.
fn encode(entries: &Entries) -> Vec<u8> {
    [MAGIC, &encode_segment(entries)].concat()
}

/// Encodes a segment: CRC-32C of the rest, bytes of the body, entries.
fn encode_segment(entries: &Entries) -> Vec<u8> {
    let body = postcard::to_stdvec(entries).expect("entries are plain data");
    let rest = [&(body.len() as u64).to_le_bytes()[..], &body].concat();
    [&crc32_iscsi(&rest).to_le_bytes()[..], &rest].concat()
}

/// Valid part of a file, or of its end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Good {
    /// Bytes of complete segments.
    bytes: u64,
    /// Bytes up to the end of the first segment.
    first: u64,
    /// The data that follows is neither a segment nor one that is being written.
    is_damaged: bool,
}

fn decode(bytes: &[u8], entries: &mut Entries) -> Good {
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        return Good { is_damaged: true, ..Good::default() };
    };
    let Good { bytes, first, is_damaged } = segments(rest, entries);
    let magic = MAGIC.len() as u64;
    Good { bytes: bytes + magic, first: first + magic, is_damaged }
}

/// Adds the entries of all segments before the first incomplete or damaged one.
fn segments(mut bytes: &[u8], entries: &mut Entries) -> Good {
    let mut good = Good::default();
    while let Some((head, rest)) = bytes.split_at_checked(SEGMENT_HEAD) {
        let (crc, length) = head.split_first_chunk::<4>().expect("a head is longer");
        let length = u64::from_le_bytes(length.try_into().expect("a head ends with eight bytes"));
        let body = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
        let Some((body, after)) = body else {
            // Another process is writing it, or died while it did.
            break;
        };
        let checksum = crc32_iscsi(&bytes[4..SEGMENT_HEAD + body.len()]);
        let found = postcard::from_bytes::<Entries>(body);
        let (true, Ok(mut found)) = (checksum == u32::from_le_bytes(*crc), found) else {
            good.is_damaged = true;
            break;
        };
        entries.append(&mut found);
        good.bytes += (SEGMENT_HEAD + body.len()) as u64;
        if good.first == 0 {
            good.first = good.bytes;
        }
        bytes = after;
    }
    good
}

pub mod fuzzing {
    use super::{ChangeStamp, Entries, FileState, IndexedFile, ShardIndex, decode, encode};
    use crate::looks::file_state::Inode;

    pub fn index_cache(indexes: Vec<ShardIndex>) -> Vec<u8> {
        let entry = |(number, index): (usize, ShardIndex)| {
            let stamp = ChangeStamp { size_bytes: index.stream_bytes, modified_ns: 5, etag: None };
            let inode = Inode { device: 1, number: number as u64, changed_ns: 7 };
            let state = FileState { stamp, inode };
            let entry = IndexedFile { state, compression: "auto".to_owned(), index };
            (format!("file-{number}"), Box::new(entry))
        };
        encode(&indexes.into_iter().enumerate().map(entry).collect())
    }

    /// Returns the number of entries in the cache file `bytes`, and the file re-encoded from them;
    /// `None` if the file counts as empty.
    pub fn kept_again(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
        let mut entries = Entries::new();
        let good = decode(bytes, &mut entries);
        (!good.is_damaged).then(|| (entries.len(), encode(&entries)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::looks::file_state::Inode;

    fn open(folder: &Path) -> Cache {
        Cache::open(&CacheChoice::Folder(folder.into()), Path::new("/data"))
    }

    fn entries(path: &str) -> Entries {
        let index = shardfeed_tfrecord::index_records(
            io::empty(),
            "x",
            &shardfeed_tfrecord::IndexOptions::default(),
            &mut |_| (),
        );
        let stamp = ChangeStamp { size_bytes: 1, modified_ns: -5, etag: None };
        let inode = Inode { device: 1, number: 2, changed_ns: 3 };
        let state = FileState { stamp, inode };
        let entry = IndexedFile { state, compression: "auto".into(), index: index.unwrap() };
        [(path.to_owned(), Box::new(entry))].into()
    }

    /// Decodes a file: the number of entries, and its valid part.
    fn read(bytes: &[u8]) -> (usize, Good) {
        let mut entries = Entries::new();
        let good = decode(bytes, &mut entries);
        (entries.len(), good)
    }

    #[test]
    fn an_entry_is_stored_as_its_parts_in_turn() {
        let entry = entries("a").remove("a").unwrap();
        let (stamp, index) = (entry.stamp(), entry.index());
        let parts = (stamp, (1_u64, 2_u64, 3_i128), "auto", index);
        let bytes = [postcard::to_stdvec(&entry), postcard::to_stdvec(&parts)];
        assert_eq!(bytes[0], bytes[1], "caches of earlier releases are read");
    }

    #[test]
    fn a_damaged_cache_is_one_without_what_is_damaged() {
        let bytes = [encode(&entries("a")), encode_segment(&entries("b"))].concat();
        let (all, first) = (bytes.len() as u64, encode(&entries("a")).len() as u64);
        assert_eq!(read(&bytes), (2, Good { bytes: all, first, is_damaged: false }));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let (count, good) = read(&damaged);
            assert_eq!(count, usize::from(at >= first as usize), "byte {at}");
            assert!(good.bytes <= at as u64, "byte {at}: {good:?}");
            let (count, good) = read(&bytes[..at]);
            assert_eq!(count, usize::from(at >= first as usize), "cut at {at}");
            assert_eq!(good.is_damaged, at < MAGIC.len(), "cut at {at}");
        }
    }

    #[test]
    fn one_scans_and_the_others_wait() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = open(folder.path());
        let lock = cache.lock(|| false).unwrap();
        assert!(matches!(cache.lock(|| false), Err(LoadError::Interrupted)));
        cache.add(entries("a"));
        drop(lock);
        cache.lock(|| false).unwrap();
        let mut other = open(folder.path());
        other.refresh();
        assert_eq!(other.entries.len(), 1);
    }

    #[test]
    fn what_is_found_is_appended_and_seen_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (open(folder.path()), open(folder.path()));
        let file = one.file.clone().unwrap();
        let mut inodes = BTreeSet::new();
        for number in 0..100 {
            let (writes, reads) =
                if number % 2 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
            writes.refresh();
            writes.add(entries(&number.to_string()));
            reads.refresh();
            assert_eq!(reads.entries.len(), number + 1);
            inodes.insert(fs::metadata(&file).unwrap().ino());
        }
        assert_eq!(inodes.len(), 1, "it was never rewritten");
        let mut third = open(folder.path());
        third.refresh();
        assert_eq!(third.entries.len(), 100);
    }

    #[test]
    fn what_was_not_written_to_its_end_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = open(folder.path());
        cache.add(entries("a"));
        let file = cache.file.clone().unwrap();
        let mut bytes = fs::read(&file).unwrap();
        let whole = bytes.len();
        bytes.extend_from_slice(&encode_segment(&entries("b"))[..20]);
        fs::write(&file, &bytes).unwrap();
        let mut other = open(folder.path());
        other.refresh();
        assert_eq!((other.entries.len(), other.seen.unwrap().bytes), (1, whole as u64));
        other.add(entries("c"));
        cache.refresh();
        assert_eq!(cache.entries.keys().collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn a_file_that_grew_much_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = open(folder.path());
        let file = cache.file.clone().unwrap();
        let many = |from: usize| (from..from + 4000).map(|number| format!("{number:08}"));
        let same = |names: &mut dyn Iterator<Item = String>| -> Entries {
            names.flat_map(|name| entries(&name)).collect()
        };
        // The same results are added repeatedly: replaced entries do not stay in the file for ever.
        for _ in 0..10 {
            cache.add(same(&mut many(0)));
        }
        let once = encode(&same(&mut many(0))).len() as u64;
        let size = fs::metadata(&file).unwrap().len();
        assert!(size <= 2 * once + APPENDED_MIN, "{size} bytes, once {once}");
        let mut other = open(folder.path());
        other.refresh();
        assert_eq!(other.entries.len(), 4000);
    }

    #[test]
    fn what_a_process_left_behind_that_died_while_it_wrote_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let choice = CacheChoice::Folder(folder.path().into());
        let of = |root: &str| Cache::open(&choice, Path::new(root));
        let (mut cache, other) = (of("/data"), of("/other"));
        cache.add(entries("a"));
        let old = std::time::SystemTime::now() - 2 * PART_AGE;
        let part = |cache: &Cache, process: u32, is_old: bool| {
            let file = cache.file.as_ref().unwrap();
            let name = file.file_name().unwrap().to_str().unwrap();
            let path = file.with_file_name(format!(".{name}.{process}-0.tmp"));
            fs::write(&path, b"half of it").unwrap();
            if is_old {
                File::options().append(true).open(&path).unwrap().set_modified(old).unwrap();
            }
            path
        };
        let (left, fresh) = (part(&cache, 11, true), part(&cache, 12, false));
        let others = part(&other, 11, true);
        let kept = File::options().append(true).open(cache.file.as_ref().unwrap()).unwrap();
        kept.set_modified(old).unwrap();
        let lock = cache.lock(|| false).unwrap();
        assert!(!left.exists());
        assert!(fresh.exists(), "a part may be of another host, which is writing it");
        assert!(others.exists(), "that is for the owner of its lock");
        cache.refresh();
        assert_eq!(cache.entries.len(), 1, "the cache stays, however old");
        drop(lock);
        other.lock(|| false).unwrap();
        assert!(!others.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_used_keeps_nothing_and_refuses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        let mut nowhere = Cache::open(&CacheChoice::Folder(file.clone()), Path::new("/data"));
        nowhere.refresh();
        assert!(!nowhere.is_kept() && nowhere.lock(|| false).unwrap().is_none());
        nowhere.add(entries("a"));
        assert_eq!(nowhere.entries.len(), 1, "found entries are used");
        let blocks = CacheOptions { bytes: 1, ..CacheChoice::Folder(file).into() };
        assert!(blocks.blocks().unwrap().is_none());
        let nowhere = CacheOptions { bytes: 1, ..CacheChoice::Off.into() };
        assert_eq!(
            nowhere.blocks().unwrap_err().to_string(),
            "cache_bytes has no folder, as nothing is to be kept; name one by cache_dir"
        );
        // Folders take the names of its files.
        let mut cache = open(folder.path());
        let path = cache.file.clone().unwrap();
        fs::create_dir(path.with_extension("lock")).unwrap();
        assert!(cache.lock(|| false).unwrap().is_none());
        cache.add(entries("a"));
        assert!(cache.is_kept() && path.is_file(), "it is kept without a lock");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let mut cache = open(folder.path());
        cache.refresh();
        assert!(!cache.is_kept());
        let mut cache = open(folder.path());
        cache.add(entries("a"));
        assert!(!cache.is_kept() && cache.entries.len() == 1);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2, "no part is left");
    }
}
