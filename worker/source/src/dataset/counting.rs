//! The counting pass: every shard is read once, checked, and its samples are noted.
//!
//! A map is kept beside the index cache, for its shard and its program. A map that damaged records
//! were left out of is kept on this host only, and for this file only.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
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
use crate::index::{ScanProgress, ScanStage};

/// Maximum number of files read at once.
const READS_MAX: usize = 16;

/// Maximum time between progress reports.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Maximum number of damaged records that are listed.
const DAMAGED_MAX: usize = 1000;

/// Maximum bytes of the reason why a record is damaged.
const REASON_BYTES_MAX: usize = 300;

/// The map of a shard, and the rest that was found.
type HeldShard = (HeldMap, CountedShard);

enum CountEvent {
    Bytes(u64),
    Shard(usize, Box<Result<HeldShard, LoadError>>),
}

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

/// Returns the samples of every shard: from the cache, or else by reading it.
/// - `progress`: called now and then from this thread; returning `false` cancels.
///
/// # Errors  The first damaged file by name; `Interrupted`.
pub(super) fn sample_maps(
    dataset: &Arc<Dataset>,
    program: &Arc<SampleProgram>,
    corrupt: Corrupt,
    options: &CacheOptions,
    progress: &mut dyn FnMut(ScanProgress) -> bool,
) -> Result<SampleMaps, LoadError> {
    let kept = Arc::new(KeptMaps::new(dataset, program, options));
    let mut maps: Vec<Option<HeldMap>> = vec![None; dataset.files().len()];
    kept.fill(&mut maps, progress)?;
    kept.publish(&maps, progress)?;
    let pending = |kept, maps| PendingMaps { dataset, program, corrupt, kept, maps };
    if !maps.iter().any(|map| lacks(program, map.as_ref())) {
        return pending(kept, maps).done(progress);
    }
    let cache = Cache::open(&options.folder, dataset.root());
    let _lock = cache.lock(|| progress(ScanProgress::at(ScanStage::Waiting)))?;
    // Another process may have counted while this one waited.
    kept.fill(&mut maps, progress)?;
    kept.fetch(&mut maps, progress)?;
    pending(kept, maps).done(progress)
}

/// Returns the samples of every shard if all of them are in the cache.
///
/// # Errors  A sequence is too long; there are too many.
pub(super) fn kept_maps(
    dataset: &Arc<Dataset>,
    program: &Arc<SampleProgram>,
    options: &CacheOptions,
) -> Result<Option<SampleMaps>, LoadError> {
    let mut maps = vec![None; dataset.files().len()];
    let kept = Arc::new(KeptMaps::new(dataset, program, options));
    kept.fill(&mut maps, &mut |_| true)?;
    if maps.iter().any(Option::is_none) {
        return Ok(None);
    }
    let pending = PendingMaps { dataset, program, corrupt: Corrupt::Error, kept, maps };
    pending.done(&mut |_| true).map(Some)
}

/// Returns the samples of each shard whose map is in the cache or its index.
///
/// # Errors  The index cannot be read, or is damaged; a sequence is too long; `Interrupted`.
pub(super) fn known_maps(
    dataset: &Arc<Dataset>,
    program: &Arc<SampleProgram>,
    options: &CacheOptions,
    progress: &mut dyn FnMut(ScanProgress) -> bool,
) -> Result<Vec<Option<HeldMap>>, LoadError> {
    let kept = Arc::new(KeptMaps::new(dataset, program, options));
    let mut maps = vec![None; dataset.files().len()];
    kept.fill(&mut maps, progress)?;
    kept.fetch(&mut maps, progress)?;
    for (shard, map) in maps.iter_mut().enumerate() {
        if let Some(counted) = map.take_if(|map| lacks(program, Some(map))) {
            let counted = counted.get().clone();
            *map = Some(grouped(dataset, program, shard, counted, &[])?);
        }
    }
    Ok(maps)
}

/// True if a shard is to be counted, or its packs to be made.
pub(super) fn lacks(program: &SampleProgram, map: Option<&HeldMap>) -> bool {
    map.is_none_or(|map| program.combiner().is_some() && !map.is_grouped())
}

/// Maps of a dataset's shards, of which some are to be counted or grouped.
struct PendingMaps<'a> {
    dataset: &'a Arc<Dataset>,
    program: &'a Arc<SampleProgram>,
    corrupt: Corrupt,
    kept: Arc<KeptMaps>,
    /// Map of each shard, without its packs if these are not known; `None`: not counted.
    maps: Vec<Option<HeldMap>>,
}

impl PendingMaps<'_> {
    /// Counts and packs the shards that lack it.
    fn done(self, progress: &mut dyn FnMut(ScanProgress) -> bool) -> Result<SampleMaps, LoadError> {
        let Self { dataset, program, corrupt, kept, mut maps } = self;
        let lacks = |shard: &usize| lacks(program, maps[*shard].as_ref());
        let missing: Vec<_> = (0..maps.len()).filter(lacks).collect();
        let (mut damaged, mut damaged_total) = (vec![], 0);
        if !missing.is_empty() {
            let stop: Arc<AtomicBool> = Arc::default();
            let files = Files::new(Arc::clone(dataset), Arc::default(), Arc::clone(&stop))?;
            let missing =
                missing.into_iter().map(|shard| (shard, maps[shard].take().into())).collect();
            let pass = CountingPass {
                files: Arc::new(files),
                program: Arc::clone(program),
                corrupt,
                kept,
                missing,
                next: 0.into(),
                stop,
            };
            for (shard, (map, counted)) in count_all(&Arc::new(pass), progress)? {
                maps[shard] = Some(map);
                damaged_total += counted.damaged_total;
                damaged.extend(counted.damaged);
            }
            damaged.sort_by_key(|one| (one.shard, one.ordinal));
            damaged.truncate(DAMAGED_MAX);
        }
        Ok(SampleMaps::new(maps.into_iter().flatten().collect(), damaged, damaged_total))
    }
}

