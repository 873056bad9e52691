//! What a trainer knows of its dataset: names and counts, not where records lie.

use shardfeed_agent::Dataset;
use shardfeed_plan::ContentDigest;
use shardfeed_tfrecord::CompressionChoice;

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
    /// How its files are compressed.
    pub compression: CompressionChoice,
    /// Its content.
    pub digest: ContentDigest,
    /// Its shards, in manifest order.
    pub shards: Vec<ShardRow>,
}

impl Contents {
    /// Those of a dataset that was opened in this process.
    pub(crate) fn of(name: &str, compression: CompressionChoice, dataset: &Dataset) -> Self {
        let row = |shard: &shardfeed_plan::Shard| ShardRow {
            path: shard.path.clone(),
            records: shard.records,
        };
        Self {
            name: name.to_owned(),
            root: dataset.root().display().to_string(),
            compression,
            digest: dataset.manifest().digest(),
            shards: dataset.manifest().shards().iter().map(row).collect(),
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
