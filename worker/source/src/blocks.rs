//! Blocks of remote files, cached on this host's disk for all its processes.
//!
//! A block is a file named by a digest of the remote file's URL, its change stamp and the block
//! number. Its checksum is verified at each read. A process reserves space by creating a file of
//! the block's size while it holds a lock, so the blocks never exceed the limit. A process that
//! finds no space removes the least recently used blocks. A process that dies leaves at most its
//! reserved file, which another process removes later. A process waits at most about 20 ms for the
//! lock; a block that cannot be stored in time is not cached.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crc_fast::crc32_iscsi;
use shardfeed_plan::{ChangeStamp, Digest};

/// Bytes of a block; the last block of a file is shorter.
pub(crate) const BLOCK_BYTES: u64 = 1 << 20;

/// First bytes of a block's file; the digit is the version of the format.
const MAGIC: &[u8; 16] = b"shardfeed block1";

/// Magic, key, checksum and length of the block.
const HEAD_BYTES: usize = 16 + 32 + 4 + 4;

/// File systems allocate space in pages.
const PAGE_BYTES: u64 = 4096;

/// Attempts to acquire the lock before a block is not cached, and the pause between them.
const LOCK_LOOKS: (u32, Duration) = (20, Duration::from_millis(1));

/// Minimum age of a block's last-use time before a read updates it.
const USED_AGAIN: Duration = Duration::from_secs(10);

/// Age after which a partly written block is abandoned: no write takes this long.
const PART_AGE: Duration = Duration::from_secs(600);

/// Digest that identifies a block of one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockKey(Digest);

impl BlockKey {
    pub(crate) fn new(url: &str, stamp: &ChangeStamp, block: u64) -> Self {
        let ChangeStamp { size_bytes, modified_ns, etag } = stamp;
        let etag = etag.as_deref().unwrap_or_default();
        let numbers = format!("{size_bytes} {modified_ns} {block}");
        Self(Digest::of_parts([url.as_bytes(), etag.as_bytes(), numbers.as_bytes()]))
    }
}

#[derive(Debug)]
pub(crate) struct BlockCache {
    folder: PathBuf,
    bytes_max: u64,
    /// Damaged blocks found so far.
    damaged: AtomicU64,
    has_warned: AtomicBool,
}

impl BlockCache {
    /// Opens the blocks below `folder`, at most `bytes_max`; `None`: it cannot be created.
    pub(crate) fn open(folder: &Path, bytes_max: u64) -> Option<Self> {
        let folder = folder.join("blocks");
        if let Err(error) = fs::create_dir_all(&folder) {
            let folder = folder.display();
            tracing::warn!(%folder, %error, "blocks cannot be kept, they are fetched each time");
            return None;
        }
        let (damaged, has_warned) = (AtomicU64::new(0), AtomicBool::new(false));
        Some(Self { folder, bytes_max, damaged, has_warned })
    }

    /// Returns a block if it is cached and intact.
    pub(crate) fn get(&self, key: BlockKey) -> Option<Vec<u8>> {
        let path = self.path(key);
        let file = File::open(&path).ok()?;
        let metadata = file.metadata().ok()?;
        let Some(block) = read_whole(&file, metadata.len(), key) else {
            self.damaged.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(file = %path.display(), "a cached block is damaged, it is fetched again");
            // If another process replaced the block meanwhile, only that copy is lost.
            let _ = fs::remove_file(&path);
            return None;
        };
        let used = metadata.modified().ok().and_then(|used| used.elapsed().ok());
        if used.is_none_or(|used| used > USED_AGAIN) {
            // In a read-only folder the blocks keep their order of arrival.
            let _ = file.set_modified(SystemTime::now());
        }
        Some(block)
    }

    /// Removes a block, if it is cached.
    pub(crate) fn forget(&self, key: BlockKey) {
        let _ = fs::remove_file(self.path(key));
    }

