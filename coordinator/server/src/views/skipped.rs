//! Which corrupt records of a job lie in what ranks consumed of an epoch.

use shardfeed_plan::EpochPlan;
use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_scheduler::SkippedRecord;

use super::Picture;
use super::granted::Granted;
use crate::core::Core;
use crate::error;

impl Picture {
    /// Those that stand in a step that its rank has consumed. Computes for long.
    /// - `steps`: for each rank the first step that it has not consumed.
    pub(super) fn skipped_in_plan(
        &self,
        plan: &EpochPlan,
        steps: &[u64],
    ) -> Result<Vec<&SkippedRecord>, WireError> {
        if plan.dropped() == 0 && steps.iter().all(|step| *step >= plan.steps()) {
            return Ok(self.skipped.iter().collect());
        }
        let mut skipped = Vec::new();
        for record in &self.skipped {
            // A record that the dataset does not have was told by somebody who is mistaken.
            let Ok(Some(placed)) = plan.place(record.sample) else {
                continue;
            };
            if steps.get(placed.rank as usize).is_some_and(|step| placed.step < *step) {
                skipped.push(record);
            }
        }
        Ok(skipped)
    }

    /// As [`Picture::skipped_in_plan`], of a dynamic job. Computes for long.
    pub(super) fn skipped_of(
        &self,
        core: &Core,
        granted: &Granted<'_>,
    ) -> Result<Vec<&SkippedRecord>, WireError> {
        if self.skipped.is_empty() {
            return Ok(vec![]);
        }
        let groups = self.order.groups(core, granted.epoch())?;
        let mut skipped = Vec::new();
        for record in &self.skipped {
            let place = groups.place_of(record.sample).map_err(|error| error::plan(&error))?;
            if place.is_some_and(|(group, offset)| granted.has_consumed(group, offset)) {
                skipped.push(record);
            }
        }
        Ok(skipped)
    }

    /// Records as messages, with the paths of their shards.
    pub(super) fn skipped_to(
        &self,
        core: &Core,
        records: &[&SkippedRecord],
    ) -> Result<Vec<wire::SkippedRecord>, WireError> {
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
