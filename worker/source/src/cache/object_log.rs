//! Files of objects that are appended: the samples that a program makes of any files.
//!
//! A file is a magic, and then objects with a head: its CRC-32C with the key, the bytes of the key
//! and of the object, the key. A later object replaces an earlier one with the same key. Objects
//! have checksums of their own, see [`ObjectKind`](super::object_kind::ObjectKind). One file has
//! millions of them, and is read from its begin to its end once.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crc_fast::crc32_iscsi;
use rustix::fs::OFlags;
use shardfeed_tfrecord::NewFile;

use super::{remove_old_parts, warn};
use crate::shared::Lock;

/// First bytes of a file; the number is the version of the format.
const MAGIC: &[u8] = b"shardfeed objects 1\n";

/// Bytes of a head before the key: checksum, bytes of the key, bytes of the object.
const HEAD: usize = 4 + 2 + 4;

const BUFFER: usize = 1 << 18;

/// Minimum bytes of replaced objects before a file is rewritten.
const REPLACED_MIN: u64 = 1 << 20;

/// Maximum time for which a process waits for the others that append.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(30);

/// Interval at which a waiting process retries the lock.
const LOCK_POLL: Duration = Duration::from_millis(1);

/// Time without growth after which an incomplete object counts as one of a process that died.
const APPEND_WAIT: Duration = Duration::from_millis(50);

/// Maximum number of files that are kept open.
const OPEN_MAX: usize = 16;

/// Newest object of each key in a file that all processes of a host append to.
#[derive(Debug)]
pub(crate) struct ObjectLog {
    path: PathBuf,
    known: Lock<Known>,
    /// Set by the first error: on a full disk each further attempt would fail, too.
    has_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    file: Option<Arc<File>>,
    /// Bytes up to the end of the last complete object.
    end: u64,
    /// Offset and bytes of the newest object of each key.
    places: BTreeMap<Box<str>, (u64, u32)>,
    /// Bytes of the objects in `places`, with their heads.
    live: u64,
}

/// Open files of a process that uses them again and again, such as a worker for each part of a
/// dataset. The objects of all parts are in them.
#[derive(Clone, Debug, Default)]
pub struct OpenLogs(Arc<Lock<Vec<Arc<ObjectLog>>>>);

impl OpenLogs {
    /// Returns the file of a path, with the objects that it has now.
    pub(crate) fn get(&self, path: PathBuf) -> Arc<ObjectLog> {
        let mut open = self.0.lock();
        let is_it =
            |log: &Arc<ObjectLog>| log.path == path && !log.has_failed.load(Ordering::Relaxed);
        let log = match open.iter().position(is_it).map(|place| open.remove(place)) {
            Some(log) => {
                log.refresh();
                log
            }
            None => Arc::new(ObjectLog::open(path)),
        };
        open.insert(0, Arc::clone(&log));
        open.truncate(OPEN_MAX);
        log
    }
}

impl PartialEq for OpenLogs {
    /// Returns true: all of them show the files of this host.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OpenLogs {}

impl ObjectLog {
    /// Opens a file, which need not exist.
    pub(crate) fn open(path: PathBuf) -> Self {
        let log = Self { path, known: Lock::default(), has_failed: false.into() };
        log.refresh();
        log
    }

