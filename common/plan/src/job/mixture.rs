//! The mixture of a job whose sources are datasets of a cluster.

use serde::{Deserialize, Serialize};

use crate::digest::{ContentDigest, Digest, OrderDigest};
use crate::mixture::{
    JOB_MIXTURE_ENTRIES_MAX, Mixture, MixtureError, SOURCES_MAX, STAGES_MAX, Stage, StageSource,
};

/// Sources and stages of a job's mixture. All ranks of a generation have the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMixture {
    /// Versions of the sources, in the order of their shards.
    pub versions: Vec<DatasetVersion>,
    /// Stages, in the order of their epochs.
    pub stages: Vec<DatasetStage>,
}

/// A version of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetVersion {
    /// Name of the source; its versions have the same one.
    pub name: String,
    /// Name of the dataset in the cluster; empty in one process.
    pub dataset: String,
    pub content: ContentDigest,
    pub order_digest: OrderDigest,
    pub samples: u64,
    /// Digest of the record spec of its samples, if it is not that of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_spec: Option<Digest>,
}

/// Samples that the mixture epochs of a stage have of each source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetStage {
    pub first_epoch: u64,
    /// Index of each version in [`JobMixture::versions`], and its samples of one mixture epoch.
    pub counts: Vec<(u32, u64)>,
}

impl JobMixture {
    /// Returns the mixture.
    ///
    /// # Errors  `Entries`, `NoVersion`, and as [`Mixture::new`].
    pub fn mixture(&self) -> Result<Mixture, MixtureError> {
        let entries = self.entries();
        let is_long = self.versions.len() > SOURCES_MAX || self.stages.len() > STAGES_MAX;
        if is_long || entries > JOB_MIXTURE_ENTRIES_MAX {
            return Err(MixtureError::Entries { entries });
        }
        let source = |&(version, count): &(u32, u64)| {
            let found = self.versions.get(version as usize);
            let known = found.ok_or(MixtureError::NoVersion { version })?;
            let DatasetVersion { name, order_digest, samples, record_spec, .. } = known.clone();
            Ok(StageSource { name, order_digest, samples, count, record_spec })
        };
        let stage = |stage: &DatasetStage| {
            let sources = stage.counts.iter().map(source).collect::<Result<_, MixtureError>>()?;
            Ok(Stage { first_epoch: stage.first_epoch, sources })
        };
        let mixture = self.stages.iter().map(stage).collect::<Result<_, MixtureError>>()?;
        let mut is_used = vec![false; self.versions.len()];
        for (version, _) in self.stages.iter().flat_map(|stage| &stage.counts) {
            is_used[*version as usize] = true;
        }
        if let Some(version) = is_used.iter().position(|is_used| !is_used) {
            return Err(MixtureError::NoStage { version: version as u32 });
        }
        Mixture::new(mixture)
    }

    /// Returns the number of its versions, and of the sources in all stages.
    pub fn entries(&self) -> usize {
        let entries = self.stages.iter().map(|stage| stage.counts.len());
        entries.fold(self.versions.len(), usize::saturating_add)
    }

    /// Returns the indexes of the versions of each stage.
    pub fn versions_of_stages(&self) -> Vec<Vec<usize>> {
        let indexes = |stage: &DatasetStage| {
            stage.counts.iter().map(|(version, _)| *version as usize).collect()
        };
        self.stages.iter().map(indexes).collect()
    }

    /// Returns the digest by which ranks and coordinators name it. It does not cover the datasets'
    /// names: hosts may have the same files with other modification times, which are other datasets.
    pub fn digest(&self) -> Digest {
        let nameless =
            |version: &DatasetVersion| DatasetVersion { dataset: String::new(), ..version.clone() };
        let versions = self.versions.iter().map(nameless).collect();
        let of = Self { versions, stages: self.stages.clone() };
        let json = serde_json::to_vec(&of).expect("numbers and texts have a JSON form");
        Digest::of_parts([b"shardfeed job mixture 1\0".as_slice(), &json])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, samples: u64) -> DatasetVersion {
        let digest = Digest::from_bytes([7; 32]);
        let (name, dataset) = (name.to_owned(), format!("files-{name}"));
        let (content, order_digest) = (digest, digest);
        DatasetVersion { name, dataset, content, order_digest, samples, record_spec: None }
    }

    #[test]
    fn stages_name_versions_in_any_order() {
        let versions = vec![version("b", 10), version("a", 20), version("b", 30)];
        let stage = |first_epoch, counts: &[(u32, u64)]| DatasetStage {
            first_epoch,
            counts: counts.to_vec(),
        };
        let of = |stages| JobMixture { versions: versions.clone(), stages };
        let mixture = of(vec![stage(0, &[(0, 4), (1, 6)]), stage(3, &[(2, 9)])]).mixture().unwrap();
        let names = |stage: &Stage| {
            let sources = stage.sources.iter();
            sources.map(|source| (source.name.clone(), source.samples, source.count)).collect()
        };
        let found: Vec<Vec<_>> = mixture.stages().iter().map(names).collect();
        let expected =
            [vec![("a".to_owned(), 20, 6), ("b".to_owned(), 10, 4)], vec![("b".to_owned(), 30, 9)]];
        assert_eq!(found, expected);
        let unused = of(vec![stage(0, &[(0, 4), (1, 6)])]).mixture().unwrap_err();
        assert_eq!(unused, MixtureError::NoStage { version: 2 });
        let mut renamed = of(vec![stage(0, &[(0, 4)])]);
        let digest = renamed.digest();
        renamed.versions[0].dataset.push('x');
        assert_eq!(renamed.digest(), digest);
        let twice = of(vec![stage(0, &[(0, 4), (2, 6), (1, 1)])]).mixture().unwrap_err();
        assert!(matches!(twice, MixtureError::SameName { .. }), "{twice}");
        let unknown = of(vec![stage(0, &[(3, 4)])]).mixture().unwrap_err();
        assert_eq!(unknown, MixtureError::NoVersion { version: 3 });
        let long = of(vec![stage(0, &[(0, 1); JOB_MIXTURE_ENTRIES_MAX])]).mixture().unwrap_err();
        assert_eq!(long, MixtureError::Entries { entries: JOB_MIXTURE_ENTRIES_MAX + 3 });
        assert_ne!(of(vec![stage(0, &[(0, 4)])]).digest(), of(vec![stage(0, &[(0, 5)])]).digest());
    }

    #[test]
    fn a_source_with_other_columns_changes_digests() {
        let stages = vec![DatasetStage { first_epoch: 0, counts: vec![(0, 4), (1, 6)] }];
        let alike = JobMixture { versions: vec![version("a", 10), version("b", 20)], stages };
        let mut other = alike.clone();
        other.versions[1].record_spec = Some(Digest::from_bytes([9; 32]));
        assert_ne!(other.digest(), alike.digest());
        let begun = |of: &JobMixture| of.mixture().unwrap().stages_digest(1);
        assert_ne!(begun(&other), begun(&alike));
    }
}
