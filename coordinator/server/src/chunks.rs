//! Chunks by the SHA-256 of their content, one file each under `chunks/ab/cdef..`. What was put is
//! on disk before it is acknowledged, and what is read is what was put, or an error.
//!
//! Chunks that no dataset refers to are bounded in bytes and removed after an hour; what is referred
//! to is not counted and stays.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use shardfeed_plan::Digest;
use shardfeed_proto::CHUNK_BYTES_MAX;

/// A chunk that no dataset refers to is kept so long after it was last put.
pub(crate) const UNREFERENCED_AGE_MAX: Duration = Duration::from_secs(3600);

/// A chunk counts for at least so much, which bounds how many there are.
const COUNTED_BYTES_MIN: u64 = 64 << 10;

/// Prefix of files that are being written.
const PART_PREFIX: &str = "part-";

/// Why a chunk cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChunkStoreError {
    #[error("there is no chunk {digest}; put it again")]
    NotFound { digest: Digest },
    #[error(
        "{}: damaged: its content is not that of chunk {digest}; restore the file from a backup, or \
         add the dataset again under another name", .path.display()
    )]
    Corrupt { path: PathBuf, digest: Digest },
    #[error("a chunk has 1 to {CHUNK_BYTES_MAX} bytes, not {bytes}")]
    Size { bytes: usize },
    #[error(
        "chunks that no dataset refers to have {bytes} bytes of at most {most}; they are removed \
         {} minutes after they were put", UNREFERENCED_AGE_MAX.as_secs() / 60
    )]
    Full { bytes: u64, most: u64 },
    #[error(
        "{}: {source}; check the disk of the coordinator, its free space and the permissions",
        .path.display()
    )]
    Io { path: PathBuf, source: io::Error },
}

/// The store of one data folder. Its calls block on the disk.
#[derive(Debug)]
pub(crate) struct ChunkStore {
    folder: PathBuf,
    unreferenced_bytes_max: u64,
    unreferenced: Mutex<Unreferenced>,
    parts: AtomicU64,
}

/// Chunks that no dataset refers to.
#[derive(Debug, Default)]
struct Unreferenced {
    chunks: BTreeMap<Digest, Loose>,
    bytes: u64,
}

#[derive(Debug)]
struct Loose {
    bytes: u64,
    put: SystemTime,
}

impl Unreferenced {
    fn insert(&mut self, digest: Digest, bytes: u64, put: SystemTime) {
        let bytes = bytes.max(COUNTED_BYTES_MIN);
        self.remove(&digest);
        self.chunks.insert(digest, Loose { bytes, put });
        self.bytes += bytes;
    }

    fn remove(&mut self, digest: &Digest) {
        if let Some(loose) = self.chunks.remove(digest) {
            self.bytes -= loose.bytes;
        }
    }
}

impl ChunkStore {
    /// The store in `folder`, which is made if it is missing. What a death left half written goes.
    /// - `referenced`: whether a dataset refers to a chunk.
    pub(crate) fn open(
        folder: PathBuf,
        unreferenced_bytes_max: u64,
        referenced: impl Fn(&Digest) -> bool,
    ) -> Result<Self, ChunkStoreError> {
        make_folder(&folder)?;
        let mut unreferenced = Unreferenced::default();
        for_each_file(&folder, |path, digest| {
            let Some(digest) = digest else {
                return fs::remove_file(path);
            };
            let metadata = fs::metadata(path)?;
            if !referenced(&digest) {
                unreferenced.insert(digest, metadata.len(), metadata.modified()?);
            }
            Ok(())
        })?;
        let unreferenced = Mutex::new(unreferenced);
        Ok(Self { folder, unreferenced_bytes_max, unreferenced, parts: AtomicU64::new(0) })
    }

