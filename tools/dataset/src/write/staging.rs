//! A folder in which shards are written before they are all moved to their final names.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use shardfeed_tfrecord::Compression;

use crate::output;
use crate::problem::Problem;

/// Marks a locked staging folder, to tell it from one left by a process without a lock.
const MARK: &str = "locked";

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

/// A hidden folder in the output folder, for one process at a time; removed with its contents when
/// dropped.
///
/// Python's `shardfeed.staging` has the same folder and the same lock, so that they exclude each
/// other.
#[derive(Debug)]
pub(crate) struct Staging {
    out_dir: PathBuf,
    /// Folder in which shards are written.
    pub(crate) folder: PathBuf,
    /// Existing files with this prefix, which are to be replaced.
    old: Vec<String>,
    // Dropped in this order, after the folder is removed.
    _lock: Option<WriteLock>,
    _made: MadeFolders,
}

impl Staging {
    /// Creates the folder.
    ///
    /// # Errors
    /// Another process writes such shards, or one was killed while writing without a lock. Without
    /// `force`: a dataset with this prefix exists.
    pub(crate) fn new(out_dir: &Path, prefix: &str, force: bool) -> anyhow::Result<Self> {
        let made = MadeFolders::of(out_dir);
        let lock = WriteLock::of(out_dir, prefix)?;
        let old = files_in(out_dir, prefix)
            .with_context(|| format!("cannot read {}", out_dir.display()))?;
        if let (Some(first), false) = (old.first(), force) {
            let what = format!(
                "{} already holds {} with the prefix `{prefix}`, such as {first}",
                out_dir.display(),
                output::counted(old.len() as u64, "file")
            );
            return Err(Problem::failed(what)
                .hint("name another --prefix or folder, or replace them with --force")
                .into());
        }
        let folder = out_dir.join(format!(".{prefix}.writing"));
        make(&folder, force, lock.is_some())?;
        Ok(Self { out_dir: out_dir.to_path_buf(), folder, old, _lock: lock, _made: made })
    }

    /// Moves the shards to the output folder, in place of the files that they replace; moves none on
    /// an error.
    ///
    /// Returns the output folder.
    pub(crate) fn publish(self, names: &ShardNames) -> anyhow::Result<PathBuf> {
        let Self { out_dir, folder, old, .. } = &self;
        let aside = folder.join("replaced");
        fs::create_dir(&aside).with_context(|| format!("cannot make {}", aside.display()))?;
        let new = (0..names.shards).map(|shard| names.name(shard));
        let new = new.map(|name| (folder.join(&name), out_dir.join(&name)));
        let old = old.iter().map(|name| (out_dir.join(name), aside.join(name)));
        let moves: Vec<_> = old.chain(new).collect();
        let mut moved = 0;
        let mut move_all = || {
            for (from, to) in &moves {
                fs::rename(from, to).with_context(|| {
                    format!("cannot move {} to {}", from.display(), to.display())
                })?;
                moved += 1;
            }
            let context = || format!("cannot write {}", out_dir.display());
            // The names are durable once the folder is synced.
            File::open(out_dir).and_then(|folder| folder.sync_all()).with_context(context)?;
            out_dir.canonicalize().with_context(context)
        };
        let published = move_all();
        if published.is_err() {
            for (from, to) in moves[..moved].iter().rev() {
                // The first error is the one to report.
                let _ = fs::rename(to, from);
            }
        }
        published
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // An error cannot be reported here; the next process that writes here finds the folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Missing folders on the way to the output folder, the innermost first; those that are empty are
/// removed when dropped.
#[derive(Debug)]
struct MadeFolders(Vec<PathBuf>);

impl MadeFolders {
    fn of(out_dir: &Path) -> Self {
        let missing = out_dir.ancestors().take_while(|folder| !folder.exists());
        Self(missing.map(Path::to_path_buf).collect())
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        // One that is not empty ends the loop, as after a success.
        let _ = self.0.iter().try_for_each(fs::remove_dir);
    }
}

/// Lock on the names of a prefix in a folder: an flock of `.PREFIX.lock`, which its holder removes.
#[derive(Debug)]
struct WriteLock {
    path: PathBuf,
    _file: File,
}

impl WriteLock {
    /// Returns the lock, and creates the folder if it is missing; `None` if the file system has no
    /// locks.
    ///
    /// # Errors
    /// Another process has it.
    fn of(out_dir: &Path, prefix: &str) -> anyhow::Result<Option<Self>> {
        let path = out_dir.join(format!(".{prefix}.lock"));
        loop {
            // The previous holder may have failed, and removed the folder that it made.
            fs::create_dir_all(out_dir)
                .with_context(|| format!("cannot make {}", out_dir.display()))?;
            let file = File::options().write(true).create(true).truncate(false).open(&path);
            let file = file.with_context(|| format!("cannot make {}", path.display()))?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Some(Self { path, _file: file })),
                // The previous holder has removed the file.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let out_dir = out_dir.display();
                    let what = format!(
                        "{out_dir}: another process writes shards with the prefix `{prefix}`"
                    );
                    let hint = "wait for it, or name another --prefix";
                    return Err(Problem::failed(what).hint(hint).into());
                }
                Err(TryLockError::Error(_)) => {
                    let _ = fs::remove_file(&path);
                    return Ok(None);
                }
            }
        }
    }
}

