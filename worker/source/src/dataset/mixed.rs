//! The sources of a mixture as one dataset: their shards, those of the first source first.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use shardfeed_plan::{
    ContentDigest, DatasetStage, DatasetVersion, Digest, JobMixture, Manifest, Mixture,
    MixtureEpoch, PlanError, Source,
};

use super::kept_files::files_digest;
use super::samples::{SampleMap, SampleMaps};
use super::{Dataset, DatasetFile, LeftOut};
use crate::error::LoadError;
use crate::rights::Rights;
use crate::rules::FileRules;

/// A version of a source, and its place in the dataset of a mixture.
#[derive(Clone, Debug)]
pub struct SourceVersion {
    pub order: Arc<Source>,
    /// Folder or URL that the paths of its shards are relative to.
    pub root: PathBuf,
    /// Access rights with which its files are opened.
    pub rights: Rights,
    pub rules: FileRules,
    /// Shard ordinal of its first shard.
    pub first_shard: u32,
    /// Name of its dataset in a cluster; empty in one process.
    pub dataset: String,
    /// Content digest of its samples.
    pub content: ContentDigest,
    /// Digest of its files, in the process that opened them.
    pub files: Option<Digest>,
    /// Reason why its files were not found, if they were not.
    pub missing: Option<String>,
}

#[derive(Clone, Debug)]
pub struct OpenSource {
    pub name: String,
    /// Name of its dataset in a cluster; empty in one process.
    pub dataset_name: String,
    /// Rules by which its files were indexed.
    pub rules: FileRules,
    /// Digest of the record spec of its columns, if it is not that of the job.
    pub record_spec: Option<Digest>,
    pub dataset: Dataset,
    /// Reason why they were not found, if they were not.
    pub missing: Option<String>,
}

impl SourceVersion {
    pub fn shards(&self) -> Range<u32> {
        self.first_shard..self.first_shard + self.order.counts().len() as u32
    }
}

/// The sources of a mixture.
#[derive(Clone, Debug)]
pub struct Mixed {
    pub mixture: Mixture,
    /// Every version of every source, in the order of their shards.
    pub versions: Vec<SourceVersion>,
    /// The versions of each stage.
    stages: Vec<Vec<Arc<Source>>>,
}

impl Mixed {
    /// - `stages`: indexes of the versions of each stage.
    pub fn new(mixture: Mixture, versions: Vec<SourceVersion>, stages: &[Vec<usize>]) -> Self {
        let of_stage = |stage: &Vec<usize>| {
            stage.iter().map(|index| Arc::clone(&versions[*index].order)).collect()
        };
        let stages = stages.iter().map(of_stage).collect();
        Self { mixture, versions, stages }
    }

    /// Returns the sources of the stage of a mixture epoch.
    pub fn sources(&self, epoch: u64) -> &[Arc<Source>] {
        &self.stages[self.mixture.stage_of(epoch)]
    }

    /// Returns what ranks and coordinators of a cluster know of it.
    pub fn of_job(&self) -> JobMixture {
        let version = |version: &SourceVersion| DatasetVersion {
            name: version.order.name().to_owned(),
            dataset: version.dataset.clone(),
            content: version.content,
            order_digest: version.order.order_digest(),
            samples: version.order.samples(),
            record_spec: version.order.record_spec(),
        };
        let versions = self.versions.iter().map(version).collect();
        let stages = self.mixture.stages().iter().zip(&self.stages);
        let stage = |(stage, sources): (&shardfeed_plan::Stage, &Vec<Arc<Source>>)| {
            let of_name = |name: &str| sources.iter().find(|source| source.name() == name);
            let index = |name: &str| {
                let source = of_name(name).expect("a stage is made of its sources");
                let is_it = |version: &SourceVersion| Arc::ptr_eq(&version.order, source);
                self.versions.iter().position(is_it).expect("each is a version") as u32
            };
            let counts = stage.sources.iter().map(|source| (index(&source.name), source.count));
            DatasetStage { first_epoch: stage.first_epoch, counts: counts.collect() }
        };
        JobMixture { versions, stages: stages.map(stage).collect() }
    }

    /// Returns the first epoch of the stage after that of a mixture epoch.
    pub fn stage_after(&self, epoch: u64) -> Option<u64> {
        let next = self.mixture.stages().get(self.mixture.stage_of(epoch) + 1);
        next.map(|stage| stage.first_epoch)
    }

