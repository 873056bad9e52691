//! A folder in which shards are written before they are all moved to their final names.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use shardfeed_tfrecord::Compression;

use crate::output;
use crate::problem::Problem;

#[derive(Debug)]
pub(crate) struct ShardNames {
    prefix: String,
    shards: usize,
    pub(crate) compression: Compression,
}

impl ShardNames {
    pub(crate) fn new(prefix: &str, shards: usize, compression: Compression) -> Self {
        Self { prefix: prefix.to_owned(), shards, compression }
    }

    /// Returns `PREFIX-00000-of-00012.tfrecord` with the extension of the compression.
    pub(crate) fn name(&self, shard: usize) -> String {
        let Self { prefix, shards, .. } = self;
        let extension = extension(self.compression);
        format!("{prefix}-{shard:05}-of-{shards:05}.tfrecord{extension}")
    }
}

/// A hidden folder in the output folder; removed with its contents when dropped.
#[derive(Debug)]
pub(crate) struct Staging {
    out_dir: PathBuf,
    /// Folder in which shards are written.
    pub(crate) folder: PathBuf,
    /// Existing shards with this prefix, which are to be replaced.
    old: Vec<String>,
}

impl Staging {
    /// Creates the folder.
    ///
    /// # Errors
    /// Without `force`: shards with this prefix exist, or another process writes some.
    pub(crate) fn new(out_dir: &Path, prefix: &str, force: bool) -> anyhow::Result<Self> {
        fs::create_dir_all(out_dir)
            .with_context(|| format!("cannot make {}", out_dir.display()))?;
        let old = shards_in(out_dir, prefix)
            .with_context(|| format!("cannot read {}", out_dir.display()))?;
        if let (Some(first), false) = (old.first(), force) {
            let what = format!(
                "{} already holds {} with the prefix `{prefix}`, such as {first}",
                out_dir.display(),
                output::counted(old.len() as u64, "shard")
            );
            return Err(Problem::failed(what)
                .hint("name another --prefix or folder, or replace them with --force")
                .into());
        }
        let folder = out_dir.join(format!(".{prefix}.writing"));
        make(&folder, force)?;
        Ok(Self { out_dir: out_dir.to_path_buf(), folder, old })
    }

    /// Moves the shards to the output folder, and removes the ones that they replace.
    ///
    /// Returns the output folder.
    pub(crate) fn publish(self, names: &ShardNames) -> anyhow::Result<PathBuf> {
        let new: Vec<_> = (0..names.shards).map(|shard| names.name(shard)).collect();
        for name in &new {
            let path = self.out_dir.join(name);
            fs::rename(self.folder.join(name), &path)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        // The names are sorted: they have one prefix and the same number of digits.
        for name in self.old.iter().filter(|name| new.binary_search(name).is_err()) {
            let path = self.out_dir.join(name);
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        let context = || format!("cannot write {}", self.out_dir.display());
        // The names are durable once the folder is synced.
        File::open(&self.out_dir).and_then(|folder| folder.sync_all()).with_context(context)?;
        self.out_dir.canonicalize().with_context(context)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // An error cannot be reported here; the next process that writes here finds the folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Creates the folder, which only one process at a time can.
fn make(folder: &Path, force: bool) -> anyhow::Result<()> {
    let context = || format!("cannot make {}", folder.display());
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && force => {
            fs::remove_dir_all(folder).with_context(context)?;
            fs::create_dir(folder).with_context(context)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let what = format!(
                "{} is there: another process writes these shards, or one did and was killed",
                folder.display()
            );
            let hint = "wait for it, or if there is none, start over with --force";
            Err(Problem::failed(what).hint(hint).into())
        }
        made => made.with_context(context),
    }
}

/// Returns the names in `folder` that shards with this prefix could have, sorted.
fn shards_in(folder: &Path, prefix: &str) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        if let Ok(name) = entry?.file_name().into_string()
            && is_shard(&name, prefix)
        {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

fn is_shard(name: &str, prefix: &str) -> bool {
    let parts = name
        .strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.split_once(".tfrecord"))
        .and_then(|(numbers, rest)| Some((numbers.split_once("-of-")?, rest)));
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let schemes = [Compression::None, Compression::Gzip, Compression::Zlib];
    parts.is_some_and(|((shard, of), rest)| {
        is_number(shard) && is_number(of) && schemes.iter().any(|&scheme| rest == extension(scheme))
    })
}

fn extension(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "",
        Compression::Gzip => ".gz",
        Compression::Zlib => ".zlib",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_own_names_and_no_others() {
        for scheme in [Compression::None, Compression::Gzip, Compression::Zlib] {
            let name = ShardNames::new("a-b", 12, scheme).name(3);
            assert!(is_shard(&name, "a-b"), "{name}");
            assert!(!is_shard(&name, "a"), "{name}");
        }
        for name in ["a-00000-of-0001.tfrecord", "a-x0000-of-00001.tfrecord", "a.tfrecord", "a-"] {
            assert!(!is_shard(name, "a"), "{name}");
        }
        assert!(!is_shard("a-00000-of-00001.tfrecord.bak", "a"));
    }
}
