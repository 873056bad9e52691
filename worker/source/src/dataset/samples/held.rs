//! Storage of sample maps: in memory, and beyond some bytes in an unlinked file of this process.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use lru::LruCache;
use shardfeed_plan::Digest;

use super::SampleMap;
use crate::shared::Lock;

/// Number of maps of the file that stay read, whatever their size: a rank reads fewer shards at once.
const READ_MIN: usize = 256;

/// Default of [`held_bytes_max`]: some 30 million packed documents.
const HELD_BYTES: usize = 64 << 20;

/// Bytes of the maps that this process holds in memory, without those that were read from its file.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// True if this process has warned that it cannot write its file.
static HAS_WARNED: AtomicBool = AtomicBool::new(false);

/// The file of this process, which a child does not write to.
static FILE: Lock<Option<(u32, Weak<MapFile>)>> = Lock::new(None);

/// The sample map of a shard, in memory or in a file.
#[derive(Clone, Debug)]
pub struct HeldMap {
    samples: u64,
    data_bytes: u64,
    block_bytes: u64,
    is_grouped: bool,
    is_of_rows: bool,
    /// That of [`SampleMap::digest`], if the digest of the shard was known.
    digest: Option<Digest>,
    place: MapStorage,
}

/// A map that is in memory as long as this exists.
#[derive(Debug)]
pub enum MapRef<'a> {
    /// It is always in memory.
    Held(&'a SampleMap),
    /// It was read from the file.
    Read(Arc<SampleMap>),
}

#[derive(Clone, Debug)]
enum MapStorage {
    Memory(Arc<MapInMemory>),
    File(Arc<MapInFile>),
}

#[derive(Debug)]
struct MapInMemory {
    map: SampleMap,
    bytes: usize,
}

#[derive(Debug)]
struct MapInFile {
    file: Arc<MapFile>,
    start: u64,
    len: usize,
}

/// File with the maps of a process, which exists while it has some.
#[derive(Debug)]
struct MapFile {
    file: File,
    end: AtomicU64,
    read: Lock<ReadMaps>,
}

/// Maps that were read, by their start in the file, and their bytes in memory.
#[derive(Debug)]
struct ReadMaps {
    maps: LruCache<u64, (Arc<SampleMap>, usize)>,
    bytes: usize,
}

/// Maximum bytes of the maps that a process holds in memory, about; as many others stay read.
fn held_bytes_max() -> usize {
    static BYTES: LazyLock<usize> = LazyLock::new(|| {
        let Ok(text) = std::env::var("SHARDFEED_SAMPLES_MEMORY") else { return HELD_BYTES };
        text.parse().unwrap_or_else(|_| {
            tracing::warn!("SHARDFEED_SAMPLES_MEMORY is `{text}`, not a number of bytes");
            HELD_BYTES
        })
    });
    *BYTES
}

impl From<SampleMap> for HeldMap {
    fn from(map: SampleMap) -> Self {
        Self::hold(map, None)
    }
}

impl HeldMap {
    /// Stores the map of a shard.
    /// - `shard`: digest of the shard.
    pub fn new(map: SampleMap, shard: Digest) -> Self {
        let digest = map.digest(shard);
        Self::hold(map, Some(digest))
    }

    fn hold(map: SampleMap, digest: Option<Digest>) -> Self {
        let bytes = map.memory_bytes();
        if HELD.fetch_add(bytes, Ordering::Relaxed) + bytes > held_bytes_max() {
            match MapFile::of_process().and_then(|file| file.write(&map)) {
                Ok(place) => {
                    HELD.fetch_sub(bytes, Ordering::Relaxed);
                    return Self::at(&map, digest, MapStorage::File(Arc::new(place)));
                }
                // Once, as there may be a million maps.
                Err(error) if !HAS_WARNED.swap(true, Ordering::Relaxed) => {
                    let folder = std::env::temp_dir();
                    tracing::warn!(
                        "sample maps stay in memory, as no file can be written to {}: {error}; set \
                         TMPDIR to a folder with space",
                        folder.display()
                    );
                }
                Err(_) => {}
            }
        }
        let held = Arc::new(MapInMemory { map, bytes });
        Self::at(&held.map, digest, MapStorage::Memory(Arc::clone(&held)))
    }

    fn at(map: &SampleMap, digest: Option<Digest>, place: MapStorage) -> Self {
        Self {
            samples: map.samples(),
            data_bytes: map.data_bytes(),
            block_bytes: map.block_bytes(),
            is_grouped: map.grouping().is_some(),
            is_of_rows: map.is_of_rows(),
            digest,
            place,
        }
    }

