//! Corrupt records of a job among the records that ranks consumed of an epoch.

use std::collections::{BTreeMap, BTreeSet};

use shardfeed_plan::{EpochPlan, LeftOut, MixtureEpoch, Permutations, Portion, Sample};
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_scheduler::SkippedRecord;

use super::Picture;
use super::granted::Granted;
use crate::error::Result;
use crate::leader::core::Core;
use crate::leader::mixtures::StageSources;
use crate::leader::plans::EpochOf;

/// Maximum work for the corrupt records of a mixture's epoch, in shards and lookups: a few seconds.
/// Records in further source epochs are not counted as skipped.
const MIXTURE_WORK_MAX: u64 = 1 << 23;

/// Maximum corrupt records that are looked up in a mixture's epoch.
const MIXTURE_RECORDS_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Skipped<'a> {
    pub(super) count: u64,
    /// Those with details; of the others only the sample is kept.
    pub(super) records: Vec<&'a SkippedRecord>,
}

impl Picture {
    pub(super) fn all_skipped(&self) -> Skipped<'_> {
        let count = self.skipped.len() as u64 + self.skipped_more.count();
        Skipped { count, records: self.skipped.iter().collect() }
    }

    /// Returns those in steps that their rank has consumed. Slow to compute.
    /// - `steps`: for each rank the first step that it has not consumed.
    /// - `left_out`: steps that no rank consumed.
    fn skipped_in_plan(
        &self,
        left_out: &LeftOut,
        (plan, steps): (&EpochPlan, &[u64]),
    ) -> Result<Skipped<'_>> {
        let is_whole = plan.dropped() == 0 && left_out.is_empty();
        if is_whole && steps.iter().all(|step| *step >= plan.steps()) {
            return Ok(self.all_skipped());
        }
        let mut known = Permutations::default();
        self.skipped_where(|sample| {
            // A record that is not in the dataset was reported by mistake.
            let Ok(Some(placed)) = plan.place_with(Portion::default(), sample, &mut known) else {
                return Ok(false);
            };
            let is_before = |step: &u64| placed.step < *step && !left_out.contains(placed.step);
            Ok(steps.get(placed.rank as usize).is_some_and(is_before))
        })
    }

    /// Returns those of an epoch of a deterministic job, which may read a mixture. Slow to compute.
    pub(super) fn skipped_in(
        &self,
        core: &Core,
        of: &EpochOf,
        (plan, steps): (&EpochPlan, &[u64]),
    ) -> Result<Skipped<'_>> {
        let Some(mixture) = plan.mixture() else {
            return self.skipped_in_plan(&of.left_out, (plan, steps));
        };
        match self.order.stage(core, of)? {
            Some(stage) if self.order.numbers_as_current(of, self.generation.mixture) => {
                self.skipped_in_mixture(mixture, (&stage, &of.left_out), (plan, steps))
            }
            _ => Ok(Skipped::default()),
        }
    }

    /// Like [`Picture::skipped_in_plan`], for a mixture, which may have a record several times.
    fn skipped_in_mixture(
        &self,
        mixture: &MixtureEpoch,
        (stage, left_out): (&StageSources, &LeftOut),
        (plan, steps): (&EpochPlan, &[u64]),
    ) -> Result<Skipped<'_>> {
        // The samples of each source: those with details, by their index, and the others.
        let mut of_source: BTreeMap<u32, Vec<(Option<usize>, Sample)>> = BTreeMap::new();
        let listed = self.skipped.iter().enumerate().map(|(index, of)| (Some(index), of.sample));
        let further = self.skipped_more.iter().map(|sample| (None, sample));
        for (index, sample) in listed.chain(further).take(MIXTURE_RECORDS_MAX) {
            if let Some((source, shard)) = stage.in_source(sample.shard) {
                let sample = Sample { shard, ..sample };
                of_source.entry(source).or_default().push((index, sample));
            }
        }
        let (mut count, mut shown, mut work) = (0, BTreeSet::new(), 0);
        let shards = stage.manifest.shards().len() as u64;
        for (source, samples) in of_source {
            for epoch in mixture.source_epochs(source) {
                // The sequence of a source epoch is computed once for all its samples.
                work += shards + samples.len() as u64;
                if work > MIXTURE_WORK_MAX {
                    break;
                }
                let mut known = Permutations::default();
                for (index, sample) in &samples {
                    // Of the first and the last source epoch, only a part is in the mixture epoch.
                    let placed = plan.place_with(Portion { source, epoch }, *sample, &mut known);
                    let Ok(Some(placed)) = placed else { continue };
                    let step = steps.get(placed.rank as usize).copied().unwrap_or(0);
                    if placed.step < step && !left_out.contains(placed.step) {
                        count += 1;
                        shown.extend(*index);
                    }
                }
            }
        }
        let records = shown.into_iter().map(|index| &self.skipped[index]).collect();
        Ok(Skipped { count, records })
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
            let place = groups.place_with(sample, &mut known)?;
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
        of: &EpochOf,
        records: &[&SkippedRecord],
    ) -> Result<Vec<wire::SkippedRecord>> {
        if records.is_empty() {
            return Ok(vec![]);
        }
        let (stage, manifest) = (self.order.stage(core, of)?, self.order.shards(core, of)?);
        let record = |record: &&SkippedRecord| {
            let SkippedRecord { mut sample, offset, reason } = (*record).clone();
            let place = stage.as_ref().and_then(|stage| {
                let (source, shard) = stage.in_source(sample.shard)?;
                Some(stage.in_stage(source, shard))
            });
            sample.shard = place.unwrap_or(sample.shard);
            let shard = manifest.shards().get(sample.shard as usize);
            let path = shard.map(|shard| shard.path.clone()).unwrap_or_default();
            let (shard, ordinal) = (sample.shard.into(), sample.ordinal);
            wire::SkippedRecord { shard, ordinal, offset, reason, path }
        };
        Ok(records.iter().map(record).collect())
    }
}
