//! Sequential reading of shards, one chunk ahead of the requested record.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, RecvError, TryRecvError, bounded};
use shardfeed_pipeline::{ChunkBuffer, ChunkPool};
use shardfeed_plan::Sample;
use shardfeed_source::{Files, LoadError, ShardBytes};
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder, Mark, RecordSpan,
};

use crate::io_pool::IoPool;
use crate::meter::Meter;
use crate::records::gather::{Chunks, Gathered, HeldRecord, Item, Record};
use crate::records::trails::{Trails, mark_before};

/// Bytes read at once for a single record.
const ONE_RECORD_BYTES: usize = 64 << 10;

/// Bytes of a record's length and checksums in its file.
const FRAME_BYTES: u64 = 16;

/// Minimum bytes of a read, however few records a lane has.
const CHUNK_BYTES_LEAST: usize = 4 << 10;

/// The reader of one shard, passed to a reading thread and back.
type ShardReader = ChunkReader<Decoder<ShardBytes>>;

/// Counters of reading, shared by all readers of one loader.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    /// Bytes of uncompressed shards that were read into chunks.
    pub(crate) bytes: AtomicU64,
    /// Bytes of compressed shards that were inflated only to be skipped.
    pub(crate) reinflated_bytes: AtomicU64,
    /// Meter of reading times.
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
    /// Maximum number of a lane's shards that are read before their turn.
    pub(crate) primed_max: usize,
    /// End positions of the walks of lanes that are read by position.
    pub(crate) trails: Arc<Trails>,
    /// Set when the results are no longer needed: reading ends at the next record.
    pub(crate) stop: Arc<AtomicBool>,
}

/// The shards that one lane reads in turn.
#[derive(Debug)]
pub(crate) struct Streams {
    tools: StreamTools,
    open: BTreeMap<u32, ShardStream>,
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
    first_ordinal: u64,
}

/// A chunk as it was read.
#[derive(Debug)]
struct Read {
    chunk: Arc<ChunkBuffer>,
    records: Vec<RecordSpan>,
    first_ordinal: u64,
}

/// A chunk that was read ahead, and the reader to continue with.
#[derive(Debug)]
struct ChunkAhead {
    reader: Option<ShardReader>,
    chunk: Result<Option<Read>, LoadError>,
}

impl Streams {
    pub(crate) fn new(tools: StreamTools) -> Self {
        Self { tools, open: BTreeMap::new(), chunks: Chunks::default() }
    }

    /// Starts to read at `sample`, unless its shard is being read already or the limit is reached.
    /// Returns true if the shard is being read.
    pub(crate) fn prime(&mut self, sample: Sample) -> bool {
        if self.open.contains_key(&sample.shard) {
            return true;
        }
        let has_room = self.open.len() < self.tools.primed_max;
        if has_room {
            self.open.insert(sample.shard, self.tools.start(sample));
        }
        has_room
    }

    /// Appends the records of `first` and of the samples after it in its shard, `count` in total;
    /// cheap if they are the next ones of the shard.
    pub(crate) fn fetch(
        &mut self,
        first: Sample,
        count: u64,
        items: &mut VecDeque<Option<Item>>,
    ) -> Result<(), LoadError> {
        let Sample { shard, ordinal } = first;
        let end = ordinal + count;
        let mut next = ordinal;
        let mut fetched = Ok(());
        while next < end && fetched.is_ok() {
            fetched = match self.tools.stop.load(Ordering::Relaxed) {
                true => Err(LoadError::Interrupted),
                false => self.find(Sample { shard, ordinal: next }, end - next, items),
            }
            .map(|found| next += found);
        }
        let records = self.tools.files.dataset().files()[shard as usize].records;
        if fetched.is_err() || next == records {
            // After the last record nothing follows; after an error a retry starts with a new
            // reader.
            if let Some(stream) = self.open.remove(&shard) {
                self.close(stream);
            }
        }
        fetched
    }

