//! Samples of an epoch: their places in the dataset, and their costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardfeed_plan::{EpochPlan, Packing, Portion, Sample};
use shardfeed_source::{Dataset, Grouping, SampleMaps, SourceVersion};

/// Maximum number of packs whose costs are kept: 16 MiB.
const PACK_COSTS_MAX: usize = 1 << 21;

pub type CostOf = Box<dyn FnMut(Portion, Sample) -> u64 + Send>;

/// Samples of an epoch of a dataset or of a mixture.
#[derive(Clone, Debug, Default)]
pub struct EpochSamples {
    /// Of a mixture: ordinal of each source's first shard among those of all; otherwise empty.
    first_shards: Arc<[u32]>,
    epoch: u64,
    is_shuffled: bool,
}

impl EpochSamples {
    pub(crate) fn of_dataset(epoch: u64, is_shuffled: bool) -> Self {
        Self { epoch, is_shuffled, ..Self::default() }
    }

    pub fn of(plan: &EpochPlan, dataset: &Dataset) -> Self {
        let sources = match (dataset.mixed(), plan.mixture()) {
            (Some(mixed), Some(mixture)) => mixed.versions_of(mixture),
            _ => vec![],
        };
        Self::of_sources(plan, &sources)
    }

    /// Returns the samples of the epoch of a plan.
    /// - `sources`: versions of the sources of the mixture; otherwise empty.
    pub(crate) fn of_sources(plan: &EpochPlan, sources: &[&SourceVersion]) -> Self {
        let first_shards = sources.iter().map(|version| version.first_shard).collect();
        Self { first_shards, epoch: plan.epoch(), is_shuffled: plan.shuffle().enabled }
    }

    /// Returns a sample with its shard ordinal among the shards of all sources.
    pub fn in_dataset(&self, portion: Portion, sample: Sample) -> Sample {
        Sample { shard: sample.shard + self.first_shard(portion), ..sample }
    }

    /// Returns a sample with its shard ordinal in its source.
    pub fn in_source(&self, portion: Portion, sample: Sample) -> Sample {
        Sample { shard: sample.shard - self.first_shard(portion), ..sample }
    }

    /// Returns the portions of an epoch that have samples of a shard of its dataset.
    /// - `shard`: among those of all sources.
    pub fn portions(plan: &EpochPlan, dataset: &Dataset, shard: u32) -> Vec<Portion> {
        let (Some(mixed), Some(mixture)) = (dataset.mixed(), plan.mixture()) else {
            return vec![Portion::default()];
        };
        let versions = mixed.versions_of(mixture);
        let of_source = |source: usize| {
            let source = source as u32;
            mixture.source_epochs(source).map(move |epoch| Portion { source, epoch })
        };
        let source = versions.iter().position(|version| version.shards().contains(&shard));
        source.into_iter().flat_map(of_source).collect()
    }

    fn first_shard(&self, portion: Portion) -> u32 {
        self.first_shards.get(portion.source as usize).copied().unwrap_or(0)
    }

    /// Returns the variant of the packs of a portion. Source: docs/ORDER.md, section 14.
    pub fn variant(&self, portion: Portion) -> u64 {
        match self.is_shuffled {
            false => 0,
            true if self.first_shards.is_empty() => self.epoch,
            true => portion.epoch,
        }
    }

    /// Returns the cost of each sample. Source: docs/ORDER.md, section 15.
    /// - `maps`: of a dataset with costs, or with packs.
    pub fn costs(self, maps: Arc<SampleMaps>) -> CostOf {
        let mut costs = SampleCosts::default();
        Box::new(move |portion, sample| {
            costs.of(&maps, self.in_dataset(portion, sample), self.variant(portion))
        })
    }
}

/// Costs of samples. Those of the packs of the blocks that were needed last are kept.
#[derive(Debug, Default)]
pub struct SampleCosts {
    /// Costs of a shard's block in a variant.
    known: BTreeMap<(u32, u64, u64), Vec<u64>>,
    held: usize,
}

impl SampleCosts {
    /// Returns the cost of a sample. Source: docs/ORDER.md, section 15.
    /// - `maps`: always the same ones, with costs or packs.
    /// - `variant`: as of [`EpochSamples::variant`].
    pub fn of(&mut self, maps: &SampleMaps, sample: Sample, variant: u64) -> u64 {
        let map = maps.of(sample.shard);
        match map.grouping().and_then(Grouping::packing) {
            Some(packing) => self.of_pack(packing, sample, variant),
            None => map.cost_of(sample.ordinal),
        }
    }

    fn of_pack(&mut self, packing: &Packing, sample: Sample, epoch: u64) -> u64 {
        let variant = epoch % packing.settings().variants;
        let block = packing.block_of(sample.ordinal);
        let key = (sample.shard, block, variant);
        if !self.known.contains_key(&key) {
            let costs = packing.sums_of_squares(block, variant);
            self.held += costs.len();
            if self.held > PACK_COSTS_MAX {
                self.known.clear();
                self.held = costs.len();
            }
            self.known.insert(key, costs);
        }
        self.known[&key][(sample.ordinal - packing.packs_of(block).start) as usize]
    }
}
