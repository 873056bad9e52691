//! What indexing found, kept on disk so that a second start scans nothing.
//!
//! One file for each folder that datasets are relative to, under a lock: one process of a host scans,
//! the others wait and read. An entry is good while its file's change stamp is.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardfeed_plan::{ChangeStamp, Digest};
use shardfeed_tfrecord::ShardIndex;

use crate::blocks::BlockCache;
use crate::error::LoadError;

/// First bytes of a cache file; the number is the version of what follows.
const MAGIC: &[u8] = b"shardfeed index 3\n";

/// How often a waiting process looks whether the lock is free.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Where indexes are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheChoice {
    /// `SHARDFEED_CACHE_DIR` if set (`off`: nowhere), else `$XDG_CACHE_HOME/shardfeed`, else
    /// `~/.cache/shardfeed`.
    #[default]
    Environment,
    /// In this folder.
    Folder(PathBuf),
    /// Nowhere: every start scans.
    Off,
}

/// What is kept on this host's disk, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// The folder of all that is kept.
    pub folder: CacheChoice,
    /// Bytes of remote files that are kept at most; 0: none.
    pub bytes: u64,
}

impl From<CacheChoice> for CacheOptions {
    fn from(folder: CacheChoice) -> Self {
        Self { folder, bytes: 0 }
    }
}

impl CacheOptions {
    /// Where bytes of remote files are kept, if they are.
    ///
    /// # Errors  There is no folder for them, or it cannot be made.
    pub(crate) fn blocks(&self) -> Result<Option<Arc<BlockCache>>, LoadError> {
        if self.bytes == 0 {
            return Ok(None);
        }
        match self.folder.folder() {
            Some(folder) => Ok(Some(Arc::new(BlockCache::open(&folder, self.bytes)?))),
            None => Err(LoadError::Option(
                "cache_bytes has no folder, as nothing is to be kept; name one by cache_dir".into(),
            )),
        }
    }
}

/// An indexed file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) stamp: ChangeStamp,
    pub(crate) inode: Inode,
    /// The compression that was asked for, as users write it.
    pub(crate) compression: String,
    pub(crate) index: ShardIndex,
}

/// What tells a file of this host from another one, and from itself before it was rewritten. Only
/// the cache looks at it: a file may be moved between hosts while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Inode {
    pub(crate) device: u64,
    pub(crate) number: u64,
    /// Time of the last change of content or attributes, ns since 1970.
    pub(crate) changed_ns: i128,
}

/// Entries by path relative to the folder.
pub(crate) type Entries = BTreeMap<String, Entry>;

