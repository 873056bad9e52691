//! `shardfeed dataset stats`: shows the contents of records, and how to improve the files.

mod advice;
mod labels;
mod numbers;
mod report;
mod sizes;
mod tally;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use indicatif::ProgressBar;
use rayon::prelude::*;
use shardfeed_client::open_dataset;
use shardfeed_source::{Dataset, DatasetFile, LoadError, SampleMaps, StoredFile};
use shardfeed_tfrecord::{
    ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder, FOOTER_BYTES, HEADER_BYTES,
    RecordWriter,
};

use self::advice::{Facts, findings};
use self::report::Stats;
use self::tally::{CompressionSample, ShardFacts, Tally};
use crate::files::{FilesArgs, InputFile};
use crate::output::Format;
use crate::progress::{self, Counted};
use crate::samples::{CountedReport, shard_name};
use crate::source::{SourceArgs, SourceSpec};

type Result<T, E = LoadError> = std::result::Result<T, E>;

const EXAMPLES: &str = "\
Examples:
  shardfeed dataset stats 'train/*.tfrecord'
  shardfeed dataset stats --source train.py:packs
  shardfeed dataset stats --world-size 64 's3://bucket/train/*.tfrecord'
  shardfeed dataset stats -o json 'train/*' | jq '.features[] | {name, dtype, suggested}'";

/// Bytes of records after which a thread merges its tally into the shared one.
const TALLIED_BYTES: u64 = 16 << 20;

/// Maximum shards from which records are compressed to measure the gain, and bytes from each.
const SAMPLE: (usize, u64) = (32, 64 << 10);

/// Read every record; report features and possible improvements
///
/// Of each feature: its type, in how many records it is, how many values it has there, the range of
/// its numbers or lengths, and how many different values there are, up to 4,096 of at most 64
/// bytes. Records that are no tf.train.Example are counted. With --source features and sizes are of
/// the records that pass its filter, before its other methods. Sizes are of records without
/// framing; p50 and p99 are up to 1/128 too high. Every checksum is checked; a damaged record is an
/// error.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("files", |files| files.required(false).required_unless_present("source")))]
pub struct StatsArgs {
    #[command(flatten)]
    files: FilesArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// Also report numbers too low for this many ranks
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..))]
    world_size: Option<u32>,
    /// Show all features and their values, not only the first 20
    #[arg(long)]
    all: bool,
}

pub fn run(args: &StatsArgs, format: Format) -> anyhow::Result<()> {
    let source = args.source.spec()?;
    let open = |source: SourceSpec| -> anyhow::Result<Dataset> {
        let dataset = open_dataset(&source.options, &mut progress::of_scan())?;
        source.check_records(&dataset)?;
        Ok(dataset)
    };
    let dataset = source.map(open).transpose()?;
    let (root, files) = match &dataset {
        Some(dataset) => (dataset.root().to_owned(), Input::of_dataset(dataset)),
        None => Input::of_files(&args.files)?,
    };
    let (shards, tally) = Reading::new(&files, dataset.as_ref()).read_all()?;
    let facts = Facts { shards: &shards, tally: &tally, world_size: args.world_size };
    let findings = findings(&facts);
    let counted = dataset.as_ref().and_then(CountedReport::of);
    let stats = Stats::new(&root, &shards, tally, counted, findings, args.all);
    Ok(format.print(&stats)?)
}

struct Input {
    file: InputFile,
    compression: CompressionChoice,
}

impl Input {
    fn of_files(args: &FilesArgs) -> Result<(PathBuf, Vec<Self>)> {
        let found = args.discover()?;
        let input = |file| Self { file, compression: args.compression };
        let files = InputFile::of(&found).into_iter().map(input).collect();
        Ok((found.root, files))
    }

    fn of_dataset(dataset: &Dataset) -> Vec<Self> {
        let input = |(shard, file): (u32, &DatasetFile)| Self {
            file: InputFile {
                name: shard_name(dataset, shard),
                path: file.path.clone(),
                stamp: Some(file.stamp.clone()),
            },
            compression: CompressionChoice::Fixed(file.compression),
        };
        (0..).zip(dataset.files()).map(input).collect()
    }
}

/// Data shared by the reading threads.
struct Reading<'a> {
    files: &'a [Input],
    /// Samples of a source: only records that pass its filter are examined.
    samples: Option<&'a SampleMaps>,
    bar: ProgressBar,
    tally: Mutex<Tally>,
    /// Index of the first file known to be damaged: files after it need not be read.
    failed: AtomicUsize,
}

