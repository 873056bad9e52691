//! `shardfeed batch`: the records of a batch, and the batches of a record.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde::Serialize;
use shardfeed_dataset_tools::files::SampledArgs;
use shardfeed_dataset_tools::samples::shard_name;
use shardfeed_embedded::{BatchParts, RowPart};
use shardfeed_plan::Planned;

use super::find::FindReport;
use super::record_ref::RecordRef;
use super::{Order, OrderArgs};
use crate::cluster::ClusterArgs;
use crate::cluster::batch::{BatchOf, show as show_of_job};
use crate::error::Problem;
use crate::output::words::yes;
use crate::output::{Format, Grid, Report};

/// Maximum number of rows of a batch: bounds the memory of a table.
const ROWS_MAX: u64 = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  shardfeed batch show --step 120 --rank 3 --batch-size 32 --world-size 8 'train/*.tfrecord'
  shardfeed batch show --step 0 --state checkpoint/loader.json 'train/*.tfrecord'
  shardfeed batch show --step 0 --source train.py:packs
  shardfeed batch show --job resnet --epoch 2 --step 120
  shardfeed batch show --find train-00003.tfrecord:17 --batch-size 32 'train/*.tfrecord'
  shardfeed batch show --find train-00003.tfrecord:17 --source train.py:packs";

#[derive(Debug, Subcommand)]
pub(crate) enum BatchCommand {
    Show(BatchShowArgs),
}

/// Show the records of a batch, or the batches of a record (--find)
///
/// The answer is computed, not logged: it holds for every run of this order, including future
/// steps. Ranks are those of --world-size, even for steps before a state that other ranks consumed.
/// With --job the coordinator answers, for the order and the ranks of that job.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("files", |files| files.required_unless_present("job")))]
pub(crate) struct BatchShowArgs {
    /// Step of the epoch, from 0
    #[arg(long, required_unless_present = "find")]
    step: Option<u64>,
    /// Rank, from 0 [default: 0, or with --job all]
    #[arg(long)]
    rank: Option<u64>,
    /// Show a batch of this job of the cluster, with its files and order
    #[arg(long, conflicts_with_all = OF_FILES)]
    job: Option<String>,
    /// Show the batches of this record: a shard's path (in a mixture SOURCE:PATH) and the record's
    /// number in it, from 0
    #[arg(long, value_name = "PATH:ORDINAL", conflicts_with_all = ["step", "rank"])]
    find: Option<RecordRef>,
    #[command(flatten)]
    dataset: SampledArgs,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Options that a job determines.
const OF_FILES: [&str; 17] = [
    "files",
    "source",
    "corrupt",
    "compression",
    "no_cache",
    "find",
    "seed",
    "no_shuffle",
    "shuffle_window",
    "interleave",
    "block_length",
    "lanes",
    "batch_size",
    "world_size",
    "tail",
    "limit",
    "state",
];

#[derive(Debug, Serialize)]
struct BatchReport {
    epoch: u64,
    step: u64,
    rank: u64,
    world_size: u64,
    /// Samples in the batch's order.
    samples: Vec<SampleReport>,
}

#[derive(Debug, Serialize)]
struct SampleReport {
    /// Number of the row in the batch.
    row: usize,
    shard: String,
    /// Number of the sample in its shard; without a source, of the record.
    ordinal: u64,
    /// Parts of records that the row consists of; `null` if each record is a sample.
    parts: Option<Vec<PartReport>>,
    /// `false` for padding, which repeats a sample.
    valid: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct PartReport {
    /// Number of the record in its shard.
    pub(crate) record: u64,
    /// Row of the record; 0 if the record has no rows.
    pub(crate) record_row: u64,
    /// First token of the record or row; 0 without tokens.
    pub(crate) first: u64,
    /// Number of tokens, with an appended one; 1 without tokens.
    pub(crate) count: u64,
}

impl BatchCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        let Self::Show(args) = self;
        if let Some(job) = &args.job {
            let step = args.step.unwrap_or_default();
            let of = BatchOf { job, epoch: args.order.epoch, step, rank: args.rank };
            return show_of_job(&of, &args.cluster, format);
        }
        let rank = args.rank.unwrap_or(0);
        let order = args.order.order(&args.dataset, rank)?;
        if let Some(record) = &args.find {
            let record = record.find(&order)?;
            return Ok(format.print(&FindReport::new(&order, record)?)?);
        }
        // clap ensures that there is a step.
        let step = args.step.unwrap_or_default();
        Ok(format.print(&batch(&order, step, rank)?)?)
    }
}

