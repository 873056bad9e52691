//! In-memory disk that guarantees only synced data.
//!
//! After a power cut each unsynced block may or may not be there. A new name is as durable as the
//! last rename beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardfeed_host::{Disk, DiskFile, DiskLock};

use crate::dice::Dice;

/// Unit in which a disk writes, in bytes.
const BLOCK: usize = 4096;

/// Unit that stays whole in a torn block, in bytes.
const SECTOR: usize = 512;

/// All folders of one machine.
#[derive(Clone, Debug)]
pub struct SimDisks {
    machine: Arc<Mutex<Machine>>,
}

/// Faults that are injected into a machine's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Disk is full: writes that grow a file fail.
    pub is_full: bool,
    /// Percentage of writes and syncs that fail.
    pub errors_percent: u64,
}

/// Number of faults that took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFired {
    /// Writes that failed because the disk was full.
    pub full: u64,
    /// Writes and syncs that failed.
    pub errors: u64,
    /// Blocks and names that were lost in a power cut.
    pub lost: u64,
    /// Blocks that were torn in a power cut.
    pub torn: u64,
}

#[derive(Debug)]
struct Machine {
    folders: BTreeMap<PathBuf, Arc<Folder>>,
    faults: DiskFaults,
    fired: DiskFired,
    dice: Dice,
    /// Writes, syncs and renames until the power cut, and whether it tears blocks.
    fuse: Option<(u64, bool)>,
    /// True after a power cut during an operation, until the simulation handles it.
    is_dark: bool,
}

/// Folder as one run of the machine sees it; the next run gets another instance.
struct Folder {
    path: PathBuf,
    contents: Mutex<Contents>,
}

#[derive(Clone, Debug, Default)]
struct Contents {
    names: BTreeMap<String, u64>,
    /// Names at the last sync of the folder.
    synced_names: BTreeMap<String, u64>,
    files: BTreeMap<u64, Bytes>,
    next_file: u64,
    is_locked: bool,
}

/// Current contents of a file, and the changes since its last sync.
#[derive(Clone, Debug, Default)]
struct Bytes {
    now: Vec<u8>,
    synced_len: usize,
    /// Original contents of blocks that were written since then, truncated at the synced length.
    synced_blocks: BTreeMap<usize, Vec<u8>>,
    /// True if the file was truncated since then.
    was_cut: bool,
}

impl SimDisks {
    /// Returns the empty disks of one machine.
    pub fn new(dice: Dice) -> Self {
        let (folders, faults) = (BTreeMap::new(), DiskFaults::default());
        let fired = DiskFired::default();
        let (fuse, is_dark) = (None, false);
        let machine = Machine { folders, faults, fired, dice, fuse, is_dark };
        Self { machine: Arc::new(Mutex::new(machine)) }
    }

    /// Returns the disk that holds `folder`.
    pub fn open(&self, folder: &Path) -> SimDisk {
        let mut machine = self.lock();
        let made = || Arc::new(Folder { path: folder.to_owned(), contents: Mutex::default() });
        let folder = machine.folders.entry(folder.to_owned()).or_insert_with(made);
        SimDisk { machine: Arc::clone(&self.machine), folder: Arc::clone(folder) }
    }

