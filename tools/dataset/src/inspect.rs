//! `shardfeed dataset inspect`: shows the contents of a dataset.

mod unscanned;

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use clap::Args;
use serde::Serialize;
use shardfeed_plan::{Digest, Shard};
use shardfeed_source::{Dataset, DatasetFile, LoadError, Sidecars, SourceVersion, StoredFile};
use shardfeed_tfrecord::example::{DType, FoundFeature, features_of};
use shardfeed_tfrecord::{ChunkOptions, ChunkReader, Compression, CompressionChoice, Decoder};

use self::unscanned::Unscanned;
use crate::files::SampledArgs;
use crate::listing::{self, Column, Shown, column};
use crate::output::{self, Format, Report};
use crate::samples::{CountedReport, shard_name};
use crate::sidecar::{self, FaultReport};

const EXAMPLES: &str = "\
Examples:
  shardfeed dataset inspect 'train/*.tfrecord'
  shardfeed dataset inspect --source train.py:packs
  shardfeed dataset inspect -o json 'train/*.tfrecord.gz' | jq .content_digest
  shardfeed dataset inspect --unscanned 'tensorflow_datasets/mnist/3.0.1/*.tfrecord*'";

/// Show a dataset's shards, records, sizes, digest and features
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    #[command(flatten)]
    dataset: SampledArgs,
    /// Show all shards, not only the first 20
    #[arg(long)]
    all: bool,
    /// Do not scan; take the numbers of records from .idx files of tfrecord2idx and TFDS's
    /// dataset_info.json beside the shards, if there are any
    #[arg(long, conflicts_with = "source")]
    unscanned: bool,
}

#[derive(Debug, Serialize)]
struct Inspection {
    root: String,
    shard_count: usize,
    records: u64,
    stored_bytes: u64,
    data_bytes: u64,
    /// Hash of the record lengths and checksums; moving or touching files does not change it.
    content_digest: Digest,
    /// Compression of the files, or `mixed`.
    compression: String,
    /// Shards in manifest order: a shard's position is its ordinal.
    shards: Vec<ShardFileReport>,
    /// Samples that a source makes of the records; `null`: each record is one.
    sampled: Option<SampledReport>,
    /// Sources of a mixture, in the order of their shards; otherwise empty.
    sources: Vec<SourceReport>,
    /// First record of the first shard that has one; `null` if none has, or if it is damaged.
    first_record: Option<FirstRecord>,
    /// Wrong or damaged information in files beside the shards.
    sidecar_faults: Vec<FaultReport>,
    #[serde(skip)]
    all: bool,
}

#[derive(Debug, Serialize)]
struct ShardFileReport {
    path: String,
    records: u64,
    /// Samples that the source makes of them.
    samples: u64,
    stored_bytes: u64,
    data_bytes: u64,
    /// Size of the largest record, bytes.
    record_bytes_max: u64,
    compression: Compression,
    /// Hash of its record lengths and checksums.
    digest: Digest,
}

#[derive(Debug, Serialize)]
struct SampledReport {
    #[serde(flatten)]
    counted: CountedReport,
    /// Hash of the samples, part of a job's identity; `null` for a mixture: each source has one.
    samples_digest: Option<Digest>,
    /// Mean bytes of a sample's record. Of packs and windows: of the records that they are read as.
    sample_bytes_mean: u64,
    /// Bytes of the sample maps as they are kept.
    map_bytes: u64,
}

#[derive(Debug, Serialize)]
struct SourceReport {
    name: String,
    root: String,
    shards: u64,
    records: u64,
    /// Samples of one pass over the source.
    samples: u64,
    /// Hash of its samples.
    samples_digest: Digest,
}

/// A sample record.
#[derive(Debug, Serialize)]
struct FirstRecord {
    shard: String,
    /// Size of the record, bytes.
    bytes: usize,
    /// Features in the record's order; `null` if it is not an Example.
    features: Option<Vec<RecordFeatureReport>>,
}

#[derive(Debug, Serialize)]
struct RecordFeatureReport {
    name: String,
    /// Type of the values; `null`: the feature exists without a value.
    dtype: Option<DType>,
    /// Number of values.
    count: usize,
    /// Total size of the values, bytes.
    bytes: usize,
}

pub fn run(args: &InspectArgs, format: Format) -> anyhow::Result<()> {
    if args.unscanned {
        return Ok(format.print(&Unscanned::new(&args.dataset.discover()?, args.all)?)?);
    }
    let dataset = args.dataset.open()?.dataset;
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
    let counts = dataset.sample_counts();
    let shards: Vec<_> = (0..)
        .zip(shards)
        .map(|(ordinal, (shard, file))| ShardFileReport {
            path: shard_name(dataset, ordinal),
            records: shard.records,
            samples: counts[ordinal as usize],
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
        sampled: sampled(dataset),
        sources: sources(dataset),
        first_record: None,
        sidecar_faults: sidecar_faults(dataset)?,
        all,
    })
}

