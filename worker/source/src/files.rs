//! Open files of a dataset: a limited number at a time, each checked when it is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use shardfeed_pipeline::{OperatorFault, REMOTE_CHUNKS_AHEAD, RowError, RowFault};
use shardfeed_tfrecord::{Compression, DataCrcMismatch, ReadError, ReadErrorKind};

use crate::dataset::Dataset;
use crate::descriptors::{self, Closing};
use crate::error::LoadError;
use crate::looks::file_state::{forget, stamp, stamp_of};
use crate::remote::{Reach, RemoteFile, RemoteObject, Stop, is_remote};
use crate::shared::Lock;
use crate::storage_meter::StorageMeter;

/// Opens files on demand and closes the least recently used ones. The number of open descriptors is
/// independent of the number of splits being read.
#[derive(Debug)]
pub struct Files {
    dataset: Arc<Dataset>,
    open: Arc<Lock<OpenFiles>>,
    /// Stores of the shards, each from a shard ordinal on; `None`: local files.
    remote: Vec<(u32, Option<Reach>)>,
    stop: Stop,
    meter: Arc<StorageMeter>,
    /// Compressed shards that were removed from the caches, as a checksum did not match.
    doubted: Lock<BTreeSet<u32>>,
}

/// Open shards, and the time of last use of each.
#[derive(Debug, Default)]
struct OpenFiles {
    files: BTreeMap<u32, (Arc<File>, u64)>,
    clock: u64,
}

impl OpenFiles {
    /// Removes the least recently used file.
    fn oldest(&mut self) -> Option<Arc<File>> {
        let (&oldest, _) = self.files.iter().min_by_key(|(_, (_, used))| *used)?;
        self.files.remove(&oldest).map(|(file, _)| file)
    }
}

impl Closing for Lock<OpenFiles> {
    fn close_some(&self) -> usize {
        let mut open = self.lock();
        let closed = open.files.len().div_ceil(2);
        (0..closed).for_each(|_| drop(open.oldest()));
        closed
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // This drops the last reference, so that the loader is no longer counted.
        self.open = Arc::default();
        descriptors::removed();
    }
}

impl Files {
    /// Prepares to read the files of `dataset`; opens none yet.
    /// - `stop`: set when the results of reads are no longer needed.
    ///
    /// # Errors  The dataset is remote, and the environment does not give access to its store.
    pub fn new(
        dataset: Arc<Dataset>,
        meter: Arc<StorageMeter>,
        stop: Stop,
    ) -> Result<Self, LoadError> {
        let reach = |root: &Path| match root.to_str() {
            Some(url) if is_remote(root) => {
                Reach::open(url, Arc::clone(&meter.remote), dataset.blocks.clone()).map(Some)
            }
            _ => Ok(None),
        };
        let remote = match dataset.mixed() {
            None => vec![(0, reach(dataset.root())?)],
            Some(mixed) => {
                let versions = mixed.versions.iter();
                versions
                    .map(|version| Ok((version.first_shard, reach(&version.root)?)))
                    .collect::<Result<_, LoadError>>()?
            }
        };
        let open: Arc<Lock<OpenFiles>> = Arc::default();
        descriptors::add(&open);
        Ok(Self { dataset, open, remote, stop, meter, doubted: Lock::default() })
    }

    /// Returns the store of a shard, if it has one.
    fn remote(&self, shard: u32) -> Option<&Reach> {
        let after = self.remote.partition_point(|(first, _)| *first <= shard);
        self.remote[after - 1].1.as_ref()
    }

    fn object(&self, remote: &Reach, shard: u32) -> Result<Arc<RemoteObject>, LoadError> {
        let stamp = self.dataset.files()[shard as usize].stamp.clone();
        remote.object(&self.name(shard), stamp)
    }

    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Returns the path of a shard, for messages.
    pub fn name(&self, shard: u32) -> String {
        self.dataset.files()[shard as usize].path.display().to_string()
    }

    /// Returns the error for a shard that ended before an indexed record: it is another file.
    pub fn ended(&self, shard: u32) -> LoadError {
        let file = &self.dataset.files()[shard as usize];
        LoadError::changed(self.name(shard), file.stamp.clone(), stamp(&file.path).ok())
    }

    /// Converts a row's error to one that names the row's file.
    pub fn located(&self, error: RowError) -> LoadError {
        let RowError { sample, offset, part, len, fault } = error;
        let (file, ordinal) = (self.name(sample.shard), self.dataset.record_at(sample, part));
        match fault {
            // The same error as that of a check while reading.
            RowFault::Data(DataCrcMismatch { stored, computed }) => {
                let kind = ReadErrorKind::DataCrc { length: len as u64, stored, computed };
                ReadError { file, offset, ordinal, kind }.into()
            }
            RowFault::Memory { source, .. } if descriptors::is_short(&source) => {
                LoadError::io("a batch".into(), source)
            }
            // An error of the side table, not of the record.
            RowFault::Operator { fault: OperatorFault::Table(fault), .. } => fault.into(),
            fault => LoadError::Record { file, offset, ordinal, fault: Box::new(fault) },
        }
    }

    /// Removes a shard from the caches of this host, where they allow it: its bytes may have been
    /// changed on the way from its storage.
    pub fn doubt(&self, shard: u32) {
        self.doubt_range(shard, 0..self.dataset.files()[shard as usize].stamp.size_bytes);
    }