    /// Sets the faults to inject from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.lock().faults = faults;
    }

    /// Returns the current faults.
    pub fn faults(&self) -> DiskFaults {
        self.lock().faults
    }

    /// Returns the number of faults that took effect.
    pub fn fired(&self) -> DiskFired {
        self.lock().fired
    }

    /// Schedules a power cut after `operations` writes, syncs and renames.
    /// - `tears`: a block may be torn.
    pub fn light_fuse(&self, operations: u64, tears: bool) {
        self.lock().fuse = Some((operations, tears));
    }

    /// Cancels the scheduled power cut.
    pub fn put_out(&self) {
        self.lock().fuse = None;
    }

    /// Returns true if the scheduled power cut happened. Processes on the machine cannot observe
    /// it.
    pub fn is_dark(&self) -> bool {
        self.lock().is_dark
    }

    /// Simulates the end of the process; its writes remain in the operating system's memory. Later
    /// writes through its open handles have no effect.
    pub fn kill(&self) {
        let mut machine = self.lock();
        (machine.fuse, machine.is_dark) = (None, false);
        for folder in machine.folders.values_mut() {
            let mut contents = folder.lock().clone();
            contents.is_locked = false;
            *folder = folder.with(contents);
        }
    }

    /// Simulates a power cut: the dice decide which unsynced data survives.
    /// - `tears`: a block may be torn.
    pub fn cut_power(&self, tears: bool) {
        let mut machine = self.lock();
        (machine.fuse, machine.is_dark) = (None, false);
        machine.cut_power(tears);
    }

    /// Replaces the disks by empty ones.
    pub fn wipe(&self) {
        self.lock().folders.clear();
    }

    /// Returns true if a folder has a file with a durable name that contains `part`.
    pub fn holds(&self, part: &str) -> bool {
        let machine = self.lock();
        let has = |folder: &Arc<Folder>| {
            folder.lock().synced_names.keys().any(|name| name.contains(part))
        };
        machine.folders.values().any(has)
    }

    /// Returns the total size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        let machine = self.lock();
        let bytes = |folder: &Arc<Folder>| -> u64 {
            folder.lock().files.values().map(|file| file.now.len() as u64).sum()
        };
        machine.folders.values().map(bytes).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine {
    fn cut_power(&mut self, tears: bool) {
        let Self { folders, fired, dice, .. } = self;
        for folder in folders.values_mut() {
            let left = folder.lock().after_power_cut(dice, tears, fired);
            *folder = folder.with(left);
        }
    }

    /// Counts one operation towards the power cut; after the cut every operation fails.
    fn burn(&mut self) -> io::Result<()> {
        if let Some((left, tears)) = self.fuse {
            self.fuse = left.checked_sub(1).map(|left| (left, tears));
            if self.fuse.is_none() {
                self.is_dark = true;
                self.cut_power(tears);
            }
        }
        match self.is_dark {
            true => Err(io::Error::other("the power is gone (simulated)")),
            false => Ok(()),
        }
    }
}

impl Folder {
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, contents: Contents) -> Arc<Self> {
        Arc::new(Self { path: self.path.clone(), contents: Mutex::new(contents) })
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Contents {
    fn sync_names(&mut self) {
        self.synced_names.clone_from(&self.names);
        let kept: BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|file, _| kept.contains(file));
    }

    fn after_power_cut(&self, dice: &Dice, tears: bool, fired: &mut DiskFired) -> Self {
        let mut names = BTreeMap::new();
        let known: BTreeSet<&String> = self.names.keys().chain(self.synced_names.keys()).collect();
        for name in known {
            let (now, synced) = (self.names.get(name), self.synced_names.get(name));
            let takes_back = now != synced && dice.chance(50);
            fired.lost += u64::from(takes_back);
            if let Some(file) = if takes_back { synced } else { now } {
                names.insert(name.clone(), *file);
            }
        }
        let mut files = BTreeMap::new();
        for file in names.values() {
            if let Some(bytes) = self.files.get(file) {
                files.insert(*file, bytes.after_power_cut(dice, tears, fired));
            }
        }
        let (synced_names, next_file) = (names.clone(), self.next_file);
        Self { names, synced_names, files, next_file, is_locked: false }
    }
}

