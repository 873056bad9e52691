//! Corrupt records of a job among the records that ranks consumed of an epoch.

use shardfeed_plan::{EpochPlan, Permutations, Portion, Sample};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_scheduler::SkippedRecord;

use super::Picture;
use super::granted::Granted;
use crate::error::{self, Result};
use crate::leader::core::Core;

/// Corrupt records of an epoch.
#[derive(Debug, Default)]
pub(super) struct Skipped<'a> {
    /// Total number of them.
    pub(super) count: u64,
    /// Those with details; of the others only the sample is kept.
    pub(super) records: Vec<&'a SkippedRecord>,
}

impl Picture {
    /// Returns those of the whole job.
    pub(super) fn all_skipped(&self) -> Skipped<'_> {
        let count = self.skipped.len() as u64 + self.skipped_more.count();
        Skipped { count, records: self.skipped.iter().collect() }
    }

    /// Returns those in steps that their rank has consumed. Slow to compute.
    /// - `steps`: for each rank the first step that it has not consumed.
    pub(super) fn skipped_in_plan(&self, plan: &EpochPlan, steps: &[u64]) -> Result<Skipped<'_>> {
        if plan.dropped() == 0 && steps.iter().all(|step| *step >= plan.steps()) {
            return Ok(self.all_skipped());
        }
        let mut known = Permutations::default();
        self.skipped_where(|sample| {
            // A record that is not in the dataset was reported by mistake.
            let Ok(Some(placed)) = plan.place_with(Portion::default(), sample, &mut known) else {
                return Ok(false);
            };
            Ok(steps.get(placed.rank as usize).is_some_and(|step| placed.step < *step))
        })
    }

    /// Like [`Picture::skipped_in_plan`], for a dynamic job. Slow to compute.
    pub(super) fn skipped_of(&self, core: &Core, granted: &Granted<'_>) -> Result<Skipped<'_>> {
        if self.skipped.is_empty() {
            return Ok(Skipped::default());
        }
        let groups = self.order.groups(core, granted.epoch())?;
        let consumed = granted.consumed_pieces();
        let mut known = Permutations::default();
        self.skipped_where(|sample| {
            let place = groups.place_with(sample, &mut known);
            let place = place.map_err(|error| error::plan(&error))?;
            Ok(place.is_some_and(|(group, offset)| consumed.contains(group, offset)))
        })
    }

    fn skipped_where(&self, mut is_in: impl FnMut(Sample) -> Result<bool>) -> Result<Skipped<'_>> {
        let mut skipped = Skipped::default();
        for record in &self.skipped {
            if is_in(record.sample)? {
                skipped.count += 1;
                skipped.records.push(record);
            }
        }
        for sample in self.skipped_more.iter() {
            skipped.count += u64::from(is_in(sample)?);
        }
        Ok(skipped)
    }

    /// Converts records to messages, with the paths of their shards.
    pub(super) fn skipped_to(
        &self,
        core: &Core,
        records: &[&SkippedRecord],
    ) -> Result<Vec<wire::SkippedRecord>> {
        if records.is_empty() {
            return Ok(vec![]);
        }
        let manifest = self.order.manifest(core)?;
        let record = |record: &&SkippedRecord| {
            let SkippedRecord { sample, offset, reason } = (*record).clone();
            let shard = manifest.shards().get(sample.shard as usize);
            let path = shard.map(|shard| shard.path.clone()).unwrap_or_default();
            wire::SkippedRecord {
                shard: sample.shard.into(),
                ordinal: sample.ordinal,
                offset,
                reason,
                path,
            }
        };
        Ok(records.iter().map(record).collect())
    }
}
