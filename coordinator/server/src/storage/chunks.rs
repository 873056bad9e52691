//! Chunks by the SHA-256 of their content, one file each. A chunk is on disk before it is
//! acknowledged, and a read returns the stored content or an error.
//!
//! Chunks that no dataset refers to are bounded in bytes and removed after an hour; referenced ones
//! stay uncounted. A limited principal may use a part of it. Every node has its own store.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardfeed_host::Disk;
use shardfeed_plan::Digest;
use shardfeed_proto::CHUNK_BYTES_MAX;
use tokio::time::Instant;

type Result<T, E = ChunkStoreError> = std::result::Result<T, E>;

/// Time for which an unreferenced chunk is kept after it was last put or touched, or after a start.
pub(crate) const UNREFERENCED_AGE_MAX: Duration = Duration::from_secs(3600);

/// Minimum bytes that a chunk is counted as, which bounds the number of chunks.
const COUNTED_BYTES_MIN: u64 = 64 << 10;

/// Divisor of the bound for the share of one limited principal.
const PRINCIPAL_SHARE: u64 = 8;

/// Prefix of files that are being written.
const PART_PREFIX: &str = "part-";

#[derive(Debug, thiserror::Error)]
pub(crate) enum ChunkStoreError {
    #[error("there is no chunk {digest}; put it again")]
    NotFound { digest: Digest },
    #[error(
        "{path}: damaged: its content is not that of chunk {digest}; restore the file from a backup, or \
         add the dataset again under another name"
    )]
    Corrupt { path: String, digest: Digest },
    #[error("a chunk has 1 to {CHUNK_BYTES_MAX} bytes, not {bytes}")]
    Size { bytes: usize },
    #[error(
        "chunks that no dataset refers to have {bytes} bytes of at most {most}; they are removed \
         {} minutes after they were put", UNREFERENCED_AGE_MAX.as_secs() / 60
    )]
    Full { bytes: u64, most: u64 },
    #[error(
        "chunks of {owner} that no dataset refers to have {bytes} bytes of at most {most}; they are removed \
         {} minutes after they were put", UNREFERENCED_AGE_MAX.as_secs() / 60
    )]
    OwnerFull { owner: String, bytes: u64, most: u64 },
    #[error(
        "{path}: {source}; check the disk of the coordinator, its free space and the permissions"
    )]
    Io { path: String, source: io::Error },
}

/// The store of one data folder. Its calls block on the disk.
#[derive(Debug)]
pub(crate) struct ChunkStore {
    disk: Arc<dyn Disk>,
    unreferenced_bytes_max: u64,
    known: Mutex<ChunkIndex>,
    parts: AtomicU64,
}

#[derive(Debug, Default)]
struct ChunkIndex {
    present: BTreeSet<Digest>,
    unreferenced: Unreferenced,
    /// Error of the last write, until one succeeds.
    failure: Option<String>,
}

/// Chunks that no dataset refers to.
#[derive(Debug, Default)]
struct Unreferenced {
    chunks: BTreeMap<Digest, Loose>,
    bytes: u64,
    /// Bytes by owner, of chunks that have one.
    owned: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Loose {
    bytes: u64,
    put: Instant,
    /// Limited principal that put it; empty for any other principal.
    owner: String,
}

impl Unreferenced {
    fn insert(&mut self, digest: Digest, bytes: u64, put: Instant, owner: &str) {
        let bytes = bytes.max(COUNTED_BYTES_MIN);
        self.remove(&digest);
        self.chunks.insert(digest, Loose { bytes, put, owner: owner.to_owned() });
        self.bytes += bytes;
        if !owner.is_empty() {
            *self.owned.entry(owner.to_owned()).or_default() += bytes;
        }
    }

    fn remove(&mut self, digest: &Digest) {
        let Some(loose) = self.chunks.remove(digest) else { return };
        self.bytes -= loose.bytes;
        if let Some(owned) = self.owned.get_mut(&loose.owner) {
            *owned -= loose.bytes;
            if *owned == 0 {
                self.owned.remove(&loose.owner);
            }
        }
    }
}

impl ChunkStore {
    /// Opens the store on its own disk. Removes files that a crash left incomplete.
    /// - `referenced`: chunks that datasets refer to.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        unreferenced_bytes_max: u64,
        referenced: &BTreeSet<Digest>,
        now: Instant,
    ) -> Result<Self> {
        let failed =
            |name: &str, source| ChunkStoreError::Io { path: disk.path_text(name), source };
        let mut known = ChunkIndex::default();
        for name in disk.list().map_err(|error| failed("", error))? {
            if name.starts_with(PART_PREFIX) {
                disk.remove(&name).map_err(|error| failed(&name, error))?;
            } else if let Ok(digest) = name.parse::<Digest>() {
                known.present.insert(digest);
                if !referenced.contains(&digest) {
                    let bytes = disk.open(&name).and_then(|file| file.len());
                    let bytes = bytes.map_err(|error| failed(&name, error))?;
                    known.unreferenced.insert(digest, bytes, now, "");
                }
            }
        }
        let known = Mutex::new(known);
        Ok(Self { disk, unreferenced_bytes_max, known, parts: AtomicU64::new(0) })
    }

