//! Records as people name them: `PATH:ORDINAL`.

use std::path::Path;
use std::str::FromStr;

use shardfeed_dataset_tools::samples::shard_name;
use shardfeed_plan::Sample;

use super::Order;
use crate::error::Problem;

/// Maximum number of shards that a hint names.
const NAMED_MAX: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef {
    path: String,
    ordinal: u64,
}

impl FromStr for RecordRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.rsplit_once(':').and_then(|(path, ordinal)| {
            let ordinal = ordinal.parse().ok()?;
            (!path.is_empty()).then(|| Self { path: path.to_owned(), ordinal })
        });
        parsed.ok_or_else(|| "write PATH:ORDINAL, such as train-00003.tfrecord:17".into())
    }
}

impl RecordRef {
    /// Returns the record in the dataset of an order, with its number in its shard.
    ///
    /// # Errors
    /// The epoch has no such shard, or the shard no such record.
    pub(crate) fn find(&self, order: &Order) -> Result<Sample, Problem> {
        let (dataset, shards) = (&order.dataset, order.shards());
        let absolute = std::path::absolute(Path::new(&self.path)).ok();
        let named = shards.iter().find(|shard| shard_name(dataset, **shard) == self.path);
        let shard = named.or_else(|| {
            let path = |shard: u32| &dataset.files()[shard as usize].path;
            shards.iter().find(|shard| Some(path(**shard)) == absolute.as_ref())
        });
        let Some(&shard) = shard else {
            let names = shards.iter().take(NAMED_MAX).map(|shard| shard_name(dataset, *shard));
            let (names, root) = (names.collect::<Vec<_>>().join(", "), dataset.root().display());
            let more = if shards.len() > NAMED_MAX { ", …" } else { "" };
            return Err(Problem::failed(format!("{}: no shard of these files", self.path))
                .hint(format!("name a shard by its path in {root}: {names}{more}")));
        };
        let records = dataset.manifest().shards()[shard as usize].records;
        if self.ordinal >= records {
            let name = shard_name(dataset, shard);
            let what = format!("{name}: has {records} records, there is no {}", self.ordinal);
            return Err(Problem::failed(what).hint("records count from 0"));
        }
        Ok(Sample { shard, ordinal: self.ordinal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_colon_counts() {
        let found: RecordRef = "a:b/c.tfrecord:17".parse().unwrap();
        assert_eq!((found.path.as_str(), found.ordinal), ("a:b/c.tfrecord", 17));
        for text in ["", "a", "a:", ":1", "a:-1", "a:1x"] {
            assert!(text.parse::<RecordRef>().is_err(), "{text}");
        }
    }
}