impl CacheChoice {
    /// The folder, or `None` for no cache.
    fn folder(&self) -> Option<PathBuf> {
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

/// The cache file of one folder.
#[derive(Debug)]
pub(crate) struct Cache {
    file: PathBuf,
}

/// The right to scan for one folder; released when dropped, also by the death of the process.
#[derive(Debug)]
pub(crate) struct ScanLock {
    _file: File,
}

impl Cache {
    /// The cache of `root`, or `None` if nothing is kept.
    ///
    /// # Errors  The cache folder cannot be made.
    pub(crate) fn open(choice: &CacheChoice, root: &Path) -> Result<Option<Self>, LoadError> {
        let Some(folder) = choice.folder() else {
            return Ok(None);
        };
        let folder = folder.join("index");
        fs::create_dir_all(&folder).map_err(|source| failed(&folder, "make the folder", source))?;
        let name = Digest::of_parts([root.as_os_str().as_encoded_bytes()]).to_string();
        Ok(Some(Self { file: folder.join(&name[..24]) }))
    }

    /// What is kept. A damaged or older cache counts as empty: it is only a cache.
    ///
    /// # Errors  The file is there but cannot be read.
    pub(crate) fn load(&self) -> Result<Entries, LoadError> {
        match fs::read(&self.file) {
            Ok(bytes) => Ok(decode(&bytes).unwrap_or_else(|| {
                tracing::warn!(file = %self.file.display(), "index cache is damaged, scanning anew");
                Entries::new()
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Entries::new()),
            Err(error) => Err(failed(&self.file, "read the index cache", error)),
        }
    }

    /// Replaces what is kept, atomically.
    ///
    /// # Errors  It cannot be written; what was there before stays.
    pub(crate) fn save(&self, entries: &Entries) -> Result<(), LoadError> {
        let part = self.file.with_extension(format!("part-{}", std::process::id()));
        let written = (|| {
            let mut file = File::create(&part)?;
            file.write_all(&encode(entries))?;
            file.sync_all()?;
            fs::rename(&part, &self.file)
        })();
        written.map_err(|source| {
            // The part may be what fills the disk; if it cannot go either, there is no more to do.
            let _ = fs::remove_file(&part);
            failed(&self.file, "write the index cache", source)
        })
    }

    /// Waits for the right to scan.
    /// - `waiting`: called while another process has it; returning `false` gives up.
    ///
    /// # Errors  `Interrupted`; the lock file cannot be made.
    pub(crate) fn lock(&self, mut waiting: impl FnMut() -> bool) -> Result<ScanLock, LoadError> {
        let path = self.file.with_extension("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|source| failed(&path, "make the lock file", source))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(ScanLock { _file: file }),
                Err(TryLockError::WouldBlock) if !waiting() => return Err(LoadError::Interrupted),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
                Err(TryLockError::Error(source)) => {
                    return Err(failed(&path, "lock the index cache", source));
                }
            }
        }
    }
}

fn failed(path: &Path, action: &'static str, source: io::Error) -> LoadError {
    LoadError::Cache { path: path.to_path_buf(), action, source }
}

/// Magic, CRC-32C of the rest, entries.
fn encode(entries: &Entries) -> Vec<u8> {
    let body = postcard::to_stdvec(entries).expect("entries are plain data");
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Entries> {
    let (crc, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    postcard::from_bytes(body).ok()
}

/// For the fuzz targets: cache files without a folder.
pub mod fuzzing {
    use super::{ChangeStamp, Entries, Entry, Inode, ShardIndex, decode, encode};

    /// The cache file of files with these indexes.
    pub fn index_cache(indexes: Vec<ShardIndex>) -> Vec<u8> {
        let entry = |(number, index): (usize, ShardIndex)| {
            let stamp = ChangeStamp { size_bytes: index.stream_bytes, modified_ns: 5, etag: None };
            let inode = Inode { device: 1, number: number as u64, changed_ns: 7 };
            (
                format!("file-{number}"),
                Entry { stamp, inode, compression: "auto".to_owned(), index },
            )
        };
        encode(&indexes.into_iter().enumerate().map(entry).collect())
    }

    /// How many entries the cache file `bytes` has, and the file that they would be kept in; `None` if it
    /// counts as empty.
    pub fn kept_again(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
        let entries: Entries = decode(bytes)?;
        Some((entries.len(), encode(&entries)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Entries {
        let index = shardfeed_tfrecord::index_records(
            io::empty(),
            "x",
            &shardfeed_tfrecord::IndexOptions::default(),
            &mut |_| (),
        );
        let stamp = ChangeStamp { size_bytes: 1, modified_ns: -5, etag: None };
        let inode = Inode { device: 1, number: 2, changed_ns: 3 };
        let entry = Entry { stamp, inode, compression: "auto".into(), index: index.unwrap() };
        [("a/b".to_owned(), entry)].into()
    }

    #[test]
    fn a_damaged_cache_is_an_empty_one() {
        let bytes = encode(&entries());
        assert_eq!(decode(&bytes).unwrap().len(), 1);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(decode(&damaged).is_none(), "byte {at}");
            assert!(decode(&bytes[..at]).is_none(), "cut at {at}");
        }
    }

    #[test]
    fn one_scans_and_the_others_wait() {
        let folder = tempfile::tempdir().unwrap();
        let choice = CacheChoice::Folder(folder.path().into());
        let cache = Cache::open(&choice, Path::new("/data")).unwrap().unwrap();
        let lock = cache.lock(|| false).unwrap();
        assert!(matches!(cache.lock(|| false), Err(LoadError::Interrupted)));
        cache.save(&entries()).unwrap();
        drop(lock);
        cache.lock(|| false).unwrap();
        assert_eq!(cache.load().unwrap().len(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named_with_a_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        let error = Cache::open(&CacheChoice::Folder(file), Path::new("/data")).unwrap_err();
        assert!(error.to_string().contains("SHARDFEED_CACHE_DIR"), "{error}");
    }
}
