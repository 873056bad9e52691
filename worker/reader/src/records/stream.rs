//! Sequential reading of shards, one chunk ahead of the requested record.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, RecvError, TryRecvError, bounded};
use shardfeed_pipeline::{ChunkBuffer, ChunkPool, Combiner, ShardSchemas};
use shardfeed_plan::{Portion, Sample, SplitRun};
use shardfeed_source::{Files, LoadError, SampleMap, ShardBytes};
use shardfeed_tfrecord::{
    Chunk, ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder, FOOTER_BYTES, Mark,
    RecordSpan,
};

use crate::epoch_samples::EpochSamples;
use crate::io_pool::IoPool;
use crate::meter::Meter;
use crate::records::gather::{Chunks, Gathered, HeldRecord, Item, Record};
use crate::records::pack::Blocks;
use crate::records::trails::{Trails, mark_before};

/// Bytes read at once for a single record.
const ONE_RECORD_BYTES: usize = 64 << 10;

/// Bytes of a record's length and checksums in its file.
const FRAME_BYTES: u64 = 16;

/// Minimum bytes of a read, however few records a lane has.
const CHUNK_BYTES_LEAST: usize = 4 << 10;

/// The reader of one shard, passed to a reading thread and back.
pub(crate) type ShardReader = ChunkReader<Decoder<ShardBytes>>;

/// Counters of reading, shared by all readers of one loader.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    /// Bytes of uncompressed shards that were read into chunks.
    pub(crate) bytes: AtomicU64,
    /// Bytes of compressed shards that were inflated only to be skipped.
    pub(crate) reinflated_bytes: AtomicU64,
    pub(crate) meter: Arc<Meter>,
}

/// Resources shared by all streams of a loader.
#[derive(Clone, Debug)]
pub(crate) struct StreamTools {
    pub(crate) files: Arc<Files>,
    pub(crate) io: Arc<IoPool>,
    pub(crate) chunks: ChunkPool,
    pub(crate) counters: Arc<ReadCounters>,
    pub(crate) chunk_bytes: usize,
    /// Maximum number of a lane's splits that are read before their turn.
    pub(crate) primed_max: usize,
    /// End positions of the walks of lanes that are read by position.
    pub(crate) trails: Arc<Trails>,
    pub(crate) samples: EpochSamples,
    /// Schemas of the shards, with the writers of packs.
    pub(crate) schemas: ShardSchemas,
    /// Set when the results are no longer needed: reading ends at the next record.
    pub(crate) stop: Arc<AtomicBool>,
}

/// The splits that one lane reads in turn.
#[derive(Debug)]
pub(crate) struct Streams {
    tools: StreamTools,
    /// By split: a shard can have two in a lane, which are read at the same time.
    open: BTreeMap<(Portion, usize), ShardStream>,
    chunks: Chunks,
}

#[derive(Debug)]
struct ShardStream {
    current: Option<Current>,
    next: Receiver<ChunkAhead>,
}

/// The chunk that holds a shard's next records.
#[derive(Debug)]
struct Current {
    number: u32,
    records: Vec<RecordSpan>,
    parts: Vec<u32>,
    first_ordinal: u64,
}

#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) chunk: Arc<ChunkBuffer>,
    /// Record of each sample.
    pub(crate) records: Vec<RecordSpan>,
    /// Part of each sample, as in a row. Empty: the records are the samples.
    pub(crate) parts: Vec<u32>,
    pub(crate) first_ordinal: u64,
}

/// A shard being read.
#[derive(Debug)]
struct OpenShard {
    reader: ShardReader,
    /// Blocks that come next, where packs are samples.
    blocks: Option<Blocks>,
}

/// A chunk that was read ahead, and the reader to continue with.
#[derive(Debug)]
struct ChunkAhead {
    reader: Option<OpenShard>,
    chunk: Result<Option<Read>, LoadError>,
}

impl Streams {
    pub(crate) fn new(tools: StreamTools) -> Self {
        Self { tools, open: BTreeMap::new(), chunks: Chunks::default() }
    }

    /// Starts to read the split of a run, unless it is being read already or the limit is reached.
    /// Returns true if the split is being read.
    pub(crate) fn prime(&mut self, SplitRun { portion, split, first, .. }: SplitRun) -> bool {
        if self.open.contains_key(&(portion, split)) {
            return true;
        }
        let has_room = self.open.len() < self.tools.primed_max;
        if has_room {
            let stream = self.tools.start(portion, self.tools.samples.in_dataset(portion, first));
            self.open.insert((portion, split), stream);
        }
        has_room
    }