    /// Caches a block, if there is space or space can be freed.
    pub(crate) fn put(&self, key: BlockKey, block: &[u8]) {
        if let Err(error) = self.try_put(key, block)
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "blocks cannot be kept, they are fetched each time");
        }
    }

    fn try_put(&self, key: BlockKey, block: &[u8]) -> io::Result<()> {
        let path = self.path(key);
        let bytes = (HEAD_BYTES + block.len()) as u64;
        if room_of(bytes) > self.bytes_max || path.exists() {
            return Ok(());
        }
        let Some((mut file, part)) = self.reserve(&path, bytes)? else {
            return Ok(());
        };
        let written = file.write_all(&head(key, block)).and_then(|()| file.write_all(block));
        or_remove(&part, written.and_then(|()| fs::rename(&part, &path)))
    }

    fn path(&self, key: BlockKey) -> PathBuf {
        let name = key.0.to_string();
        self.folder.join(&name[..2]).join(&name[2..])
    }

    /// Reserves space for a block of `bytes` that will be at `path`. Returns a file of that size
    /// and its temporary path; `None`: there is no space, or others hold the lock for too long.
    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<Option<(File, PathBuf)>> {
        static PARTS: AtomicU64 = AtomicU64::new(0);
        let room = room_of(bytes);
        let Some(used) = Used::lock(&self.folder)? else {
            return Ok(None);
        };
        // A damaged number is computed again from the folder.
        let known = used.read()?.map_or_else(|| self.make_room(self.bytes_max), Ok)?;
        let known = match known + room > self.bytes_max {
            false => known,
            // Frees a tenth at a time, so that the folder is rarely scanned.
            true => self.make_room((self.bytes_max - self.bytes_max / 10).saturating_sub(room))?,
        };
        if known + room > self.bytes_max {
            used.write(known)?;
            return Ok(None);
        }
        used.write(known + room)?;
        let number = PARTS.fetch_add(1, Ordering::Relaxed);
        let part = path.with_extension(format!("part-{}-{number}", std::process::id()));
        fs::create_dir_all(path.parent().expect("a block is in a folder"))?;
        // The lock is still held, so the next process that frees space counts this file.
        let file = File::create(&part)?;
        or_remove(&part, file.set_len(bytes))?;
        Ok(Some((file, part)))
    }

    /// Removes the least recently used blocks until at most `bytes` are left; returns those bytes.
    fn make_room(&self, bytes: u64) -> io::Result<u64> {
        let mut blocks = Vec::new();
        let mut left = 0;
        for folder in entries(&self.folder)? {
            if !folder.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            for file in entries(&folder.path())? {
                // A file that another process removed meanwhile takes no space.
                let Ok(metadata) = file.metadata() else {
                    continue;
                };
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                let is_part = file.path().extension().is_some();
                let is_old = used.elapsed().is_ok_and(|age| age > PART_AGE);
                if is_part && is_old && fs::remove_file(file.path()).is_ok() {
                    continue;
                }
                let room = room_of(metadata.len());
                left += room;
                if !is_part {
                    blocks.push((used, room, file.path()));
                }
            }
        }
        blocks.sort_unstable_by_key(|(used, ..)| *used);
        for (_, room, path) in blocks {
            if left <= bytes {
                break;
            }
            match fs::remove_file(path) {
                Ok(()) => left -= room,
                Err(error) if error.kind() == io::ErrorKind::NotFound => left -= room,
                Err(error) => return Err(error),
            }
        }
        Ok(left)
    }
}

/// Number of bytes in use or reserved, under its lock.
struct Used {
    file: File,
}

impl Used {
    fn lock(folder: &Path) -> io::Result<Option<Self>> {
        let open = || {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).read(true).write(true).open(folder.join("used"))
        };
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(folder)?;
                open()?
            }
            opened => opened?,
        };
        for _ in 0..LOCK_LOOKS.0 {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self { file })),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_LOOKS.1),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Reads the number; `None` if it was never written, or not completely.
    fn read(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0; 12];
        match self.file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let (number, crc) = bytes.split_first_chunk::<8>().expect("12 bytes");
        let is_whole = crc32_iscsi(number).to_le_bytes() == *crc;
        Ok(is_whole.then(|| u64::from_le_bytes(*number)))
    }

    fn write(&self, bytes: u64) -> io::Result<()> {
        let number = bytes.to_le_bytes();
        let mut all = [0; 12];
        all[..8].copy_from_slice(&number);
        all[8..].copy_from_slice(&crc32_iscsi(&number).to_le_bytes());
        self.file.write_all_at(&all, 0)
    }
}

fn entries(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read?.collect(),
    }
}

/// Removes a part that could not be written and may fill the disk. Failures are ignored.
fn or_remove(part: &Path, written: io::Result<()>) -> io::Result<()> {
    written.inspect_err(|_| drop(fs::remove_file(part)))
}

fn room_of(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

fn head(key: BlockKey, block: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..16].copy_from_slice(MAGIC);
    head[16..48].copy_from_slice(key.0.as_bytes());
    head[48..52].copy_from_slice(&crc32_iscsi(block).to_le_bytes());
    head[52..].copy_from_slice(&(block.len() as u32).to_le_bytes());
    head
}

