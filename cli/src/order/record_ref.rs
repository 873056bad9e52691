//! Records as people name them: `PATH:ORDINAL`.

use std::path::Path;
use std::str::FromStr;

use shardfeed_plan::Sample;
use shardfeed_source::Dataset;

use crate::error::Problem;

/// Maximum number of shards that a hint names.
const NAMED_MAX: usize = 3;

/// A record of a file.
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
    /// Returns the record's sample in `dataset`.
    ///
    /// # Errors
    /// The dataset has no such shard, or the shard no such record.
    pub(crate) fn find(&self, dataset: &Dataset) -> Result<Sample, Problem> {
        let shards = dataset.manifest().shards();
        let absolute = std::path::absolute(Path::new(&self.path)).ok();
        let index = shards.iter().position(|shard| shard.path == self.path).or_else(|| {
            let is_it =
                |file: &shardfeed_source::DatasetFile| Some(&file.path) == absolute.as_ref();
            dataset.files().iter().position(is_it)
        });
        let Some(index) = index else {
            let names = shards.iter().take(NAMED_MAX).map(|shard| shard.path.as_str());
            let names: Vec<_> = names.collect();
            let more = if shards.len() > NAMED_MAX { ", …" } else { "" };
            return Err(Problem::failed(format!("{}: no shard of these files", self.path)).hint(
                format!(
                    "name a shard by its path in {}: {}{more}",
                    dataset.root().display(),
                    names.join(", ")
                ),
            ));
        };
        let (shard, ordinal) = (&shards[index], self.ordinal);
        if ordinal >= shard.records {
            let what =
                format!("{}: has {} records, there is no {ordinal}", shard.path, shard.records);
            return Err(Problem::failed(what).hint("records count from 0"));
        }
        Ok(Sample {
            shard: index as u32, // A manifest has no more shards than that.
            ordinal,
        })
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