impl Bytes {
    /// Saves the blocks of a range before they are changed.
    fn keep(&mut self, from: usize, to: usize) {
        for block in from / BLOCK..to.div_ceil(BLOCK) {
            let start = (block * BLOCK).min(self.synced_len).min(self.now.len());
            let end = ((block + 1) * BLOCK).min(self.synced_len).min(self.now.len());
            let now = &self.now;
            self.synced_blocks.entry(block).or_insert_with(|| now[start..end].to_vec());
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        self.keep(offset.min(self.now.len()), end);
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[offset..end].copy_from_slice(bytes);
    }

    fn set_len(&mut self, len: usize) {
        let now = self.now.len();
        self.keep(now.min(len), now.max(len));
        self.now.resize(len, 0);
        self.was_cut |= len < now;
    }

    fn sync(&mut self) {
        self.synced_len = self.now.len();
        self.synced_blocks.clear();
        self.was_cut = false;
    }

    fn of(now: Vec<u8>) -> Self {
        Self { synced_len: now.len(), now, ..Self::default() }
    }

    /// Returns the contents at the last sync.
    fn as_synced(&self) -> Vec<u8> {
        let mut bytes = self.now.clone();
        bytes.resize(self.synced_len, 0);
        for (block, synced) in &self.synced_blocks {
            bytes[block * BLOCK..][..synced.len()].copy_from_slice(synced);
        }
        bytes
    }

    fn after_power_cut(&self, dice: &Dice, tears: bool, fired: &mut DiskFired) -> Self {
        // A truncation is a metadata change: either it took effect, or nothing after it did.
        if self.was_cut && dice.chance(50) {
            fired.lost += 1;
            return Self::of(self.as_synced());
        }
        let mut bytes = self.now.clone();
        for (block, synced) in &self.synced_blocks {
            let (start, end) = (block * BLOCK, ((block + 1) * BLOCK).min(bytes.len()));
            if start >= end || dice.chance(50) {
                continue;
            }
            let mut old = synced.clone();
            old.resize(end - start, 0);
            // New sectors are written first; the old ones are those that the write did not reach.
            let reached = if tears && dice.chance(30) {
                fired.torn += 1;
                (dice.pick(1..(BLOCK / SECTOR) as u64) as usize * SECTOR).min(old.len())
            } else {
                0
            };
            fired.lost += 1;
            bytes[start + reached..end].copy_from_slice(&old[reached..]);
        }
        if bytes.len() > self.synced_len && !self.was_cut && dice.chance(50) {
            fired.lost += 1;
            bytes.truncate(self.synced_len);
        }
        Self::of(bytes)
    }
}

/// A folder as a [`Disk`].
#[derive(Clone, Debug)]
pub struct SimDisk {
    machine: Arc<Mutex<Machine>>,
    folder: Arc<Folder>,
}

impl SimDisk {
    /// Fails according to the machine's faults.
    fn check(&self, grows: bool) -> io::Result<()> {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.burn()?;
        let DiskFaults { is_full, errors_percent, .. } = machine.faults;
        if is_full && grows {
            machine.fired.full += 1;
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left (simulated)"));
        }
        if errors_percent > 0 && machine.dice.chance(errors_percent) {
            machine.fired.errors += 1;
            return Err(io::Error::other("input/output error (simulated)"));
        }
        Ok(())
    }

