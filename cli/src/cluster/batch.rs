//! `shardfeed batch show --job`: shows the records of a job's batch, as computed by its
//! coordinator.

use std::io::{self, Write};

use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;

use super::{ClusterArgs, epoch, job};
use crate::output::{Format, Grid, Report};

/// Identifies a batch.
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
    /// `null`: all ranks.
    rank: Option<u64>,
    world_size: u64,
    samples: Vec<RankSampleReport>,
}

/// A row of a rank's batch.
#[derive(Debug, Serialize)]
struct RankSampleReport {
    rank: u64,
    row: u64,
    shard: String,
    shard_ordinal: u64,
    /// Number of the record in its shard.
    ordinal: u64,
    /// `false` for padding, which repeats a sample.
    valid: bool,
}

/// Runs `batch show --job`.
pub(crate) fn show(of: &BatchOf<'_>, cluster: &ClusterArgs, format: Format) -> anyhow::Result<()> {
    let client = cluster.client()?;
    let &BatchOf { job, step, rank, .. } = of;
    let epoch = match of.epoch {
        Some(epoch) => epoch,
        None => epoch::current(&client, job)?.epoch,
    };
    let name = job.to_owned();
    let answer = client.call(|mut admin, context| async move {
        admin.get_batch(wire::GetBatchRequest { context, job: name, epoch, step, rank }).await
    });
    let answer = answer.map_err(|error| job::explain(&client, job, error))?;
    let wire::GetBatchResponse { generation, world_size, rows } = answer;
    let (job, samples) = (job.to_owned(), samples(rows));
    let report = RecordedBatchReport { job, epoch, generation, step, rank, world_size, samples };
    Ok(format.print(&report)?)
}

/// Numbers the rows of each rank; rows are sorted by rank.
fn samples(rows: Vec<wire::get_batch_response::Row>) -> Vec<RankSampleReport> {
    let mut samples: Vec<RankSampleReport> = Vec::with_capacity(rows.len());
    for row in rows {
        let before = samples.last().filter(|before| before.rank == row.rank);
        samples.push(RankSampleReport {
            rank: row.rank,
            row: before.map_or(0, |before| before.row + 1),
            shard: row.path,
            shard_ordinal: row.shard,
            ordinal: row.ordinal,
            valid: row.valid,
        });
    }
    samples
}

impl Report for RecordedBatchReport {
    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut grid = Grid::new(&[">RANK", ">ROW", "SHARD", ">ORDINAL", "VALID"]);
        for sample in &self.samples {
            grid.row([
                sample.rank.to_string(),
                sample.row.to_string(),
                sample.shard.clone(),
                sample.ordinal.to_string(),
                if sample.valid { "yes" } else { "no" }.into(),
            ]);
        }
        write!(out, "{grid}")
    }
}