impl Drop for WriteLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// True if the file still has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: &Metadata| (found.dev(), found.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(file), Ok(named)) if id(&file) == id(&named))
}

/// Creates the folder.
/// - `is_locked`: this process has the lock, so the process that made a marked folder was killed.
fn make(folder: &Path, force: bool, is_locked: bool) -> anyhow::Result<()> {
    let context = || format!("cannot make {}", folder.display());
    let mark = folder.join(MARK);
    if folder.exists() && (force || is_locked && mark.exists()) {
        fs::remove_dir_all(folder).with_context(context)?;
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let what = format!(
                "{} is there: another process writes these shards, or one did and was killed",
                folder.display()
            );
            let hint = "wait for it, or if there is none, start over with --force";
            return Err(Problem::failed(what).hint(hint).into());
        }
        made => made.with_context(context)?,
    }
    if is_locked {
        File::create(&mark).with_context(context)?;
    }
    Ok(())
}

/// Returns the names in `folder` that a dataset with this prefix could have, sorted.
fn files_in(folder: &Path, prefix: &str) -> io::Result<Vec<String>> {
    // Python's `from_arrays` and `from_generator` describe the shards in this file.
    let description = format!("{prefix}.shardfeed.json");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        if let Ok(name) = entry?.file_name().into_string()
            && (is_shard(&name, prefix) || name == description)
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
    use crate::problem;

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

    /// Returns the files of a folder with their content, including hidden ones.
    fn content(folder: &Path) -> Vec<(String, String)> {
        let file = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.unwrap();
            let content = fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), content)
        };
        let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(file).collect();
        files.sort();
        files
    }

    #[test]
    fn an_error_between_renames_leaves_the_old_shards() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path();
        let names = ShardNames::new("a", 2, Compression::None);
        for name in [&names.name(0), &names.name(1), "a.shardfeed.json"] {
            fs::write(out.join(name), "old").unwrap();
        }
        let before = content(out);
        let write = |shards: &[usize]| {
            let staging = Staging::new(out, "a", true).unwrap();
            for &shard in shards {
                fs::write(staging.folder.join(names.name(shard)), "new").unwrap();
            }
            staging.publish(&names)
        };
        // The second shard is missing.
        let error = write(&[0]).unwrap_err();
        assert!(error.to_string().starts_with("cannot move "), "{error}");
        assert_eq!(content(out), before);
        write(&[0, 1]).unwrap();
        let new = [0, 1].map(|shard| (names.name(shard), "new".to_owned()));
        assert_eq!(content(out), new);
    }

    #[test]
    fn one_process_at_a_time_writes_a_prefix() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("deep/out");
        let first = Staging::new(&out, "a", false).unwrap();
        for force in [false, true] {
            let text = problem::text(&Staging::new(&out, "a", force).unwrap_err());
            assert!(text.contains("another process writes shards with the prefix `a`"), "{text}");
        }
        assert!(first.folder.exists());
        drop(Staging::new(&out, "b", false).unwrap());
        // The locked folder of a killed process is in no one's way.
        let (folder, lock) = (first.folder.clone(), out.join(".a.lock"));
        drop(first);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "all folders are removed");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(MARK), "").unwrap();
        fs::write(&lock, "").unwrap();
        drop(Staging::new(&out, "a", false).unwrap());
        assert!(content(&out).is_empty());
    }
}