    /// Stores a chunk; on disk when this returns. Storing it again changes nothing.
    /// - `owner`: the limited principal that puts it; empty for any other principal.
    pub(crate) fn put(&self, content: &[u8], owner: &str, now: Instant) -> Result<Digest> {
        let digest = digest_of(content)?;
        // Must be first: an old chunk put again must not be removed before it is referenced.
        self.touch([&digest], now);
        match self.read(&digest) {
            Ok(_) => return Ok(digest),
            Err(ChunkStoreError::NotFound { .. }) => self.check_room(content.len(), owner)?,
            // The correct content repairs a damaged file.
            Err(ChunkStoreError::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
        if self.write(&digest, content)? {
            self.known().unreferenced.insert(digest, content.len() as u64, now, owner);
        }
        Ok(digest)
    }

    /// Stores a chunk that a dataset refers to and that was missing or damaged here.
    pub(crate) fn fill(&self, content: &[u8]) -> Result<Digest> {
        let digest = digest_of(content)?;
        self.write(&digest, content)?;
        Ok(digest)
    }

    /// Returns a chunk's content, verified.
    pub(crate) fn read(&self, digest: &Digest) -> Result<Vec<u8>> {
        let name = digest.to_string();
        match self.disk.read(&name) {
            Ok(content) if Digest::of_parts([content.as_slice()]) == *digest => Ok(content),
            Ok(_) => {
                // It counts as missing, so that it is fetched from another node.
                self.known().present.remove(digest);
                Err(ChunkStoreError::Corrupt { path: self.disk.path_text(&name), digest: *digest })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.known().present.remove(digest);
                Err(ChunkStoreError::NotFound { digest: *digest })
            }
            Err(source) => Err(ChunkStoreError::Io { path: self.disk.path_text(&name), source }),
        }
    }

    /// Returns those of `digests` that are missing here.
    pub(crate) fn missing<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) -> Vec<Digest> {
        let known = self.known();
        digests.into_iter().filter(|digest| !known.present.contains(digest)).copied().collect()
    }

    /// Keeps chunks as if they were put now, before a command refers to them.
    pub(crate) fn touch<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>, now: Instant) {
        let mut known = self.known();
        for digest in digests {
            if let Some(loose) = known.unreferenced.chunks.get_mut(digest) {
                loose.put = now;
            }
        }
    }

