//! `shardfeed batch show --job`: shows the records of a job's batch, as computed by its
//! coordinator.

mod balanced;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::iter::repeat_with;

use anyhow::Context;
use serde::Serialize;
use shardfeed_agent::maps_of_shards;
use shardfeed_embedded::RecordParts;
use shardfeed_plan::Sample;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::get_batch_response::Row;
use shardfeed_source::SamplePart;

use super::{Client, ClusterArgs, epoch, job};
use crate::order::batch::{PartReport, write_rows};
use crate::output::{Format, Report};

#[derive(Debug)]
pub(crate) struct BatchOf<'a> {
    pub(crate) job: &'a str,
    /// `None`: the epoch of the slowest rank.
    pub(crate) epoch: Option<u64>,
    pub(crate) step: u64,
    /// `None`: all ranks.
    pub(crate) rank: Option<u64>,
}

/// A batch of one rank or of all ranks.
#[derive(Debug, Serialize)]
struct RecordedBatchReport {
    job: String,
    epoch: u64,
    generation: u64,
    step: u64,
    /// Requested rank; `null`: all ranks.
    rank: Option<u64>,
    world_size: u64,
    /// True if all ranks left out the step (`loader.skip()`), so that no rank got these samples.
    left_out: bool,
    /// Samples in the order of ranks and rows.
    samples: Vec<RankSampleReport>,
}

/// A row of a rank's batch.
#[derive(Debug, Serialize)]
struct RankSampleReport {
    #[serde(flatten)]
    sample: Row,
    /// Number of the row in the rank's batch.
    row: u64,
    /// Parts of records that the row consists of; `null` if each record is a sample, or if the
    /// coordinators do not hold the sample maps.
    parts: Option<Vec<PartReport>>,
}

pub(crate) fn show(of: &BatchOf<'_>, cluster: &ClusterArgs, format: Format) -> anyhow::Result<()> {
    let client = cluster.client()?;
    let &BatchOf { job, step, rank, .. } = of;
    let epoch = match of.epoch {
        Some(epoch) => epoch,
        None => epoch::current(&client, job)?.epoch,
    };
    let request = wire::GetBatchRequest {
        context: None,
        job: job.to_owned(),
        epoch,
        step,
        rank,
        accepts_order: true,
    };
    let mut answer = job::ask(&client, job, request)?;
    if let Some(order) = answer.order.take() {
        answer.rows = balanced::rows(&client, (epoch, step, rank), &answer, order)?;
    }
    let parts = parts(&client, &answer)?;
    let wire::GetBatchResponse { generation, world_size, rows, left_out, .. } = answer;
    let (job, samples) = (job.to_owned(), samples(rows, parts));
    let report =
        RecordedBatchReport { job, epoch, generation, step, rank, world_size, left_out, samples };
    Ok(format.print(&report)?)
}

/// Returns the parts of the records of each row; `None`: each record is a sample, or the coordinators
/// do not hold the sample maps.
fn parts(
    client: &Client,
    answer: &wire::GetBatchResponse,
) -> anyhow::Result<Option<Vec<Vec<PartReport>>>> {
    let wire::GetBatchResponse { rows, datasets, shuffled, .. } = answer;
    let firsts: Vec<u64> = datasets.iter().map(|dataset| dataset.first_shard).collect();
    let dataset_of = |row: &Row| firsts.partition_point(|first| *first <= row.shard).checked_sub(1);
    // The rows of each dataset.
    let mut wanted = BTreeMap::<usize, Vec<usize>>::new();
    for (at, row) in rows.iter().enumerate() {
        wanted.entry(dataset_of(row).unwrap_or(0)).or_default().push(at);
    }
    let whole =
        |row: &Row| vec![PartReport { record: row.ordinal, record_row: 0, first: 0, count: 1 }];
    let mut parts: Vec<_> = rows.iter().map(whole).collect();
    let mut are_records = true;
    for (dataset, wanted) in wanted {
        let Some(wire::get_batch_response::Dataset { name, first_shard }) = datasets.get(dataset)
        else {
            // An earlier release names no datasets.
            return Ok(None);
        };
        let request = wire::GetDatasetRequest { context: None, name: name.clone() };
        let Some(known) = client.call(request)?.dataset.filter(|of| !of.program.is_empty()) else {
            continue;
        };
        are_records = false;
        let shards = wanted.iter().map(|at| rows[*at].shard - first_shard).collect();
        let get = |digest: &[u8]| Ok::<_, anyhow::Error>(client.chunk(digest)?);
        let Some((maps, places)) = maps_of_shards(&known, &shards, get)? else {
            tracing::warn!(
                "no records are shown: the sample maps of dataset {name} are in the index of the \
                 workers; `batch show --source` reads them there"
            );
            return Ok(None);
        };
        let mut found = RecordParts::new(*shuffled);
        for at in wanted {
            let Row { shard, ordinal, source_epoch, .. } = rows[at];
            let shard = places.get(&(shard - first_shard)).context("a shard has no sample map")?;
            let sample = Sample { shard: *shard, ordinal };
            let part = |of: &SamplePart| PartReport {
                record: of.record,
                record_row: of.row.into(),
                first: of.first,
                count: of.tokens,
            };
            parts[at] = found.of(sample, source_epoch, Some(&maps)).iter().map(part).collect();
        }
    }
    Ok((!are_records).then_some(parts))
}

/// Numbers the rows of each rank; rows are sorted by rank.
fn samples(rows: Vec<Row>, parts: Option<Vec<Vec<PartReport>>>) -> Vec<RankSampleReport> {
    let mut samples: Vec<RankSampleReport> = Vec::with_capacity(rows.len());
    let parts = parts.map_or_else(Vec::new, |parts| parts.into_iter().map(Some).collect());
    for (sample, parts) in rows.into_iter().zip(parts.into_iter().chain(repeat_with(|| None))) {
        let before = samples.last().filter(|before| before.sample.rank == sample.rank);
        let row = before.map_or(0, |before| before.row + 1);
        samples.push(RankSampleReport { sample, row, parts });
    }
    samples
}

impl Report for RecordedBatchReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        if self.left_out {
            let Self { step, epoch, .. } = self;
            writeln!(
                out,
                "All ranks left out step {step} of epoch {epoch}: no rank got these samples.\n"
            )?;
        }
        let rows = self.samples.iter().map(|RankSampleReport { sample, row, parts }| {
            let Row { rank, path, ordinal, valid, .. } = sample;
            let [rank, row, ordinal] = [rank, row, ordinal].map(u64::to_string);
            (vec![rank, row, path.clone(), ordinal], parts, *valid)
        });
        write_rows(out, &[">RANK", ">ROW", "SHARD"], rows)
    }
}