    /// Returns the first epoch from which on no source is missing, and a missing one of the stage
    /// before; `None`: all sources have their files.
    pub fn complete_from(&self) -> Option<(u64, &SourceVersion)> {
        let missing = |source: &Arc<Source>| {
            let is_it = |version: &&SourceVersion| Arc::ptr_eq(&version.order, source);
            self.versions.iter().find(is_it).filter(|version| version.missing.is_some())
        };
        let mut stages = self.stages.iter().enumerate().rev();
        let (last, version) =
            stages.find_map(|(stage, sources)| Some((stage, sources.iter().find_map(missing)?)))?;
        let after = self.mixture.stages().get(last + 1);
        Some((after.map_or(u64::MAX, |stage| stage.first_epoch), version))
    }

    /// Returns the version that a shard belongs to.
    pub fn version(&self, shard: u32) -> &SourceVersion {
        let after = self.versions.partition_point(|version| version.first_shard <= shard);
        &self.versions[after - 1]
    }

    /// Returns the versions of an epoch, in the order of their numbers.
    ///
    /// # Panics  The epoch is of another mixture.
    pub fn versions_of(&self, epoch: &MixtureEpoch) -> Vec<&SourceVersion> {
        let version = |source: &Arc<Source>| {
            let found = self.versions.iter().find(|version| Arc::ptr_eq(&version.order, source));
            found.expect("an epoch is made of these sources")
        };
        epoch.sources().map(version).collect()
    }
}

impl Dataset {
    /// Returns the datasets of the versions of a mixture's sources as one.
    /// - `mixed`: makes the mixture of the versions.
    ///
    /// # Errors  A source has a bad name or no samples; there are too many shards; that of `mixed`.
    pub fn joined(
        sources: Vec<OpenSource>,
        mixed: impl FnOnce(Vec<SourceVersion>) -> Result<Mixed, LoadError>,
    ) -> Result<Self, LoadError> {
        let manifest = Manifest::joined(sources.iter().map(|source| &source.dataset.manifest))?;
        let has_maps = sources.iter().any(|source| source.dataset.samples.is_some());
        let mut samples = has_maps.then(SampleMaps::default);
        let (mut versions, mut files, mut left_out) = (vec![], vec![], vec![]);
        let mut blocks = None;
        for OpenSource { name, dataset_name, rules, record_spec, dataset, missing } in sources {
            let first_shard = files.len() as u32;
            if let Some(samples) = &mut samples {
                samples.extend(dataset.maps());
            }
            let order = Source::new(&name, dataset.sample_counts()).map_err(PlanError::from)?;
            let order = order.with_record_spec(record_spec);
            let content = dataset.content();
            let of_files = Some(files_digest(&dataset.manifest));
            let shifted = |left: LeftOut| LeftOut { shard: left.shard + first_shard, ..left };
            left_out.extend(dataset.left_out.into_iter().map(shifted));
            files.extend(dataset.files);
            blocks = blocks.or(dataset.blocks);
            versions.push(SourceVersion {
                order: Arc::new(order),
                root: dataset.root,
                rights: dataset.rights,
                rules,
                first_shard,
                dataset: dataset_name,
                content,
                files: of_files,
                missing,
            });
        }
        let root = versions.first().map(|version| version.root.clone()).unwrap_or_default();
        let mixed = Some(Arc::new(mixed(versions)?));
        let (samples, rights) = (samples.map(Arc::new), Rights::Own);
        Ok(Self { root, manifest, files, blocks, left_out, rights, samples, mixed })
    }

    /// Returns the maps of its shards, also if all records are samples.
    fn maps(&self) -> SampleMaps {
        let all = |file: &DatasetFile| SampleMap::of_all(file.records, file.data_bytes).into();
        match &self.samples {
            Some(maps) => SampleMaps::clone(maps),
            None => SampleMaps::new(self.files.iter().map(all).collect(), vec![], 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_records_of_a_source_without_a_filter_are_samples() {
        for records in [0, 1, 64, 1000] {
            let map = SampleMap::of_all(records, 9);
            assert_eq!((map.samples(), map.data_bytes()), (records, 9));
            assert!((0..records).all(|record| map.place_of(record).unwrap().record == record));
        }
    }
}
