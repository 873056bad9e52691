//! `shardfeed dataset inspect`: shows the contents of a dataset.

mod unscanned;

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;
use shardfeed_plan::Digest;
use shardfeed_source::{Dataset, DatasetFile, LoadError, Sidecars, StoredFile};
use shardfeed_tfrecord::example::{DType, describe};
use shardfeed_tfrecord::{ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder};

use self::unscanned::Unscanned;
use crate::files::DatasetArgs;
use crate::listing::{self, Shown, column};
use crate::output::{self, Format, Report};
use crate::sidecar::{self, FaultReport};

const EXAMPLES: &str = "\
Examples:
  shardfeed dataset inspect 'train/*.tfrecord'
  shardfeed dataset inspect -o json 'train/*.tfrecord.gz' | jq .content_digest
  shardfeed dataset inspect --unscanned 'tensorflow_datasets/mnist/3.0.1/*.tfrecord*'";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    #[command(flatten)]
    dataset: DatasetArgs,
    /// Show all shards, not only the first 20
    #[arg(long)]
    all: bool,
    /// Do not scan; take the numbers of records from .idx files of tfrecord2idx and TFDS's
    /// dataset_info.json beside the shards, if there are any
    #[arg(long)]
    unscanned: bool,
}

/// Result of `dataset inspect`.
#[derive(Debug, Serialize)]
struct Inspection {
    /// Folder that the shards' paths are relative to.
    root: String,
    shard_count: usize,
    records: u64,
    /// Total size of the files, bytes.
    stored_bytes: u64,
    /// Total size of all records, bytes, uncompressed, without framing.
    data_bytes: u64,
    /// Hash of the record lengths and checksums; moving or touching files does not change it.
    content_digest: Digest,
    /// Compression of the files, or `mixed`.
    compression: String,
    /// Shards in manifest order: a shard's position is its ordinal.
    shards: Vec<ShardFileReport>,
    /// First record of the first shard that has one; `null` if none has, or if it is damaged.
    first_record: Option<FirstRecord>,
    /// Wrong or damaged information in files beside the shards.
    sidecar_faults: Vec<FaultReport>,
    #[serde(skip)]
    all: bool,
}

/// A shard.
#[derive(Debug, Serialize)]
struct ShardFileReport {
    path: String,
    records: u64,
    stored_bytes: u64,
    data_bytes: u64,
    /// Size of the largest record, bytes.
    record_bytes_max: u64,
    compression: Compression,
    digest: Digest,
}

/// A sample record.
#[derive(Debug, Serialize)]
struct FirstRecord {
    shard: String,
    bytes: usize,
    /// Features in the record's order; `null` if it is not an Example.
    features: Option<Vec<RecordFeatureReport>>,
}

/// A feature of a record.
#[derive(Debug, Serialize)]
struct RecordFeatureReport {
    name: String,
    /// `null`: the feature exists without a value.
    dtype: Option<DType>,
    /// Number of values.
    count: usize,
    /// Total size of all values, bytes.
    bytes: usize,
}

pub fn run(args: &InspectArgs, format: Format) -> anyhow::Result<()> {
    if args.unscanned {
        return Ok(format.print(&Unscanned::new(&args.dataset.discover()?, args.all)?)?);
    }
    let dataset = args.dataset.open()?;
    let mut inspection = inspect(&dataset, args.all)?;
    // The other results are shown even if the first record turns out to be damaged.
    let damage = match first_record(&dataset) {
        Ok(first) => {
            inspection.first_record = first;
            None
        }
        Err(error) => Some(error),
    };
    format.print(&inspection)?;
    damage.map_or(Ok(()), |error| Err(error.into()))
}

fn inspect(dataset: &Dataset, all: bool) -> anyhow::Result<Inspection> {
    let shards = dataset.manifest().shards().iter().zip(dataset.files());
    let shards: Vec<_> = shards
        .map(|(shard, file)| ShardFileReport {
            path: shard.path.clone(),
            records: shard.records,
            stored_bytes: file.stamp.size_bytes,
            data_bytes: file.data_bytes,
            record_bytes_max: file.record_bytes_max,
            compression: file.compression,
            digest: shard.digest,
        })
        .collect();
    Ok(Inspection {
        root: dataset.root().display().to_string(),
        shard_count: shards.len(),
        records: dataset.manifest().records(),
        stored_bytes: shards.iter().map(|shard| shard.stored_bytes).sum(),
        data_bytes: shards.iter().map(|shard| shard.data_bytes).sum(),
        content_digest: dataset.manifest().digest(),
        compression: compression_of(dataset.files()),
        shards,
        first_record: None,
        sidecar_faults: sidecar_faults(dataset)?,
        all,
    })
}

