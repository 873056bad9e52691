//! `shardfeed plan`: shows the plan of an epoch.

use std::io::{self, Write};

use clap::Subcommand;
use serde::Serialize;
use shardfeed_dataset_tools::files::SampledArgs;
use shardfeed_dataset_tools::samples::{CountedReport, shard_name};
use shardfeed_embedded::SourceVersion;
use shardfeed_plan::{Digest, EpochPlan, ORDER_VERSION, PlanError, Portion, Sample, Tail};

use super::balance::BalanceReport;
use super::mixing::MixingReport;
use super::{Order, OrderArgs};
use crate::output::listing::{self, Column, Shown, column};
use crate::output::words::{number, yes};
use crate::output::{self, Format, Grid, Report};

/// Number of shards named for each lane.
const FIRST_SHARDS: usize = 3;

const EXAMPLES: &str = "\
Examples:
  shardfeed plan show --batch-size 32 --world-size 8 'train/*.tfrecord'
  shardfeed plan show -o json --epoch 3 --tail pad 'train/*.tfrecord' | jq .steps
  shardfeed plan show --source train.py:packs --batch-size 16 --world-size 8";

#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Show an epoch: samples, steps, dropped and padded samples, lanes
    #[command(after_help = EXAMPLES)]
    Show {
        /// Show all lanes, not only the first 20
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        dataset: SampledArgs,
        #[command(flatten)]
        order: OrderArgs,
    },
}

#[derive(Debug, Serialize)]
struct PlanReport {
    /// Values that determine the order.
    order: OrderReport,
    epoch: u64,
    batch_size: u64,
    world_size: u64,
    global_batch: u64,
    /// Samples of the dataset; of a mixture, of the epoch.
    samples: u64,
    /// Steps of the whole epoch.
    steps: u64,
    /// Steps of the epoch that were consumed before, according to the loader state.
    steps_taken: u64,
    /// Samples of those steps among them that all ranks left out (`loader.skip()`).
    left_out: u64,
    /// Steps of the rank with the fewest.
    rank_steps_min: u64,
    /// Steps of the rank with the most: `uneven` lets them differ.
    rank_steps_max: u64,
    /// Samples that no step delivers.
    dropped: u64,
    /// Entries that are filled with samples marked not valid.
    padded: u64,
    /// Parts of the epoch with the same number of lanes and the same global batch.
    segments: Vec<SegmentReport>,
    /// Records, and the samples that the source makes of them; `null`: each record is one.
    counted: Option<CountedReport>,
    /// Sources of a mixture, ordered by name; otherwise empty.
    sources: Vec<EpochSourceReport>,
    /// Samples that can meet in a step; `null` without steps.
    mixing: Option<MixingReport>,
    /// Largest cost of a rank in a step, divided by the mean of the step's ranks. `null` if steps
    /// are not balanced, if a step has more than 2^20 samples, or if the epoch was cut.
    balance: Option<BalanceReport>,
    /// Lanes into which the epoch was divided at its start.
    lanes: Vec<LaneReport>,
    #[serde(skip)]
    all: bool,
}

#[derive(Debug, Serialize)]
struct OrderReport {
    /// Version of docs/ORDER.md.
    version: u32,
    /// Digest of the sample counts of the shards, which keys the order.
    order_digest: Digest,
    content_digest: Digest,
    seed: u64,
    shuffle: bool,
    /// Samples of a lane that are shuffled among each other; `null` without shuffle.
    shuffle_window: Option<u64>,
    /// Splits that are read in turn.
    interleave: u64,
    /// Consecutive samples of a split per turn.
    block_length: u64,
    lanes: u64,
    tail: Tail,
    /// Maximum number of entries of an epoch; `null`: no limit.
    limit: Option<u64>,
}

#[derive(Debug, Serialize)]
struct EpochSourceReport {
    name: String,
    shards: u64,
    /// Samples of one pass over the source.
    samples: u64,
    /// Its samples in the epoch.
    in_epoch: u64,
    /// First pass over the source of which the epoch has samples.
    first_source_epoch: u64,
    /// Last such pass.
    last_source_epoch: u64,
    /// Samples of the last source epoch of the replaced version that no epoch delivers.
    rest_dropped: u64,
}

#[derive(Debug, Serialize)]
struct SegmentReport {
    lanes: u64,
    global_batch: u64,
    /// First step of the segment in the epoch.
    first_step: u64,
    /// Number of its steps.
    steps: u64,
}