    /// Stores a chunk; on disk when this returns. Putting it again changes nothing.
    pub(crate) fn put(&self, content: &[u8]) -> Result<Digest, ChunkStoreError> {
        if content.is_empty() || content.len() > CHUNK_BYTES_MAX {
            return Err(ChunkStoreError::Size { bytes: content.len() });
        }
        let digest = Digest::of_parts([content]);
        let path = self.path(&digest);
        // First: an old one that is put again must not be taken away before it is referred to.
        if let Some(loose) = self.loose().chunks.get_mut(&digest) {
            loose.put = SystemTime::now();
        }
        match self.read(&digest) {
            Ok(_) => return Ok(digest),
            Err(ChunkStoreError::NotFound { .. }) => self.check_room(content.len())?,
            // The right content heals a damaged file.
            Err(ChunkStoreError::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
        let new = !path.exists();
        self.write(&path, content)
            .map_err(|source| ChunkStoreError::Io { path: path.clone(), source })?;
        if new {
            self.loose().insert(digest, content.len() as u64, SystemTime::now());
        }
        Ok(digest)
    }

    /// A chunk's content, verified.
    pub(crate) fn read(&self, digest: &Digest) -> Result<Vec<u8>, ChunkStoreError> {
        let path = self.path(digest);
        match fs::read(&path) {
            Ok(content) if Digest::of_parts([content.as_slice()]) == *digest => Ok(content),
            Ok(_) => Err(ChunkStoreError::Corrupt { path, digest: *digest }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(ChunkStoreError::NotFound { digest: *digest })
            }
            Err(source) => Err(ChunkStoreError::Io { path, source }),
        }
    }

    /// Takes chunks out of what may be removed, before a command refers to them.
    pub(crate) fn hold<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) {
        let mut loose = self.loose();
        digests.into_iter().for_each(|digest| loose.remove(digest));
    }

    /// Puts chunks back whose command was refused, unless a dataset refers to them after all.
    pub(crate) fn release<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) {
        for digest in digests {
            if let Ok(metadata) = fs::metadata(self.path(digest)) {
                self.loose().insert(*digest, metadata.len(), SystemTime::now());
            }
        }
    }