fn sidecar_faults(dataset: &Dataset) -> anyhow::Result<Vec<FaultReport>> {
    let shards = dataset.manifest().shards();
    let paths: Vec<_> = shards.iter().map(|shard| shard.path.clone()).collect();
    let sidecars = Sidecars::beside(dataset.root(), &paths, &mut |_| true)?;
    let records: Vec<_> = shards.iter().map(|shard| Some(shard.records)).collect();
    Ok(sidecar::faults(&sidecars, &paths, &records))
}

fn compression_of(files: &[DatasetFile]) -> String {
    let first = files.first().map(|file| file.compression);
    match first {
        Some(first) if files.iter().all(|file| file.compression == first) => first.to_string(),
        Some(_) => "mixed".into(),
        None => Compression::None.to_string(),
    }
}

fn first_record(dataset: &Dataset) -> Result<Option<FirstRecord>, LoadError> {
    let shards = dataset.manifest().shards();
    let Some(index) = shards.iter().position(|shard| shard.records > 0) else {
        return Ok(None);
    };
    let file = &dataset.files()[index];
    read_first(file, &shards[index].path)
}

fn read_first(file: &DatasetFile, shard: &str) -> Result<Option<FirstRecord>, LoadError> {
    let name = file.path.display().to_string();
    let stored = StoredFile::open(&file.path, Some(&file.stamp))?;
    let source = Decoder::new(stored, CompressionChoice::Fixed(file.compression))
        .expect("a fixed choice reads nothing yet");
    let chunk = ChunkReader::new(source, name, ChunkOptions::default()).next_chunk()?;
    Ok(chunk.map(|chunk| FirstRecord {
        shard: shard.to_owned(),
        bytes: chunk.data(0).len(),
        features: describe(chunk.data(0)).map(|features| {
            let report = features.into_iter().map(|feature| RecordFeatureReport {
                name: feature.name,
                dtype: feature.dtype,
                count: feature.count,
                bytes: feature.data_bytes,
            });
            report.collect()
        }),
    }))
}

impl Report for Inspection {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        output::write_facts(
            out,
            &[
                ("root", self.root.clone()),
                ("shards", output::count(self.shard_count as u64)),
                ("records", output::count(self.records)),
                ("stored", output::bytes(self.stored_bytes)),
                ("record data", output::bytes(self.data_bytes)),
                ("compression", self.compression.clone()),
                ("content digest", self.content_digest.to_string()),
            ],
        )?;
        let columns = [
            column("SHARD", |shard: &ShardFileReport| shard.path.clone()),
            column(">RECORDS", |shard| shard.records.to_string()),
            column(">STORED BYTES", |shard| shard.stored_bytes.to_string()),
            column("COMPRESSION", |shard| shard.compression.to_string()),
        ];
        writeln!(out)?;
        listing::write(
            out,
            "shards",
            &self.shards,
            &columns,
            Shown { is_wide: false, all: self.all },
        )?;
        if let Some(first) = &self.first_record {
            first.write(out)?;
        }
        sidecar::write_faults(out, &self.sidecar_faults)
    }
}

impl FirstRecord {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let shard = output::printable(&self.shard);
        let size = output::bytes(self.bytes as u64);
        write!(out, "\nfirst record, {size}, of {shard}: ")?;
        let features = match &self.features {
            None => return writeln!(out, "not an Example"),
            Some(features) if features.is_empty() => {
                return writeln!(out, "an Example without features");
            }
            Some(features) => features,
        };
        writeln!(out, "an Example\n")?;
        let columns = [
            column("FEATURE", |feature: &RecordFeatureReport| feature.name.clone()),
            column("DTYPE", |feature| feature.dtype.map_or("-".into(), |dtype| dtype.to_string())),
            column(">COUNT", |feature| feature.count.to_string()),
            column(">BYTES", |feature| feature.bytes.to_string()),
        ];
        listing::write(out, "features", features, &columns, Shown { is_wide: false, all: true })
    }
}