    /// Appends the records of a run; cheap if they are the next ones of the split.
    pub(crate) fn fetch(
        &mut self,
        SplitRun { portion, split, first, samples }: SplitRun,
        items: &mut VecDeque<Option<Item>>,
    ) -> Result<(), LoadError> {
        self.close_before(portion);
        let Sample { shard, ordinal } = self.tools.samples.in_dataset(portion, first);
        let end = ordinal + samples;
        let mut next = ordinal;
        let mut fetched = Ok(());
        while next < end && fetched.is_ok() {
            fetched = match self.tools.stop.load(Ordering::Relaxed) {
                true => Err(LoadError::Interrupted),
                false => {
                    let first = Sample { shard, ordinal: next };
                    self.find(SplitRun { portion, split, first, samples: end - next }, items)
                }
            }
            .map(|found| next += found);
        }
        let (samples_of_shard, _) = self.tools.files.dataset().amounts(shard);
        if fetched.is_err() || next == samples_of_shard {
            // After the last sample nothing follows; after an error a retry makes a new reader.
            if let Some(stream) = self.open.remove(&(portion, split)) {
                self.close(stream);
            }
        }
        fetched
    }

    /// Closes the streams of earlier source epochs of a source: a lane reads them one after the
    /// other, and the last split of one may end inside its shard.
    fn close_before(&mut self, portion: Portion) {
        let first = (Portion { epoch: 0, ..portion }, 0);
        while portion.epoch > 0
            && let Some((&split, _)) = self.open.range(first..(portion, 0)).next()
            && let Some(stream) = self.open.remove(&split)
        {
            self.close(stream);
        }
    }

    /// Collects the records of padding for a batch.
    pub(crate) fn fetch_padding(
        &mut self,
        run: SplitRun,
        into: &mut Gathered,
    ) -> Result<(), LoadError> {
        let mut items = VecDeque::with_capacity(1);
        self.fetch(run, &mut items)?;
        self.give(items.into_iter().flatten(), false, into);
        Ok(())
    }

    /// Moves fetched records into a batch.
    pub(crate) fn give(
        &mut self,
        items: impl Iterator<Item = Item>,
        valid: bool,
        into: &mut Gathered,
    ) {
        self.chunks.give(items, valid, into);
    }

    /// Releases a fetched record that is not needed.
    pub(crate) fn pass(&mut self, item: Item) {
        if let Item::Held(held) = item {
            self.chunks.let_go(held.chunk);
        }
    }

    fn close(&mut self, stream: ShardStream) {
        if let Some(current) = stream.current {
            self.chunks.let_go(current.number);
        }
    }

    /// Appends the first samples of a run, those that the current or the next chunk contains.
    /// Returns their number. The run has the shard ordinal of the dataset.
    fn find(
        &mut self,
        SplitRun { portion, split, first, samples: most }: SplitRun,
        items: &mut VecDeque<Option<Item>>,
    ) -> Result<u64, LoadError> {
        let Sample { shard, ordinal } = first;
        let Self { tools, open, chunks } = self;
        let stream = open.entry((portion, split)).or_insert_with(|| tools.start(portion, first));
        loop {
            if let Some(current) = &stream.current {
                if ordinal < current.first_ordinal {
                    chunks.let_go(current.number);
                    *stream = tools.start(portion, first);
                    continue;
                }
                let from = usize::try_from(ordinal - current.first_ordinal);
                let rest = from.ok().and_then(|from| current.records.get(from..));
                if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
                    let count = rest.len().min(usize::try_from(most).unwrap_or(usize::MAX));
                    let chunk = current.number;
                    chunks.hold(chunk, count);
                    let held = |(ordinal, &span)| {
                        let sample = Sample { shard, ordinal };
                        let at = (ordinal - current.first_ordinal) as usize;
                        let part = current.parts.get(at).copied().unwrap_or(0);
                        Some(Item::Held(HeldRecord { portion, sample, span, part, chunk }))
                    };
                    items.extend((ordinal..).zip(&rest[..count]).map(held));
                    return Ok(count as u64);
                }
            }
            if let Some(current) = stream.current.take() {
                chunks.let_go(current.number);
            }
            let ahead = tools.receive(&stream.next)?;
            let Some(Read { chunk, records, parts, first_ordinal }) = ahead.chunk? else {
                return Err(tools.files.ended(shard));
            };
            let number = chunks.insert(chunk);
            stream.current = Some(Current { number, records, parts, first_ordinal });
            let reader = ahead.reader.ok_or(LoadError::ReaderLost)?;
            stream.next = tools.read_ahead(reader, shard, None);
        }
    }
}