    pub(crate) fn refresh(&self) {
        let mut known = self.known.lock();
        let read = match opening().read(true).open(&self.path) {
            Ok(file) => known.follow(&Arc::new(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                *known = Known::default();
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = read {
            warn(&self.path, "read what was counted", &error);
            *known = Known::default();
        }
    }

    /// Returns the newest object of a key.
    pub(crate) fn read(&self, key: &str) -> Option<Vec<u8>> {
        let (file, place) = {
            let known = self.known.lock();
            (known.file.clone()?, *known.places.get(key)?)
        };
        object_at(&file, place).ok()
    }

    /// Appends objects, or warns. They are not synced: after a crash the last ones may be missing.
    pub(crate) fn add(&self, objects: impl IntoIterator<Item = (impl AsRef<str>, Vec<u8>)>) {
        if self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.append(objects.into_iter()) {
            self.has_failed.store(true, Ordering::Relaxed);
            warn(&self.path, "write what was counted", &error);
            // Objects that were there before are still read.
            self.refresh();
        }
    }

    fn append(&self, objects: impl Iterator<Item = (impl AsRef<str>, Vec<u8>)>) -> io::Result<()> {
        let mut known = self.known.lock();
        let lock = self.lock(&mut known)?;
        if let Err(error) = known.append(&lock.0, objects) {
            // An incomplete object is cut off before the next ones.
            *known = Known::default();
            return Err(error);
        }
        if known.end - known.live > known.live.max(REPLACED_MIN) {
            self.rewrite(&mut known)?;
        }
        Ok(())
    }

    /// Waits for the right to append, and reads what other processes appended before.
    fn lock(&self, known: &mut Known) -> io::Result<FileLock> {
        let open = || opening().read(true).append(true).create(true).open(&self.path);
        let begun = Instant::now();
        loop {
            let file = open().or_else(|error| match error.kind() {
                ErrorKind::NotFound => {
                    fs::create_dir_all(self.path.parent().unwrap_or(&self.path))?;
                    open()
                }
                _ => Err(error),
            })?;
            let is_locked = loop {
                match file.try_lock() {
                    Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_WAIT_MAX => {
                        std::thread::sleep(LOCK_POLL);
                    }
                    Err(TryLockError::WouldBlock) => return Err(ErrorKind::TimedOut.into()),
                    Ok(()) => break true,
                    // Some network file systems have no locks; objects have checksums.
                    Err(TryLockError::Error(_)) => break false,
                }
            };
            let lock = FileLock(Arc::new(file));
            if self.is_whole(known, &lock.0, is_locked)? {
                return Ok(lock);
            }
            if begun.elapsed() > LOCK_WAIT_MAX {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    /// Reads what other processes appended to an open file, and removes an incomplete object at its
    /// end. False if the path has another file now.
    fn is_whole(&self, known: &mut Known, file: &Arc<File>, is_locked: bool) -> io::Result<bool> {
        let of = identity(&file.metadata()?);
        // Another process may have rewritten the file meanwhile.
        if !fs::metadata(&self.path).is_ok_and(|now| identity(&now) == of) {
            return Ok(false);
        }
        known.follow(file)?;
        if file.metadata()?.len() <= known.end {
            return Ok(true);
        }
        // A process died while it appended.
        if is_locked {
            file.set_len(known.end)?;
            return Ok(true);
        }
        // Or another host appends it now, which must not continue in the middle of other objects.
        let bytes = file.metadata()?.len();
        std::thread::sleep(APPEND_WAIT);
        if file.metadata()?.len() == bytes {
            self.rewrite(known)?;
        }
        Ok(false)
    }

    /// Replaces the file by one without replaced objects.
    fn rewrite(&self, known: &mut Known) -> io::Result<()> {
        remove_old_parts(&self.path);
        let (mut new, mut live) = (NewFile::beside(&self.path)?, Known::default());
        let file = known.file.as_ref().ok_or(ErrorKind::NotFound)?;
        let mut lost = Ok(());
        let objects = known.places.iter().map_while(|(key, place)| {
            let object = object_at(file, *place);
            object.map(|object| (&**key, object)).map_err(|error| lost = Err(error)).ok()
        });
        live.append(new.file(), objects)?;
        lost?;
        new.finish()?;
        live.file = Some(Arc::new(opening().read(true).open(&self.path)?));
        *known = live;
        Ok(())
    }
}

impl Known {
    /// Reads a file on from the end of the part that is known of it.
    fn follow(&mut self, file: &Arc<File>) -> io::Result<()> {
        let now = file.metadata()?;
        if !now.is_file() {
            return Err(foreign());
        }
        let before = self.file.as_ref().map(|file| file.metadata()).transpose()?;
        let is_same = before.is_some_and(|before| identity(&before) == identity(&now));
        if is_same && self.end > 0 && now.len() == self.end {
            return Ok(());
        }
        if !is_same || now.len() < self.end {
            *self = Self { file: Some(Arc::clone(file)), ..Self::default() };
        }
        let mut reader = BufReader::with_capacity(BUFFER, &**file);
        reader.seek(SeekFrom::Start(self.end))?;
        if self.end == 0 {
            let mut magic = Vec::new();
            reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
            if !MAGIC.starts_with(&magic) {
                return Err(foreign());
            }
            if magic.len() < MAGIC.len() {
                return Ok(());
            }
            self.end = MAGIC.len() as u64;
        }
        while let Some((key, bytes)) = read_head(&mut reader)? {
            let object = self.end + (HEAD + key.len()) as u64;
            if object + u64::from(bytes) > now.len() {
                break;
            }
            reader.seek_relative(i64::from(bytes))?;
            self.add(key, bytes);
        }
        Ok(())
    }

    /// Appends objects to the file that is known.
    fn append(
        &mut self,
        mut file: &File,
        objects: impl Iterator<Item = (impl AsRef<str>, Vec<u8>)>,
    ) -> io::Result<()> {
        let mut buffer = Vec::new();
        if self.end == 0 {
            buffer.extend(MAGIC);
            self.end = MAGIC.len() as u64;
        }
        for (key, object) in objects {
            let key = key.as_ref();
            let (Ok(key_bytes), Ok(bytes)) = (key.len().try_into(), object.len().try_into()) else {
                return Err(ErrorKind::FileTooLarge.into());
            };
            buffer.extend(head_of(key, key_bytes, bytes));
            buffer.extend(object);
            self.add(key.into(), bytes);
            if buffer.len() >= BUFFER {
                file.write_all(&buffer)?;
                buffer.clear();
            }
        }
        file.write_all(&buffer)
    }

    /// Notes the object that follows the last one.
    fn add(&mut self, key: Box<str>, bytes: u32) {
        let head = (HEAD + key.len()) as u64;
        let place = self.end + head;
        self.end = place + u64::from(bytes);
        self.live += head + u64::from(bytes);
        if let Some((_, replaced)) = self.places.insert(key, (place, bytes)) {
            self.live -= head + u64::from(replaced);
        }
    }
}

fn head_of(key: &str, key_bytes: u16, bytes: u32) -> Vec<u8> {
    let rest = [&key_bytes.to_le_bytes()[..], &bytes.to_le_bytes(), key.as_bytes()].concat();
    [&crc32_iscsi(&rest).to_le_bytes()[..], &rest].concat()
}

/// Reads the next head: the key, and the bytes of the object; `None`: none is complete.
fn read_head(reader: &mut impl Read) -> io::Result<Option<(Box<str>, u32)>> {
    let mut head = [0; HEAD];
    let mut read = |bytes: &mut [u8]| match reader.read_exact(bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    };
    if !read(&mut head)? {
        return Ok(None);
    }
    let key_bytes = u16::from_le_bytes([head[4], head[5]]);
    let bytes = u32::from_le_bytes([head[6], head[7], head[8], head[9]]);
    let mut key = vec![0; usize::from(key_bytes)];
    if !read(&mut key)? {
        return Ok(None);
    }
    let key = String::from_utf8(key).ok();
    let is_whole = |key: &String| head_of(key, key_bytes, bytes)[..HEAD] == head;
    Ok(key.filter(is_whole).map(|key| (key.into(), bytes)))
}

/// Returns options for a file that is no link, without waiting for a reader or writer of a pipe.
fn opening() -> OpenOptions {
    let mut options = File::options();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

fn foreign() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "another program made this file; remove it")
}

fn object_at(file: &File, (offset, bytes): (u64, u32)) -> io::Result<Vec<u8>> {
    let mut object = vec![0; bytes as usize];
    file.read_exact_at(&mut object, offset).map(|()| object)
}

/// Device and number of a file.
fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Right to append to a file, until it is dropped.
struct FileLock(Arc<File>);

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(log: &ObjectLog, keys: &[&str]) -> Vec<Option<Vec<u8>>> {
        log.refresh();
        keys.iter().map(|key| log.read(key)).collect()
    }

    fn add(log: &ObjectLog, key: &str, object: &[u8]) {
        log.add([(key, object.to_vec())]);
    }

    #[test]
    fn objects_of_several_processes_are_found_by_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("of/data");
        let logs = [(); 3].map(|()| ObjectLog::open(path.clone()));
        assert_eq!(objects(&logs[0], &["a"]), [None]);
        let object = |number: u64| vec![number as u8; number as usize % 300];
        for number in 0..3000 {
            add(&logs[number as usize % 3], &format!("{}", number % 700), &object(number));
        }
        let newest = (0..700).map(|key| Some(object((2999 - key) / 700 * 700 + key)));
        let newest: Vec<_> = newest.collect();
        let keys: Vec<_> = (0..700).map(|key| key.to_string()).collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        for log in logs.iter().chain([&ObjectLog::open(path)]) {
            assert_eq!(objects(log, &keys), newest);
        }
    }

    #[test]
    fn objects_that_threads_add_at_the_same_time_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let logs = [(); 2].map(|()| ObjectLog::open(path.clone()));
        std::thread::scope(|scope| {
            for (number, log) in logs.iter().cycle().take(8).enumerate() {
                scope.spawn(move || {
                    for at in 0..200 {
                        add(log, &format!("{number}/{at}"), &vec![at as u8; 5000]);
                    }
                });
            }
        });
        let log = ObjectLog::open(path);
        for number in 0..8 {
            for at in 0..200 {
                assert_eq!(log.read(&format!("{number}/{at}")), Some(vec![at as u8; 5000]));
            }
        }
    }

    #[test]
    fn what_is_damaged_hides_nothing_before_it_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let log = ObjectLog::open(path.clone());
        let ends = ["a", "b", "c"].map(|key| {
            add(&log, key, key.repeat(9).as_bytes());
            fs::metadata(&path).unwrap().len()
        });
        let (whole, all) = (fs::read(&path).unwrap(), ["a", "b", "c"]);
        let found = |end: usize| {
            all.map(|key| Some(key.repeat(9).into_bytes()))
                .iter()
                .zip(ends)
                .map(|(object, of)| object.clone().filter(|_| of as usize <= end))
                .collect::<Vec<_>>()
        };
        for at in 0..whole.len() {
            fs::write(&path, &whole[..at]).unwrap();
            let log = ObjectLog::open(path.clone());
            assert_eq!(objects(&log, &all), found(at), "cut at {at}");
            add(&log, "d", b"more");
            assert_eq!(ObjectLog::open(path.clone()).read("d"), Some(b"more".to_vec()));
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            let log = ObjectLog::open(path.clone());
            if at < MAGIC.len() {
                // It may be a file of another program, and stays as it is.
                add(&log, "d", b"more");
                assert_eq!(objects(&log, &["a", "b", "c", "d"]), [None, None, None, None]);
                assert_eq!(fs::read(&path).unwrap(), damaged);
                continue;
            }
            // Objects have checksums of their own.
            let head = ends.iter().position(|end| at < *end as usize).unwrap();
            let is_object = (ends[head] as usize - at) <= 9;
            for (place, key) in all.iter().enumerate() {
                let is_kept = place < head || is_object;
                assert_eq!(log.read(key).is_some(), is_kept, "byte {at}, `{key}`");
            }
            add(&log, "d", b"more");
            assert_eq!(ObjectLog::open(path.clone()).read("d"), Some(b"more".to_vec()));
        }
    }

    #[test]
    fn replaced_objects_do_not_stay_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let (log, other) = (ObjectLog::open(path.clone()), ObjectLog::open(path.clone()));
        let keys: Vec<_> = (0..1000).map(|key| key.to_string()).collect();
        for round in 0..20 {
            log.add(keys.iter().map(|key| (key.as_str(), vec![round; 1000])));
            add(&other, "other", &[round]);
        }
        let size = fs::metadata(&path).unwrap().len();
        assert!(size < 3 * 1_020_000 + REPLACED_MIN, "{size} bytes");
        for log in [&log, &other, &ObjectLog::open(path)] {
            log.refresh();
            assert!(keys.iter().all(|key| log.read(key) == Some(vec![19; 1000])));
            assert_eq!(log.read("other"), Some(vec![19]));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no part is left");
    }

    #[test]
    fn a_place_that_cannot_be_used_keeps_nothing_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), b"text of another program").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
        for name in ["file/data", "", "file", "link", "dangling", "pipe"] {
            let log = ObjectLog::open(at(name));
            add(&log, "a", b"a");
            assert_eq!(objects(&log, &["a"]), [None], "{name}");
        }
        assert_eq!(fs::read(at("file")).unwrap(), b"text of another program");
        assert!(!at("nowhere").exists());
    }

    #[test]
    fn objects_are_read_where_no_more_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let log = ObjectLog::open(path.clone());
        add(&log, "a", b"a");
        let end = fs::metadata(&path).unwrap().len();
        let long = "b".repeat(1 << 16);
        log.add([(&long, b"b".to_vec())]);
        add(&log, "c", b"c");
        assert_eq!(objects(&log, &["a", &long, "c"]), [Some(b"a".to_vec()), None, None]);
        assert_eq!(fs::metadata(&path).unwrap().len(), end, "no further attempt is made");
    }

    #[test]
    fn what_another_host_writes_without_a_lock_is_not_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let log = ObjectLog::open(path.clone());
        add(&log, "a", b"a");
        let mut other = opening().read(true).append(true).open(&path).unwrap();
        other.write_all(&head_of("b", 1, 100)[..5]).unwrap();
        let (file, end) = (Arc::new(File::open(&path).unwrap()), other.metadata().unwrap().len());
        let mut known = log.known.lock();
        assert!(!log.is_whole(&mut known, &file, false).unwrap());
        drop(known);
        assert_eq!(other.metadata().unwrap().len(), end);
        other.write_all(b"rest").unwrap();
        add(&log, "c", b"c");
        let both = [Some(b"a".to_vec()), Some(b"c".to_vec())];
        for log in [log, ObjectLog::open(path)] {
            assert_eq!(objects(&log, &["a", "c"]), both);
        }
    }

    #[test]
    fn parts_of_a_process_that_died_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, part) = (folder.path().join("data"), folder.path().join(".data.1-0.tmp"));
        fs::write(&part, b"half of it").unwrap();
        let old = std::time::SystemTime::now() - Duration::from_secs(3600);
        File::options().append(true).open(&part).unwrap().set_modified(old).unwrap();
        let log = ObjectLog::open(path);
        for _ in 0..20 {
            add(&log, "a", &[1; 200_000]);
        }
        assert!(!part.exists());
    }
}
