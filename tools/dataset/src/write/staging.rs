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

/// Folder of the shards that are being replaced, until all new ones have their names.
const ASIDE: &str = "replaced";

/// List of the new shards' names, one a line; written before the first of them gets its name, when
/// all old ones are aside.
const LISTED: &str = "names";

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
/// dropped, unless it holds old shards that could not be moved back.
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
    /// Creates the folder. If a process was killed while it replaced shards, the old ones are moved
    /// back before.
    ///
    /// # Errors
    /// Another process writes such shards, or one was killed while writing without a lock. Without
    /// `force`: a dataset with this prefix exists.
    pub(crate) fn new(out_dir: &Path, prefix: &str, force: bool) -> anyhow::Result<Self> {
        let made = MadeFolders::of(out_dir);
        let lock = WriteLock::of(out_dir, prefix)?;
        let folder = out_dir.join(format!(".{prefix}.writing"));
        // This process has the lock, so the process that made a marked folder was killed.
        if folder.exists() && (force || lock.is_some() && folder.join(MARK).exists()) {
            restore(&folder, out_dir, prefix)
                .with_context(|| format!("cannot move back the shards in {}", folder.display()))?;
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
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
        make(&folder, lock.is_some())?;
        Ok(Self { out_dir: out_dir.to_path_buf(), folder, old, _lock: lock, _made: made })
    }

    /// Moves the shards to the output folder, in place of the files that they replace; moves none on
    /// an error.
    ///
    /// Returns the output folder.
    pub(crate) fn publish(self, names: &ShardNames) -> anyhow::Result<PathBuf> {
        let Self { out_dir, folder, .. } = &self;
        self.move_all(names).map_err(|error| match restore(folder, out_dir, &names.prefix) {
            Ok(()) => error,
            Err(also) => {
                let folder = folder.display();
                let what =
                    format!("{error:#}; the shards in {folder} cannot be moved back: {also}");
                let hint = "keep that folder: the next call with this --prefix moves them back";
                Problem::failed(what).hint(hint).into()
            }
        })
    }

    fn move_all(&self, names: &ShardNames) -> anyhow::Result<PathBuf> {
        let Self { out_dir, folder, old, .. } = self;
        let rename = |from: &Path, to: &Path| {
            fs::rename(from, to)
                .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
        };
        let aside = folder.join(ASIDE);
        fs::create_dir(&aside).with_context(|| format!("cannot make {}", aside.display()))?;
        for name in old {
            rename(&out_dir.join(name), &aside.join(name))?;
        }
        let new: Vec<_> = (0..names.shards).map(|shard| names.name(shard)).collect();
        let listed = folder.join(LISTED);
        fs::write(&listed, new.join("\n"))
            .with_context(|| format!("cannot write {}", listed.display()))?;
        for name in &new {
            rename(&folder.join(name), &out_dir.join(name))?;
        }
        let context = || format!("cannot write {}", out_dir.display());
        // The names are durable once the folder is synced.
        File::open(out_dir).and_then(|folder| folder.sync_all()).with_context(context)?;
        let published = out_dir.canonicalize().with_context(context)?;
        // From here on the old shards are not moved back.
        rename(&aside, &folder.join("obsolete"))?;
        Ok(published)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Old shards that could not be moved back stay for the next process that writes here.
        if matches!(fs::exists(self.folder.join(ASIDE)), Ok(false)) {
            // An error cannot be reported here; the next process finds the folder.
            let _ = fs::remove_dir_all(&self.folder);
        }
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
            let file = match file {
                // That holder removed the folder only now. A link may lead nowhere for ever.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
                    continue;
                }
                file => file.with_context(|| format!("cannot make {}", path.display()))?,
            };
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
                // The file may be the lock of a process on another host, and stays.
                Err(TryLockError::Error(_)) => return Ok(None),
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

/// Undoes a `publish` that did not end, also that of a killed process; may be repeated.
fn restore(folder: &Path, out_dir: &Path, prefix: &str) -> io::Result<()> {
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let (aside, listed) = (folder.join(ASIDE), folder.join(LISTED));
    let old = match fs::read_dir(&aside) {
        Err(error) if is_missing(&error) => return Ok(()),
        old => old?.collect::<io::Result<Vec<_>>>()?,
    };
    match fs::read(&listed) {
        Err(error) if is_missing(&error) => {}
        names => {
            // The list may have been cut.
            let names = String::from_utf8_lossy(&names?).into_owned();
            for name in names.lines().filter(|name| is_of_dataset(name, prefix)) {
                match fs::remove_file(out_dir.join(name)) {
                    Err(error) if is_missing(&error) => {}
                    removed => removed?,
                }
            }
            // The names that follow are those of old shards.
            fs::remove_file(&listed)?;
        }
    }
    for entry in old {
        fs::rename(entry.path(), out_dir.join(entry.file_name()))?;
    }
    fs::remove_dir(&aside)
}

/// Creates the folder.
/// - `is_locked`: this process has the lock.
fn make(folder: &Path, is_locked: bool) -> anyhow::Result<()> {
    let context = || format!("cannot make {}", folder.display());
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
    if is_locked && let Err(error) = File::create(folder.join(MARK)) {
        // Without a mark, it would be in the way of the next process.
        let _ = fs::remove_dir(folder);
        return Err(error).with_context(context);
    }
    Ok(())
}

/// Returns the names in `folder` that a dataset with this prefix could have, sorted.
fn files_in(folder: &Path, prefix: &str) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        if let Ok(name) = entry?.file_name().into_string()
            && is_of_dataset(&name, prefix)
        {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// True if a dataset with this prefix could have a file of this name.
fn is_of_dataset(name: &str, prefix: &str) -> bool {
    // Python's `from_arrays` and `from_generator` describe the shards in a file.
    is_shard(name, prefix) || name.strip_prefix(prefix) == Some(".shardfeed.json")
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
    fn old_shards_return_after_a_kill_between_renames() {
        let old = ShardNames::new("a", 3, Compression::None);
        let new = ShardNames::new("a", 2, Compression::None);
        // Number of old shards that were aside, and of new ones that had their names.
        for (gone, come) in [(0, 0), (2, 0), (3, 0), (3, 1), (3, 2)] {
            let place = tempfile::tempdir().unwrap();
            let (out, staging) = (place.path(), place.path().join(".a.writing"));
            fs::create_dir_all(staging.join(ASIDE)).unwrap();
            fs::write(staging.join(MARK), "").unwrap();
            fs::write(out.join("b"), "other").unwrap();
            for shard in 0..3 {
                let folder = if shard < gone { &staging.join(ASIDE) } else { out };
                fs::write(folder.join(old.name(shard)), "old").unwrap();
            }
            if gone == 3 {
                let names = [new.name(0), new.name(1), "b".to_owned()].join("\n");
                fs::write(staging.join(LISTED), names).unwrap();
            }
            for shard in 0..2 {
                let folder = if shard < come { out } else { &staging };
                fs::write(folder.join(new.name(shard)), "new").unwrap();
            }
            let text = problem::text(&Staging::new(out, "a", false).unwrap_err());
            assert!(text.contains("already holds 3 files with the prefix `a`"), "{text}");
            let mut left: Vec<_> = (0..3).map(|at| (old.name(at), "old".to_owned())).collect();
            left.push(("b".to_owned(), "other".to_owned()));
            assert_eq!(content(out), left, "{gone} aside, {come} new");
        }
    }

    #[test]
    fn new_shards_remain_after_a_kill_behind_the_last_rename() {
        let place = tempfile::tempdir().unwrap();
        let (out, staging) = (place.path(), place.path().join(".a.writing"));
        let names = ShardNames::new("a", 1, Compression::None);
        fs::write(out.join(names.name(0)), "new").unwrap();
        fs::create_dir_all(staging.join("obsolete")).unwrap();
        fs::write(staging.join(MARK), "").unwrap();
        fs::write(staging.join(LISTED), names.name(0)).unwrap();
        fs::write(staging.join("obsolete").join(names.name(0)), "old").unwrap();
        drop(Staging::new(out, "a", true).unwrap());
        assert_eq!(content(out), [(names.name(0), "new".to_owned())]);
    }

    #[test]
    fn shards_that_cannot_be_moved_back_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path();
        let names = ShardNames::new("a", 2, Compression::None);
        fs::write(out.join(names.name(0)), "old").unwrap();
        let before = content(out);
        let staging = Staging::new(out, "a", true).unwrap();
        // No shard, but a folder, which restoring does not remove; the second shard is missing.
        fs::create_dir(staging.folder.join(names.name(0))).unwrap();
        let text = problem::text(&staging.publish(&names).unwrap_err());
        assert!(text.starts_with("error: cannot move "), "{text}");
        assert!(text.contains("/.a.writing cannot be moved back: "), "{text}");
        assert!(text.contains("hint: keep that folder: "), "{text}");
        let error = Staging::new(out, "a", true).unwrap_err();
        assert!(error.to_string().starts_with("cannot move back the shards in "), "{error}");
        fs::remove_dir(out.join(names.name(0))).unwrap();
        drop(Staging::new(out, "a", true).unwrap());
        assert_eq!(content(out), before);
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
        // The locked folder of a killed process does not block a new writer.
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