impl StreamTools {
    /// Returns tools for a lane of `samples`: each of thousands of short lanes needs few bytes.
    pub(crate) fn for_samples(&self, samples: u64) -> Self {
        let most = self.bytes_of(samples).max(CHUNK_BYTES_LEAST);
        Self { chunk_bytes: self.chunk_bytes.min(most), ..self.clone() }
    }

    /// Returns a number of bytes that most runs of `samples` records fit into.
    pub(crate) fn bytes_of(&self, samples: u64) -> usize {
        let record_bytes = self.files.dataset().record_bytes_mean().saturating_add(FRAME_BYTES);
        let twice = samples.saturating_mul(2).saturating_mul(record_bytes);
        usize::try_from(twice).unwrap_or(usize::MAX)
    }

    /// Reads the record of `sample` alone, on this thread.
    pub(crate) fn read_one(&self, portion: Portion, sample: Sample) -> Result<Record, LoadError> {
        // 0: they are not those of a reader of a lane.
        let chunk_bytes = match self.chunk_bytes {
            0 => ONE_RECORD_BYTES,
            some => some.min(ONE_RECORD_BYTES),
        };
        let (mut reader, skip) = Self { chunk_bytes, ..self.clone() }.reader_at(portion, sample);
        let read = || self.read(&mut reader, sample.shard, Some(skip));
        let read = self.counters.meter.chunk(sample.shard, read)?;
        let ended = || self.files.ended(sample.shard);
        let Read { chunk, records, parts, first_ordinal } = read.ok_or_else(ended)?;
        // A block begins with an earlier pack, and a chunk with an earlier row of a record.
        let at = sample.ordinal.saturating_sub(first_ordinal) as usize;
        let span = *records.get(at).ok_or_else(ended)?;
        let part = parts.get(at).copied().unwrap_or(0);
        Ok(Record { portion, sample, span, part, chunk })
    }

    /// Returns the writer of a shard's packs or windows, if they are samples.
    pub(crate) fn combiner(&self, shard: u32) -> Option<&Arc<Combiner>> {
        self.schemas.of(shard).samples().and_then(|program| program.combiner())
    }

    fn start(&self, portion: Portion, sample: Sample) -> ShardStream {
        let (reader, skip) = self.reader_at(portion, sample);
        ShardStream { current: None, next: self.read_ahead(reader, sample.shard, Some(skip)) }
    }

    /// Returns a reader of a sample's shard, and the record to skip to.
    fn reader_at(&self, portion: Portion, sample: Sample) -> (OpenShard, (u64, Compression)) {
        let file = &self.files.dataset().files()[sample.shard as usize];
        let (blocks, record) = match self.combiner(sample.shard).is_some() {
            true => {
                let (blocks, record) = Blocks::at(self, sample, self.samples.variant(portion));
                (Some(blocks), record)
            }
            false => (None, self.files.dataset().record_of(sample)),
        };
        let mark = match file.compression {
            Compression::None => mark_before(file, record),
            Compression::Gzip | Compression::Zlib => Mark { ordinal: 0, offset: 0 },
        };
        let source =
            ShardBytes::new(Arc::clone(&self.files), sample.shard, mark.offset, self.chunk_bytes);
        let choice = CompressionChoice::Fixed(file.compression);
        let source = Decoder::new(source, choice).expect("a fixed choice reads nothing yet");
        let left = match file.compression {
            Compression::None => file.stamp.size_bytes.saturating_sub(mark.offset),
            Compression::Gzip | Compression::Zlib => file.stream_bytes(),
        };
        let options = ChunkOptions {
            // One byte more than is left, so that the end is detected with the last record.
            chunk_bytes: self
                .chunk_bytes
                .min(usize::try_from(left).unwrap_or(usize::MAX).saturating_add(1)),
            first_offset: mark.offset,
            first_ordinal: mark.ordinal,
            verify_data: false,
            ..ChunkOptions::default()
        };
        let reader = ChunkReader::new(source, self.files.name(sample.shard), options);
        (OpenShard { reader, blocks }, (record, file.compression))
    }

