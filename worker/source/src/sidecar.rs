//! Files beside shards that state their numbers of records: indexes of `tfrecord2idx`, and TFDS's
//! `dataset_info.json`.
//!
//! The shards' content is authoritative and is always scanned, because the content digest covers
//! every record's length and checksum. These files therefore serve two purposes: a number before
//! the scan, and a cross-check. A shard that was cut off between two records looks intact; only a
//! count made when it was written reveals the loss.

mod idx;
mod tfds;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use self::tfds::DatasetInfo;
use crate::error::LoadError;
use crate::looks::{aside, each};
use crate::remote::is_remote;

/// Statements of the files beside a dataset's shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sidecars {
    /// Counts for each shard, in the order in which the shards were given.
    counts: Vec<Vec<Count>>,
    /// Faults of files beside the shards, and files that are missing.
    faults: Vec<Fault>,
}

/// Number of a shard's records according to a file beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    pub records: u64,
    /// Absolute path of the file.
    pub by: PathBuf,
}

/// A false statement of a file beside shards, or a fault of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Absolute path of the file.
    pub file: PathBuf,
    /// The fault as a phrase that follows the file's name.
    pub what: String,
}

/// Statement of one file.
type Said = Result<Count, Fault>;

impl Sidecars {
    /// Reads the files beside local shards; remote shards have none.
    ///
    /// Every line of an index is compared with its shard: its size, and up to 64 of its frames.
    /// - `paths`: of the shards, relative to `root`.
    /// - `go_on`: called ten times a second with the number of completed looks; `false` cancels.
    ///
    /// # Errors  `Interrupted`; the system has no threads.
    pub fn beside(
        root: &Path,
        paths: &[String],
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, LoadError> {
        if is_remote(root) {
            return Ok(Self { counts: vec![Vec::new(); paths.len()], faults: Vec::new() });
        }
        let shards = paths.iter().map(|path| root.join(path)).collect();
        let indexes = each(shards, go_on, |shard: &PathBuf| of_index(shard))?;
        let mut sidecars = Self::default();
        for said in indexes {
            let mut counts = Vec::new();
            for said in said {
                match said {
                    Ok(count) => counts.push(count),
                    Err(fault) => sidecars.faults.push(fault),
                }
            }
            sidecars.counts.push(counts);
        }
        sidecars.add_tfds(root, paths, &mut |done| go_on(paths.len() + done))?;
        Ok(sidecars)
    }

    fn add_tfds(
        &mut self,
        root: &Path,
        paths: &[String],
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), LoadError> {
        let mut folders: BTreeMap<PathBuf, Vec<(usize, String)>> = BTreeMap::new();
        for (shard, path) in paths.iter().enumerate() {
            let path = root.join(path);
            if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
                let name = name.to_string_lossy().into_owned();
                folders.entry(folder.to_path_buf()).or_default().push((shard, name));
            }
        }
        for (folder, shards) in folders {
            let by = folder.join(tfds::NAME);
            let of = folder.clone();
            let info = match aside(go_on, move || DatasetInfo::read(&of))? {
                Ok(Some(info)) => info,
                Ok(None) => continue,
                Err(what) => {
                    self.faults.push(Fault { file: by, what });
                    continue;
                }
            };
            let (mut splits, mut there) = (BTreeSet::new(), BTreeSet::new());
            for (shard, name) in &shards {
                if let Some((split, records)) = info.files.get(name) {
                    splits.insert(split);
                    there.insert(name);
                    self.counts[*shard].push(Count { records: *records, by: by.clone() });
                }
            }
            for split in splits {
                let files = info.files.iter().filter(|(_, (of, _))| of == split);
                let others = files.map(|(name, _)| name).filter(|name| !there.contains(name));
                let (others, folder) = (others.cloned().collect(), folder.clone());
                let look = move |name: &String| (!folder.join(name).exists()).then(|| name.clone());
                let mut gone = each(others, go_on, look)?.into_iter().flatten();
                if let Some(first) = gone.next() {
                    let more = gone.count();
                    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
                    let what = format!(
                        "names files of the split `{split}` that are not there: {first}{more}"
                    );
                    self.faults.push(Fault { file: by.clone(), what });
                }
            }
        }
        Ok(())
    }

