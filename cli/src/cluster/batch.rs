//! `shardfeed batch show --job`: shows the records of a job's batch, as computed by its
//! coordinator.

use std::io::{self, Write};

use serde::Serialize;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_proto::coordinator::v1::get_batch_response::Row;

use super::{ClusterArgs, epoch, job};
use crate::output::words::yes;
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
    /// True if all ranks left out the step, so that no rank got these samples.
    left_out: bool,
    samples: Vec<RankSampleReport>,
}

/// A row of a rank's batch.
#[derive(Debug, Serialize)]
struct RankSampleReport {
    #[serde(flatten)]
    sample: Row,
    /// Number of the row in the rank's batch.
    row: u64,
}

pub(crate) fn show(of: &BatchOf<'_>, cluster: &ClusterArgs, format: Format) -> anyhow::Result<()> {
    let client = cluster.client()?;
    let &BatchOf { job, step, rank, .. } = of;
    let epoch = match of.epoch {
        Some(epoch) => epoch,
        None => epoch::current(&client, job)?.epoch,
    };
    let request = wire::GetBatchRequest { context: None, job: job.to_owned(), epoch, step, rank };
    let answer = job::ask(&client, job, request)?;
    let wire::GetBatchResponse { generation, world_size, rows, left_out } = answer;
    let (job, samples) = (job.to_owned(), samples(rows));
    let report =
        RecordedBatchReport { job, epoch, generation, step, rank, world_size, left_out, samples };
    Ok(format.print(&report)?)
}

/// Numbers the rows of each rank; rows are sorted by rank.
fn samples(rows: Vec<Row>) -> Vec<RankSampleReport> {
    let mut samples: Vec<RankSampleReport> = Vec::with_capacity(rows.len());
    for sample in rows {
        let before = samples.last().filter(|before| before.sample.rank == sample.rank);
        samples.push(RankSampleReport { row: before.map_or(0, |before| before.row + 1), sample });
    }
    samples
}

impl Report for RecordedBatchReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let mut grid = Grid::new(&[">RANK", ">ROW", "SHARD", ">ORDINAL", "VALID"]);
        for RankSampleReport { sample: Row { rank, path, ordinal, valid, .. }, row } in
            &self.samples
        {
            let (rank, row, ordinal) = (rank.to_string(), row.to_string(), ordinal.to_string());
            grid.row([rank, row, path.clone(), ordinal, yes(*valid)]);
        }
        if self.left_out {
            let Self { step, epoch, .. } = self;
            writeln!(
                out,
                "All ranks left out step {step} of epoch {epoch}: no rank got these samples.\n"
            )?;
        }
        write!(out, "{grid}")
    }
}
