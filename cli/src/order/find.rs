//! `shardfeed batch show --find`: the batches that a record is in.

use std::io::{self, Write};

use serde::Serialize;
use shardfeed_dataset_tools::samples::shard_name;
use shardfeed_embedded::EpochSamples;
use shardfeed_plan::{Placed, Sample};

use super::Order;
use crate::output::words::{known, yes};
use crate::output::{self, Grid, Report};

/// Batches of a record; padding that repeats it is not included.
#[derive(Debug, Serialize)]
pub(super) struct FindReport {
    epoch: u64,
    shard: String,
    /// Number of the record in its shard.
    ordinal: u64,
    /// `false`: the epoch delivers no sample that contains it.
    delivered: bool,
    world_size: u64,
    /// Samples that contain it, without padding, ordered by step.
    samples: Vec<PlaceReport>,
}

#[derive(Debug, Serialize)]
struct PlaceReport {
    /// Number of the sample in the shard.
    sample: u64,
    /// Epoch of its source in a mixture, otherwise that of the batch.
    source_epoch: u64,
    step: u64,
    rank: u64,
    /// Row of the rank's batch; `null` for a step whose batch is not divisible by --world-size.
    row: Option<usize>,
}

impl FindReport {
    /// - `record`: with its ordinal in the shard, and that of the shard among those of all sources.
    pub(super) fn new(order: &Order, record: Sample) -> anyhow::Result<Self> {
        let (plan, dataset, of_epoch) = (&order.plan, &order.dataset, order.samples());
        let mut samples = vec![];
        for portion in EpochSamples::portions(plan, dataset, record.shard) {
            let variant = of_epoch.variant(portion);
            let found = match dataset.samples() {
                Some(maps) => maps.of_record(record.shard, record.ordinal, variant),
                None => vec![record.ordinal],
            };
            let is_mixed = dataset.mixed().is_some();
            let source_epoch = if is_mixed { portion.epoch } else { plan.epoch() };
            for sample in found {
                let named = of_epoch.in_source(portion, Sample { ordinal: sample, ..record });
                let Some((placed, row)) = order.place(portion, named)? else { continue };
                let Placed { step, rank, .. } = placed;
                samples.push(PlaceReport { sample, source_epoch, step, rank, row });
            }
        }
        samples.sort_by_key(|place| place.step);
        Ok(Self {
            epoch: plan.epoch(),
            shard: shard_name(dataset, record.shard),
            ordinal: record.ordinal,
            delivered: !samples.is_empty(),
            world_size: plan.world_size(),
            samples,
        })
    }
}

impl Report for FindReport {
    fn write(&self, out: &mut dyn Write, _is_wide: bool) -> io::Result<()> {
        let Self { epoch, shard, ordinal, world_size, samples, .. } = self;
        let mut facts =
            vec![("record", format!("{shard}:{ordinal}")), ("epoch", epoch.to_string())];
        let row = |place: &PlaceReport| known(place.row, |row| row.to_string());
        match &samples[..] {
            [] => facts.push(("delivered", "no, this epoch leaves it out".into())),
            [place] => facts.extend([
                ("step", place.step.to_string()),
                ("rank", format!("{} of {world_size}", place.rank)),
                ("row", row(place)),
            ]),
            _ => facts.push(("delivered", yes(true))),
        }
        output::write_facts(out, &facts)?;
        if samples.len() < 2 {
            return Ok(());
        }
        let mut grid = Grid::new(&[">SAMPLE", ">SOURCE EPOCH", ">STEP", ">RANK", ">ROW"]);
        for place in samples {
            let PlaceReport { sample, source_epoch, step, rank, .. } = place;
            let numbers = [sample, source_epoch, step, rank].map(u64::to_string);
            grid.row(numbers.into_iter().chain([row(place)]));
        }
        write!(out, "\n{grid}")
    }
}
