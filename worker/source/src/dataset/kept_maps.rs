//! Sample maps and numbers of packs that are kept: on this host, and in the index of all hosts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfeed_pipeline::{MeasuredColumn, MeasuredColumns, SampleProgram};
use shardfeed_plan::{Digest, Shard};

use super::counting::{CountedShard, grouped, lacks};
use super::map_names::{COLUMNS, DAMAGED, MapNames, column_name, decode_column, encode_column};
use super::samples::{DamagedRecord, HeldMap, MapRef, SampleMap};
use super::{Dataset, pack_counts, samples};
use crate::cache::CacheOptions;
use crate::cache::kept::KeptObjects;
use crate::cache::shared_index::READ_TOGETHER;
use crate::error::LoadError;
use crate::index::{ScanProgress, ScanStage};
use crate::looks::each;
use crate::remote::GoOn;
use crate::shared::Lock;

/// Places of the maps of a dataset's shards.
pub(super) struct KeptMaps {
    dataset: Arc<Dataset>,
    program: Arc<SampleProgram>,
    names: MapNames,
    objects: KeptObjects,
}

/// The map of a shard without its damaged records, as it is stored.
#[derive(Serialize, Deserialize)]
struct KeptDamaged {
    map: Vec<u8>,
    /// Index, offset and reason of the first damaged records.
    records: Vec<(u64, u64, String)>,
    total: u64,
}

impl KeptMaps {
    pub(super) fn new(
        dataset: &Arc<Dataset>,
        program: &Arc<SampleProgram>,
        options: &CacheOptions,
    ) -> Self {
        let (names, objects) = (MapNames::new(program), KeptObjects::new(options));
        let (dataset, program) = (Arc::clone(dataset), Arc::clone(program));
        Self { dataset, program, names, objects }
    }

    fn shard(&self, shard: usize) -> &Shard {
        &self.dataset.manifest().shards()[shard]
    }

    fn name(&self, shard: usize) -> String {
        self.names.map(self.shard(shard))
    }