fn sampled(dataset: &Dataset) -> Option<SampledReport> {
    let maps = dataset.samples()?;
    Some(SampledReport {
        counted: CountedReport::of(dataset)?,
        samples_digest: dataset.mixed().is_none().then(|| dataset.content()),
        sample_bytes_mean: dataset.record_bytes_mean(),
        map_bytes: maps.maps().iter().map(|map| map.get().to_bytes().len() as u64).sum(),
    })
}

fn sources(dataset: &Dataset) -> Vec<SourceReport> {
    let report = |version: &SourceVersion| SourceReport {
        name: version.order.name().to_owned(),
        root: version.root.display().to_string(),
        shards: version.order.counts().len() as u64,
        records: shards_of(dataset, version).iter().map(|shard| shard.records).sum(),
        samples: version.order.samples(),
        samples_digest: version.content,
    };
    dataset.mixed().map_or(vec![], |mixed| mixed.versions.iter().map(report).collect())
}

fn shards_of<'a>(dataset: &'a Dataset, version: &SourceVersion) -> &'a [Shard] {
    let Range { start, end } = version.shards();
    &dataset.manifest().shards()[start as usize..end as usize]
}

fn sidecar_faults(dataset: &Dataset) -> anyhow::Result<Vec<FaultReport>> {
    let Some(mixed) = dataset.mixed() else {
        return faults_beside(dataset.root(), dataset.manifest().shards());
    };
    let mut faults = vec![];
    for version in &mixed.versions {
        faults.extend(faults_beside(&version.root, shards_of(dataset, version))?);
    }
    Ok(faults)
}

fn faults_beside(root: &Path, shards: &[Shard]) -> anyhow::Result<Vec<FaultReport>> {
    let paths: Vec<_> = shards.iter().map(|shard| shard.path.clone()).collect();
    let sidecars = Sidecars::beside(root, &paths, &mut |_| true)?;
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
    read_first(file, &shard_name(dataset, index as u32))
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
        features: features_of(chunk.data(0)).map(|features| {
            let report = |FoundFeature { name, values }| RecordFeatureReport {
                name: String::from_utf8_lossy(name).into_owned(),
                dtype: values.map(|list| list.dtype()),
                count: values.map_or(0, |list| list.count()),
                bytes: values.map_or(0, |list| list.data_bytes()),
            };
            features.into_iter().map(report).collect()
        }),
    }))
}

impl Report for Inspection {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let facts = [
            ("root", self.root.clone()),
            ("shards", output::count(self.shard_count as u64)),
            ("records", output::count(self.records)),
            ("stored", output::bytes(self.stored_bytes)),
            ("record data", output::bytes(self.data_bytes)),
            ("compression", self.compression.clone()),
            ("content digest", self.content_digest.to_string()),
        ];
        output::write_facts(out, &facts)?;
        if let Some(sampled) = &self.sampled {
            sampled.write(out)?;
        }
        let shown = Shown { is_wide: false, all: self.all };
        if !self.sources.is_empty() {
            writeln!(out)?;
            listing::write(out, "sources", &self.sources, &source_columns(), shown)?;
        }
        let mut columns = vec![
            column("SHARD", |shard: &ShardFileReport| shard.path.clone()),
            column(">RECORDS", |shard| shard.records.to_string()),
        ];
        if self.sampled.is_some() {
            columns.push(column(">SAMPLES", |shard: &ShardFileReport| shard.samples.to_string()));
        }
        columns.extend([
            column(">STORED BYTES", |shard: &ShardFileReport| shard.stored_bytes.to_string()),
            column("COMPRESSION", |shard| shard.compression.to_string()),
        ]);
        writeln!(out)?;
        listing::write(out, "shards", &self.shards, &columns, shown)?;
        if let Some(first) = &self.first_record {
            first.write(out)?;
        }
        sidecar::write_faults(out, &self.sidecar_faults)
    }
}

impl SampledReport {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut facts = vec![("samples", output::count(self.counted.samples))];
        facts.extend(self.counted.facts().into_iter().filter(|(name, _)| *name != "records"));
        facts.extend([
            ("bytes per sample", output::count(self.sample_bytes_mean)),
            ("sample maps", output::bytes(self.map_bytes)),
        ]);
        if let Some(digest) = self.samples_digest {
            facts.push(("samples digest", digest.to_string()));
        }
        writeln!(out)?;
        output::write_facts(out, &facts)
    }
}

fn source_columns() -> [Column<SourceReport>; 5] {
    [
        column("SOURCE", |source: &SourceReport| source.name.clone()),
        column(">SHARDS", |source| source.shards.to_string()),
        column(">RECORDS", |source| output::count(source.records)),
        column(">SAMPLES", |source| output::count(source.samples)),
        column("ROOT", |source| source.root.clone()),
    ]
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
