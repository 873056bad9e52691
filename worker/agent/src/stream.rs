//! Reading shards front to back, one chunk ahead of what is asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, RecvError, TryRecvError, bounded};
use shardfeed_pipeline::{ChunkBuffer, ChunkPool, RawRecord};
use shardfeed_plan::Sample;
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder, Mark, RecordSpan,
};

use crate::dataset::DatasetFile;
use crate::error::LoadError;
use crate::files::{Files, ShardBytes};
use crate::io_pool::IoPool;
use crate::meter::Meter;

/// Bytes that are read at once for a single record.
const ONE_RECORD_BYTES: usize = 64 << 10;

/// The reader of one shard, handed to a reading thread and back.
type Reader = ChunkReader<Decoder<ShardBytes>>;

/// What reading costs, shared by everything that reads for one loader.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    /// Bytes of uncompressed shards that were read into chunks.
    pub(crate) bytes: AtomicU64,
    /// Bytes of compressed shards that were inflated only to be passed over.
    pub(crate) reinflated_bytes: AtomicU64,
    /// Where time goes.
    pub(crate) meter: Arc<Meter>,
}

/// What all streams of a loader share.
#[derive(Clone, Debug)]
pub(crate) struct StreamTools {
    pub(crate) files: Arc<Files>,
    pub(crate) io: Arc<IoPool>,
    pub(crate) chunks: ChunkPool,
    pub(crate) counters: Arc<ReadCounters>,
    pub(crate) chunk_bytes: usize,
    /// Shards of a lane that are in reading before their turn, at most.
    pub(crate) primed_max: usize,
    /// Nobody waits any more: reading ends at the next record.
    pub(crate) stop: Arc<AtomicBool>,
}

/// The shards that one lane reads in turn.
#[derive(Debug)]
pub(crate) struct Streams {
    tools: StreamTools,
    open: BTreeMap<u32, Stream>,
}

#[derive(Debug)]
struct Stream {
    current: Option<Current>,
    next: Receiver<Ahead>,
}

#[derive(Debug)]
struct Current {
    chunk: Arc<ChunkBuffer>,
    records: Vec<RecordSpan>,
    first_ordinal: u64,
}

/// A chunk that was read ahead, and the reader to go on with.
#[derive(Debug)]
struct Ahead {
    reader: Option<Reader>,
    chunk: Result<Option<Current>, LoadError>,
}

/// The last mark at or before a record.
pub(crate) fn mark_before(file: &DatasetFile, ordinal: u64) -> Mark {
    let after = file.marks.partition_point(|mark| mark.ordinal <= ordinal);
    after.checked_sub(1).map_or(Mark { ordinal: 0, offset: 0 }, |index| file.marks[index])
}

impl Streams {
    pub(crate) fn new(tools: StreamTools) -> Self {
        Self { tools, open: BTreeMap::new() }
    }

    /// Starts to read at `sample`, if its shard is not in reading already and there is room for one
    /// more. Returns whether it is in reading.
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

    /// The record of `sample`; cheap if it is the next one of its shard.
    pub(crate) fn fetch(&mut self, sample: Sample) -> Result<RawRecord, LoadError> {
        if self.tools.stop.load(Ordering::Relaxed) {
            return Err(LoadError::Interrupted);
        }
        let result = self.find(sample);
        let records = self.tools.files.dataset().files()[sample.shard as usize].records;
        if result.is_err() || sample.ordinal + 1 == records {
            // After the last one there is nothing to wait for; after an error a retry starts anew.
            self.open.remove(&sample.shard);
        }
        result
    }

    fn find(&mut self, sample: Sample) -> Result<RawRecord, LoadError> {
        let tools = &self.tools;
        let stream = self.open.entry(sample.shard).or_insert_with(|| tools.start(sample));
        loop {
            if let Some(current) = &stream.current {
                if sample.ordinal < current.first_ordinal {
                    *stream = tools.start(sample);
                    continue;
                }
                let index = usize::try_from(sample.ordinal - current.first_ordinal);
                if let Some(span) = index.ok().and_then(|index| current.records.get(index)) {
                    let chunk = Arc::clone(&current.chunk);
                    let RecordSpan { start, len, offset } = *span;
                    return Ok(RawRecord { sample, offset, chunk, start, len });
                }
            }
            stream.current = None;
            let ahead = tools.receive(&stream.next)?;
            match ahead.chunk? {
                Some(current) => stream.current = Some(current),
                None => return Err(tools.ended(sample)),
            }
            let reader = ahead.reader.ok_or(LoadError::ReaderLost)?;
            stream.next = tools.read_ahead(reader, sample.shard, None);
        }
    }
}

impl StreamTools {
    /// The record of `sample`, by reads of its own on this thread.
    pub(crate) fn read_one(&self, sample: Sample) -> Result<RawRecord, LoadError> {
        let chunk_bytes = self.chunk_bytes.min(ONE_RECORD_BYTES);
        let (mut reader, skip) = Self { chunk_bytes, ..self.clone() }.reader_at(sample);
        let read = || self.read(&mut reader, Some(skip));
        let Some(current) = self.counters.meter.chunk(sample.shard, read)? else {
            return Err(self.ended(sample));
        };
        let Some(&RecordSpan { start, len, offset }) = current.records.first() else {
            return Err(self.ended(sample));
        };
        Ok(RawRecord { sample, offset, chunk: current.chunk, start, len })
    }

    fn start(&self, sample: Sample) -> Stream {
        let (reader, skip) = self.reader_at(sample);
        Stream { current: None, next: self.read_ahead(reader, sample.shard, Some(skip)) }
    }

    /// A reader of a sample's shard, and what it has to pass over to come to it.
    fn reader_at(&self, sample: Sample) -> (Reader, (u64, Compression)) {
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
            // One byte more than there is, so that the end is seen with the last record.
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
        mut reader: Reader,
        shard: u32,
        skip: Option<(u64, Compression)>,
    ) -> Receiver<Ahead> {
        let (sender, receiver) = bounded(1);
        let tools = self.clone();
        self.io.spawn(move || {
            let meter = &tools.counters.meter;
            let chunk = meter.chunk(shard, || tools.read(&mut reader, skip));
            // Nobody waits for it any more when the loader moved elsewhere.
            let _ = sender.send(Ahead { reader: Some(reader), chunk });
        });
        receiver
    }

    /// The chunk that was read ahead; only waiting for it is looked at the clock for.
    fn receive(&self, next: &Receiver<Ahead>) -> Result<Ahead, LoadError> {
        match next.try_recv() {
            Ok(ahead) => Ok(ahead),
            Err(TryRecvError::Empty) => self.counters.meter.read_wait(|| next.recv()),
            Err(TryRecvError::Disconnected) => Err(RecvError),
        }
        .map_err(|_| LoadError::ReaderLost)
    }

    fn read(
        &self,
        reader: &mut Reader,
        skip: Option<(u64, Compression)>,
    ) -> Result<Option<Current>, LoadError> {
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
        Ok(Some(Current { chunk: self.chunks.share(chunk.bytes), records, first_ordinal }))
    }

    /// The file ended before a record that its index has: it is not the file that was indexed.
    fn ended(&self, sample: Sample) -> LoadError {
        let file = &self.files.dataset().files()[sample.shard as usize];
        let found = crate::index::stamp(&file.path).ok();
        let file_name = self.files.name(sample.shard);
        LoadError::changed(file_name, file.stamp.clone(), found)
    }
}