    /// Removes unreferenced chunks that were put too long ago. Returns how many went.
    /// - `referenced`: whether a dataset refers to a chunk by now.
    pub(crate) fn collect(
        &self,
        now: SystemTime,
        referenced: impl Fn(&Digest) -> bool,
    ) -> Result<usize, ChunkStoreError> {
        // Held throughout: nobody may take hold of a chunk while it goes.
        let mut loose = self.loose();
        let age = |loose: &Loose| now.duration_since(loose.put).unwrap_or_default();
        let old = loose.chunks.iter().filter(|(_, loose)| age(loose) > UNREFERENCED_AGE_MAX);
        let old: Vec<Digest> = old.map(|(digest, _)| *digest).collect();
        let mut gone = 0;
        for digest in old {
            loose.remove(&digest);
            if referenced(&digest) {
                continue;
            }
            let path = self.path(&digest);
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(ChunkStoreError::Io { path, source });
                }
                _ => gone += 1,
            }
        }
        Ok(gone)
    }

    /// Bytes of chunks that no dataset refers to, as counted against the bound.
    pub(crate) fn unreferenced_bytes(&self) -> u64 {
        self.loose().bytes
    }

    fn check_room(&self, bytes: usize) -> Result<(), ChunkStoreError> {
        let (known, most) = (self.unreferenced_bytes(), self.unreferenced_bytes_max);
        match known.saturating_add((bytes as u64).max(COUNTED_BYTES_MIN)) <= most {
            true => Ok(()),
            false => Err(ChunkStoreError::Full { bytes: known, most }),
        }
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.folder.join(&name[..2]).join(&name[2..])
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let folder = path.parent().unwrap_or(&self.folder);
        if !folder.is_dir() {
            fs::create_dir_all(folder)?;
            sync_folder(&self.folder)?;
        }
        let number = self.parts.fetch_add(1, Ordering::Relaxed);
        let part = folder.join(format!("{PART_PREFIX}{number}"));
        let written = File::create(&part).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&part, path)?;
            sync_folder(folder)
        });
        if written.is_err() {
            // It may be what fills the disk; if it cannot go, the next start tries again.
            let _ = fs::remove_file(&part);
        }
        written
    }

    fn loose(&self) -> MutexGuard<'_, Unreferenced> {
        self.unreferenced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_folder(folder: &Path) -> Result<(), ChunkStoreError> {
    let error = |source| ChunkStoreError::Io { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(error)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Calls `visit` with each file; without a digest if its name is none of a chunk.
fn for_each_file(
    folder: &Path,
    mut visit: impl FnMut(&Path, Option<Digest>) -> io::Result<()>,
) -> Result<(), ChunkStoreError> {
    let mut walk = || -> io::Result<()> {
        for first in fs::read_dir(folder)? {
            let first = first?;
            if !first.file_type()?.is_dir() {
                continue;
            }
            for entry in fs::read_dir(first.path())? {
                let path = entry?.path();
                let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
                let (Some(front), Some(rest)) = (name(&first.path()), name(&path)) else {
                    continue;
                };
                let digest = format!("{front}{rest}").parse::<Digest>().ok();
                if digest.is_some() || rest.starts_with(PART_PREFIX) {
                    visit(&path, digest)?;
                }
            }
        }
        Ok(())
    };
    walk().map_err(|source| ChunkStoreError::Io { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> ChunkStore {
        ChunkStore::open(folder.to_owned(), 1 << 20, |_| false).unwrap()
    }

    #[test]
    fn gives_back_what_was_put_or_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let digest = store.put(b"abc").unwrap();
        assert_eq!(digest, Digest::of_parts([b"abc".as_slice()]));
        assert_eq!(store.put(b"abc").unwrap(), digest);
        assert_eq!(store.unreferenced_bytes(), COUNTED_BYTES_MIN);
        assert_eq!(open(folder.path()).read(&digest).unwrap(), b"abc");

        let path = store.path(&digest);
        fs::write(&path, b"abd").unwrap();
        let error = store.read(&digest).unwrap_err();
        assert!(matches!(error, ChunkStoreError::Corrupt { .. }), "{error}");
        assert_eq!(store.put(b"abc").unwrap(), digest);
        assert_eq!(store.read(&digest).unwrap(), b"abc");
        let other = Digest::of_parts([b"other".as_slice()]);
        assert!(matches!(store.read(&other), Err(ChunkStoreError::NotFound { .. })));
    }

    #[test]
    fn sizes_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let large = vec![0; CHUNK_BYTES_MAX + 1];
        for content in [&[], large.as_slice()] {
            assert!(matches!(store.put(content), Err(ChunkStoreError::Size { .. })));
        }
        let chunks: Vec<_> = (0..16_u8).map(|byte| store.put(&[byte]).unwrap()).collect();
        assert!(matches!(store.put(b"one more"), Err(ChunkStoreError::Full { .. })));
        store.hold(&chunks[..1]);
        store.put(b"one more").unwrap();
        // What is there already takes no room.
        store.put(&[3]).unwrap();
    }

    #[test]
    fn only_old_unreferenced_chunks_go() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, gone) = {
            let store = open(folder.path());
            (store.put(b"kept").unwrap(), store.put(b"gone").unwrap())
        };
        let part = folder.path().join(&kept.to_string()[..2]).join("part-7");
        fs::write(&part, b"half").unwrap();
        let store =
            ChunkStore::open(folder.path().to_owned(), 1 << 20, |chunk| *chunk == kept).unwrap();
        assert!(!part.exists());
        assert_eq!(store.collect(SystemTime::now(), |_| false).unwrap(), 0);
        let later = SystemTime::now() + UNREFERENCED_AGE_MAX + Duration::from_secs(5);
        assert_eq!(store.collect(later, |_| false).unwrap(), 1);
        assert!(matches!(store.read(&gone), Err(ChunkStoreError::NotFound { .. })));
        assert_eq!(store.read(&kept).unwrap(), b"kept");
        assert_eq!(store.unreferenced_bytes(), 0);
    }
}