    /// Stops counting chunks that the state refers to.
    pub(crate) fn refer<'a>(&self, digests: impl IntoIterator<Item = &'a Digest>) {
        let mut known = self.known();
        digests.into_iter().for_each(|digest| known.unreferenced.remove(digest));
    }

    /// Follows the state, which other nodes change as well: referenced chunks are not counted, and
    /// chunks that are no longer referenced are, with a full time to live.
    pub(crate) fn follow(&self, referenced: &BTreeSet<Digest>, now: Instant) {
        self.refer(referenced);
        let mut known = self.known();
        let ChunkIndex { present, unreferenced, .. } = &mut *known;
        let is_new = |digest: &&Digest| {
            !referenced.contains(*digest) && !unreferenced.chunks.contains_key(*digest)
        };
        let new: Vec<Digest> = present.iter().filter(is_new).copied().collect();
        for digest in new {
            unreferenced.insert(digest, COUNTED_BYTES_MIN, now, "");
        }
    }

    /// Removes expired unreferenced chunks. Returns the number of removed chunks.
    /// - `kept`: true if a dataset refers to the chunk by now.
    pub(crate) fn collect(&self, now: Instant, kept: impl Fn(&Digest) -> bool) -> Result<usize> {
        // Locked throughout: no command may touch a chunk while it is removed.
        let mut known = self.known();
        let age = |loose: &Loose| now.saturating_duration_since(loose.put);
        let loose = known.unreferenced.chunks.iter();
        let old = loose.filter(|(_, loose)| age(loose) > UNREFERENCED_AGE_MAX);
        let old: Vec<Digest> = old.map(|(digest, _)| *digest).collect();
        let mut gone = 0;
        for digest in old {
            known.unreferenced.remove(&digest);
            if kept(&digest) {
                continue;
            }
            known.present.remove(&digest);
            let name = digest.to_string();
            match self.disk.remove(&name) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    let path = self.disk.path_text(&name);
                    return Err(ChunkStoreError::Io { path, source });
                }
                _ => gone += 1,
            }
        }
        Ok(gone)
    }

    /// Returns the bytes of unreferenced chunks, as counted against the bound.
    pub(crate) fn unreferenced_bytes(&self) -> u64 {
        self.known().unreferenced.bytes
    }

    /// Returns the error of the last write, if it failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.known().failure.clone()
    }

    /// Returns the error that a chunk of an unlimited principal would get if the store is full.
    pub(crate) fn full(&self) -> Option<ChunkStoreError> {
        self.check_room(0, "").err()
    }

    /// Checks whether a failed disk works again.
    pub(crate) fn probe(&self) -> Result<()> {
        let name = self.part();
        let written = self.disk.write(&name, b"is there room?");
        // If it cannot be removed, the next start tries again.
        let _ = self.disk.remove(&name);
        self.noted(&name, written)
    }

    /// Rejects a chunk that exceeds the bound.
    /// - `owner`: as in [`ChunkStore::put`].
    pub(crate) fn check_room(&self, bytes: usize, owner: &str) -> Result<()> {
        let more = (bytes as u64).max(COUNTED_BYTES_MIN);
        let known = self.known();
        let (all, most) = (known.unreferenced.bytes, self.unreferenced_bytes_max);
        if all.saturating_add(more) > most {
            return Err(ChunkStoreError::Full { bytes: all, most });
        }
        let own = known.unreferenced.owned.get(owner).copied().unwrap_or(0);
        let most = (most / PRINCIPAL_SHARE).max(CHUNK_BYTES_MAX as u64);
        if !owner.is_empty() && own.saturating_add(more) > most {
            return Err(ChunkStoreError::OwnerFull { owner: owner.to_owned(), bytes: own, most });
        }
        Ok(())
    }

    fn part(&self) -> String {
        format!("{PART_PREFIX}{}", self.parts.fetch_add(1, Ordering::Relaxed))
    }

    /// Writes a chunk's file; returns true if there was none.
    fn write(&self, digest: &Digest, content: &[u8]) -> Result<bool> {
        let (name, part) = (digest.to_string(), self.part());
        let written = self.disk.write(&part, content);
        let written = written.and_then(|()| self.disk.rename(&part, &name));
        if written.is_err() {
            // It may be what fills the disk; if it cannot be removed, the next start tries again.
            let _ = self.disk.remove(&part);
        }
        self.noted(&name, written)?;
        Ok(self.known().present.insert(*digest))
    }

    /// Records whether writing works.
    fn noted(&self, name: &str, written: io::Result<()>) -> Result<()> {
        let path = || self.disk.path_text(name);
        let written = written.map_err(|source| ChunkStoreError::Io { path: path(), source });
        self.known().failure = written.as_ref().err().map(ToString::to_string);
        written
    }

    fn known(&self) -> MutexGuard<'_, ChunkIndex> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest_of(content: &[u8]) -> Result<Digest> {
    match content.is_empty() || content.len() > CHUNK_BYTES_MAX {
        true => Err(ChunkStoreError::Size { bytes: content.len() }),
        false => Ok(Digest::of_parts([content])),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use shardfeed_host::RealDisk;

    use super::*;

    fn open(folder: &Path, referenced: &[Digest]) -> ChunkStore {
        let disk = Arc::new(RealDisk::new(folder).unwrap());
        let referenced = referenced.iter().copied().collect();
        ChunkStore::open(disk, 1 << 20, &referenced, Instant::now()).unwrap()
    }

    fn put(store: &ChunkStore, content: &[u8]) -> Result<Digest> {
        store.put(content, "", Instant::now())
    }

    #[test]
    fn gives_back_what_was_put_or_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), &[]);
        let digest = put(&store, b"abc").unwrap();
        assert_eq!(digest, Digest::of_parts([b"abc".as_slice()]));
        assert_eq!(put(&store, b"abc").unwrap(), digest);
        assert_eq!(store.unreferenced_bytes(), COUNTED_BYTES_MIN);
        assert_eq!(open(folder.path(), &[]).read(&digest).unwrap(), b"abc");

        let path = folder.path().join(digest.to_string());
        fs::write(&path, b"abd").unwrap();
        let error = store.read(&digest).unwrap_err();
        assert!(matches!(error, ChunkStoreError::Corrupt { .. }), "{error}");
        assert_eq!(store.missing([&digest]), [digest]);
        assert_eq!(put(&store, b"abc").unwrap(), digest);
        assert_eq!(store.read(&digest).unwrap(), b"abc");
        assert!(store.missing([&digest]).is_empty());
        let other = Digest::of_parts([b"other".as_slice()]);
        assert!(matches!(store.read(&other), Err(ChunkStoreError::NotFound { .. })));
    }

    #[test]
    fn sizes_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), &[]);
        let large = vec![0; CHUNK_BYTES_MAX + 1];
        for content in [&[], large.as_slice()] {
            assert!(matches!(put(&store, content), Err(ChunkStoreError::Size { .. })));
        }
        let chunks: Vec<_> = (0..16_u8).map(|byte| put(&store, &[byte]).unwrap()).collect();
        assert!(matches!(put(&store, b"one more"), Err(ChunkStoreError::Full { .. })));
        // A referenced chunk is stored regardless of the bound.
        store.fill(b"filled").unwrap();
        store.refer(&chunks[..1]);
        put(&store, b"one more").unwrap();
        // A chunk that is already stored needs no room.
        put(&store, &[3]).unwrap();
    }

    #[test]
    fn only_old_unreferenced_chunks_go() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, gone) = {
            let store = open(folder.path(), &[]);
            (put(&store, b"kept").unwrap(), put(&store, b"gone").unwrap())
        };
        let part = folder.path().join("part-7");
        fs::write(&part, b"half").unwrap();
        let store = open(folder.path(), &[kept]);
        assert!(!part.exists());
        assert_eq!(store.collect(Instant::now(), |_| false).unwrap(), 0);
        let later = Instant::now() + UNREFERENCED_AGE_MAX + Duration::from_secs(5);
        assert_eq!(store.collect(later, |_| false).unwrap(), 1);
        assert!(matches!(store.read(&gone), Err(ChunkStoreError::NotFound { .. })));
        assert_eq!(store.read(&kept).unwrap(), b"kept");
        assert_eq!(store.unreferenced_bytes(), 0);
    }

    #[test]
    fn what_is_referred_to_follows_the_state() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), &[]);
        let chunk = put(&store, b"a").unwrap();
        store.follow(&[chunk].into(), Instant::now());
        assert_eq!(store.unreferenced_bytes(), 0);
        // Its dataset is removed: the chunk is removed an hour later.
        let removed = Instant::now();
        store.follow(&BTreeSet::new(), removed);
        assert_eq!(store.collect(removed + UNREFERENCED_AGE_MAX, |_| false).unwrap(), 0);
        store.follow(&BTreeSet::new(), removed + UNREFERENCED_AGE_MAX);
        let later = removed + UNREFERENCED_AGE_MAX + Duration::from_secs(1);
        assert_eq!(store.collect(later, |_| false).unwrap(), 1);
    }

    #[test]
    fn a_command_in_flight_keeps_its_chunks_and_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), &[]);
        let begun = Instant::now();
        let first = store.put(&vec![0; CHUNK_BYTES_MAX], "mallory", begun).unwrap();
        let own = || store.known().unreferenced.owned.get("mallory").copied();
        let full = own();
        assert!(full.is_some());
        // The command begins when the chunk is almost old, and another one is applied meanwhile.
        let proposed = begun + UNREFERENCED_AGE_MAX;
        store.touch([&first], proposed);
        store.follow(&BTreeSet::new(), proposed + Duration::from_secs(1));
        assert_eq!(store.collect(proposed + Duration::from_secs(2), |_| false).unwrap(), 0);
        // A rejected command gives its caller no room.
        assert_eq!(own(), full);
        store.follow(&BTreeSet::from([first]), proposed);
        assert_eq!(own(), None, "a dataset refers to it");
    }

    #[test]
    fn a_disk_that_fails_is_remembered_until_it_is_mended() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder.path().join("chunks"), &[]);
        assert_eq!(store.failure(), None);
        fs::remove_dir(folder.path().join("chunks")).unwrap();
        assert!(matches!(put(&store, b"a"), Err(ChunkStoreError::Io { .. })));
        let said = store.failure().unwrap().replace(folder.path().to_str().unwrap(), "FOLDER");
        expect_test::expect!["FOLDER/chunks/ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb: No such file or directory (os error 2); check the disk of the coordinator, its free space and the permissions"].assert_eq(&said);
        store.probe().unwrap_err();
        fs::create_dir(folder.path().join("chunks")).unwrap();
        store.probe().unwrap();
        assert_eq!(store.failure(), None);
        put(&store, b"a").unwrap();
    }
}