#[derive(Debug, Serialize)]
struct LaneReport {
    /// Number of the lane.
    lane: u64,
    samples: u64,
    /// Number of splits, each of one shard. A shard may have two in a lane.
    splits: u64,
    /// Shards of its first splits, at most 3; in a mixture `SOURCE:PATH`.
    first_shards: Vec<String>,
}

impl PlanCommand {
    pub(crate) fn run(&self, format: Format) -> anyhow::Result<()> {
        let Self::Show { all, dataset, order } = self;
        Ok(format.print(&PlanReport::new(&order.order(dataset, 0)?, *all)?)?)
    }
}

impl PlanReport {
    fn new(order: &Order, all: bool) -> anyhow::Result<Self> {
        let Order { dataset, cursor, plan, limit, .. } = order;
        let (start, tail) = (cursor.start(), cursor.identity().tail);
        let segments = segments(order);
        let (rank_steps_min, rank_steps_max) = rank_steps(plan, tail);
        let dropped = plan.dropped();
        let slots: u64 = segments.iter().map(|s| s.steps * s.global_batch).sum();
        let padded = match tail {
            Tail::Pad => slots.saturating_sub(plan.samples() - dropped),
            Tail::Drop | Tail::Uneven => 0,
        };
        Ok(Self {
            order: OrderReport::new(order, *limit),
            epoch: plan.epoch(),
            batch_size: start.batch_size,
            world_size: start.world_size,
            global_batch: start.batch_size * start.world_size,
            samples: plan.samples(),
            steps: plan.steps(),
            steps_taken: cursor.step(),
            left_out: cursor.left_out().samples(cursor.segments()),
            rank_steps_min,
            rank_steps_max,
            dropped,
            padded,
            segments,
            counted: CountedReport::of(dataset),
            sources: sources(order),
            mixing: MixingReport::new(order)?,
            balance: BalanceReport::new(order)?,
            lanes: lanes(order)?,
            all,
        })
    }
}

impl OrderReport {
    fn new(order: &Order, limit: Option<u64>) -> Self {
        let identity = order.cursor.identity();
        let shuffle = &identity.shuffle;
        Self {
            version: ORDER_VERSION,
            order_digest: shuffle.digest,
            content_digest: identity.content,
            seed: shuffle.seed,
            shuffle: shuffle.enabled,
            shuffle_window: shuffle.enabled.then_some(shuffle.window),
            interleave: shuffle.interleave,
            block_length: shuffle.block_length,
            lanes: order.plan.lanes(),
            tail: identity.tail,
            limit,
        }
    }
}

fn segments(order: &Order) -> Vec<SegmentReport> {
    let segments = order.cursor.segments();
    let mut first_step = 0;
    let mut reports = Vec::with_capacity(segments.len());
    for (index, segment) in segments.iter().enumerate() {
        let is_open = index + 1 == segments.len();
        let steps = if is_open { order.plan.steps() - first_step } else { segment.steps.most() };
        reports.push(SegmentReport {
            lanes: segment.lanes,
            global_batch: segment.global_batch,
            first_step,
            steps,
        });
        first_step += steps;
    }
    reports
}

fn rank_steps(plan: &EpochPlan, tail: Tail) -> (u64, u64) {
    if tail != Tail::Uneven {
        return (plan.steps(), plan.steps());
    }
    let steps = |rank| plan.rank_steps(rank);
    (0..plan.world_size())
        .map(steps)
        .fold((u64::MAX, 0), |(least, most), steps| (least.min(steps), most.max(steps)))
}

fn sources(order: &Order) -> Vec<EpochSourceReport> {
    let (Some(mixed), Some(epoch)) = (order.dataset.mixed(), order.plan.mixture()) else {
        return vec![];
    };
    let versions =
        mixed.versions_of(epoch).into_iter().zip(epoch.counts().zip(epoch.rests_dropped()));
    let report =
        |(number, (version, (in_epoch, rest_dropped))): (u32, (&SourceVersion, (u64, u64)))| {
            let passes = epoch.source_epochs(number);
            EpochSourceReport {
                name: version.order.name().to_owned(),
                shards: version.order.counts().len() as u64,
                samples: version.order.samples(),
                in_epoch,
                first_source_epoch: passes.start,
                last_source_epoch: passes.end.saturating_sub(1),
                rest_dropped,
            }
        };
    (0..).zip(versions).map(report).collect()
}