    /// Returns the counts for a shard, in the order of their files' names; they may differ.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn counts(&self, shard: usize) -> &[Count] {
        &self.counts[shard]
    }

    /// Returns the number that all counts for a shard agree on; `None`: none, or they differ.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn records(&self, shard: usize) -> Option<u64> {
        let (first, others) = self.counts[shard].split_first()?;
        others.iter().all(|count| count.records == first.records).then_some(first.records)
    }

    /// Returns the faults of files beside the shards.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Returns the counts for a shard that differ from its actual `records`.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn disagreements(&self, shard: usize, path: &str, records: u64) -> Vec<Fault> {
        let wrong = self.counts[shard].iter().filter(|count| count.records != records);
        let fault = |count: &Count| Fault {
            file: count.by.clone(),
            what: format!("says {} records of {path}, which has {records}", count.records),
        };
        wrong.map(fault).collect()
    }
}

/// Returns the statements of indexes beside a shard.
fn of_index(shard: &Path) -> Vec<Said> {
    let there = idx::names(shard).filter(|path| path != shard && path.is_file());
    let read = |path: PathBuf| {
        let checked = idx::read(&path).and_then(|index| {
            let file =
                File::open(shard).map_err(|error| format!("its shard cannot be read: {error}"))?;
            index.check(&file).map(|()| index.records)
        });
        match checked {
            Ok(records) => Ok(Count { records, by: path }),
            Err(what) => Err(Fault { file: path, what }),
        }
    };
    there.map(read).collect()
}

#[cfg(test)]
mod tests {
    use shardfeed_tfrecord::{Compression, create};

    use super::*;

    fn shard(folder: &Path, name: &str, records: usize) -> String {
        let mut writer = create(folder.join(name), Compression::None).unwrap();
        let mut lines = String::new();
        for _ in 0..records {
            lines += &format!("{} 21\n", writer.bytes());
            writer.write(b"hello").unwrap();
        }
        writer.finish().unwrap();
        lines
    }

    fn beside(folder: &Path, names: &[&str]) -> Sidecars {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        Sidecars::beside(folder, &names, &mut |_| true).unwrap()
    }

    #[test]
    fn nothing_is_said_where_nothing_lies() {
        let folder = tempfile::tempdir().unwrap();
        shard(folder.path(), "a.tfrecord", 3);
        let found = beside(folder.path(), &["a.tfrecord"]);
        assert_eq!((found.counts(0), found.records(0), found.faults()), (&[][..], None, &[][..]));
    }

    #[test]
    fn both_kinds_are_found_and_may_differ() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for (index, records) in [3, 4].into_iter().enumerate() {
            let name = format!("d-train.tfrecord-0000{index}-of-00003");
            let lines = shard(path, &name, records);
            std::fs::write(path.join(format!("{name}.idx")), lines).unwrap();
        }
        let info =
            r#"{"name": "d", "splits": [{"name": "train", "shardLengths": ["3", "5", "1"]}]}"#;
        std::fs::write(path.join("dataset_info.json"), info).unwrap();
        let names = ["d-train.tfrecord-00000-of-00003", "d-train.tfrecord-00001-of-00003"];
        let found = beside(path, &names);
        assert_eq!((found.records(0), found.records(1)), (Some(3), None));
        assert_eq!(found.counts(1).len(), 2);
        let said: Vec<_> =
            found.disagreements(1, names[1], 4).into_iter().map(|f| f.what).collect();
        assert_eq!(said, [format!("says 5 records of {}, which has 4", names[1])]);
        assert!(found.disagreements(0, names[0], 3).is_empty());
        let faults: Vec<_> = found.faults().iter().map(|fault| fault.what.as_str()).collect();
        assert_eq!(
            faults,
            [
                "names files of the split `train` that are not there: d-train.tfrecord-00002-of-00003"
            ]
        );
    }

    #[test]
    fn an_index_of_another_file_says_nothing_and_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let lines = shard(folder.path(), "a.tfrecord", 3);
        shard(folder.path(), "a.tfrecord", 2);
        std::fs::write(folder.path().join("a.idx"), lines).unwrap();
        let found = beside(folder.path(), &["a.tfrecord"]);
        assert_eq!(found.counts(0), []);
        assert_eq!(found.faults()[0].file, folder.path().join("a.idx"));
        assert!(found.faults()[0].what.contains("end at byte 63"), "{:?}", found.faults());
    }
}
