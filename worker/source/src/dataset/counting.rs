//! The counting pass: every shard is read once, checked, and its samples are noted.
//!
//! A map is kept beside the index cache, for its shard and its program. A map that damaged records
//! were left out of is kept on this host only, and for this file only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shardfeed_pipeline::{MeasuredColumns, Row, RowError, RowFault, SampleProgram};
use shardfeed_plan::{Corrupt, PackError};
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, CompressionChoice, Decoder, FOOTER_BYTES, HEADER_BYTES,
};

use super::Dataset;
use super::kept_maps::KeptMaps;
use super::samples::{DamagedRecord, HeldMap, MapRef, SampleMap, SampleMaps};
use super::scan_count::{SAMPLES_MAX, row_groups};
use crate::cache::{Cache, CacheOptions};
use crate::error::LoadError;
use crate::files::{Files, ShardBytes};
use crate::index::pass::run_pass;
use crate::index::{ScanProgress, ScanStage};
use crate::remote::Stop;
use crate::shared::Lock;

/// Maximum number of damaged records that are listed.
const DAMAGED_MAX: usize = 1000;

/// Maximum bytes of the reason why a record is damaged.
const REASON_BYTES_MAX: usize = 300;

/// A shard's number, its map, and the rest that was found.
type HeldShard = (usize, HeldMap, CountedShard);

/// Samples of a shard, and its damaged records.
#[derive(Default)]
pub(super) struct CountedShard {
    pub(super) map: SampleMap,
    /// The first of them.
    pub(super) damaged: Vec<DamagedRecord>,
    pub(super) damaged_total: u64,
    /// True if a checksum did not match.
    pub(super) is_doubtful: bool,
    /// Values that the program measured.
    pub(super) columns: MeasuredColumns,
}

