//! Sample maps and numbers of packs that are kept: in this host's cache, and in the index that
//! hosts share.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use shardfeed_pipeline::{MeasuredColumn, MeasuredColumns, SampleProgram};
use shardfeed_plan::{Digest, Shard};
use shardfeed_tfrecord::NewFile;

use super::counting::{grouped, lacks};
use super::samples::SampleMap;
use super::{Dataset, pack_counts, samples};
use crate::cache::object_kind::ObjectKind;
use crate::cache::shared_index::{READ_TOGETHER, SharedIndex};
use crate::cache::{CacheOptions, warn};
use crate::error::LoadError;
use crate::index::{ScanProgress, ScanStage};
use crate::looks::each;
use crate::remote::GoOn;

/// Callback with the progress; `false` cancels.
type OnProgress<'a> = &'a mut dyn FnMut(ScanProgress) -> bool;

/// Callback with the shard, the name and the content of an object; `false`: it is damaged.
type Take<'a> = &'a mut dyn FnMut(usize, &str, &[u8]) -> Result<bool, LoadError>;

/// Values that programs measured.
const COLUMNS: ObjectKind = ObjectKind("shardfeed columns 1\n");

/// Places of the maps of a dataset's shards.
pub(super) struct KeptMaps {
    program: Arc<SampleProgram>,
    /// Name of each shard's map: digests of the program, and of the shard.
    names: Vec<String>,
    /// Digest of each shard, in names of columns.
    shards: Vec<String>,
    /// Folder of this host's maps; `None`: none are kept.
    folder: Option<PathBuf>,
    index: Option<SharedIndex>,
}

impl KeptMaps {
    pub(super) fn new(
        dataset: &Dataset,
        program: &Arc<SampleProgram>,
        options: &CacheOptions,
    ) -> Self {
        let head: &[u8] = match (program.has_rows(), program.packer()) {
            _ if program.windower().is_some() => b"shardfeed windows 1\n",
            (true, _) => b"shardfeed rows 1\n",
            (false, Some(_)) => b"shardfeed lengths 1\n",
            (false, None) => b"shardfeed filter 1\n",
        };
        let digest = Digest::of_parts([head, &program.key()[..]]).to_string();
        let name = |shard: &Shard| {
            let path = if program.depends_on_path() { shard.path.as_str() } else { "" };
            let count = shard.records.to_le_bytes();
            let parts: [&[u8]; 3] = [shard.digest.as_bytes(), &count, path.as_bytes()];
            format!("{}/{}", &digest[..24], Digest::of_parts(parts))
        };
        let names = dataset.manifest().shards().iter().map(name).collect();
        let shard = |shard: &Shard| {
            let parts: [&[u8]; 2] = [shard.digest.as_bytes(), &shard.records.to_le_bytes()];
            Digest::of_parts(parts).to_string()
        };
        let shards = dataset.manifest().shards().iter().map(shard).collect();
        let folder = options.folder.folder().map(|folder| folder.join("samples"));
        let made = |folder: &PathBuf| {
            let folder = folder.join(&digest[..24]);
            let made = fs::create_dir_all(&folder);
            made.inspect_err(|error| warn(&folder, "make the folder", error)).is_ok()
        };
        let folder = folder.filter(made);
        let (program, index) = (Arc::clone(program), options.index.clone());
        Self { program, names, shards, folder, index }
    }