    fn file(&self, name: &str) -> io::Result<u64> {
        self.folder.lock().names.get(name).copied().ok_or_else(|| {
            let text = format!("{}: no such file", self.path_text(name));
            io::Error::new(io::ErrorKind::NotFound, text)
        })
    }
}

impl Disk for SimDisk {
    fn lock(&self) -> io::Result<DiskLock> {
        let mut contents = self.folder.lock();
        if contents.is_locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        contents.is_locked = true;
        Ok(DiskLock::new(Unlock(Arc::clone(&self.folder))))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.folder.lock().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut contents = self.folder.lock();
        let file = match contents.names.get(name) {
            Some(file) => *file,
            None => {
                drop(contents);
                self.check(true)?;
                contents = self.folder.lock();
                let file = contents.next_file;
                contents.next_file += 1;
                contents.names.insert(name.to_owned(), file);
                contents.files.insert(file, Bytes::default());
                file
            }
        };
        drop(contents);
        Ok(Box::new(SimFile { disk: self.clone(), file }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = self.file(name)?;
        Ok(self.folder.lock().files.get(&file).map(|bytes| bytes.now.clone()).unwrap_or_default())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = self.open(name)?;
        file.set_len(0)?;
        file.write_at(0, bytes)?;
        file.sync()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let file = self.file(from)?;
        self.check(false)?;
        let mut contents = self.folder.lock();
        contents.names.remove(from);
        contents.names.insert(to.to_owned(), file);
        contents.sync_names();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.file(name)?;
        self.folder.lock().names.remove(name);
        Ok(())
    }

    fn path_text(&self, name: &str) -> String {
        let path =
            if name.is_empty() { self.folder.path.clone() } else { self.folder.path.join(name) };
        path.display().to_string()
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    file: u64,
}

impl SimFile {
    fn with<T>(&self, work: impl FnOnce(&mut Bytes) -> T) -> io::Result<T> {
        let mut contents = self.disk.folder.lock();
        // A removed file stays readable through handles that are open.
        Ok(work(contents.files.entry(self.file).or_default()))
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|bytes| bytes.now.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|bytes| {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let found = from.checked_add(out.len()).and_then(|to| bytes.now.get(from..to));
            out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })?
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let grows = offset + bytes.len() as u64 > self.len()?;
        self.disk.check(grows)?;
        self.with(|file| file.write(offset as usize, bytes))
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.disk.check(bytes > self.len()?)?;
        self.with(|file| file.set_len(bytes as usize))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.check(false)?;
        self.with(Bytes::sync)
    }
}

struct Unlock(Arc<Folder>);

impl fmt::Debug for Unlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unlock")
    }
}

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.lock().is_locked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(seed: u64) -> (SimDisks, SimDisk) {
        let disks = SimDisks::new(Dice::new(seed, 0));
        let disk = disks.open(Path::new("/d"));
        (disks, disk)
    }

    fn synced(disk: &SimDisk, name: &str, bytes: &[u8]) {
        disk.write("new", bytes).unwrap();
        disk.rename("new", name).unwrap();
    }

    #[test]
    fn what_was_synced_outlives_every_power_cut() {
        for seed in 0..64 {
            let (disks, disk) = disks(seed);
            synced(&disk, "a", &[7; 3 * BLOCK + 5]);
            let file = disk.open("a").unwrap();
            file.write_at(10, &[8; BLOCK]).unwrap();
            file.sync().unwrap();
            disks.cut_power(false);
            let mut wanted = vec![7; 3 * BLOCK + 5];
            wanted[10..10 + BLOCK].fill(8);
            assert_eq!(disks.open(Path::new("/d")).read("a").unwrap(), wanted);
        }
    }