impl Dataset {
    /// Returns this dataset with the samples that a program makes of its records. Reads every shard
    /// whose samples are not in the cache.
    /// - `corrupt`: policy for records that the program fails on.
    /// - `progress`: called now and then from this thread; returning `false` cancels.
    ///
    /// # Errors  The first damaged file by name; there is no sample; `Interrupted`.
    pub fn with_samples(
        self,
        program: &Arc<SampleProgram>,
        corrupt: Corrupt,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Self, LoadError> {
        let dataset = Arc::new(self);
        let maps = dataset.count_samples(program, corrupt, cache, progress)?;
        Arc::unwrap_or_clone(dataset).with_maps(program, Arc::new(maps))
    }

    /// Returns the samples of each shard, from the cache or by reading it.
    ///
    /// # Errors  As [`Dataset::with_samples`], but none if there is no sample.
    pub fn count_samples(
        self: &Arc<Self>,
        program: &Arc<SampleProgram>,
        corrupt: Corrupt,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<SampleMaps, LoadError> {
        let kept = Arc::new(KeptMaps::new(self, program, cache));
        let mut maps: Vec<Option<HeldMap>> = vec![None; self.files().len()];
        kept.fill(&mut maps, progress)?;
        kept.publish(&maps, progress)?;
        let lacking = |maps: &[Option<HeldMap>]| {
            let lacks = |shard: &usize| lacks(program, maps[*shard].as_ref());
            (0..maps.len()).filter(lacks).collect::<Vec<_>>()
        };
        let index = Cache::open(&cache.folder, self.root());
        let mut lock = None;
        if !lacking(&maps).is_empty() {
            lock = index.lock(|| progress(ScanProgress::at(ScanStage::Waiting)))?;
            // Another process may have counted while this one waited.
            kept.fill(&mut maps, progress)?;
            kept.fetch(&mut maps, progress)?;
        }
        let missing = lacking(&maps);
        let (damaged, damaged_total) =
            self.complete((program, corrupt), kept, &mut maps, &missing, progress)?;
        drop(lock);
        Ok(SampleMaps::new(maps.into_iter().flatten().collect(), damaged, damaged_total))
    }

    /// Returns the map of each shard that the cache or its index has.
    ///
    /// # Errors  The index cannot be read, or is damaged; a sequence is too long; `Interrupted`.
    pub fn known_maps(
        self: &Arc<Self>,
        program: &Arc<SampleProgram>,
        cache: &CacheOptions,
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<Vec<Option<HeldMap>>, LoadError> {
        let kept = Arc::new(KeptMaps::new(self, program, cache));
        let mut maps = vec![None; self.files().len()];
        kept.fill(&mut maps, progress)?;
        kept.fetch(&mut maps, progress)?;
        let is_counted = |shard: &usize| {
            let map: Option<&HeldMap> = maps[*shard].as_ref();
            map.is_some() && lacks(program, map)
        };
        let counted: Vec<_> = (0..maps.len()).filter(is_counted).collect();
        self.complete((program, Corrupt::Error), kept, &mut maps, &counted, progress)?;
        Ok(maps)
    }

    /// Counts and packs the shards that lack it, in parallel, and keeps the results. Returns the
    /// first damaged records, and their number.
    /// - `maps`: of all shards, without packs if these are not known; `None`: not counted.
    fn complete(
        self: &Arc<Self>,
        (program, corrupt): (&Arc<SampleProgram>, Corrupt),
        kept: Arc<KeptMaps>,
        maps: &mut [Option<HeldMap>],
        lacking: &[usize],
        progress: &mut dyn FnMut(ScanProgress) -> bool,
    ) -> Result<(Vec<DamagedRecord>, u64), LoadError> {
        let (mut damaged, mut damaged_total) = (vec![], 0);
        if lacking.is_empty() {
            return Ok((damaged, damaged_total));
        }
        let stop = Stop::default();
        let files = Files::new(Arc::clone(self), Arc::default(), Arc::clone(&stop))?;
        let missing = lacking.iter().map(|&shard| (shard, Lock::new(maps[shard].take())));
        let pass = CountingPass {
            files: Arc::new(files),
            program: Arc::clone(program),
            corrupt,
            kept,
            missing: missing.collect(),
            stop,
        };
        for (shard, map, counted) in count_all(&Arc::new(pass), progress)? {
            maps[shard] = Some(map);
            damaged_total += counted.damaged_total;
            damaged.extend(counted.damaged);
        }
        damaged.sort_by_key(|one| (one.shard, one.ordinal));
        damaged.truncate(DAMAGED_MAX);
        Ok((damaged, damaged_total))
    }

    /// Writes the maps of its samples to the cache, unless damaged records were left out.
    pub fn keep_samples(self: &Arc<Self>, program: &Arc<SampleProgram>, cache: &CacheOptions) {
        if let Some(maps) = self.samples().filter(|maps| maps.damaged_total == 0) {
            let kept = KeptMaps::new(self, program, cache);
            let maps = || maps.maps().iter().map(HeldMap::get).enumerate();
            kept.keep(maps());
            kept.keep_counts(maps());
        }
    }

    /// Returns this dataset with these samples of its shards.
    ///
    /// # Errors  There is no sample.
    pub fn with_maps(
        self,
        program: &SampleProgram,
        maps: Arc<SampleMaps>,
    ) -> Result<Self, LoadError> {
        let records = self.manifest().records();
        if records == 0 || maps.maps().iter().any(|map| map.samples() > 0) {
            return Ok(Self { samples: Some(maps), ..self });
        }
        let damaged = match maps.damaged_total {
            0 => String::new(),
            damaged => format!(" ({damaged} of them are damaged)"),
        };
        Err(LoadError::Option(format!(
            "no sample is left: {program} leaves none of the {records} records in {} files{damaged}; \
             check it against the values of its columns, or name more files",
            maps.maps().len(),
        )))
    }
}

/// True if a shard is to be counted, or its packs to be made.
pub(super) fn lacks(program: &SampleProgram, map: Option<&HeldMap>) -> bool {
    map.is_none_or(|map| program.combiner().is_some() && !map.is_grouped())
}

/// Returns a counted map with its packs or windows, if the program makes them.
/// - `counts`: packs of each block, if they are known; otherwise empty.
///
/// # Errors  A sequence is too long; there are too many.
pub(super) fn grouped(
    dataset: &Dataset,
    program: &SampleProgram,
    shard: usize,
    mut map: SampleMap,
    counts: &[u64],
) -> Result<HeldMap, LoadError> {
    let digest = dataset.manifest().shards()[shard].digest;
    let file = || dataset.files()[shard].path.display();
    match map.group(program, digest, counts) {
        Ok(()) => Ok(HeldMap::new(map, digest)),
        Err(PackError::LongSequence { sequence, tokens, length }) => {
            let part = map.part_of_sequence(sequence);
            Err(LoadError::Option(format!(
                "{}: {part} has {tokens} tokens, more than length={length}; pass \
                 long=\"split\", \"truncate\" or \"drop\" to pack()",
                file()
            )))
        }
        Err(error) => Err(LoadError::Option(format!("{}: {error}", file()))),
    }
}

fn count_all(
    pass: &Arc<CountingPass>,
    progress: &mut dyn FnMut(ScanProgress) -> bool,
) -> Result<Vec<HeldShard>, LoadError> {
    let files = pass.files.dataset().files();
    let uncounted = pass.missing.iter().filter(|(_, map)| map.lock().is_none());
    let bytes_total = uncounted.map(|(shard, _)| files[*shard].stamp.size_bytes).sum();
    let files_total = pass.missing.len();
    let mut state =
        ScanProgress { files_total, bytes_total, ..ScanProgress::at(ScanStage::Counting) };
    let go_on = |state: &ScanProgress, _: &mut Vec<HeldShard>| match progress(*state) {
        true => Ok(()),
        false => Err(LoadError::Interrupted),
    };
    let (of, stop) = (Arc::clone(pass), &pass.stop);
    let work = move |number, progress: &mut dyn FnMut(u64)| of.work(number, progress);
    let path_of = |number: usize| &*files[pass.missing[number].0].path;
    let (counted, end) = run_pass(("count", None), &mut state, stop, path_of, work, go_on);
    end.map(|()| counted)
}

/// State shared by the counting threads.
struct CountingPass {
    files: Arc<Files>,
    program: Arc<SampleProgram>,
    corrupt: Corrupt,
    kept: Arc<KeptMaps>,
    /// Shards to count; with its map a shard to pack.
    missing: Vec<(usize, Lock<Option<HeldMap>>)>,
    stop: Stop,
}

impl CountingPass {
    /// Counts a shard that is not known, and makes its packs or windows.
    /// - `progress`: called with the bytes read since the call before.
    fn work(&self, number: usize, progress: &mut dyn FnMut(u64)) -> Result<HeldShard, LoadError> {
        let (shard, known) = &self.missing[number];
        let known = known.lock().take();
        let is_new = known.is_none();
        let counted = match known {
            Some(map) => CountedShard { map: map.get().clone(), ..CountedShard::default() },
            None => self.measured(*shard, progress)?,
        };
        self.grouped(*shard, counted, is_new)
    }

    /// Counts a shard: by values that another program measured, or else by reading it.
    fn measured(
        &self,
        shard: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<CountedShard, LoadError> {
        let mut go_on = || !self.stop.load(Ordering::Relaxed);
        let measured = self.kept.measured(shard, &mut go_on)?;
        let measured = measured.map(|map| CountedShard { map, ..CountedShard::default() });
        let kept = || self.corrupt.skips().then(|| self.kept.damaged(shard)).flatten();
        if let Some(counted) = measured.or_else(kept) {
            progress(self.files.dataset().files()[shard].stamp.size_bytes);
            return Ok(counted);
        }
        let mut counted = self.count(shard, progress);
        if counted.as_ref().map_or_else(LoadError::is_damage, |counted| counted.is_doubtful) {
            // A cache or the network may have changed it.
            self.files.doubt(shard as u32);
            match self.count(shard, &mut |_| progress(0)) {
                // Another file is damaged, too; the error names the first one.
                Err(LoadError::Interrupted) => {}
                again => counted = again,
            }
        }
        let counted = counted?;
        match counted.damaged_total {
            0 => self.kept.keep_columns(shard, &counted.columns, &mut go_on)?,
            _ => self.kept.keep_damaged(shard, &counted),
        }
        Ok(CountedShard { columns: MeasuredColumns::default(), ..counted })
    }

    /// Makes the packs or windows of a counted shard, and keeps what was found if nothing in it is
    /// damaged. Returns its map, and the rest.
    fn grouped(
        &self,
        shard: usize,
        mut counted: CountedShard,
        is_new: bool,
    ) -> Result<HeldShard, LoadError> {
        let is_whole = counted.damaged_total == 0;
        if is_whole && is_new {
            self.kept.keep([(shard, MapRef::Held(&counted.map))].into_iter());
        }
        let map = std::mem::take(&mut counted.map);
        let map = grouped(self.files.dataset(), &self.program, shard, map, &[])?;
        if is_whole {
            self.kept.keep_counts([(shard, map.get())].into_iter());
            let mut go_on = || !self.stop.load(Ordering::Relaxed);
            self.kept.offer(shard, &map.get(), is_new, &mut go_on)?;
        }
        Ok((shard, map, counted))
    }

    fn count(
        &self,
        shard: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<CountedShard, LoadError> {
        let dataset = self.files.dataset();
        let (file, number) = (&dataset.files()[shard], shard as u32);
        let options = ChunkOptions { verify_data: false, ..ChunkOptions::default() };
        let source = ShardBytes::new(Arc::clone(&self.files), number, 0, options.chunk_bytes);
        let source = Decoder::new(source, CompressionChoice::Fixed(file.compression));
        let source = source.map_err(|source| LoadError::io(self.files.name(number), source))?;
        let mut reader = ChunkReader::new(source, self.files.name(number), options);
        let map = SampleMap::new(&self.program);
        let (mut counted, mut seen) = (CountedShard { map, ..CountedShard::default() }, 0);
        while seen < file.records {
            if self.stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
            let Some(chunk) = reader.next_chunk()? else {
                return Err(self.files.ended(number));
            };
            // What indexing left out at the end of a damaged file has no ordinals.
            let left = usize::try_from(file.records - seen).unwrap_or(usize::MAX);
            for rows in row_groups(&chunk, number, left) {
                self.add(&rows, &mut counted)?;
            }
            let taken = &chunk.records[..chunk.records.len().min(left)];
            seen += taken.len() as u64;
            let framing = HEADER_BYTES + FOOTER_BYTES;
            let inflated = taken.iter().map(|span| (span.len + framing) as u64).sum::<u64>();
            let scaled = u128::from(inflated) * u128::from(file.stamp.size_bytes);
            let stored = (scaled / u128::from(file.stream_bytes().max(1))) as u64;
            progress(stored);
            reader.recycle(chunk.bytes);
        }
        Ok(counted)
    }

    /// Adds records to the map; damaged ones, if the policy allows that, as no samples.
    fn add(&self, rows: &[Row<'_>], counted: &mut CountedShard) -> Result<(), LoadError> {
        let shard = rows.first().map_or(0, |row| row.sample.shard);
        let path = &self.files.dataset().manifest().shards()[shard as usize].path;
        let skips = |error: &RowError| self.corrupt.skips() && error.fault.is_of_record();
        match self.program.count(rows, path, Some(&mut counted.columns)) {
            Ok(records) => counted.map.push(&records),
            Err(error) if !skips(&error) => return Err(self.files.located(error)),
            Err(_) => {
                for row in rows {
                    match self.program.count(std::slice::from_ref(row), path, None) {
                        Ok(record) => counted.map.push(&record),
                        Err(error) if skips(&error) => {
                            counted.is_doubtful |= matches!(error.fault, RowFault::Data(_));
                            let (ordinal, offset) = (row.sample.ordinal, row.offset);
                            if counted.damaged.len() < DAMAGED_MAX {
                                let mut reason = error.fault.to_string();
                                reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
                                let damaged = DamagedRecord { shard, ordinal, offset, reason };
                                counted.damaged.push(damaged);
                            }
                            counted.damaged_total += 1;
                            counted.map.push_none();
                        }
                        Err(error) => return Err(self.files.located(error)),
                    }
                }
            }
        }
        match counted.map.samples() > SAMPLES_MAX {
            false => Ok(()),
            true => Err(LoadError::Option(format!(
                "{}: more than {SAMPLES_MAX} samples in one file; write more and smaller files",
                self.files.name(shard)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;
    use shardfeed_pipeline::{RecordSpec, Schema};
    use shardfeed_tfrecord::{Compression, create};

    use super::*;
    use crate::cache::CacheChoice;
    use crate::dataset::pack_counts;
    use crate::rules::FileRules;

    fn packs() -> Arc<SampleProgram> {
        let spec = json!({
            "parse": [{"name": "tokens", "feature": {"var_len": {"dtype": "int64"}}}],
            "pack": {
                "columns": ["tokens"], "length": 16, "block": 8, "variants": 2, "method": "fit",
                "long": "split", "append": [],
            },
        });
        let spec: RecordSpec = serde_json::from_value(spec).unwrap();
        Arc::clone(Schema::new(spec).unwrap().samples().unwrap())
    }

    /// Writes a file of examples with so many tokens.
    fn write(path: &Path, tokens: &[u8]) {
        let field = |tag: u8, body: &[u8]| [&[tag, body.len() as u8], body].concat();
        let mut file = create(path, Compression::None).unwrap();
        for &count in tokens {
            let values = field(0x0a, &vec![1; usize::from(count)]);
            let feature = [field(0x0a, b"tokens"), field(0x12, &field(0x1a, &values))].concat();
            file.write(&field(0x0a, &field(0x0a, &feature))).unwrap();
        }
        file.finish().unwrap();
    }

    #[test]
    fn packs_of_known_maps_are_made_with_progress_and_their_numbers_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        for (name, tokens) in [("a", [3, 9, 16, 1]), ("b", [7, 7, 2, 12])] {
            write(&folder.path().join(name), &tokens);
        }
        let cache = CacheOptions::from(CacheChoice::Folder(folder.path().join("cache")));
        let (program, paths) = (packs(), vec!["a".to_owned(), "b".to_owned()]);
        let (root, rules) = (folder.path().to_path_buf(), FileRules::default());
        let dataset = Dataset::open_paths(root, paths, rules, &cache, &mut |_| true).unwrap();
        let dataset = Arc::new(dataset);
        let counted = dataset.count_samples(&program, Corrupt::Error, &cache, &mut |_| true);
        let counted: Vec<_> = counted.unwrap().counts();
        let numbers = folder.path().join("cache").join(pack_counts::KIND.folder());
        std::fs::remove_dir_all(&numbers).unwrap();
        let mut seen = Vec::new();
        let maps = dataset.known_maps(&program, &cache, &mut |state| {
            seen.push((state.stage, state.files, state.files_total));
            true
        });
        let maps: Option<Vec<HeldMap>> = maps.unwrap().into_iter().collect();
        let samples: Vec<_> = maps.unwrap().iter().map(HeldMap::samples).collect();
        assert_eq!(samples, counted);
        assert_eq!(seen.last(), Some(&(ScanStage::Counting, 2, 2)));
        assert!(numbers.is_dir(), "they are packed once only");
    }
}