impl<'a> Reading<'a> {
    fn new(files: &'a [Input], dataset: Option<&'a Dataset>) -> Self {
        let bytes = files.iter().map(|input| input.file.size_bytes()).sum();
        Self {
            files,
            samples: dataset.and_then(|dataset| dataset.samples().map(|maps| &**maps)),
            bar: progress::bytes_bar("reading", bytes),
            tally: Mutex::default(),
            failed: AtomicUsize::new(usize::MAX),
        }
    }

    /// Reads all files in parallel.
    ///
    /// # Errors
    /// A file cannot be read, or has a damaged record.
    fn read_all(self) -> Result<(Vec<ShardFacts>, Tally)> {
        let every = self.files.len().div_ceil(SAMPLE.0);
        let read = self.files.par_iter().enumerate().map(|(index, file)| {
            let read = self.read(index, file, index % every == 0);
            if read.is_err() {
                self.failed.fetch_min(index, Ordering::Relaxed);
            }
            read
        });
        let read: Vec<_> = read.collect();
        self.bar.finish_and_clear();
        // If several files are damaged, the first one is reported.
        let shards: Vec<Option<_>> = read.into_iter().collect::<Result<_, _>>()?;
        let shards = shards.into_iter().flatten().collect();
        Ok((shards, self.tally.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Reads a file; `None` if an earlier file failed meanwhile.
    fn read(&self, index: usize, input: &Input, is_sampled: bool) -> Result<Option<ShardFacts>> {
        let InputFile { name: label, path, stamp } = &input.file;
        let file = StoredFile::open(path, stamp.as_ref())?;
        let stored_bytes = file.size_bytes;
        let name = path.display().to_string();
        let map = self.samples.map(|maps| maps.of(index as u32));
        let takes = |record: u64| map.as_ref().is_none_or(|map| map.takes(record));
        let source = Decoder::new(Counted { file, bar: &self.bar }, input.compression)
            .map_err(|source| LoadError::Io { file: name.clone(), source })?;
        let compression = source.compression();
        let mut sample = Sample::new(is_sampled && compression == Compression::None);
        let mut chunks = ChunkReader::new(source, name, ChunkOptions::default());
        let (mut records, mut data_bytes) = (0, 0);
        let (mut tally, mut tallied_bytes) = (Tally::default(), 0);
        while let Some(chunk) = chunks.next_chunk()? {
            if self.failed.load(Ordering::Relaxed) < index {
                return Ok(None);
            }
            for (ordinal, record) in (chunk.first_ordinal..).zip(chunk.iter()) {
                if takes(ordinal) {
                    tally.add(record);
                }
                sample.add(record);
                tallied_bytes += record.len() as u64;
            }
            records += chunk.records.len() as u64;
            chunks.recycle(chunk.bytes);
            if tallied_bytes >= TALLIED_BYTES {
                data_bytes += std::mem::take(&mut tallied_bytes);
                self.put(std::mem::take(&mut tally));
            }
        }
        data_bytes += tallied_bytes;
        self.put(tally);
        Ok(Some(ShardFacts {
            path: label.clone(),
            records,
            stored_bytes,
            stream_bytes: data_bytes + records * (HEADER_BYTES + FOOTER_BYTES) as u64,
            compression,
            sampled: sample.finish(),
        }))
    }

    fn put(&self, tally: Tally) {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).merge(tally);
    }
}

/// A compressed sample of a file's records.
struct Sample {
    writer: Option<RecordWriter<Vec<u8>>>,
}

impl Sample {
    fn new(is_wanted: bool) -> Self {
        Self { writer: is_wanted.then(|| RecordWriter::new(Vec::new(), Compression::Gzip)) }
    }

    fn add(&mut self, record: &[u8]) {
        // The beginning of a large record is sufficient.
        let record = &record[..record.len().min(SAMPLE.1 as usize)];
        if let Some(writer) = &mut self.writer
            && writer.bytes() < SAMPLE.1
        {
            writer.write(record).expect("memory takes all");
        }
    }

    fn finish(self) -> Option<CompressionSample> {
        let writer = self.writer?;
        let raw_bytes = writer.bytes();
        let compressed = writer.finish().expect("memory takes all");
        Some(CompressionSample { raw_bytes, compressed_bytes: compressed.len() as u64 })
    }
}