/// Writes maps without damaged records to the cache.
pub(super) fn keep_maps(
    dataset: &Arc<Dataset>,
    program: &Arc<SampleProgram>,
    options: &CacheOptions,
    maps: &SampleMaps,
) {
    if maps.damaged_total == 0 {
        let kept = KeptMaps::new(dataset, program, options);
        let maps = || maps.maps().iter().map(HeldMap::get).enumerate();
        kept.keep(maps());
        kept.keep_counts(maps());
    }
}

/// Rejects a dataset of which no sample is left.
pub(super) fn check_some(
    dataset: &Dataset,
    program: &SampleProgram,
    maps: &SampleMaps,
) -> Result<(), LoadError> {
    let records = dataset.manifest().records();
    if records == 0 || maps.maps().iter().any(|map| map.samples() > 0) {
        return Ok(());
    }
    let damaged = match maps.damaged_total {
        0 => String::new(),
        damaged => format!(" ({damaged} of them are damaged)"),
    };
    Err(LoadError::Option(format!(
        "no sample is left: {program} leaves none of the {records} records in {} files{damaged}; check \
         it against the values of its columns, or name more files",
        maps.maps().len(),
    )))
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
) -> Result<Vec<(usize, HeldShard)>, LoadError> {
    let files = pass.files.dataset().files();
    let is_counted =
        |map: &Mutex<Option<HeldMap>>| map.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    let uncounted = pass.missing.iter().filter(|(_, map)| !is_counted(map));
    let bytes_total = uncounted.map(|(shard, _)| files[*shard].stamp.size_bytes).sum();
    let files_total = pass.missing.len();
    let mut state =
        ScanProgress { files_total, bytes_total, ..ScanProgress::at(ScanStage::Counting) };
    let (sender, receiver) = bounded(4 * READS_MAX);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    for index in 0..(2 * cores).min(READS_MAX).min(files_total) {
        let (pass, sender) = (Arc::clone(pass), sender.clone());
        // Not joined: a hung read of storage must not block an interrupt.
        let named = std::thread::Builder::new().name(format!("shardfeed-count-{index}"));
        if let Err(source) = named.spawn(move || pass.run(&sender)) {
            return Err(LoadError::Io { file: "counting threads".into(), source });
        }
    }
    drop(sender);
    let (mut counted, mut errors) = (Vec::with_capacity(files_total), Vec::new());
    loop {
        match receiver.recv_timeout(PROGRESS_EVERY) {
            Ok(CountEvent::Bytes(more)) => state.bytes += more,
            Ok(CountEvent::Shard(shard, result)) => {
                state.files += 1;
                match *result {
                    Ok(map) => counted.push((shard, map)),
                    Err(error) => {
                        pass.stop.store(true, Ordering::Relaxed);
                        errors.push((shard, error));
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !progress(state) {
            pass.stop.store(true, Ordering::Relaxed);
            return Err(LoadError::Interrupted);
        }
    }
    // Reads that were stopped for the error of another file are no errors of their own.
    errors.sort_by_key(|(shard, error)| (matches!(error, LoadError::Interrupted), *shard));
    match errors.into_iter().next() {
        Some((_, error)) => Err(error),
        None if counted.len() < files_total => Err(LoadError::ReaderLost),
        None => Ok(counted),
    }
}

/// State shared by the counting threads.
struct CountingPass {
    files: Arc<Files>,
    program: Arc<SampleProgram>,
    corrupt: Corrupt,
    kept: Arc<KeptMaps>,
    /// Shards to count; with its map a shard to pack.
    missing: Vec<(usize, Mutex<Option<HeldMap>>)>,
    next: AtomicUsize,
    stop: Arc<AtomicBool>,
}

impl CountingPass {
    /// Counts shards until none is left or the receiver is gone.
    fn run(&self, events: &Sender<CountEvent>) {
        while !self.stop.load(Ordering::Relaxed) {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((shard, known)) = self.missing.get(next) else {
                return;
            };
            let shard = *shard;
            let mut progress = |bytes: u64| {
                // The receiver is gone after an interrupt; the progress is then dropped.
                let _ = events.send(CountEvent::Bytes(bytes));
            };
            let known = known.lock().unwrap_or_else(PoisonError::into_inner).take();
            let is_new = known.is_none();
            let counted = match known {
                Some(map) => Ok(CountedShard { map: map.get().clone(), ..CountedShard::default() }),
                None => self.measured(shard, &mut progress),
            };
            let result = counted.and_then(|counted| self.grouped(shard, counted, is_new));
            if events.send(CountEvent::Shard(shard, Box::new(result))).is_err() {
                return;
            }
        }
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
        Ok((map, counted))
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