    /// Adds the maps of this host that are missing; with their packs, if the numbers of these are
    /// kept.
    ///
    /// # Errors  A sequence is too long; `Interrupted`.
    pub(super) fn fill(
        self: &Arc<Self>,
        dataset: &Arc<Dataset>,
        maps: &mut [Option<SampleMap>],
        progress: OnProgress<'_>,
    ) -> Result<(), LoadError> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let lacks = |map: &Option<SampleMap>| map.is_none() || self.lacks_packs(map.as_ref());
        let lacking: Vec<_> = (0..maps.len()).filter(|shard| lacks(&maps[*shard])).collect();
        let mut state = ScanProgress::at(ScanStage::Counting);
        state.files_total = lacking.len();
        let known = lacking.iter().map(|shard| (*shard, Mutex::new(maps[*shard].take()))).collect();
        let mut go_on = |files| {
            state.files = files;
            progress(state)
        };
        let (kept, of) = (Arc::clone(self), Arc::clone(dataset));
        let found = each(known, &mut go_on, move |(shard, known)| {
            let known = known.lock().unwrap_or_else(PoisonError::into_inner).take();
            kept.of_host(&of, *shard, known, &folder)
        })?;
        for (shard, found) in lacking.into_iter().zip(found) {
            maps[shard] = found?;
        }
        Ok(())
    }

    /// Returns the map of a shard, with its packs if the numbers of these are kept on this host.
    /// - `known`: the map, if it is known.
    fn of_host(
        &self,
        dataset: &Dataset,
        shard: usize,
        known: Option<SampleMap>,
        folder: &Path,
    ) -> Result<Option<SampleMap>, LoadError> {
        let name = &self.names[shard];
        let read = || self.decode(dataset, shard, &fs::read(folder.join(name)).ok()?);
        let Some(map) = known.or_else(read) else { return Ok(None) };
        if self.lacks_packs(Some(&map))
            && let Some(of) = pack_counts::name(name, &self.program)
            && let Ok(bytes) = fs::read(folder.join(&of))
            && let Some(counts) = pack_counts::decode(&of, &bytes)
        {
            return grouped(dataset, &self.program, shard, map, &counts).map(Some);
        }
        Ok(Some(map))
    }

    /// Adds the maps that are missing from the index that hosts share, and keeps them on this host.
    ///
    /// # Errors  The index cannot be read; one of its objects is damaged; `Interrupted`.
    pub(super) fn fetch(
        &self,
        dataset: &Dataset,
        maps: &mut [Option<SampleMap>],
        progress: OnProgress<'_>,
    ) -> Result<(), LoadError> {
        let Some(index) = &self.index else { return Ok(()) };
        let missing = (0..maps.len()).filter(|shard| maps[*shard].is_none());
        let missing: Vec<_> = missing.map(|shard| (shard, self.names[shard].clone())).collect();
        read_objects(index, samples::KIND, &missing, progress, &mut |shard, name, bytes| {
            maps[shard] = self.decode(dataset, shard, bytes);
            maps[shard].is_some().then(|| self.write(name, bytes));
            Ok(maps[shard].is_some())
        })?;
        let lacking = (0..maps.len()).filter(|shard| self.lacks_packs(maps[*shard].as_ref()));
        let counts =
            |shard: usize| Some((shard, pack_counts::name(&self.names[shard], &self.program)?));
        let counts: Vec<_> = lacking.filter_map(counts).collect();
        read_objects(index, pack_counts::KIND, &counts, progress, &mut |shard, name, bytes| {
            let Some(counts) = pack_counts::decode(name, bytes) else { return Ok(false) };
            self.group(dataset, maps, shard, &counts)?;
            self.write(name, bytes);
            Ok(true)
        })
    }

    /// Returns the map of a shard, of values that another program measured; `None`: some are not known.
    ///
    /// # Errors  The index cannot be read; one of its objects is damaged; `Interrupted`.
    pub(super) fn measured(
        &self,
        dataset: &Dataset,
        shard: usize,
        go_on: GoOn<'_>,
    ) -> Result<Option<SampleMap>, LoadError> {
        let mut columns = BTreeMap::new();
        for key in self.program.columns().unwrap_or_default() {
            let Some(column) = self.column(dataset, shard, &key, go_on)? else { return Ok(None) };
            columns.insert(key, column);
        }
        let path = &dataset.manifest().shards()[shard].path;
        Ok(SampleMap::of_measured(&self.program, &MeasuredColumns::new(columns), path))
    }

    /// Returns a column of a shard, from the cache of this host or the index.
    fn column(
        &self,
        dataset: &Dataset,
        shard: usize,
        key: &str,
        go_on: GoOn<'_>,
    ) -> Result<Option<MeasuredColumn>, LoadError> {
        let (name, records) = (self.column_name(shard, key), dataset.files()[shard].records);
        let decode = |bytes: &[u8]| decode_column(&name, bytes, records);
        if let Some(column) = self.kept_column(&name).and_then(|bytes| decode(&bytes)) {
            return Ok(Some(column));
        }
        let Some(index) = &self.index else { return Ok(None) };
        let object = object(COLUMNS, &name);
        let found = index.read(std::slice::from_ref(&object), go_on)?;
        let Some(bytes) = found.into_iter().flatten().next() else { return Ok(None) };
        let column = decode(&bytes);
        if column.is_none() && !index.is_filling() {
            return Err(index.damaged(&object));
        }
        column.is_some().then(|| self.write_column(&name, &bytes));
        Ok(column)
    }

    /// Returns a stored column of this host.
    fn kept_column(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.column_path(name)?).ok()
    }

    fn column_path(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.with_file_name("columns").join(name))
    }

    fn write_column(&self, name: &str, bytes: &[u8]) {
        self.column_path(name).into_iter().for_each(|path| write_file(&path, bytes));
    }

    /// Returns the name of a column of a shard, for any program that needs it.
    fn column_name(&self, shard: usize, key: &str) -> String {
        let digest = Digest::of_parts([b"shardfeed column\n", key.as_bytes()]).to_string();
        format!("{}/{}", &digest[..24], self.shards[shard])
    }

    /// Keeps the values of all records of a shard, on this host and in the index.
    ///
    /// # Errors  See [`SharedIndex::offer`].
    pub(super) fn keep_columns(
        &self,
        shard: usize,
        columns: &MeasuredColumns,
        go_on: GoOn<'_>,
    ) -> Result<(), LoadError> {
        for (key, column) in columns.whole() {
            let name = self.column_name(shard, key);
            let body = postcard::to_stdvec(column).expect("columns are plain data");
            let bytes = COLUMNS.encode(&name, &body);
            self.write_column(&name, &bytes);
            if let Some(index) = &self.index {
                index.offer(&object(COLUMNS, &name), &bytes, go_on)?;
            }
        }
        Ok(())
    }

    /// Writes the maps of this host to an index that is filled, where it has others or none.
    ///
    /// # Errors  The index cannot be read or written; `Interrupted`.
    pub(super) fn publish(
        &self,
        dataset: &Dataset,
        maps: &[Option<SampleMap>],
        progress: OnProgress<'_>,
    ) -> Result<(), LoadError> {
        let Some(index) = self.index.as_ref().filter(|index| index.is_filling()) else {
            return Ok(());
        };
        let mut state = ScanProgress::at(ScanStage::Counting);
        state.files_total = maps.len();
        let shards: Vec<_> = (0..maps.len()).filter(|shard| maps[*shard].is_some()).collect();
        for shards in shards.chunks(READ_TOGETHER) {
            let objects = shards.iter().filter_map(|shard| Some((*shard, maps[*shard].as_ref()?)));
            let objects = objects.flat_map(|(shard, map)| {
                let records = dataset.files()[shard].records;
                [self.objects(shard, map), self.column_objects(shard, records)].concat()
            });
            let (names, contents): (Vec<_>, Vec<_>) = objects.unzip();
            let there = index.read(&names, &mut || progress(state))?;
            for ((name, bytes), there) in names.iter().zip(&contents).zip(there) {
                if there.as_ref() != Some(bytes) {
                    index.write(name, bytes, &mut || progress(state))?;
                }
            }
            state.files += shards.len();
        }
        Ok(())
    }

    /// Returns the objects of a shard in an index, the map first: their names and contents.
    fn objects(&self, shard: usize, map: &SampleMap) -> Vec<(String, Vec<u8>)> {
        let name = &self.names[shard];
        let of_map = (object(samples::KIND, name), map.encode(name));
        let counts = pack_counts::name(name, &self.program).and_then(|name| {
            let bytes = pack_counts::encode(&name, map)?;
            Some((object(pack_counts::KIND, &name), bytes))
        });
        [of_map].into_iter().chain(counts).collect()
    }

    /// Returns the columns of a shard that this host has, as objects of an index.
    fn column_objects(&self, shard: usize, records: u64) -> Vec<(String, Vec<u8>)> {
        let keys = self.program.columns().unwrap_or_default();
        let stored = keys.iter().filter_map(|key| {
            let name = self.column_name(shard, key);
            let bytes = self.kept_column(&name)?;
            decode_column(&name, &bytes, records)?;
            Some((object(COLUMNS, &name), bytes))
        });
        stored.collect()
    }

    /// Writes the numbers of a map's packs to the index that hosts share.
    /// - `is_new`: the map is new, and written, too.
    ///
    /// # Errors  See [`SharedIndex::offer`].
    pub(super) fn offer(
        &self,
        shard: usize,
        map: &SampleMap,
        is_new: bool,
        go_on: GoOn<'_>,
    ) -> Result<(), LoadError> {
        let Some(index) = &self.index else { return Ok(()) };
        for (name, bytes) in self.objects(shard, map).into_iter().skip(usize::from(!is_new)) {
            index.offer(&name, &bytes, go_on)?;
        }
        Ok(())
    }

    /// Writes a map to this host's cache.
    pub(super) fn keep(&self, shard: usize, map: &SampleMap) {
        let name = &self.names[shard];
        self.write(name, &map.encode(name));
    }

    /// Writes the numbers of a map's packs to this host's cache, if packs are samples.
    pub(super) fn keep_counts(&self, shard: usize, map: &SampleMap) {
        let name = pack_counts::name(&self.names[shard], &self.program);
        let counts = name.and_then(|name| Some((pack_counts::encode(&name, map)?, name)));
        counts.into_iter().for_each(|(bytes, name)| self.write(&name, &bytes));
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.folder.as_ref().map(|folder| folder.join(name));
        path.into_iter().for_each(|path| write_file(&path, bytes));
    }

    fn decode(&self, dataset: &Dataset, shard: usize, bytes: &[u8]) -> Option<SampleMap> {
        let records = dataset.files()[shard].records;
        SampleMap::decode(bytes, &self.names[shard], records, &self.program)
    }

    /// True if a shard was counted, but not packed.
    fn lacks_packs(&self, map: Option<&SampleMap>) -> bool {
        map.is_some() && self.program.packer().is_some() && lacks(&self.program, map)
    }

    fn group(
        &self,
        dataset: &Dataset,
        maps: &mut [Option<SampleMap>],
        shard: usize,
        counts: &[u64],
    ) -> Result<(), LoadError> {
        if let Some(map) = maps[shard].take() {
            maps[shard] = Some(grouped(dataset, &self.program, shard, map, counts)?);
        }
        Ok(())
    }
}

