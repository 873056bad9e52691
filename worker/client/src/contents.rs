//! A dataset as a trainer knows it: names and counts, but no record offsets.

use std::path::PathBuf;
use std::sync::Arc;

use shardfeed_plan::{ContentDigest, OrderDigest, mixture_digest, order_digest};
use shardfeed_source::{Dataset, FileRules, LeftOut, Mixed, SampleMaps};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRow {
    /// Path relative to the dataset.
    pub path: String,
    pub records: u64,
}

/// A dataset as a trainer knows it.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Name in the cluster; empty without a cluster.
    pub name: String,
    /// Folder that paths are relative to.
    pub root: String,
    pub rules: FileRules,
    /// Content digest, of the samples; of a mixture, the digest of its [`shardfeed_plan::JobMixture`].
    pub digest: ContentDigest,
    /// Shards, in manifest order.
    pub shards: Vec<ShardRow>,
    /// Parts of damaged files that no batch contains; truncated if there are many.
    pub left_out: Vec<LeftOut>,
    /// Total number of such parts.
    pub left_out_total: u64,
    /// Samples of the shards; `None`: every record is a sample.
    pub samples: Option<Arc<SampleMaps>>,
    /// The sources of a mixture, whose shards these are.
    pub mixed: Option<Arc<Mixed>>,
    /// Of a source of a mixture: reason why its files were not found, if they were not.
    pub missing: Option<String>,
}

impl Contents {
    /// Contents of a dataset that was opened in this process.
    pub fn of(name: &str, rules: FileRules, dataset: &Dataset) -> Self {
        let row = |shard: &shardfeed_plan::Shard| ShardRow {
            path: shard.path.clone(),
            records: shard.records,
        };
        Self {
            name: name.to_owned(),
            root: dataset.root().display().to_string(),
            rules,
            digest: match dataset.mixed() {
                Some(mixed) => mixed.of_job().digest(),
                None => dataset.content(),
            },
            shards: dataset.manifest().shards().iter().map(row).collect(),
            left_out: dataset.left_out().to_vec(),
            left_out_total: dataset.left_out().len() as u64,
            samples: dataset.samples().cloned(),
            mixed: dataset.mixed().cloned(),
            missing: None,
        }
    }

    pub fn records(&self) -> u64 {
        self.shards.iter().map(|shard| shard.records).sum()
    }

    pub fn samples(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Absolute path, or URL, of a shard.
    pub(crate) fn file(&self, shard: u32) -> PathBuf {
        let root = match &self.mixed {
            Some(mixed) => mixed.version(shard).root.clone(),
            None => PathBuf::from(&self.root),
        };
        let path = self.shards.get(shard as usize).map_or("?", |shard| shard.path.as_str());
        root.join(path)
    }

    /// Content digest; with a sample program, also of which records or rows are samples.
    pub fn content(&self) -> ContentDigest {
        if self.mixed.is_some() {
            return mixture_digest();
        }
        self.digest
    }

    pub fn order_digest(&self) -> OrderDigest {
        if self.mixed.is_some() {
            return mixture_digest();
        }
        order_digest(self.counts())
    }

    pub fn counts(&self) -> Vec<u64> {
        match &self.samples {
            Some(maps) => maps.counts(),
            None => self.shards.iter().map(|shard| shard.records).collect(),
        }
    }
}
