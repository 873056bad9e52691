//! Mixtures for views: the sources of the stages in use, with their shards.

use std::ops::Range;
use std::sync::Arc;

use shardfeed_plan::{
    ContentDigest, Digest, EpochPlan, JobIdentity, JobMixture, Manifest, Mixture, MixtureEpoch,
    PlanError, Shard, Source,
};
use shardfeed_scheduler::{Job, State};

use crate::error::{Result, invalid, not_found};
use crate::leader::core::Core;
use crate::leader::plans::EpochOf;

/// A mixture of a job, and the manifest of each version of its sources.
#[derive(Clone, Debug)]
pub(crate) struct MixtureOrder {
    digest: Digest,
    mixture: JobMixture,
    manifests: Vec<VersionManifest>,
}

/// Chunks of the manifest of a version.
#[derive(Clone, Debug)]
struct VersionManifest {
    content: ContentDigest,
    chunks: Vec<Digest>,
    /// Ordinals of its shards among those of all versions.
    shards: Range<u32>,
}

/// The sources of a stage, ordered by name, and their shards.
#[derive(Debug)]
pub(crate) struct StageSources {
    sources: Vec<Arc<Source>>,
    /// Shards of the sources; the name of the source and a colon precede each path.
    pub(crate) manifest: Arc<Manifest>,
    places: Vec<SourceShards>,
}

#[derive(Clone, Debug)]
struct SourceShards {
    /// Their ordinals among those of all versions of the mixture.
    of_versions: Range<u32>,
    /// Ordinal of the first one among those of the stage.
    first: u32,
    dataset: String,
}

impl MixtureOrder {
    /// Returns the mixtures of a job.
    ///
    /// # Errors  `NotFound`: a dataset is not there.
    pub(super) fn all(state: &State, job: &Job) -> Result<Vec<Self>> {
        job.mixtures.iter().map(|(digest, of)| Self::of(state, *digest, of)).collect()
    }

    fn of(state: &State, digest: Digest, mixture: &JobMixture) -> Result<Self> {
        let mut manifests: Vec<VersionManifest> = Vec::with_capacity(mixture.versions.len());
        for version in &mixture.versions {
            let ready = state.dataset(&version.dataset).and_then(|dataset| dataset.ready());
            let ready = ready.ok_or_else(|| {
                // A dataset stays as long as a job has it in a mixture.
                not_found(format!("there is no dataset `{}`", version.dataset))
            })?;
            let first = manifests.last().map_or(0, |last| last.shards.end);
            let shards =
                first..first.saturating_add(u32::try_from(ready.shards).unwrap_or(u32::MAX));
            let chunks = ready.chunks().collect();
            manifests.push(VersionManifest { content: ready.content, chunks, shards });
        }
        Ok(Self { digest, mixture: mixture.clone(), manifests })
    }

    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    pub(super) fn mixture(&self) -> &JobMixture {
        &self.mixture
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = Digest> {
        self.manifests.iter().flat_map(|manifest| manifest.chunks.iter().copied())
    }

    /// True if both have the same sources, whose shards they number in the same way.
    pub(super) fn numbers_as(&self, other: &Self) -> bool {
        let content = |of: &VersionManifest| (of.content, of.shards.clone());
        self.manifests.iter().map(content).eq(other.manifests.iter().map(content))
    }

    fn numbers(&self) -> Result<Mixture> {
        Ok(self.mixture.mixture().map_err(PlanError::from)?)
    }

    /// Returns the plan of an epoch. Slow to compute; blocks on the disk.
    pub(super) fn plan(&self, core: &Core, job: &JobIdentity, of: &EpochOf) -> Result<EpochPlan> {
        job.check_order()?;
        let (numbers, stage) = (self.numbers()?, self.stage(core, of.epoch)?);
        let epoch = MixtureEpoch::new(&numbers, &stage.sources, &job.shuffle, of.epoch);
        let epoch = Arc::new(epoch.map_err(PlanError::from)?);
        let rules = (job.tail, of.limit);
        Ok(EpochPlan::of_mixture(epoch, rules, &of.segments, of.world_size)?)
    }

    /// Returns the sources of the stage of an epoch. Blocks on the disk.
    pub(super) fn stage(&self, core: &Core, epoch: u64) -> Result<Arc<StageSources>> {
        let index = self.numbers()?.stage_of(epoch);
        if let Some(known) = core.plans.stages.get(&(self.digest, index)) {
            return Ok(known);
        }
        let mut versions: Vec<_> = self.mixture.stages[index]
            .counts
            .iter()
            .map(|(version, _)| *version as usize)
            .map(|version| (&self.mixture.versions[version], &self.manifests[version]))
            .collect();
        versions.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let (mut sources, mut shards, mut places) = (vec![], vec![], vec![]);
        for (version, VersionManifest { content, chunks, shards: of_versions }) in versions {
            let manifest = core.manifests.get(&core.chunks, *content, chunks)?;
            let source = Source::new(&version.name, manifest.counts()).map_err(PlanError::from)?;
            sources.push(Arc::new(source));
            let (first, of_versions) = (shards.len() as u32, of_versions.clone());
            places.push(SourceShards { of_versions, first, dataset: version.dataset.clone() });
            let path = |shard: &Shard| format!("{}:{}", version.name, shard.path);
            let named = |shard: &Shard| Shard { path: path(shard), ..shard.clone() };
            shards.extend(manifest.shards().iter().map(named));
        }
        let manifest = Manifest::in_order(shards).map_err(|error| invalid(error.to_string()))?;
        let stage = StageSources { sources, manifest: Arc::new(manifest), places };
        Ok(core.plans.stages.keep((self.digest, index), stage))
    }
}

impl StageSources {
    /// Returns a shard, named by its ordinal among those of all versions: the number of its source,
    /// and its ordinal in the source. `None`: it is in no source of the stage.
    pub(crate) fn in_source(&self, shard: u32) -> Option<(u32, u32)> {
        let is_in = |place: &SourceShards| place.of_versions.contains(&shard);
        let source = self.places.iter().position(is_in)?;
        Some((source as u32, shard - self.places[source].of_versions.start))
    }

    pub(crate) fn in_stage(&self, source: u32, shard: u32) -> u32 {
        self.places.get(source as usize).map_or(shard, |place| place.first + shard)
    }

    /// Iterates over the datasets of the sources and the ordinal of their first shards in the stage.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = (&str, u32)> {
        self.places.iter().map(|place| (place.dataset.as_str(), place.first))
    }

    /// Iterates over the names of the sources and the ordinals of their shards in the stage.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        self.sources.iter().zip(&self.places).map(|(source, place)| {
            let first = place.first as usize;
            (source.name(), first..first + place.of_versions.len())
        })
    }
}
