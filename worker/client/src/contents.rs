//! What a trainer knows of its dataset: names and counts, not where records lie.

use shardfeed_agent::{Dataset, FileRules, LeftOut};
use shardfeed_plan::ContentDigest;

/// A shard as a trainer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRow {
    /// Path relative to the dataset.
    pub path: String,
    /// Records.
    pub records: u64,
}

/// A dataset as a trainer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Its name in the cluster; empty in one process.
    pub name: String,
    /// Folder that paths are relative to.
    pub root: String,
    /// How its files are read.
    pub rules: FileRules,
    /// Its content.
    pub digest: ContentDigest,
    /// Its shards, in manifest order.
    pub shards: Vec<ShardRow>,
    /// What of damaged files is in no batch; not all of it if that is much.
    pub left_out: Vec<LeftOut>,
    /// How many that are.
    pub left_out_total: u64,
}

impl Contents {
    /// Those of a dataset that was opened in this process.
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

    /// Records of all shards.
    pub fn records(&self) -> u64 {
        self.shards.iter().map(|shard| shard.records).sum()
    }

    /// Records of each shard.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.records).collect()
    }
}