    /// Reads the next chunk on a reading thread.
    fn read_ahead(
        &self,
        mut reader: OpenShard,
        shard: u32,
        skip: Option<(u64, Compression)>,
    ) -> Receiver<ChunkAhead> {
        let (sender, receiver) = bounded(1);
        let tools = self.clone();
        self.io.spawn(move || {
            let meter = &tools.counters.meter;
            let chunk = meter.chunk(shard, || tools.read(&mut reader, shard, skip));
            // The receiver is gone if the loader moved elsewhere.
            let _ = sender.send(ChunkAhead { reader: Some(reader), chunk });
        });
        receiver
    }

    /// Returns the chunk that was read ahead; reads the clock only if it has to wait.
    fn receive(&self, next: &Receiver<ChunkAhead>) -> Result<ChunkAhead, LoadError> {
        match next.try_recv() {
            Ok(ahead) => Ok(ahead),
            Err(TryRecvError::Empty) => self.counters.meter.read_wait(|| next.recv()),
            Err(TryRecvError::Disconnected) => Err(RecvError),
        }
        .map_err(|_| LoadError::ReaderLost)
    }

    /// Reads the next chunk with samples, and leaves out records that are none.
    fn read(
        &self,
        OpenShard { reader, blocks }: &mut OpenShard,
        shard: u32,
        skip: Option<(u64, Compression)>,
    ) -> Result<Option<Read>, LoadError> {
        if let Some((ordinal, compression)) = skip {
            let from = reader.offset();
            if compression == Compression::None {
                reader.skip_to(ordinal)?;
            } else {
                self.counters.meter.pass(|| reader.skip_to(ordinal))?;
                let passed = reader.offset() - from;
                self.counters.reinflated_bytes.fetch_add(passed, Ordering::Relaxed);
            }
        }
        if let Some(blocks) = blocks {
            return blocks.read(self, reader, shard);
        }
        loop {
            let spare = self.chunks.take();
            reader.recycle(spare);
            let Some(chunk) = reader.next_chunk()? else {
                return Ok(None);
            };
            self.counters.bytes.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
            let Some(maps) = self.files.dataset().samples() else {
                let Chunk { bytes, records, first_ordinal, .. } = chunk;
                let (chunk, parts) = (self.chunks.share(bytes), vec![]);
                return Ok(Some(Read { chunk, records, parts, first_ordinal }));
            };
            let map = maps.of(shard);
            let end = chunk.first_ordinal + chunk.records.len() as u64;
            if let Some(read) = self.only_samples(chunk, &map) {
                return Ok(Some(read));
            }
            if map.samples_before(end) == map.samples() {
                return Ok(None);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(LoadError::Interrupted);
            }
        }
    }

    /// Returns the samples of a chunk, if it has any.
    fn only_samples(&self, chunk: Chunk, map: &SampleMap) -> Option<Read> {
        let Chunk { bytes, records: all, first_ordinal } = chunk;
        let (mut records, mut parts) = (Vec::new(), Vec::new());
        let mut stored = 0;
        for (span, record) in all.into_iter().zip(first_ordinal..) {
            let before = records.len();
            parts.extend(map.parts(record));
            records.resize(parts.len(), span);
            if records.len() > before {
                stored += span.len + FOOTER_BYTES;
            }
        }
        if records.is_empty() {
            // The buffer returns to its pool.
            drop(self.chunks.share(bytes));
            return None;
        }
        let first_ordinal = map.samples_before(first_ordinal);
        let chunk = self.share_some(bytes, stored, records.iter_mut());
        Some(Read { chunk, records, parts, first_ordinal })
    }

    /// Shares records of a chunk. Few of them are copied, so that a held one does not hold a chunk
    /// of others.
    /// - `stored`: bytes of the records.
    /// - `spans`: their positions; rows of one record follow each other.
    pub(crate) fn share_some<'a>(
        &self,
        bytes: Vec<u8>,
        stored: usize,
        spans: impl Iterator<Item = &'a mut RecordSpan>,
    ) -> Arc<ChunkBuffer> {
        let whole = self.chunks.share(bytes);
        if stored >= whole.len() / 2 {
            return whole;
        }
        let (mut copied, mut last) = (Vec::with_capacity(stored), None);
        for span in spans {
            let from = span.start;
            let start = match last {
                Some((last, start)) if last == from => start,
                _ => {
                    let start = copied.len();
                    copied.extend_from_slice(&whole[from..from + span.len + FOOTER_BYTES]);
                    start
                }
            };
            (last, span.start) = (Some((from, start)), start);
        }
        self.chunks.share(copied)
    }
}
