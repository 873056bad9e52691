//! A dataset as a trainer knows it: names and counts, but no record offsets.

use shardfeed_plan::ContentDigest;
use shardfeed_source::{Dataset, FileRules, LeftOut};

/// A shard as a trainer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRow {
    /// Path relative to the dataset.
    pub path: String,
    /// Number of records.
    pub records: u64,
}

/// A dataset as a trainer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Name in the cluster; empty without a cluster.
    pub name: String,
    /// Folder that paths are relative to.
    pub root: String,
    /// Rules for reading the files.
    pub rules: FileRules,
    /// Digest of the content.
    pub digest: ContentDigest,
    /// Shards, in manifest order.
    pub shards: Vec<ShardRow>,
    /// Parts of damaged files that no batch contains; truncated if there are many.
    pub left_out: Vec<LeftOut>,
    /// Total number of such parts.
    pub left_out_total: u64,
}

impl Contents {
    /// Contents of a dataset that was opened in this process.
    pub(crate) fn of(name: &str, rules: FileRules, dataset: &Dataset) -> Self {
        let row = |shard: &shardfeed_plan::Shard| ShardRow {
            path: shard.path.clone(),
            records: shard.records,
        };
        Self {
            name: name.to_owned(),
            root: dataset.root().display().to_string(),
            rules,
            digest: dataset.manifest().digest(),
            shards: dataset.manifest().shards().iter().map(row).collect(),
            left_out: dataset.left_out().to_vec(),
            left_out_total: dataset.left_out().len() as u64,
        }
    }

    /// Total records of all shards.
    pub fn records(&self) -> u64 {
        self.shards.iter().map(|shard| shard.records).sum()
    }

    /// Records of each shard.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.records).collect()
    }
}
