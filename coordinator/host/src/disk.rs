//! The directory of a node, as a port: production uses files, tests use files that fail.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::PathBuf;

use rustix::fs::FlockOperation;

/// A flat directory of files. All of the node's reads and writes go through it.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Locks the directory for this node alone, until the lock is dropped.
    /// # Errors  `WouldBlock` if another node has locked it.
    fn lock(&self) -> io::Result<DiskLock>;

    /// Returns the names in the directory, in any order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file for reading and writing; creates an empty one if it does not exist.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Creates or replaces a file and syncs its bytes; its name is durable only after a `rename`.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Renames a file, replacing `to`, and syncs the directory.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; a crash may bring it back.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns the path of a file for messages; `""` is the directory itself.
    fn path_text(&self, name: &str) -> String;
}

/// File that is read and written at offsets.
pub trait DiskFile: Debug + Send + Sync + 'static {
    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `out` from `offset` on. # Errors  `UnexpectedEof` if the file ends before.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Makes everything written so far durable.
    fn sync(&self) -> io::Result<()>;
}

/// Holds the lock on a directory until it is dropped.
#[derive(Debug)]
pub struct DiskLock {
    _guard: Box<dyn Debug + Send + Sync>,
}

impl DiskLock {
    /// Creates a lock from a value that releases the directory when dropped.
    pub fn new(guard: impl Debug + Send + Sync + 'static) -> Self {
        Self { _guard: Box::new(guard) }
    }
}

/// A directory of the file system.
#[derive(Debug)]
pub struct RealDisk {
    dir: PathBuf,
}

/// File whose lock excludes other processes; its bytes have no meaning.
const LOCK_FILE: &str = "LOCK";

impl RealDisk {
    /// Creates the directory, and its parents, if missing.
    pub fn new(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        if !dir.is_dir() {
            // Its files (logs, audits, manifests) are private to this user.
            DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
            if let Some(parent) = dir.canonicalize()?.parent() {
                File::open(parent)?.sync_all()?;
            }
        }
        Ok(Self { dir })
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }
}

impl Disk for RealDisk {
    fn lock(&self) -> io::Result<DiskLock> {
        let mut options = OpenOptions::new();
        let file =
            options.create(true).truncate(false).write(true).open(self.dir.join(LOCK_FILE))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(DiskLock::new(file))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.retain(|name| name != LOCK_FILE);
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).read(true).write(true);
        Ok(Box::new(RealFile(options.open(self.dir.join(name))?)))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.dir.join(name))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = File::create(self.dir.join(name))?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.dir.join(from), self.dir.join(to))?;
        self.sync_dir()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.dir.join(name))
    }

    fn path_text(&self, name: &str) -> String {
        let path = if name.is_empty() { self.dir.clone() } else { self.dir.join(name) };
        path.display().to_string()
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
