//! Open files of a dataset: few at a time, each checked when it is opened.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::local::LocalFileSystem;
use object_store::path::Path as StorePath;
use object_store::{GetOptions, GetResultPayload, ObjectStore};
use rustix::process::{Resource, getrlimit};
use shardfeed_pipeline::{OperatorFault, REMOTE_CHUNKS_AHEAD, RowError, RowFault};
use shardfeed_tfrecord::{DataCrcMismatch, ReadError, ReadErrorKind};

use crate::dataset::Dataset;
use crate::error::LoadError;
use crate::index::stamp_of;
use crate::meter::Meter;
use crate::remote::{Reach, RemoteFile, RemoteObject, Stop, is_remote};
use crate::stream::ReadCounters;

/// Files held open at most, whatever the limit of the process.
const OPEN_MAX: usize = 512;
/// And at least.
const OPEN_MIN: usize = 8;

/// Opens files as they are needed and closes the ones that were not used for longest. How many
/// splits are in reading never decides how many descriptors are in use.
#[derive(Debug)]
pub(crate) struct Files {
    dataset: Arc<Dataset>,
    store: Arc<dyn ObjectStore>,
    open: Mutex<Open>,
    open_max: usize,
    remote: Option<Reach>,
    stop: Stop,
    meter: Arc<Meter>,
}

#[derive(Debug, Default)]
struct Open {
    files: BTreeMap<u32, (Arc<File>, u64)>,
    clock: u64,
}

impl Files {
    /// - `stop`: set when nobody waits for a read any more.
    ///
    /// # Errors  A remote dataset whose store cannot be reached with what the environment says.
    pub(crate) fn new(
        dataset: Arc<Dataset>,
        counters: &ReadCounters,
        stop: Stop,
    ) -> Result<Self, LoadError> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(4 * OPEN_MAX as u64);
        let open_max = usize::try_from(limit / 4).unwrap_or(OPEN_MAX).clamp(OPEN_MIN, OPEN_MAX);
        let store = Arc::new(LocalFileSystem::new());
        let remote = match dataset.root().to_str() {
            Some(root) if is_remote(dataset.root()) => Some(Reach::open(
                root,
                Arc::clone(&counters.meter.remote),
                dataset.blocks().cloned(),
            )?),
            _ => None,
        };
        let meter = Arc::clone(&counters.meter);
        Ok(Self { dataset, store, open: Mutex::default(), open_max, remote, stop, meter })
    }

    /// A shard that is remote.
    fn object(&self, remote: &Reach, shard: u32) -> Result<Arc<RemoteObject>, LoadError> {
        let stamp = self.dataset.files()[shard as usize].stamp.clone();
        remote.object(&self.name(shard), stamp)
    }

    pub(crate) fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Where time goes.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The path of a shard, for messages.
    pub(crate) fn name(&self, shard: u32) -> String {
        self.dataset.files()[shard as usize].path.display().to_string()
    }

    /// A row's error, with the file that the row is of.
    pub(crate) fn located(&self, error: RowError) -> LoadError {
        let RowError { sample, offset, len, fault } = error;
        let (file, ordinal) = (self.name(sample.shard), sample.ordinal);
        match fault {
            // The same error, whoever checks the data.
            RowFault::Data(DataCrcMismatch { stored, computed }) => {
                let kind = ReadErrorKind::DataCrc { length: len as u64, stored, computed };
                ReadError { file, offset, ordinal, kind }.into()
            }
            // Not the record's doing.
            RowFault::Operator { fault: OperatorFault::Table(fault), .. } => fault.into(),
            fault => LoadError::Record { file, offset, ordinal, fault: Box::new(fault) },
        }
    }

    /// Reads at most `buffer` at `offset` of the stored file.
    pub(crate) fn read_at(
        &self,
        shard: u32,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize, LoadError> {
        self.meter.storage(|| self.read_stored(shard, buffer, offset))
    }

    fn read_stored(&self, shard: u32, buffer: &mut [u8], offset: u64) -> Result<usize, LoadError> {
        if let Some(remote) = &self.remote {
            let object = self.object(remote, shard)?;
            let end = object.size_bytes().min(offset.saturating_add(buffer.len() as u64));
            if end <= offset {
                return Ok(0);
            }
            let bytes = object.begin(offset..end, &self.stop).wait(&self.stop)?;
            buffer[..bytes.len()].copy_from_slice(&bytes);
            return Ok(bytes.len());
        }
        let file = self.open(shard)?;
        loop {
            match file.read_at(buffer, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(LoadError::Io { file: self.name(shard), source });
                }
                Ok(read) => return Ok(read),
            }
        }
    }

    fn open(&self, shard: u32) -> Result<Arc<File>, LoadError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clock += 1;
        let clock = open.clock;
        if let Some((file, used)) = open.files.get_mut(&shard) {
            *used = clock;
            return Ok(Arc::clone(file));
        }
        drop(open);
        let file = Arc::new(self.open_checked(shard)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.files.len() >= self.open_max {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(&shard, _)| shard);
            oldest.map(|shard| open.files.remove(&shard));
        }
        open.files.insert(shard, (Arc::clone(&file), clock));
        Ok(file)
    }

    /// Opens a shard if it is still the one that was indexed.
    fn open_checked(&self, shard: u32) -> Result<File, LoadError> {
        let known = &self.dataset.files()[shard as usize];
        let changed = |found| LoadError::changed(self.name(shard), known.stamp.clone(), found);
        let failed = |source| LoadError::Io { file: self.name(shard), source };
        let path = StorePath::from_absolute_path(&known.path).map_err(io::Error::other);
        let path = path.map_err(failed)?;
        // A local store does its work right here, on a thread that may wait.
        let got = futures::executor::block_on(self.store.get_opts(&path, GetOptions::default()));
        let got = match got {
            Err(object_store::Error::NotFound { .. }) => return Err(changed(None)),
            other => other.map_err(|error| failed(io_error(error)))?,
        };
        let GetResultPayload::File(file, _) = got.payload else {
            return Err(failed(io::Error::other("the store gave no file")));
        };
        let found = file.metadata().and_then(|metadata| stamp_of(&metadata)).map_err(failed)?;
        if found != known.stamp {
            return Err(changed(Some(found)));
        }
        Ok(file)
    }
}