    /// Collects the record of a padding sample for a batch.
    pub(crate) fn fetch_padding(
        &mut self,
        sample: Sample,
        into: &mut Gathered,
    ) -> Result<(), LoadError> {
        let mut items = VecDeque::with_capacity(1);
        self.fetch(sample, 1, &mut items)?;
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

    /// Appends the samples from `first` on that the current or the next chunk contains, up to
    /// `most`. Returns their number.
    fn find(
        &mut self,
        first: Sample,
        most: u64,
        items: &mut VecDeque<Option<Item>>,
    ) -> Result<u64, LoadError> {
        let Sample { shard, ordinal } = first;
        let Self { tools, open, chunks } = self;
        let stream = open.entry(shard).or_insert_with(|| tools.start(first));
        loop {
            if let Some(current) = &stream.current {
                if ordinal < current.first_ordinal {
                    chunks.let_go(current.number);
                    *stream = tools.start(first);
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
                        Some(Item::Held(HeldRecord { sample, span, chunk }))
                    };
                    items.extend((ordinal..).zip(&rest[..count]).map(held));
                    return Ok(count as u64);
                }
            }
            if let Some(current) = stream.current.take() {
                chunks.let_go(current.number);
            }
            let ahead = tools.receive(&stream.next)?;
            let Some(Read { chunk, records, first_ordinal }) = ahead.chunk? else {
                return Err(tools.files.ended(shard));
            };
            let number = chunks.insert(chunk);
            stream.current = Some(Current { number, records, first_ordinal });
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
    pub(crate) fn read_one(&self, sample: Sample) -> Result<Record, LoadError> {
        let chunk_bytes = self.chunk_bytes.min(ONE_RECORD_BYTES);
        let (mut reader, skip) = Self { chunk_bytes, ..self.clone() }.reader_at(sample);
        let read = || self.read(&mut reader, Some(skip));
        let Some(Read { chunk, records, .. }) = self.counters.meter.chunk(sample.shard, read)?
        else {
            return Err(self.files.ended(sample.shard));
        };
        let Some(&span) = records.first() else {
            return Err(self.files.ended(sample.shard));
        };
        Ok(Record { sample, span, chunk })
    }

    fn start(&self, sample: Sample) -> ShardStream {
        let (reader, skip) = self.reader_at(sample);
        ShardStream { current: None, next: self.read_ahead(reader, sample.shard, Some(skip)) }
    }

    /// Returns a reader of a sample's shard, and the ordinal to skip to.
    fn reader_at(&self, sample: Sample) -> (ShardReader, (u64, Compression)) {
        let file = &self.files.dataset().files()[sample.shard as usize];
        let mark = match file.compression {
            Compression::None => mark_before(file, sample.ordinal),
            Compression::Gzip | Compression::Zlib => Mark { ordinal: 0, offset: 0 },
        };
        let source =
            ShardBytes::new(Arc::clone(&self.files), sample.shard, mark.offset, self.chunk_bytes);
        let choice = CompressionChoice::Fixed(file.compression);
        let source = Decoder::new(source, choice).expect("a fixed choice reads nothing yet");
        let left = match file.compression {
            Compression::None => file.stamp.size_bytes.saturating_sub(mark.offset),
            Compression::Gzip | Compression::Zlib => u64::MAX,
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
        (reader, (sample.ordinal, file.compression))
    }

    /// Reads the next chunk on a reading thread.
    fn read_ahead(
        &self,
        mut reader: ShardReader,
        shard: u32,
        skip: Option<(u64, Compression)>,
    ) -> Receiver<ChunkAhead> {
        let (sender, receiver) = bounded(1);
        let tools = self.clone();
        self.io.spawn(move || {
            let meter = &tools.counters.meter;
            let chunk = meter.chunk(shard, || tools.read(&mut reader, skip));
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

    fn read(
        &self,
        reader: &mut ShardReader,
        skip: Option<(u64, Compression)>,
    ) -> Result<Option<Read>, LoadError> {
        if let Some((ordinal, compression)) = skip {
            let from = reader.offset();
            reader.skip_to(ordinal)?;
            if compression != Compression::None {
                let passed = reader.offset() - from;
                self.counters.reinflated_bytes.fetch_add(passed, Ordering::Relaxed);
            }
        }
        let spare = self.chunks.take();
        reader.recycle(spare);
        let Some(chunk) = reader.next_chunk()? else {
            return Ok(None);
        };
        self.counters.bytes.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
        let (records, first_ordinal) = (chunk.records, chunk.first_ordinal);
        Ok(Some(Read { chunk: self.chunks.share(chunk.bytes), records, first_ordinal }))
    }
}