    /// Returns the map.
    ///
    /// # Panics  The file of this process cannot be read.
    pub fn get(&self) -> MapRef<'_> {
        match &self.place {
            MapStorage::Memory(held) => MapRef::Held(&held.map),
            MapStorage::File(place) => MapRef::Read(place.read()),
        }
    }

    /// Returns the digest of the samples.
    /// - `shard`: as of [`HeldMap::new`].
    pub fn digest(&self, shard: Digest) -> Digest {
        self.digest.unwrap_or_else(|| self.get().digest(shard))
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the bytes of data of the samples, as [`SampleMap::data_bytes`].
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Returns the bytes of a block's records and samples, on average.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    pub fn is_grouped(&self) -> bool {
        self.is_grouped
    }

    /// True if rows of records are samples.
    pub(super) fn has_rows(&self) -> bool {
        self.is_of_rows && !self.is_grouped
    }
}

impl PartialEq for HeldMap {
    fn eq(&self, other: &Self) -> bool {
        *self.get() == *other.get()
    }
}

impl Eq for HeldMap {}

impl Deref for MapRef<'_> {
    type Target = SampleMap;

    fn deref(&self) -> &SampleMap {
        match self {
            Self::Held(map) => map,
            Self::Read(map) => map,
        }
    }
}

impl Drop for MapInMemory {
    fn drop(&mut self) {
        HELD.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl MapInFile {
    fn read(&self) -> Arc<SampleMap> {
        let read = || self.file.read.lock();
        if let Some((map, _)) = read().maps.get(&self.start) {
            return Arc::clone(map);
        }
        let mut bytes = vec![0; self.len];
        if let Err(error) = self.file.file.read_exact_at(&mut bytes, self.start) {
            panic!("this process's file of sample maps cannot be read: {error}");
        }
        let map: SampleMap =
            postcard::from_bytes(&bytes).expect("the file has what this process wrote");
        let map = Arc::new(map);
        read().add(self.start, &map);
        map
    }
}

impl MapFile {
    /// Returns the file of this process.
    ///
    /// # Errors  It cannot be created.
    fn of_process() -> io::Result<Arc<Self>> {
        let process = std::process::id();
        let mut known = FILE.lock();
        let found = known.as_ref().filter(|(of, _)| *of == process);
        if let Some(file) = found.and_then(|(_, file)| file.upgrade()) {
            return Ok(file);
        }
        let read = ReadMaps { maps: LruCache::unbounded(), bytes: 0 };
        let (file, end) = (tempfile::tempfile()?, AtomicU64::new(0));
        let file = Arc::new(Self { file, end, read: Lock::new(read) });
        *known = Some((process, Arc::downgrade(&file)));
        Ok(file)
    }

    /// Writes a map.
    ///
    /// # Errors  The disk has no space left.
    fn write(self: Arc<Self>, map: &SampleMap) -> io::Result<MapInFile> {
        let bytes = postcard::to_stdvec(map).expect("plain data");
        let (len, start) = (bytes.len(), self.end.fetch_add(bytes.len() as u64, Ordering::Relaxed));
        self.file.write_all_at(&bytes, start)?;
        Ok(MapInFile { file: self, start, len })
    }
}

impl ReadMaps {
    fn add(&mut self, start: u64, map: &Arc<SampleMap>) {
        let bytes = map.memory_bytes();
        self.bytes += bytes;
        if let Some((_, before)) = self.maps.put(start, (Arc::clone(map), bytes)) {
            self.bytes -= before;
        }
        while self.maps.len() > READ_MIN
            && self.bytes > held_bytes_max()
            && let Some((_, (_, bytes))) = self.maps.pop_lru()
        {
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_pipeline::CountedRecords;

    use super::*;

    #[test]
    fn maps_of_the_file_are_read_again() {
        let file = MapFile::of_process().unwrap();
        let map = |records: u64| {
            let mut map = SampleMap { passes: Some(Box::default()), ..SampleMap::default() };
            let passes = Some((0..records).map(|record| record % 3 > 0).collect());
            let bytes = vec![5; records as usize];
            map.push(&CountedRecords { bytes, passes, ..CountedRecords::default() });
            map
        };
        let places: Vec<_> =
            (0..2 * READ_MIN as u64).map(|of| Arc::clone(&file).write(&map(of)).unwrap()).collect();
        for _ in 0..2 {
            for (of, place) in (0..).zip(&places) {
                assert_eq!(*place.read(), map(of));
            }
        }
    }
}
