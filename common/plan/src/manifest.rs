//! Manifest of a dataset: its shards in order, and its content digest.

use serde::{Deserialize, Serialize};

use crate::digest::{ContentDigest, Digest, OrderDigest, order_digest};

/// Stamp of a file when it was indexed; checked again when it is opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeStamp {
    /// Stored size in bytes.
    pub size_bytes: u64,
    /// Modification time according to the file system, ns since 1970; 0 with `etag`.
    pub modified_ns: i128,
    /// The object store's identifier of this content, if it has one.
    #[serde(default)]
    pub etag: Option<String>,
}

/// One TFRecord file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Path relative to the dataset.
    pub path: String,
    /// Number of records, which are the samples.
    pub records: u64,
    /// Digest of its record lengths and stored data checksums.
    pub digest: Digest,
}

/// Shards of a dataset, sorted bytewise by path, and the digest of their content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    shards: Vec<Shard>,
    digest: ContentDigest,
}

/// Reason why a list of shards is not a dataset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("`{path}` is listed twice; a file is read once an epoch, so name it once")]
    ListedTwice { path: String },
    #[error("a dataset has at most {} shards, not {shards}", u32::MAX)]
    TooManyShards { shards: usize },
}

impl Manifest {
    /// Sorts `shards` and computes their content digest.
    pub fn new(mut shards: Vec<Shard>) -> Result<Self, ManifestError> {
        shards.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        if let Some(pair) = shards.windows(2).find(|pair| pair[0].path == pair[1].path) {
            return Err(ManifestError::ListedTwice { path: pair[0].path.clone() });
        }
        Self::in_order(shards)
    }

    /// Returns the shards of several datasets, those of the first one first.
    ///
    /// # Errors  `TooManyShards`.
    pub fn joined<'a>(parts: impl Iterator<Item = &'a Self>) -> Result<Self, ManifestError> {
        Self::in_order(parts.flat_map(|part| part.shards.iter().cloned()).collect())
    }

    /// Returns a manifest of shards in this order, several of which may have the same path.
    ///
    /// # Errors  `TooManyShards`.
    pub fn in_order(shards: Vec<Shard>) -> Result<Self, ManifestError> {
        if u32::try_from(shards.len()).is_err() {
            return Err(ManifestError::TooManyShards { shards: shards.len() });
        }
        Ok(Self { digest: of_shards(&shards), shards })
    }

    /// Returns the shards in manifest order; a shard's index is its ordinal.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    pub fn digest(&self) -> ContentDigest {
        self.digest
    }

    pub fn records(&self) -> u64 {
        self.shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.records))
    }

    /// Returns the order digest of the dataset. Costs a SHA-256 over 8 bytes per shard.
    pub fn order_digest(&self) -> OrderDigest {
        order_digest(self.shards.iter().map(|shard| shard.records))
    }

    /// Returns the number of records of each shard, in manifest order.
    pub fn counts(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.records).collect()
    }
}

/// Returns a content digest of each shard's count and digest. Source: docs/ORDER.md, "Input".
pub fn content_digest(shards: impl Iterator<Item = (u64, Digest)>) -> ContentDigest {
    let parts: Vec<_> = shards.map(|(count, digest)| (count.to_le_bytes(), digest)).collect();
    let parts = parts.iter();
    Digest::of_parts(parts.flat_map(|(count, digest)| [count.as_slice(), digest.as_bytes()]))
}

fn of_shards(shards: &[Shard]) -> ContentDigest {
    content_digest(shards.iter().map(|shard| (shard.records, shard.digest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(path: &str, records: u64) -> Shard {
        Shard { path: path.into(), records, digest: Digest::of_parts([path.as_bytes()]) }
    }

    #[test]
    fn sorts_bytewise_and_refuses_a_file_twice() {
        let manifest = Manifest::new(vec![shard("b", 1), shard("B", 2), shard("a", 3)]).unwrap();
        let paths: Vec<_> = manifest.shards().iter().map(|shard| shard.path.as_str()).collect();
        assert_eq!(paths, ["B", "a", "b"]);
        assert_eq!(manifest.records(), 6);
        let twice = Manifest::new(vec![shard("a", 1), shard("a", 1)]).unwrap_err();
        assert_eq!(
            twice.to_string(),
            "`a` is listed twice; a file is read once an epoch, so name it once"
        );
    }

    #[test]
    fn digest_is_of_the_content_and_not_of_the_names() {
        let one = Manifest::new(vec![shard("a", 1), shard("b", 2)]).unwrap();
        let mut moved = one.shards().to_vec();
        moved[0].path = "elsewhere/0".into();
        moved[1].path = "elsewhere/1".into();
        assert_eq!(Manifest::new(moved).unwrap().digest(), one.digest());
        let other = Manifest::new(vec![shard("a", 2), shard("b", 2)]).unwrap();
        assert_ne!(other.digest(), one.digest());
    }
}