/// Reads the objects that an index has.
/// - `objects`: shard and name of each.
fn read_objects(
    index: &SharedIndex,
    kind: ObjectKind,
    objects: &[(usize, String)],
    progress: OnProgress<'_>,
    take: Take<'_>,
) -> Result<(), LoadError> {
    let mut state = ScanProgress::at(ScanStage::Counting);
    state.files_total = objects.len();
    for some in objects.chunks(READ_TOGETHER) {
        let names: Vec<_> = some.iter().map(|(_, name)| object(kind, name)).collect();
        let found = index.read(&names, &mut || progress(state))?;
        for (((shard, name), bytes), object) in some.iter().zip(found).zip(&names) {
            let Some(bytes) = bytes else { continue };
            if !take(*shard, name, &bytes)? && !index.is_filling() {
                return Err(index.damaged(object));
            }
        }
        state.files += some.len();
    }
    Ok(())
}

/// Writes a file of the cache, or warns.
fn write_file(path: &Path, bytes: &[u8]) {
    let write = || -> io::Result<()> {
        // Each column has a folder.
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        let mut file = NewFile::beside(path)?;
        file.file().write_all(bytes)?;
        file.finish()
    };
    if let Err(error) = write() {
        warn(path, "write what was counted", &error);
    }
}

/// Returns a stored column of a shard of this many records; `None` if it is damaged.
fn decode_column(name: &str, bytes: &[u8], records: u64) -> Option<MeasuredColumn> {
    let column: MeasuredColumn = postcard::from_bytes(COLUMNS.decode(name, bytes)?).ok()?;
    (column.len() as u64 == records).then_some(column)
}

/// Returns the name of an object in an index.
fn object(kind: ObjectKind, name: &str) -> String {
    format!("{}/{name}", kind.folder())
}