    /// As [`Files::doubt`], for a record; of a compressed file as a whole, once.
    /// - `range`: bytes of the uncompressed shard.
    pub fn doubt_record(&self, shard: u32, range: Range<u64>) {
        if self.dataset.files()[shard as usize].compression == Compression::None {
            return self.doubt_range(shard, range);
        }
        let mut doubted = self.doubted.lock();
        if doubted.insert(shard) {
            self.doubt(shard);
        }
    }

    fn doubt_range(&self, shard: u32, range: Range<u64>) {
        match self.remote(shard).map(|remote| self.object(remote, shard)) {
            Some(object) => object.iter().for_each(|object| object.forget(range.clone())),
            None => {
                // Pages that stay in the cache are read from there again.
                let _ = self.open(shard).map(|file| forget(&file, range));
            }
        }
    }

    /// Reads at most `buffer.len()` bytes at `offset` of the stored file.
    pub fn read_at(&self, shard: u32, buffer: &mut [u8], offset: u64) -> Result<usize, LoadError> {
        self.meter.read(|| self.read_stored(shard, buffer, offset))
    }

    fn read_stored(&self, shard: u32, buffer: &mut [u8], offset: u64) -> Result<usize, LoadError> {
        if let Some(remote) = self.remote(shard) {
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
                Err(source) => return Err(LoadError::io(self.name(shard), source)),
                Ok(read) => return Ok(read),
            }
        }
    }

    fn open(&self, shard: u32) -> Result<Arc<File>, LoadError> {
        let mut open = self.open.lock();
        open.clock += 1;
        let clock = open.clock;
        if let Some((file, used)) = open.files.get_mut(&shard) {
            *used = clock;
            return Ok(Arc::clone(file));
        }
        drop(open);
        let file = Arc::new(self.open_checked(shard)?);
        let mut open = self.open.lock();
        while open.files.len() >= descriptors::each() {
            open.oldest();
        }
        open.files.insert(shard, (Arc::clone(&file), clock));
        Ok(file)
    }

    /// Opens a shard if it is still the one that was indexed.
    fn open_checked(&self, shard: u32) -> Result<File, LoadError> {
        let known = &self.dataset.files()[shard as usize];
        let changed = |found| LoadError::changed(self.name(shard), known.stamp.clone(), found);
        let failed = |source| LoadError::io(self.name(shard), source);
        let open = || self.dataset.rights_of(shard).open(&known.path);
        let file = match descriptors::with(open, descriptors::is_short) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(changed(None)),
            other => other.map_err(failed)?,
        };
        let metadata = file.metadata().map_err(failed)?;
        let found = stamp_of(&metadata).map_err(failed)?;
        if found != known.stamp || !metadata.is_file() {
            return Err(changed(Some(found)));
        }
        Ok(file)
    }
}

/// Sequential reader of a shard's stored bytes from an offset on.
#[derive(Debug)]
pub struct ShardBytes {
    files: Arc<Files>,
    shard: u32,
    offset: u64,
    /// Remote shards only: its reads start at creation.
    remote: Option<Result<RemoteFile, LoadError>>,
}

impl ShardBytes {
    /// - `block_bytes`: bytes of one request of a remote file.
    pub fn new(files: Arc<Files>, shard: u32, offset: u64, block_bytes: usize) -> Self {
        let remote = files.remote(shard).map(|remote| {
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
        // The size was checked when the file was opened, so no read is needed to detect the end.
        let size = self.files.dataset().files()[self.shard as usize].stamp.size_bytes;
        let left = usize::try_from(size.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let end = buffer.len().min(left);
        if end == 0 {
            return Ok(0);
        }
        let buffer = &mut buffer[..end];
        let read = match &mut self.remote {
            Some(Ok(file)) => self.files.meter.read(|| file.read(buffer, self.offset)),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::AtomicBool;

    use shardfeed_tfrecord::{Compression, create};

    use super::*;
    use crate::cache::{CacheChoice, CacheOptions, Entries};
    use crate::discover::Found;
    use crate::rights::{DataRoots, Rights};
    use crate::rules::FileRules;

    #[test]
    fn a_shard_that_became_a_link_out_of_the_data_roots_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("data")).unwrap();
        for name in ["data/a", "secret"] {
            let mut writer = create(at(name), Compression::None).unwrap();
            writer.write(b"twelve bytes").unwrap();
            writer.finish().unwrap();
        }
        // A file can be given the size and time of another.
        let modified = fs::metadata(at("data/a")).unwrap().modified().unwrap();
        File::options().write(true).open(at("secret")).unwrap().set_modified(modified).unwrap();
        let index = |rights: Rights| {
            let found = Found::new(at("data"), vec!["a".to_owned()], vec![]);
            let cache = CacheOptions::from(CacheChoice::Off);
            let rules = FileRules::default();
            Dataset::index(found, rules, &cache, &Entries::new(), rights, &mut |_| true)
        };
        let read = |dataset: Dataset| {
            let stop = Arc::new(AtomicBool::new(false));
            let files = Files::new(Arc::new(dataset), Arc::default(), stop).unwrap();
            files.read_at(0, &mut [0; 4], 0)
        };
        let roots = DataRoots::new(vec![at("data").display().to_string()]).unwrap();
        let below = Rights::Below(roots);
        let (limited, own) = (index(below.clone()).unwrap(), index(Rights::Own).unwrap());
        fs::remove_file(at("data/a")).unwrap();
        symlink(at("secret"), at("data/a")).unwrap();
        assert_eq!(read(own).unwrap(), 4, "it looks like the file that was there");
        for error in [read(limited).unwrap_err(), index(below).unwrap_err()] {
            assert!(error.to_string().contains("leads to no data root"), "{error}");
        }
    }
}
