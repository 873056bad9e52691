//! Mixtures of a simulated job: versions of sources that are datasets of the cluster, and the stages
//! that its launcher gives it. Stages that have not begun may be others at each restart.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use shardfeed_plan::{
    ContentDigest, DatasetStage, DatasetVersion, Digest, JobMixture, Manifest, MixtureEpoch,
    PlanError, Sample, Shuffle, Source,
};
use shardfeed_proto::chunk::FileEntry;

use crate::dice::Dice;
use crate::world::catalog::{Corrupt, corrupt_of, file, manifest_of};

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
    corrupt: Corrupt,
}

/// Versions of a job's sources, and the mixtures that it was given.
#[derive(Debug)]
pub struct Variants {
    versions: Vec<SourceVersion>,
    given: RefCell<Vec<JobMixture>>,
    /// Corrupt records of all versions of a mixture.
    corrupt: RefCell<BTreeMap<usize, Rc<Corrupt>>>,
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
            let corrupt = corrupt_of(&manifest);
            Self { dataset: dataset.into(), files, manifest, source, corrupt }
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
        Self { versions, given: RefCell::default(), corrupt: RefCell::default() }
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
        let source = |of: &DatasetVersion| Arc::clone(&self.version(of).source);
        let sources: Vec<Arc<Source>> = known.versions.iter().map(source).collect();
        Ok(MixtureEpoch::new(&known.mixture()?, &sources, shuffle, epoch)?)
    }

    fn version(&self, of: &DatasetVersion) -> &SourceVersion {
        let version = self.versions.iter().find(|version| version.dataset == of.dataset);
        version.expect("it is of the job")
    }

    /// Returns the corrupt records of all versions of a mixture, by their numbers in it.
    pub fn corrupt(&self, mix: usize) -> Rc<Corrupt> {
        if let Some(known) = self.corrupt.borrow().get(&mix) {
            return Rc::clone(known);
        }
        let (mut corrupt, mut first) = (Corrupt::new(), 0);
        for of in &self.of(mix).versions {
            let version = self.version(of);
            let named = |sample: &Sample| Sample { shard: first + sample.shard, ..*sample };
            let of_version = version.corrupt.iter();
            corrupt.extend(of_version.map(|(sample, of)| (named(sample), of.clone())));
            first += version.files.len() as u32;
        }
        let corrupt = Rc::new(corrupt);
        self.corrupt.borrow_mut().insert(mix, Rc::clone(&corrupt));
        corrupt
    }

    /// Returns the number of the first shard of each source of a mixture epoch, and of its shards.
    fn shards_of(&self, (mix, epoch): (usize, u64)) -> Vec<(u32, u32)> {
        let known = self.of(mix);
        let stage = known.stages.iter().rfind(|stage| stage.first_epoch <= epoch);
        let mut versions: Vec<usize> = stage.map_or(vec![], |stage| {
            stage.counts.iter().map(|(version, _)| *version as usize).collect()
        });
        versions.sort_by_key(|version| &known.versions[*version].name);
        let shards = |of: &DatasetVersion| self.version(of).files.len() as u32;
        let range = |version: usize| {
            let first = known.versions[..version].iter().map(shards).sum();
            (first, shards(&known.versions[version]))
        };
        versions.into_iter().map(range).collect()
    }

    /// Returns a sample of a source of a mixture epoch by its number in the mixture.
    pub fn named(&self, at: (usize, u64), source: u32, sample: Sample) -> Sample {
        let (first, _) = self.shards_of(at)[source as usize];
        Sample { shard: first + sample.shard, ..sample }
    }

    /// Returns a sample, by its shard among those of the sources of a mixture epoch, by its number in
    /// the mixture.
    pub fn of_stage(&self, at: (usize, u64), sample: Sample) -> Option<Sample> {
        let mut before = 0;
        self.shards_of(at).into_iter().find_map(|(first, shards)| {
            let shard = sample.shard.checked_sub(before).filter(|shard| *shard < shards);
            before += shards;
            Some(Sample { shard: first + shard?, ..sample })
        })
    }

    /// Returns the source of a mixture epoch that has a sample, and its number there.
    pub fn in_source(&self, at: (usize, u64), sample: Sample) -> Option<(u32, Sample)> {
        let mut sources = (0..).zip(self.shards_of(at));
        sources.find_map(|(source, (first, shards))| {
            let shard = sample.shard.checked_sub(first).filter(|shard| *shard < shards)?;
            Some((source, Sample { shard, ..sample }))
        })
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
