//! Mixtures of a simulated job: versions of sources that are datasets of the cluster, and the stages
//! that its launcher gives it. Stages that have not begun may be others at each restart.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use shardfeed_plan::{
    ContentDigest, DatasetStage, DatasetVersion, Digest, JobMixture, Manifest, MixtureEpoch,
    PlanError, Shuffle, Source,
};
use shardfeed_proto::chunk::FileEntry;

use crate::dice::Dice;
use crate::world::catalog::{file, manifest_of};

/// Number of a mixture among those of its job; `None`: the job reads one dataset.
pub type Mix = Option<usize>;

/// Dataset and name of each version of a source.
const VERSIONS: [(&str, &str); 4] =
    [("code-1", "code"), ("math-1", "math"), ("web-1", "web"), ("web-2", "web")];

/// Stages that a launcher gives a job beyond those that began.
const STAGES_AHEAD: u64 = 4;

/// A version of a source, and its files.
#[derive(Clone, Debug)]
pub struct SourceVersion {
    /// Name of its dataset.
    pub dataset: String,
    /// Files in manifest order.
    pub files: Vec<FileEntry>,
    manifest: Manifest,
    source: Arc<Source>,
}

/// Versions of a job's sources, and the mixtures that it was given.
#[derive(Debug)]
pub struct Variants {
    versions: Vec<SourceVersion>,
    given: RefCell<Vec<JobMixture>>,
}

impl SourceVersion {
    /// Returns the versions of all sources, with random numbers of records. Some have record specs of
    /// their own.
    pub fn all(dice: &Dice) -> Vec<Self> {
        let version = |(dataset, name): (&str, &str)| {
            let file = |number| file(format!("{dataset}-{number}.tfrecord"), dice.pick(8..40));
            let files: Vec<FileEntry> = (0..dice.pick(1..4)).map(file).collect();
            let manifest = manifest_of(&files);
            let source = Source::new(name, manifest.counts()).expect("it has samples");
            let has_spec = ["math-1", "web-2"].contains(&dataset);
            let record_spec = has_spec.then(|| Digest::of_parts([dataset.as_bytes()]));
            let source = Arc::new(source.with_record_spec(record_spec));
            Self { dataset: dataset.into(), files, manifest, source }
        };
        VERSIONS.map(version).into()
    }

    fn described(&self) -> DatasetVersion {
        DatasetVersion {
            name: self.source.name().into(),
            dataset: self.dataset.clone(),
            content: self.manifest.digest(),
            order_digest: self.source.order_digest(),
            samples: self.source.samples(),
            record_spec: self.source.record_spec(),
        }
    }
}

impl Variants {
    /// Returns a job's sources, without a mixture.
    pub fn new(versions: Vec<SourceVersion>) -> Self {
        Self { versions, given: RefCell::default() }
    }

    /// Returns the dataset of each version, with its content.
    pub fn datasets(&self) -> Vec<(String, ContentDigest)> {
        let content = |of: &SourceVersion| (of.dataset.clone(), of.manifest.digest());
        self.versions.iter().map(content).collect()
    }

    /// Returns a mixture.
    pub fn of(&self, mix: usize) -> JobMixture {
        self.given.borrow()[mix].clone()
    }

    /// Returns the number of mixtures that the job was given.
    pub fn count(&self) -> usize {
        self.given.borrow().len()
    }

    /// Returns an epoch of a mixture.
    ///
    /// # Errors  It does not have the epoch.
    pub fn epoch(
        &self,
        mix: usize,
        shuffle: &Shuffle,
        epoch: u64,
    ) -> Result<MixtureEpoch, PlanError> {
        let known = self.of(mix);
        let named = |of: &DatasetVersion| {
            let version = self.versions.iter().find(|version| version.dataset == of.dataset);
            Arc::clone(&version.expect("it is of the job").source)
        };
        let sources: Vec<Arc<Source>> = known.versions.iter().map(named).collect();
        Ok(MixtureEpoch::new(&known.mixture()?, &sources, shuffle, epoch)?)
    }

    /// Adds a mixture that has the stages of `before` that began at a position, and random ones
    /// after them.
    /// - Returns its number.
    pub fn change(&self, dice: &Dice, before: Mix, (epoch, step): (u64, u64)) -> usize {
        let mut stages: Vec<(u64, Vec<(usize, u64)>)> = vec![];
        if let Some(before) = before {
            let before = self.of(before);
            let index = |version: u32| {
                let dataset = &before.versions[version as usize].dataset;
                self.versions.iter().position(|version| version.dataset == *dataset)
            };
            for stage in &before.stages {
                let is_begun = stage.first_epoch < epoch || stage.first_epoch == epoch && step > 0;
                let counts = stage.counts.iter();
                let counts = counts.filter_map(|(version, count)| Some((index(*version)?, *count)));
                stages.extend(is_begun.then(|| (stage.first_epoch, counts.collect())));
            }
        }
        let mut first = match stages.last() {
            None => 0,
            Some((last, _)) => (epoch + u64::from(step > 0)).max(last + 1) + dice.pick(0..3),
        };
        for _ in 0..STAGES_AHEAD {
            stages.push((first, self.counts(dice)));
            first += dice.pick(1..5);
        }
        let mut given = self.given.borrow_mut();
        given.push(self.mixture(&stages));
        given.len() - 1
    }

    /// Returns random sources of a stage: of each name at most one version.
    fn counts(&self, dice: &Dice) -> Vec<(usize, u64)> {
        let mut counts: Vec<(usize, u64)> = vec![];
        let mut names = BTreeSet::new();
        while counts.is_empty() {
            for (index, version) in self.versions.iter().enumerate() {
                if dice.chance(60) && names.insert(version.source.name()) {
                    counts.push((index, dice.pick(20..80)));
                }
            }
        }
        counts
    }

    /// Returns the mixture of these stages; a version that none of them has is left out.
    fn mixture(&self, stages: &[(u64, Vec<(usize, u64)>)]) -> JobMixture {
        let used = stages.iter().flat_map(|(_, counts)| counts).map(|(version, _)| *version);
        let used: BTreeSet<usize> = used.collect();
        let place = |version: &usize| used.iter().take_while(|of| *of < version).count() as u32;
        let stage = |(first_epoch, counts): &(u64, Vec<(usize, u64)>)| DatasetStage {
            first_epoch: *first_epoch,
            counts: counts.iter().map(|(version, count)| (place(version), *count)).collect(),
        };
        JobMixture {
            versions: used.iter().map(|version| self.versions[*version].described()).collect(),
            stages: stages.iter().map(stage).collect(),
        }
    }
}