fn lanes(order: &Order) -> Result<Vec<LaneReport>, PlanError> {
    let (plan, of_epoch) = (&order.plan, order.samples());
    let report = |number| {
        let lane = plan.lane(number);
        let splits = lane.splits()?;
        let path = |&(portion, first): &(Portion, Sample)| {
            shard_name(&order.dataset, of_epoch.in_dataset(portion, first).shard)
        };
        let first_shards = splits.iter().take(FIRST_SHARDS).map(path).collect();
        let (samples, splits) = (lane.samples(), splits.len() as u64);
        Ok(LaneReport { lane: number, samples, splits, first_shards })
    };
    (0..plan.lanes()).map(report).collect()
}

fn source_columns() -> [Column<EpochSourceReport>; 6] {
    [
        column("SOURCE", |source: &EpochSourceReport| source.name.clone()),
        column(">SHARDS", |source| source.shards.to_string()),
        column(">SAMPLES", |source| output::count(source.samples)),
        column(">IN THE EPOCH", |source| output::count(source.in_epoch)),
        column(">SOURCE EPOCHS", |source| {
            match (source.first_source_epoch, source.last_source_epoch) {
                (first, last) if first == last => first.to_string(),
                (first, last) => format!("{first} to {last}"),
            }
        }),
        column(">REST DROPPED", |source| output::count(source.rest_dropped)),
    ]
}

impl Report for PlanReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        self.order.write(out)?;
        writeln!(out)?;
        self.write_epoch(out)?;
        if self.segments.len() > 1 {
            self.write_segments(out)?;
        }
        let columns = [
            column(">LANE", |lane: &LaneReport| lane.lane.to_string()),
            column(">SAMPLES", |lane| lane.samples.to_string()),
            column(">SPLITS", |lane| lane.splits.to_string()),
            column("FIRST SHARDS", |lane| {
                let more = lane.splits > lane.first_shards.len() as u64;
                lane.first_shards.join(", ") + if more { ", …" } else { "" }
            }),
        ];
        writeln!(out)?;
        if !self.sources.is_empty() {
            let shown = Shown { is_wide: false, all: self.all };
            listing::write(out, "sources", &self.sources, &source_columns(), shown)?;
            writeln!(out)?;
        }
        listing::write(out, "lanes", &self.lanes, &columns, Shown { is_wide: false, all: self.all })
    }
}

impl OrderReport {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let facts = [
            ("order version", self.version.to_string()),
            ("order digest", self.order_digest.to_string()),
            ("content digest", self.content_digest.to_string()),
            ("seed", self.seed.to_string()),
            ("shuffle", yes(self.shuffle)),
            ("shuffle window", number(self.shuffle_window)),
            ("interleave", output::count(self.interleave)),
            ("block length", output::count(self.block_length)),
            ("lanes", output::count(self.lanes)),
            ("tail", self.tail.to_string()),
            ("limit", number(self.limit)),
        ];
        output::write_facts(out, &facts)
    }
}

impl PlanReport {
    fn write_epoch(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut steps = output::count(self.steps);
        if self.rank_steps_min < self.steps {
            steps += &format!(" (some ranks {})", output::count(self.rank_steps_min));
        }
        let batch = format!(
            "{} = {} x {} ranks",
            output::count(self.global_batch),
            output::count(self.batch_size),
            output::count(self.world_size)
        );
        let mut facts = vec![
            ("epoch", self.epoch.to_string()),
            ("global batch", batch),
            ("samples", output::count(self.samples)),
            ("steps", steps),
            ("dropped", output::count(self.dropped)),
            ("padded", output::count(self.padded)),
        ];
        if self.steps_taken > 0 {
            facts.push(("steps taken", output::count(self.steps_taken)));
        }
        if self.left_out > 0 {
            facts.push(("left out", output::count(self.left_out)));
        }
        if let Some(mixing) = &self.mixing {
            facts.push(("mixing", mixing.text(self.samples)));
        }
        if let Some(balance) = &self.balance {
            facts.push(("balance", balance.text()));
        }
        output::write_facts(out, &facts)?;
        match &self.counted {
            Some(counted) => {
                writeln!(out)?;
                output::write_facts(out, &counted.facts())
            }
            None => Ok(()),
        }
    }

    fn write_segments(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = [">SEGMENT", ">LANES", ">GLOBAL BATCH", ">FIRST STEP", ">STEPS"];
        let mut grid = Grid::new(&columns);
        for (index, segment) in self.segments.iter().enumerate() {
            grid.row([
                index.to_string(),
                segment.lanes.to_string(),
                segment.global_batch.to_string(),
                segment.first_step.to_string(),
                segment.steps.to_string(),
            ]);
        }
        write!(out, "\n{grid}")
    }
}