/// What the system said, if it was the system.
fn io_error(error: object_store::Error) -> io::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            let errno = io.raw_os_error().map(io::Error::from_raw_os_error);
            return errno.unwrap_or_else(|| io::Error::new(io.kind(), io.to_string()));
        }
        cause = error.source();
    }
    io::Error::other(error)
}

/// A shard's stored bytes from some offset on.
#[derive(Debug)]
pub(crate) struct ShardBytes {
    files: Arc<Files>,
    shard: u32,
    offset: u64,
    /// Of a remote shard, in reading from the first moment on.
    remote: Option<Result<RemoteFile, LoadError>>,
}

impl ShardBytes {
    /// - `block_bytes`: bytes of one request of a remote file.
    pub(crate) fn new(files: Arc<Files>, shard: u32, offset: u64, block_bytes: usize) -> Self {
        let remote = files.remote.as_ref().map(|remote| {
            let object = files.object(remote, shard)?;
            let stop = Arc::clone(&files.stop);
            let mut file = RemoteFile::new(object, block_bytes, REMOTE_CHUNKS_AHEAD, stop);
            file.prime(offset);
            Ok(file)
        });
        Self { files, shard, offset, remote }
    }
}

impl io::Read for ShardBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The size was checked when the file was opened, so its end needs no read to be seen.
        let size = self.files.dataset().files()[self.shard as usize].stamp.size_bytes;
        let left = usize::try_from(size.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let end = buffer.len().min(left);
        if end == 0 {
            return Ok(0);
        }
        let buffer = &mut buffer[..end];
        let read = match &mut self.remote {
            Some(Ok(file)) => self.files.meter.storage(|| file.read(buffer, self.offset)),
            remote => match remote.take() {
                Some(Err(error)) => Err(error),
                _ => self.files.read_at(self.shard, buffer, self.offset),
            },
        };
        let read = read.map_err(io::Error::other)?;
        self.offset += read as u64;
        Ok(read)
    }
}