fn batch(order: &Order, step: u64, rank: u64) -> anyhow::Result<BatchReport> {
    let plan = &order.plan;
    check_rows(order)?;
    let rows = order.batch(step, rank)?;
    let mut parts = parts(order, &rows);
    let samples = rows.iter().enumerate().map(|(row, planned)| SampleReport {
        row,
        shard: shard_name(&order.dataset, planned.sample.shard),
        ordinal: planned.sample.ordinal,
        parts: parts.as_mut().map(|parts| std::mem::take(&mut parts[row])),
        valid: planned.valid,
    });
    let (epoch, world_size, samples) = (plan.epoch(), plan.world_size(), samples.collect());
    Ok(BatchReport { epoch, step, rank, world_size, samples })
}

/// Returns the parts of the records of each row; `None`: each record is a sample.
fn parts(order: &Order, rows: &[Planned]) -> Option<Vec<Vec<PartReport>>> {
    order.dataset.samples()?;
    let epoch = (order.plan.epoch(), order.plan.shuffle().enabled);
    let mut parts: Vec<_> = rows.iter().map(|_| vec![]).collect();
    for part in BatchParts::new(rows, epoch, &order.contents).list() {
        let RowPart { row, record, record_row, first, count, .. } = part;
        parts[row as usize].push(PartReport { record, record_row, first, count });
    }
    Some(parts)
}

fn check_rows(order: &Order) -> Result<(), Problem> {
    let batches = order.cursor.segments().iter().map(|segment| segment.global_batch);
    let rows = batches.max().unwrap_or(0) / order.plan.world_size();
    if rows <= ROWS_MAX {
        return Ok(());
    }
    let what = format!("a batch of {rows} rows is too large to show");
    let hint = format!("show a part: with a larger --world-size a rank has {ROWS_MAX} at most");
    Err(Problem::usage(what).hint(hint))
}

/// Writes the rows of a batch: a line for each, or for each part of its records.
/// - `before`: headings of the first columns.
/// - `rows`: cells of these columns, parts, and true if the row is no padding.
pub(crate) fn write_rows<'a>(
    out: &mut dyn Write,
    before: &[&str],
    rows: impl Iterator<Item = (Vec<String>, &'a Option<Vec<PartReport>>, bool)> + Clone,
) -> io::Result<()> {
    let are_records = rows.clone().all(|(_, parts, _)| parts.is_none());
    let more: &[&str] = match are_records {
        true => &[">ORDINAL", "VALID"],
        false => &[">SAMPLE", ">RECORD", ">RECORD ROW", ">FIRST", ">COUNT", "VALID"],
    };
    let mut grid = Grid::new(&[before, more].concat());
    for (before, parts, valid) in rows {
        if are_records {
            grid.row(before.into_iter().chain([yes(valid)]));
            continue;
        }
        for PartReport { record, record_row, first, count } in parts.iter().flatten() {
            let part = [record, record_row, first, count].map(u64::to_string);
            grid.row(before.iter().cloned().chain(part).chain([yes(valid)]));
        }
    }
    write!(out, "{grid}")
}

impl Report for BatchReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let rows = self.samples.iter().map(|SampleReport { row, shard, ordinal, parts, valid }| {
            (vec![row.to_string(), shard.clone(), ordinal.to_string()], parts, *valid)
        });
        write_rows(out, &[">ROW", "SHARD"], rows)
    }
}