    #[test]
    fn a_block_that_was_not_synced_is_the_old_or_the_new_one() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let (disks, disk) = disks(seed);
            synced(&disk, "a", &[1; 2 * BLOCK]);
            let file = disk.open("a").unwrap();
            file.write_at(0, &[2; 3 * BLOCK]).unwrap();
            disks.cut_power(false);
            let left = disks.open(Path::new("/d")).read("a").unwrap();
            assert!(left.len() == 2 * BLOCK || left.len() == 3 * BLOCK, "{}", left.len());
            let blocks = left.chunks(BLOCK).map(|block| {
                assert!(block.iter().all(|byte| *byte == block[0]));
                block[0]
            });
            seen.insert(blocks.collect::<Vec<_>>());
        }
        // Each of the two old blocks is old or new; the third is absent, zeros, or new.
        assert_eq!(seen.len(), 4 * 3, "{seen:?}");
    }

    #[test]
    fn a_torn_block_begins_new_and_ends_old() {
        let mut torn = 0;
        for seed in 0..200 {
            let (disks, disk) = disks(seed);
            synced(&disk, "a", &[1; BLOCK]);
            disk.open("a").unwrap().write_at(0, &[2; BLOCK]).unwrap();
            disks.cut_power(true);
            let left = disks.open(Path::new("/d")).read("a").unwrap();
            let new = left.iter().take_while(|byte| **byte == 2).count();
            assert!(left[new..].iter().all(|byte| *byte == 1) && new.is_multiple_of(SECTOR));
            torn += u64::from(new > 0 && new < BLOCK);
            assert_eq!(u64::from(new > 0 && new < BLOCK), disks.fired().torn);
        }
        assert!(torn > 0);
    }

    #[test]
    fn a_name_is_durable_after_the_next_rename_and_a_removal_may_come_back() {
        let (mut with, mut back) = (0, 0);
        for seed in 0..64 {
            let (disks, disk) = disks(seed);
            synced(&disk, "old", b"1");
            disk.write("new", b"2").unwrap();
            disk.remove("old").unwrap();
            disks.cut_power(false);
            let disk = disks.open(Path::new("/d"));
            with += usize::from(disk.read("new").is_ok_and(|bytes| bytes == b"2"));
            back += usize::from(disk.read("old").is_ok_and(|bytes| bytes == b"1"));
            disk.write("b", b"3").unwrap();
            synced(&disk, "c", b"4");
            disks.cut_power(false);
            assert_eq!(disks.open(Path::new("/d")).read("b").unwrap(), b"3");
        }
        assert!((1..64).contains(&with) && (1..64).contains(&back), "{with} {back}");
    }

    #[test]
    fn a_cut_that_was_not_synced_may_not_have_been() {
        let mut lens = BTreeSet::new();
        for seed in 0..64 {
            let (disks, disk) = disks(seed);
            synced(&disk, "a", &[1; 2 * BLOCK]);
            disk.open("a").unwrap().set_len(5).unwrap();
            disks.cut_power(false);
            let left = disks.open(Path::new("/d")).read("a").unwrap();
            assert!(left[..5].iter().all(|byte| *byte == 1));
            lens.insert(left.len());
        }
        assert!(lens.contains(&5) && lens.contains(&(2 * BLOCK)), "{lens:?}");
    }

    #[test]
    fn a_killed_process_loses_nothing_and_reaches_nothing_any_more() {
        let (disks, disk) = disks(1);
        let _lock = disk.lock().unwrap();
        assert_eq!(disk.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let file = disk.open("a").unwrap();
        file.write_at(0, b"x").unwrap();
        disks.kill();
        file.write_at(0, b"y").unwrap();
        let disk = disks.open(Path::new("/d"));
        assert_eq!(disk.read("a").unwrap(), b"x");
        disk.lock().unwrap();
    }

    #[test]
    fn a_fuse_cuts_the_power_between_a_write_and_its_sync() {
        let mut lefts = BTreeSet::new();
        for seed in 0..64 {
            let (disks, disk) = disks(seed);
            synced(&disk, "a", &[1; BLOCK]);
            let file = disk.open("a").unwrap();
            disks.light_fuse(1, false);
            file.write_at(0, &[2; BLOCK]).unwrap();
            assert!(!disks.is_dark());
            file.sync().unwrap_err();
            assert!(disks.is_dark());
            // No later write reaches the disk.
            file.write_at(0, &[3; BLOCK]).unwrap_err();
            disks.kill();
            assert!(!disks.is_dark());
            let left = disks.open(Path::new("/d")).read("a").unwrap();
            lefts.insert(left[0]);
            assert!(left.iter().all(|byte| *byte == left[0]));
        }
        assert_eq!(lefts, BTreeSet::from([1, 2]));
    }

    #[test]
    fn faults_fire_and_are_counted() {
        let (disks, disk) = disks(1);
        let file = disk.open("a").unwrap();
        file.write_at(0, b"1234").unwrap();
        disks.set_faults(DiskFaults { is_full: true, ..DiskFaults::default() });
        file.write_at(0, b"5678").unwrap();
        assert_eq!(file.write_at(4, b"9").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.open("b").unwrap_err().kind(), io::ErrorKind::StorageFull);
        disks.set_faults(DiskFaults { errors_percent: 100, ..DiskFaults::default() });
        file.sync().unwrap_err();
        file.write_at(0, b"x").unwrap_err();
        assert_eq!(disks.fired(), DiskFired { full: 2, errors: 2, ..DiskFired::default() });
        assert_eq!(disk.read("a").unwrap(), b"5678");
    }
}
