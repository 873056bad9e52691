//! `dataset_info.json`, which TensorFlow Datasets writes for each version of a dataset: the files
//! of each split, and their numbers of records.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

pub(super) const NAME: &str = "dataset_info.json";

/// Maximum bytes of the file; a million shards take 10 MB.
const BYTES_MAX: u64 = 64 << 20;

const TEMPLATE: &str = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}";

/// Split and number of records by file name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DatasetInfo {
    pub(super) files: BTreeMap<String, (String, u64)>,
}

/// The relevant part of the file: protobuf as JSON, in which large numbers are text.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TfdsInfo {
    name: String,
    #[serde(default)]
    file_format: Option<String>,
    splits: Vec<Split>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Split {
    name: String,
    #[serde(default)]
    shard_lengths: Vec<Length>,
    #[serde(default)]
    filepath_template: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Length {
    Text(String),
    Number(u64),
}

impl DatasetInfo {
    /// Parses the file's bytes; `None` if another tool wrote a file of this name: Hugging Face's
    /// datasets do, and so does TFDS for files that are not TFRecord files.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let TfdsInfo { name: dataset, file_format, splits } = serde_json::from_slice(bytes).ok()?;
        if file_format.is_some_and(|format| format != "tfrecord") {
            return None;
        }
        let mut files = BTreeMap::new();
        for Split { name, shard_lengths, filepath_template } in splits {
            let template = filepath_template.filter(|template| !template.is_empty());
            let template = template.as_deref().unwrap_or(TEMPLATE);
            let shards = shard_lengths.len();
            for (shard, length) in shard_lengths.into_iter().enumerate() {
                let records = match length {
                    Length::Number(records) => records,
                    Length::Text(text) => text.parse().ok()?,
                };
                let file = file(template, &dataset, &name, shard, shards);
                files.insert(file, (name.clone(), records));
            }
        }
        Some(Self { files })
    }

    /// Reads the file in `folder`; `None` if there is none, or not one of TFDS.
    ///
    /// # Errors  It cannot be read, or is too large.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, String> {
        let Ok(file) = File::open(folder.join(NAME)) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let read = file.take(BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| format!("cannot be read: {error}"))?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(format!("has more than {BYTES_MAX} bytes"));
        }
        Ok(Self::parse(&bytes))
    }
}

fn file(template: &str, dataset: &str, split: &str, shard: usize, shards: usize) -> String {
    let (index, count) = (format!("{shard:05}"), format!("{shards:05}"));
    template
        .replace("{DATASET}", dataset)
        .replace("{SPLIT}", split)
        .replace("{FILEFORMAT}", "tfrecord")
        .replace("{SHARD_INDEX}", &index)
        .replace("{NUM_SHARDS}", &count)
        .replace("{SHARD_X_OF_Y}", &format!("{index}-of-{count}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_tfds_names_them() {
        let text = r#"{"name": "mnist", "version": "3.0.1", "fileFormat": "tfrecord", "splits": [
            {"name": "test", "shardLengths": ["10000"], "numBytes": "1"},
            {"name": "train", "shardLengths": ["7", 8],
             "filepathTemplate": "x/{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}.{NUM_SHARDS}"}]}"#;
        let info = DatasetInfo::parse(text.as_bytes()).unwrap();
        let files: Vec<_> = info
            .files
            .iter()
            .map(|(name, (split, records))| (&name[..], &split[..], *records))
            .collect();
        assert_eq!(
            files,
            [
                ("mnist-test.tfrecord-00000-of-00001", "test", 10_000),
                ("x/train.tfrecord-00000.00002", "train", 7),
                ("x/train.tfrecord-00001.00002", "train", 8),
            ]
        );
    }

    #[test]
    fn files_of_others_with_the_same_name_are_none() {
        for text in [
            "",
            "[]",
            r#"{"name": "x"}"#,
            r#"{"dataset_name": "x", "splits": {"train": {"name": "train", "num_examples": 5}}}"#,
            r#"{"name": "x", "fileFormat": "array_record", "splits": []}"#,
            r#"{"name": "x", "splits": [{"name": "train", "shardLengths": ["-1"]}]}"#,
        ] {
            assert_eq!(DatasetInfo::parse(text.as_bytes()), None, "{text}");
        }
    }
}
