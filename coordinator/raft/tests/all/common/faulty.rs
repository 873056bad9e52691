//! In-memory disk that tracks syncs, fails on request, and loses unsynced data.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use shardfeed_host::{Disk, DiskFile, DiskLock};

/// Injected fault, counted over all files from the time at which it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The disk is full after this many writes; the failing one is half done.
    FullAfter(u64),
    /// Each sync fails after this many syncs.
    SyncsFailFrom(u64),
    /// One sync fails after this many syncs; the next ones succeed and have nothing left to write.
    OneSyncFailsAt(u64),
}

#[derive(Debug, Default)]
struct File {
    synced: Vec<u8>,
    seen: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Arc<Mutex<File>>>,
    fault: Option<Fault>,
    writes: u64,
    syncs: u64,
    locked: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FaultyDisk {
    state: Arc<Mutex<State>>,
}

impl FaultyDisk {
    pub(crate) fn set_fault(&self, fault: Fault) {
        let mut state = self.state.lock().unwrap();
        (state.fault, state.writes, state.syncs) = (Some(fault), 0, 0);
    }

    /// Power off: unsynced data is gone, or, for `torn` seeds, partly there in 512-byte sectors.
    /// Power on: a working disk with these bytes, which the old handles do not see.
    pub(crate) fn crash(&self, torn: Option<u64>) -> Self {
        let state = self.state.lock().unwrap();
        let mut dice = Dice(torn.unwrap_or(0) * 2 + 1);
        let mut files = BTreeMap::new();
        for (name, file) in &state.files {
            let file = file.lock().unwrap();
            let mut bytes = file.synced.clone();
            if torn.is_some() {
                for (offset, write) in &file.unsynced {
                    tear(&mut bytes, *offset, write, &mut dice);
                }
            }
            let file = File { synced: bytes.clone(), seen: bytes, unsynced: Vec::new() };
            files.insert(name.clone(), Arc::new(Mutex::new(file)));
        }
        Self { state: Arc::new(Mutex::new(State { files, ..State::default() })) }
    }

    fn file(&self, name: &str) -> io::Result<Arc<Mutex<File>>> {
        let found = self.state.lock().unwrap().files.get(name).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write_fails(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        state.writes += 1;
        matches!(state.fault, Some(Fault::FullAfter(after)) if state.writes > after)
    }

    fn sync_fails(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        state.syncs += 1;
        match state.fault {
            Some(Fault::SyncsFailFrom(after)) => state.syncs > after,
            Some(Fault::OneSyncFailsAt(after)) => state.syncs == after + 1,
            _ => false,
        }
    }

    /// Returns the number of syncs so far.
    pub(crate) fn syncs(&self) -> u64 {
        self.state.lock().unwrap().syncs
    }

    /// Returns the bytes of a file as they would be after a crash.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        self.file(name).unwrap().lock().unwrap().synced.clone()
    }

    /// Replaces the bytes of a file, unnoticed by open handles.
    pub(crate) fn set_bytes(&self, name: &str, bytes: Vec<u8>) {
        let file = File { synced: bytes.clone(), seen: bytes, unsynced: Vec::new() };
        let file = Arc::new(Mutex::new(file));
        self.state.lock().unwrap().files.insert(name.to_owned(), file);
    }
}

/// Applies a random subset of a write's sectors.
fn tear(bytes: &mut Vec<u8>, offset: usize, write: &[u8], dice: &mut Dice) {
    for (number, sector) in write.chunks(512).enumerate() {
        if dice.next().is_multiple_of(2) {
            put(bytes, offset + number * 512, sector);
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, write: &[u8]) {
    let end = offset + write.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[offset..end].copy_from_slice(write);
}

/// xorshift64: the seed determines all draws.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }
}

fn full() -> io::Error {
    io::Error::from_raw_os_error(28)
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(5)
}

#[derive(Debug)]
struct Unlock(Arc<Mutex<State>>);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.lock().unwrap().locked = false;
    }
}

impl Disk for FaultyDisk {
    fn lock(&self) -> io::Result<DiskLock> {
        let mut state = self.state.lock().unwrap();
        if state.locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.locked = true;
        drop(state);
        Ok(DiskLock::new(Unlock(self.state.clone())))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state.lock().unwrap().files.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.state.lock().unwrap().files.entry(name.to_owned()).or_default().clone();
        Ok(Box::new(FaultyFile { disk: self.clone(), file }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(self.file(name)?.lock().unwrap().seen.clone())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.state.lock().unwrap().files.insert(name.to_owned(), Arc::default());
        let file = self.open(name)?;
        file.write_at(0, bytes)?;
        file.sync()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if self.sync_fails() {
            return Err(broken());
        }
        let mut state = self.state.lock().unwrap();
        let file = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.state.lock().unwrap().files.remove(name);
        Ok(())
    }

    fn path_text(&self, name: &str) -> String {
        format!("faulty:/{name}")
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: FaultyDisk,
    file: Arc<Mutex<File>>,
}

impl DiskFile for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.lock().unwrap().seen.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let file = self.file.lock().unwrap();
        let from = offset as usize;
        let bytes = file.seen.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let fails = self.disk.write_fails();
        let bytes = if fails { &bytes[..bytes.len() / 2] } else { bytes };
        let mut file = self.file.lock().unwrap();
        put(&mut file.seen, offset as usize, bytes);
        file.unsynced.push((offset as usize, bytes.to_vec()));
        if fails { Err(full()) } else { Ok(()) }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        if self.disk.write_fails() {
            return Err(full());
        }
        let mut file = self.file.lock().unwrap();
        file.seen.resize(bytes as usize, 0);
        // A file system journals the length: it survives, in order, with or without a sync.
        file.synced.resize(bytes as usize, 0);
        file.unsynced.retain(|(offset, write)| offset + write.len() <= bytes as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let fails = self.disk.sync_fails();
        let mut file = self.file.lock().unwrap();
        if fails {
            // As on Linux: the pages are marked clean, and a later sync does not report the error.
            file.unsynced.clear();
            return Err(broken());
        }
        for (offset, write) in std::mem::take(&mut file.unsynced) {
            put(&mut file.synced, offset, &write);
        }
        Ok(())
    }
}