fn read_whole(mut file: &File, bytes: u64, key: BlockKey) -> Option<Vec<u8>> {
    if bytes > HEAD_BYTES as u64 + BLOCK_BYTES {
        return None;
    }
    let mut found = [0; HEAD_BYTES];
    file.read_exact(&mut found).ok()?;
    let mut block = Vec::with_capacity(bytes as usize);
    file.read_to_end(&mut block).ok()?;
    (found == head(key, &block)).then_some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> BlockKey {
        let stamp = ChangeStamp { size_bytes: 1, modified_ns: 0, etag: Some("\"e\"".into()) };
        BlockKey::new("s3://b/x", &stamp, number)
    }

    fn bytes_of(folder: &Path) -> u64 {
        let mut bytes = 0;
        for folder in entries(&folder.join("blocks")).unwrap() {
            if folder.metadata().unwrap().is_dir() {
                let files = entries(&folder.path()).unwrap();
                bytes += files.iter().map(|f| room_of(f.metadata().unwrap().len())).sum::<u64>();
            }
        }
        bytes
    }

    #[test]
    fn a_block_comes_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let cache = BlockCache::open(folder.path(), 1 << 20).unwrap();
        assert_eq!(cache.get(key(1)), None);
        cache.put(key(1), b"some bytes");
        assert_eq!(cache.get(key(1)).unwrap(), b"some bytes");
        assert_eq!(cache.get(key(2)), None);
        let whole = fs::read(cache.path(key(1))).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(cache.path(key(1)), &damaged).unwrap();
            assert_eq!(cache.get(key(1)), None, "byte {at}");
            assert!(!cache.path(key(1)).exists(), "a damaged block is removed");
            fs::write(cache.path(key(1)), &whole[..at]).unwrap();
            assert_eq!(cache.get(key(1)), None, "cut at {at}");
        }
        // The content of another key under this name.
        fs::write(cache.path(key(1)), fs::read(cache.path(key(1))).unwrap_or(whole)).unwrap();
        fs::rename(cache.path(key(1)), {
            fs::create_dir_all(cache.path(key(3)).parent().unwrap()).unwrap();
            cache.path(key(3))
        })
        .unwrap();
        assert_eq!(cache.get(key(3)), None);
    }

    #[test]
    fn the_bound_holds_and_the_longest_unused_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let (block, most) = (vec![7; 3000], 10 * PAGE_BYTES);
        let cache = BlockCache::open(folder.path(), most).unwrap();
        for number in 0..10 {
            cache.put(key(number), &block);
            let old = SystemTime::now() - Duration::from_secs(1000 - number);
            File::open(cache.path(key(number))).unwrap().set_modified(old).unwrap();
        }
        assert_eq!(bytes_of(folder.path()), most);
        assert!(cache.get(key(0)).is_some(), "used again");
        cache.put(key(10), &block);
        assert!(bytes_of(folder.path()) <= most);
        assert!(cache.get(key(10)).is_some());
        assert!(cache.get(key(0)).is_some(), "a recently used block stays");
        assert!(cache.get(key(1)).is_none(), "the longest unused goes");
        for number in 11..200 {
            cache.put(key(number), &block);
            assert!(bytes_of(folder.path()) <= most);
        }
        let small = BlockCache::open(folder.path(), PAGE_BYTES).unwrap();
        small.put(key(500), &[0; 5000]);
        assert!(small.get(key(500)).is_none(), "larger than all there is room for");
    }

    #[test]
    fn what_is_being_written_is_counted_by_whoever_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let most = 10 * PAGE_BYTES;
        let cache = BlockCache::open(folder.path(), most).unwrap();
        let (_, part) = cache.reserve(&cache.path(key(0)), 3000).unwrap().unwrap();
        // Other writers find no space, and scan the folder.
        for number in 1..30 {
            cache.put(key(number), &[1; 3000]);
            assert!(cache.get(key(number)).is_some());
            let others = bytes_of(folder.path()) - room_of(fs::metadata(&part).unwrap().len());
            assert!(others + room_of(3000) <= most, "after {number}");
        }
    }

    #[test]
    fn what_a_dead_process_left_behind_is_found_out_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let most = 10 * PAGE_BYTES;
        let cache = BlockCache::open(folder.path(), most).unwrap();
        cache.put(key(0), &[1; 3000]);
        // The process reserved nearly all space, wrote a part, and an invalid number.
        let part = cache.path(key(0)).with_extension("part-1-0");
        fs::write(&part, [0; 3000]).unwrap();
        File::open(&part).unwrap().set_modified(SystemTime::now() - 2 * PART_AGE).unwrap();
        let used = Used::lock(&cache.folder).unwrap().unwrap();
        used.write(most).unwrap();
        drop(used);
        for number in 1..9 {
            cache.put(key(number), &[1; 3000]);
        }
        assert!(!part.exists());
        assert!((0..9).all(|number| cache.get(key(number)).is_some()), "nothing had to go");
        fs::write(cache.folder.join("used"), [9; 12]).unwrap();
        cache.put(key(9), &[1; 3000]);
        assert!((0..10).all(|number| cache.get(key(number)).is_some()));
    }

    #[test]
    fn a_lock_that_is_held_costs_a_block_and_no_wait() {
        let folder = tempfile::tempdir().unwrap();
        let cache = BlockCache::open(folder.path(), 1 << 20).unwrap();
        let held = Used::lock(&cache.folder).unwrap().unwrap();
        cache.put(key(0), b"x");
        assert_eq!(cache.get(key(0)), None);
        drop(held);
        cache.put(key(0), b"x");
        assert!(cache.get(key(0)).is_some());
    }
}
