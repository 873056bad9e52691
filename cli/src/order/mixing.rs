//! Mixing distance: the samples and shards that can meet in one step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;
use shardfeed_dataset_tools::samples::percent;
use shardfeed_plan::{Lane, PlanError, SlotSource};

use super::Order;
use crate::output;

/// Maximum number of samples whose shards are looked up.
const INPUTS_MAX: u64 = 1 << 24;

type LaneOutputs = BTreeMap<u64, Vec<Range<u64>>>;

/// Samples and shards that can meet in a step.
#[derive(Debug, Serialize)]
pub(super) struct MixingReport {
    /// Step that the numbers are of, in the middle of the epoch.
    pub(super) step: u64,
    /// Samples of which those of the step are a random choice.
    pub(super) samples: u64,
    /// Shards of these samples; `null`: of more than 2^24 samples.
    pub(super) shards: Option<u64>,
    /// Shards of all samples of the epoch, if `shards` is known.
    pub(super) shards_total: u64,
}

impl MixingReport {
    /// Returns the numbers of the middle step of the epoch's last segment; `None` without steps.
    pub(super) fn new(order: &Order) -> Result<Option<Self>, PlanError> {
        let plan = &order.plan;
        let (first, end) = (plan.first_step(), plan.steps());
        if first >= end {
            return Ok(None);
        }
        let step = first + (end - first) / 2;
        let mut samples = 0;
        let mut reaches = vec![];
        for (lane, outputs) in outputs(order, order.together(step)?)? {
            let lane = plan.lane(lane);
            let reach = reach(&lane, &outputs)?;
            samples += reach.iter().map(|inputs| inputs.end - inputs.start).sum::<u64>();
            reaches.push((lane, reach));
        }
        let shards = (samples <= INPUTS_MAX).then(|| {
            let shards = reaches.iter().flat_map(|(lane, reach)| shards(lane, reach));
            shards.collect::<BTreeSet<_>>().len() as u64
        });
        let counts = match order.dataset.mixed() {
            None => order.dataset.sample_counts(),
            // Those of the epoch, without sources and passes that are not in it.
            Some(_) => {
                let steps = vec![end; plan.world_size() as usize];
                let delivered = plan.delivered_by_shard(&steps)?.into_iter();
                let dropped = plan.dropped_by_shard()?.into_iter();
                delivered.zip(dropped).map(|(delivered, dropped)| delivered + dropped).collect()
            }
        };
        let shards_total = counts.into_iter().filter(|count| *count > 0).count() as u64;
        Ok(Some(Self { step, samples, shards, shards_total }))
    }

    /// Returns the text for people.
    /// - `samples`: of the epoch.
    pub(super) fn text(&self, samples: u64) -> String {
        let of =
            format!("{} samples ({})", output::count(self.samples), percent(self.samples, samples));
        let shards = match self.shards {
            Some(shards) => {
                format!(
                    " of {} of {} shards",
                    output::count(shards),
                    output::count(self.shards_total)
                )
            }
            None => String::new(),
        };
        format!("{of}{shards} can meet in a step")
    }
}

/// Returns the outputs of each lane that steps have, in ascending order.
fn outputs(order: &Order, steps: Range<u64>) -> Result<LaneOutputs, PlanError> {
    let mut found = LaneOutputs::new();
    for step in steps {
        for rank in (0..order.plan.world_size()).filter(|rank| step < order.plan.rank_steps(*rank))
        {
            for run in order.plan.slot_runs(step, rank)? {
                if let SlotSource::Lane(at) = run.first.source {
                    found.entry(at.lane).or_default().push(at.output..at.output + run.slots);
                }
            }
        }
    }
    found.values_mut().for_each(|outputs| outputs.sort_unstable_by_key(|range| range.start));
    Ok(found)
}

/// Returns the inputs of which outputs of a lane are chosen, ascending and disjoint.
fn reach(lane: &Lane, outputs: &[Range<u64>]) -> Result<Vec<Range<u64>>, PlanError> {
    let mut found: Vec<Range<u64>> = vec![];
    let mut add = |inputs: Range<u64>| match found.last_mut() {
        Some(last) if inputs.start <= last.end => last.end = last.end.max(inputs.end),
        _ => found.push(inputs),
    };
    // Block of the outputs before, which is computed once for all of its outputs.
    let mut passed = 0;
    for outputs in outputs {
        let mut at = outputs.start.max(passed);
        while at < outputs.end {
            let block = lane.blocks_from(at).next().expect("the lane has these outputs")?;
            let end = outputs.end.min(block.outputs.end);
            if block.is_plain {
                add(at..end);
            } else {
                add(block.needs);
                passed = block.outputs.end;
            }
            at = end;
        }
    }
    Ok(found)
}

/// Iterates over the shards of inputs, each with the number of its source.
fn shards<'a>(lane: &'a Lane, reach: &'a [Range<u64>]) -> impl Iterator<Item = (u32, u32)> + 'a {
    reach.iter().flat_map(|inputs| {
        let (mut runs, mut left) = (lane.inputs_from(inputs.start), inputs.end - inputs.start);
        std::iter::from_fn(move || {
            let run = (left > 0).then(|| runs.next_run(left))??;
            left -= run.samples;
            Some((run.portion.source, run.first.shard))
        })
    })
}