    /// Adds the missing maps that this host keeps; with their packs, if their numbers are kept.
    ///
    /// # Errors  A sequence is too long; `Interrupted`.
    pub(super) fn fill(
        self: &Arc<Self>,
        maps: &mut [Option<HeldMap>],
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<(), LoadError> {
        if !self.objects.is_on_host() {
            return Ok(());
        }
        self.objects.refresh();
        let lacks = |map: &Option<HeldMap>| map.is_none() || self.lacks_packs(map.as_ref());
        let lacking: Vec<_> = (0..maps.len()).filter(|shard| lacks(&maps[*shard])).collect();
        let mut state = ScanProgress::at(ScanStage::Counting);
        state.files_total = lacking.len();
        let known = lacking.iter().map(|shard| (*shard, Lock::new(maps[*shard].take()))).collect();
        let mut go_on = |files| {
            state.files = files;
            progress(state)
        };
        let kept = Arc::clone(self);
        let found = each(known, &mut go_on, move |(shard, known)| {
            let known = known.lock().take();
            kept.of_host(*shard, known)
        })?;
        for (shard, found) in lacking.into_iter().zip(found) {
            maps[shard] = found?;
        }
        Ok(())
    }

    /// Returns the map of a shard, with its packs if the numbers of these are kept on this host.
    /// - `known`: the map, if it is known.
    fn of_host(&self, shard: usize, known: Option<HeldMap>) -> Result<Option<HeldMap>, LoadError> {
        let name = self.name(shard);
        let read = || self.decode(shard, &self.objects.here(samples::KIND, &name)?);
        let known = known.map(|map| map.get().clone());
        let Some(map) = known.or_else(read) else { return Ok(None) };
        if map.grouping().is_none()
            && let Some(of) = pack_counts::name(&name, &self.program)
            && let Some(bytes) = self.objects.here(pack_counts::KIND, &of)
            && let Some(counts) = pack_counts::decode(&of, &bytes)
        {
            return grouped(&self.dataset, &self.program, shard, map, &counts).map(Some);
        }
        self.held(shard, map).map(Some)
    }

    /// Adds the maps that are missing from the index that hosts share, and keeps them on this host.
    ///
    /// # Errors  The index cannot be read; one of its objects is damaged; `Interrupted`.
    pub(super) fn fetch(
        &self,
        maps: &mut [Option<HeldMap>],
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<(), LoadError> {
        let missing = (0..maps.len()).filter(|shard| maps[*shard].is_none());
        let missing: Vec<_> = missing.map(|shard| (shard, self.name(shard))).collect();
        let state = ScanProgress::at(ScanStage::Counting);
        let mut go_on =
            |files| progress(ScanProgress { files, files_total: missing.len(), ..state });
        self.objects.find_all(samples::KIND, &missing, &mut go_on, &mut |shard, _, bytes| {
            let Some(map) = self.decode(shard, bytes) else { return Ok(false) };
            maps[shard] = Some(self.held(shard, map)?);
            Ok(true)
        })?;
        let lacking = (0..maps.len()).filter(|shard| self.lacks_packs(maps[*shard].as_ref()));
        let counts =
            |shard: usize| Some((shard, pack_counts::name(&self.name(shard), &self.program)?));
        let counts: Vec<_> = lacking.filter_map(counts).collect();
        let mut go_on =
            |files| progress(ScanProgress { files, files_total: counts.len(), ..state });
        self.objects.find_all(pack_counts::KIND, &counts, &mut go_on, &mut |shard, name, bytes| {
            let Some(counts) = pack_counts::decode(name, bytes) else { return Ok(false) };
            if let Some(map) = maps[shard].take() {
                let map = map.get().clone();
                maps[shard] = Some(grouped(&self.dataset, &self.program, shard, map, &counts)?);
            }
            Ok(true)
        })
    }

    /// Returns the map of a shard, of values that another program measured; `None`: some are not known.
    ///
    /// # Errors  The index cannot be read; one of its objects is damaged; `Interrupted`.
    pub(super) fn measured(
        &self,
        shard: usize,
        go_on: GoOn<'_>,
    ) -> Result<Option<SampleMap>, LoadError> {
        let mut columns = BTreeMap::new();
        for key in self.program.columns().unwrap_or_default() {
            let Some(column) = self.column(shard, &key, go_on)? else { return Ok(None) };
            columns.insert(key, column);
        }
        let path = &self.shard(shard).path;
        let mut columns = MeasuredColumns::new(columns);
        if let Some((counts, keys)) = self.program.row_columns() {
            let mut of_rows = BTreeMap::new();
            for key in keys {
                let Some(column) = self.column(shard, &key, go_on)? else { return Ok(None) };
                of_rows.insert(key, column);
            }
            if !columns.add_rows(counts, of_rows) {
                return Ok(None);
            }
        }
        Ok(SampleMap::of_measured(&self.program, &columns, path))
    }

    /// Returns a column of a shard, from the cache of this host or the index.
    fn column(
        &self,
        shard: usize,
        key: &str,
        go_on: GoOn<'_>,
    ) -> Result<Option<MeasuredColumn>, LoadError> {
        let (name, values) = (column_name(self.shard(shard), key), self.values(shard, key));
        self.objects.find(COLUMNS, &name, go_on, |bytes| decode_column(&name, bytes, values))
    }

    /// Returns the number of values of a column; `None`: it has one for each row.
    fn values(&self, shard: usize, key: &str) -> Option<u64> {
        let of_rows = self.program.row_columns().map(|(_, keys)| keys).unwrap_or_default();
        (!of_rows.iter().any(|of_row| of_row == key)).then(|| self.shard(shard).records)
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
        if self.objects.index().is_none() && !self.objects.is_on_host() {
            return Ok(());
        }
        for (key, column) in columns.whole() {
            let name = column_name(self.shard(shard), key);
            let bytes = encode_column(&name, column);
            if let Some(index) = self.objects.index() {
                index.offer(&COLUMNS.in_index(&name), &bytes, go_on)?;
            }
            self.objects.keep(COLUMNS, [(&name, bytes)]);
        }
        Ok(())
    }

    /// Returns a shard that was counted with damaged records, if the file is as it was then.
    pub(super) fn damaged(&self, shard: usize) -> Option<CountedShard> {
        let name = self.damaged_name(shard);
        let bytes = self.objects.here(DAMAGED, &name)?;
        let kept: KeptDamaged = postcard::from_bytes(DAMAGED.decode(&name, &bytes)?).ok()?;
        let map = self.decode(shard, &kept.map)?;
        let number = shard as u32;
        let damaged = kept.records.into_iter().map(|(ordinal, offset, reason)| DamagedRecord {
            shard: number,
            ordinal,
            offset,
            reason,
        });
        let damaged = damaged.collect();
        Some(CountedShard { map, damaged, damaged_total: kept.total, ..CountedShard::default() })
    }

    /// Keeps a shard with damaged records, on this host only: another copy may be intact.
    pub(super) fn keep_damaged(&self, shard: usize, counted: &CountedShard) {
        let records = counted.damaged.iter();
        let records = records.map(|one| (one.ordinal, one.offset, one.reason.clone())).collect();
        let map = counted.map.encode(&self.name(shard));
        let kept = KeptDamaged { map, records, total: counted.damaged_total };
        let body = postcard::to_stdvec(&kept).expect("plain data");
        let name = self.damaged_name(shard);
        self.objects.keep(DAMAGED, [(&name, DAMAGED.encode(&name, &body))]);
    }

    /// Returns the name of a map without damaged records: a file that is repaired has the same
    /// digest, possibly the same stamp, and another time of its last change.
    fn damaged_name(&self, shard: usize) -> String {
        let file = &self.dataset.files()[shard];
        let stamp = postcard::to_stdvec(&(&file.stamp, file.changed_ns)).expect("plain data");
        let name = self.name(shard);
        format!("{}/{}", self.names.digest, Digest::of_parts([name.as_bytes(), &stamp]))
    }

    /// Writes the maps of this host to an index that is filled, where it has others or none.
    ///
    /// # Errors  The index cannot be read or written; `Interrupted`.
    pub(super) fn publish(
        &self,
        maps: &[Option<HeldMap>],
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<(), LoadError> {
        let Some(index) = self.objects.index().filter(|index| index.is_filling) else {
            return Ok(());
        };
        let mut state = ScanProgress::at(ScanStage::Counting);
        state.files_total = maps.len();
        let shards: Vec<_> = (0..maps.len()).filter(|shard| maps[*shard].is_some()).collect();
        for shards in shards.chunks(READ_TOGETHER) {
            let objects = shards.iter().filter_map(|shard| Some((*shard, maps[*shard].as_ref()?)));
            let objects = objects.flat_map(|(shard, map)| {
                [self.map_objects(shard, &map.get()), self.column_objects(shard)].concat()
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
    fn map_objects(&self, shard: usize, map: &SampleMap) -> Vec<(String, Vec<u8>)> {
        let name = self.name(shard);
        let of_map = (samples::KIND.in_index(&name), map.encode(&name));
        let counts = pack_counts::name(&name, &self.program).and_then(|name| {
            let bytes = pack_counts::encode(&name, map)?;
            Some((pack_counts::KIND.in_index(&name), bytes))
        });
        [of_map].into_iter().chain(counts).collect()
    }

    /// Returns the columns of a shard that this host has, as objects of an index.
    fn column_objects(&self, shard: usize) -> Vec<(String, Vec<u8>)> {
        let stored = |key: String| {
            let name = column_name(self.shard(shard), &key);
            let bytes = self.objects.here(COLUMNS, &name)?;
            decode_column(&name, &bytes, self.values(shard, &key))?;
            Some((COLUMNS.in_index(&name), bytes))
        };
        let of_rows = self.program.row_columns().map(|(_, keys)| keys).unwrap_or_default();
        let keys = self.program.columns().unwrap_or_default().into_iter();
        keys.chain(of_rows).filter_map(stored).collect()
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
        let Some(index) = self.objects.index() else { return Ok(()) };
        for (name, bytes) in self.map_objects(shard, map).into_iter().skip(usize::from(!is_new)) {
            index.offer(&name, &bytes, go_on)?;
        }
        Ok(())
    }

    /// Writes maps to this host's cache.
    pub(super) fn keep<'a>(&self, maps: impl Iterator<Item = (usize, MapRef<'a>)>) {
        let encoded = |(shard, map): (usize, MapRef<'_>)| {
            let name = self.name(shard);
            let object = map.encode(&name);
            (name, object)
        };
        self.objects.keep(samples::KIND, maps.map(encoded));
    }

    /// Writes the numbers of packs of maps to this host's cache, if packs are samples.
    pub(super) fn keep_counts<'a>(&self, maps: impl Iterator<Item = (usize, MapRef<'a>)>) {
        let encoded = |(shard, map): (usize, MapRef<'_>)| {
            let name = pack_counts::name(&self.name(shard), &self.program)?;
            let object = pack_counts::encode(&name, &map)?;
            Some((name, object))
        };
        self.objects.keep(pack_counts::KIND, maps.filter_map(encoded));
    }

    /// Stores a map, with its windows; packs need the numbers of them, or take time.
    ///
    /// # Errors  There are too many windows.
    fn held(&self, shard: usize, map: SampleMap) -> Result<HeldMap, LoadError> {
        match self.program.windower() {
            Some(_) => grouped(&self.dataset, &self.program, shard, map, &[]),
            None => Ok(HeldMap::new(map, self.shard(shard).digest)),
        }
    }

    fn decode(&self, shard: usize, bytes: &[u8]) -> Option<SampleMap> {
        SampleMap::decode(bytes, &self.name(shard), self.shard(shard).records, &self.program)
    }

    /// True if a shard was counted, but not packed.
    fn lacks_packs(&self, map: Option<&HeldMap>) -> bool {
        map.is_some() && lacks(&self.program, map)
    }
}
