//! Resolution of users' patterns to the files of a dataset.

mod list;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use glob::{MatchOptions, Pattern};
use shardfeed_plan::{ChangeStamp, ManifestError};

use crate::error::LoadError;
use crate::looks::file_state::FileState;
use crate::looks::{aside, each, moved};
use crate::remote;

pub use list::absolute_pattern;

/// Files of a dataset, and the folder that their paths are relative to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Absolute path, or URL, of the deepest folder that holds all files.
    pub root: PathBuf,
    /// Paths relative to it.
    pub paths: Vec<String>,
    /// Change stamps of remote files when found, in the order of `paths`; empty: not examined.
    pub stamps: Vec<ChangeStamp>,
    /// The same of local files, unless one cannot be read.
    pub(crate) states: Vec<FileState>,
}

impl Found {
    /// - `stamps`: see [`Found::stamps`].
    pub fn new(root: PathBuf, paths: Vec<String>, stamps: Vec<ChangeStamp>) -> Self {
        Self { root, paths, stamps, states: Vec::new() }
    }

    /// Returns absolute paths, or URLs, in the order of `paths`.
    pub fn files(&self) -> Vec<PathBuf> {
        self.paths.iter().map(|path| self.root.join(path)).collect()
    }
}

/// Finds the files that `patterns` name.
///
/// A pattern is a path, a URL (`file://`, `s3://`, `gs://`, `az://`, `http://`, `https://`), or a
/// glob (`*`, `?`, `[a-z]`, `**`). A glob skips folders, and names that start with a dot unless it
/// contains the dot. Web servers list nothing: there a range in braces expands to its numbers
/// (`x-{00..99}`). `@LIST` expands to the files that the lines of a local text name, which may be
/// relative to its folder.
/// - `go_on`: called ten times a second with `true` if anything was found since the last call. A
///   request to a store counts as progress, because it always ends. `false` cancels.
///
/// # Errors  A path is missing or named twice, no file matches, a store refuses; `Interrupted`.
pub fn discover(
    patterns: &[String],
    go_on: &mut dyn FnMut(bool) -> bool,
) -> Result<Found, LoadError> {
    if patterns.is_empty() {
        return Err(LoadError::NotFound(
            "the list of files is empty; name one file at least".into(),
        ));
    }
    let written = patterns.to_vec();
    let patterns = &aside(&mut moved(go_on), move || list::with_lists(&written))??;
    let is_remote = |pattern: &&String| local(pattern).is_none();
    match patterns.iter().filter(is_remote).count() {
        0 => {}
        count if count == patterns.len() => return discover_remote(patterns, &mut || go_on(true)),
        _ => {
            return Err(LoadError::NotFound(
                "some files are local and others are not; a dataset's files are all local, or all in \
                 one bucket or on one host"
                    .into(),
            ));
        }
    }
    let mut files = Vec::new();
    let paths = patterns.iter().map(|pattern| local(pattern).expect("no pattern is remote"));
    let paths = paths.map(ToOwned::to_owned).collect();
    // A walk is one look, however much it finds; it ends when the caller cancels.
    let walked = Arc::new(AtomicUsize::new(0));
    let of = Arc::downgrade(&walked);
    let found = {
        let mut tell = moved(go_on);
        let asked = &mut |done: usize| tell(done + walked.load(Ordering::Relaxed));
        each(paths, asked, move |pattern: &String| matches(pattern, &of))?
    };
    for found in found {
        match found? {
            Matches::File(path, state) => files.push((path, state)),
            Matches::Glob(glob) => files.extend(glob.files(go_on)?),
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    let (files, states): (Vec<_>, Vec<_>) = files.into_iter().unzip();
    let states = states.into_iter().collect::<Option<_>>().unwrap_or_default();
    if let Some(pair) = files.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(ManifestError::ListedTwice { path: pair[0].display().to_string() }.into());
    }
    let root = common_folder(&files);
    let relative = |file: &PathBuf| {
        let path = file.strip_prefix(&root).unwrap_or(file);
        path.to_str().expect("found by a pattern in UTF-8").to_owned()
    };
    let paths = files.iter().map(relative).collect();
    Ok(Found { states, ..Found::new(root, paths, Vec::new()) })
}

fn discover_remote(
    patterns: &[String],
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Found, LoadError> {
    let mut files = Vec::new();
    // Files that are named one by one are examined together.
    let is_pattern = |pattern: &&String| pattern.contains(['*', '?', '[', '{']);
    let (globs, named): (Vec<_>, Vec<_>) = patterns.iter().partition(is_pattern);
    let mut hosts: Vec<(String, Vec<String>)> = Vec::new();
    for url in named {
        let location = remote::Location::parse(url)?;
        let root = location.root();
        match hosts.iter_mut().find(|(host, _)| *host == root) {
            Some((_, urls)) => urls.push(location.url()),
            None => hosts.push((root, vec![location.url()])),
        }
    }
    for (_, urls) in hosts {
        match urls.as_slice() {
            [url] => files.extend(remote::find(url, go_on)?),
            urls => files.extend(remote::stamps(urls, go_on)?),
        }
    }
    for pattern in globs {
        files.extend(remote::find(pattern, go_on)?);
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    if let Some(pair) = files.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(ManifestError::ListedTwice { path: pair[0].0.clone() }.into());
    }
    let urls: Vec<&str> = files.iter().map(|(url, _)| url.as_str()).collect();
    let root = remote::common_root(&urls)?;
    let paths = urls.iter().map(|url| url[root.len() + 1..].to_owned()).collect();
    let stamps = files.into_iter().map(|(_, stamp)| stamp).collect();
    Ok(Found::new(root.into(), paths, stamps))
}

/// Returns the local path of a pattern; `None` if it is the URL of a remote file.
pub(crate) fn local(pattern: &str) -> Option<&str> {
    match pattern.split_once("://") {
        Some(("file", path)) => Some(path),
        Some(_) => None,
        None => Some(pattern),
    }
}

enum Matches {
    File(PathBuf, Option<FileState>),
    Glob(Glob),
}

/// Paths that a glob matches.
struct Glob {
    pattern: String,
    /// The pattern as an absolute path.
    text: String,
    found: Vec<PathBuf>,
}

/// Wildcards match no `/`, and no dot at the beginning of a name.
const STRICT: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// - `walked`: counts the entries walked over; dropped when the caller cancels.
fn matches(pattern: &str, walked: &Weak<AtomicUsize>) -> Result<Matches, LoadError> {
    let path = absolute(Path::new(pattern))?;
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => {
            return Err(LoadError::NotFound(format!(
                "{pattern}: is a folder; name its files, for example {}",
                Path::new(pattern).join("*.tfrecord").display()
            )));
        }
        Ok(metadata) => {
            let state = FileState::new(&path, &metadata).ok();
            return Ok(Matches::File(settled(path)?, state));
        }
        Err(_) => {}
    }
    if !pattern.contains(['*', '?', '[']) {
        return Err(LoadError::NotFound(format!(
            "{pattern}: no such file (looked for {}); check the path",
            path.display()
        )));
    }
    let text = if Path::new(pattern).is_absolute() {
        pattern.to_owned()
    } else {
        let here = absolute(Path::new("."))?;
        let here = here.to_str().expect("checked: UTF-8").trim_end_matches("/.");
        format!("{}/{pattern}", Pattern::escape(here))
    };
    let bad = |error| LoadError::NotFound(format!("{pattern}: not a pattern: {error}"));
    let found = walk(&text).map_err(bad)?;
    let whole = Pattern::new(&plain(Path::new(&text)).to_string_lossy()).map_err(bad)?;
    let mut matched = Vec::new();
    for entry in found {
        walked.upgrade().ok_or(LoadError::Interrupted)?.fetch_add(1, Ordering::Relaxed);
        let file = entry.map_err(|error| LoadError::Io {
            file: error.path().display().to_string(),
            source: error.into(),
        })?;
        if whole.matches_path_with(&plain(&file), STRICT) {
            matched.push(file);
        }
    }
    refuse_odd_names(&text, &matched, |name| whole.matches_with(name, STRICT))?;
    Ok(Matches::Glob(Glob { pattern: pattern.to_owned(), text, found: matched }))
}

fn walk(text: &str) -> Result<glob::Paths, glob::PatternError> {
    // With its own check for leading dots, `glob` panics at a name that is not UTF-8; without it,
    // `glob` skips the name.
    glob::glob_with(text, MatchOptions { require_literal_leading_dot: false, ..STRICT })
}

impl Glob {
    /// Returns the files among the matched paths.
    fn files(
        self,
        go_on: &mut dyn FnMut(bool) -> bool,
    ) -> Result<Vec<(PathBuf, Option<FileState>)>, LoadError> {
        let Self { pattern, text, found } = self;
        let look = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok();
            let is_folder = metadata.as_ref().is_some_and(std::fs::Metadata::is_dir);
            let state = metadata.and_then(|metadata| FileState::new(path, &metadata).ok());
            (!is_folder).then(|| Ok((settled(path.clone())?, state)))
        };
        let files = each(found, &mut moved(go_on), look)?;
        let files = files.into_iter().flatten().collect::<Result<Vec<_>, LoadError>>()?;
        if files.is_empty() {
            return Err(LoadError::NotFound(format!(
                "{pattern}: no file matches (looked for {text}); check the pattern and the folder"
            )));
        }
        Ok(files)
    }
}

/// Returns a path without `..`, so that a file has one name however it was found.
pub(crate) fn settled(path: PathBuf) -> Result<PathBuf, LoadError> {
    if !path.components().any(|part| part == Component::ParentDir) {
        return Ok(path);
    }
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            part => plain.push(part),
        }
    }
    let inode = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    // Behind a symbolic link, `..` leads elsewhere.
    if inode(&plain).is_some() && inode(&plain) == inode(&path) {
        return Ok(plain);
    }
    let error = |source| LoadError::Io { file: path.display().to_string(), source };
    std::fs::canonicalize(&path).map_err(error)
}

/// Removes redundant path components.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Rejects a file in a folder of the glob `text` that would match if its name were UTF-8: it would
/// otherwise be left out silently.
fn refuse_odd_names(
    text: &str,
    found: &[PathBuf],
    is_meant: impl Fn(&str) -> bool,
) -> Result<(), LoadError> {
    let mut folders: BTreeSet<PathBuf> =
        found.iter().filter_map(|file| file.parent()).map(Path::to_path_buf).collect();
    // Also the folders in which nothing else matches.
    let above = Path::new(text).parent().and_then(Path::to_str).unwrap_or("/");
    let above = walk(above).into_iter().flatten().flatten();
    folders.extend(above.filter(|folder| folder.is_dir()));
    for folder in &folders {
        let entries = std::fs::read_dir(folder)
            .map_err(|source| LoadError::Io { file: folder.display().to_string(), source })?;
        for entry in entries.flatten().filter(|entry| entry.file_name().to_str().is_none()) {
            let path = plain(&entry.path());
            if is_meant(&path.to_string_lossy()) {
                let path = path.display();
                let message = format!("{path}: the name is not UTF-8; rename the file");
                return Err(LoadError::NotFound(message));
            }
        }
    }
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf, LoadError> {
    let error = |source| LoadError::Io { file: path.display().to_string(), source };
    let absolute = std::path::absolute(path).map_err(error)?;
    match absolute.to_str() {
        Some(_) => Ok(absolute),
        None => Err(LoadError::NotFound(format!(
            "{}: the path is not UTF-8; rename its folder",
            absolute.display()
        ))),
    }
}

fn common_folder(files: &[PathBuf]) -> PathBuf {
    let mut common = files.first().and_then(|file| file.parent()).unwrap_or(Path::new("/"));
    for file in files {
        while !file.starts_with(common) {
            common = common.parent().unwrap_or(Path::new("/"));
        }
    }
    common.to_path_buf()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"").unwrap();
    }

    fn find(patterns: &[&str], folder: &Path) -> Result<Found, LoadError> {
        let patterns: Vec<_> =
            patterns.iter().map(|p| folder.join(p).to_str().unwrap().to_owned()).collect();
        discover(&patterns, &mut |_| true)
    }

    #[test]
    fn globs_pass_over_folders_and_hidden_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a/x-0.tfrecord", "a/x-1.tfrecord", "a/.x-2.tfrecord", "b/c/x-3.tfrecord"] {
            touch(&folder.path().join(name));
        }
        std::fs::create_dir(folder.path().join("a/x-9.tfrecord")).unwrap();
        let found = find(&["a/*.tfrecord"], folder.path()).unwrap();
        assert_eq!(found.root, folder.path().join("a"));
        assert_eq!(found.paths, ["x-0.tfrecord", "x-1.tfrecord"]);
        touch(&folder.path().join(".d/x-4.tfrecord"));
        let hidden = |pattern| find(&[pattern], folder.path()).map(|found| found.paths);
        assert_eq!(hidden("a//.x-*").unwrap(), [".x-2.tfrecord"]);
        assert_eq!(hidden(".d/../.d/./x-*").unwrap(), ["x-4.tfrecord"]);
        assert_eq!(hidden("**/x-[04]*").unwrap(), ["x-0.tfrecord"]);
        let found = find(&["b/../a/*.tfrecord"], folder.path()).unwrap();
        assert_eq!(found.root, folder.path().join("a"));
        std::os::unix::fs::symlink(folder.path().join("b/c"), folder.path().join("link")).unwrap();
        let found = find(&["link/../c/x-3.tfrecord"], folder.path()).unwrap();
        assert_eq!(found.root, folder.path().join("b/c").canonicalize().unwrap());
        let found = find(&["a/x-0.tfrecord", "b/**/*.tfrecord"], folder.path()).unwrap();
        assert_eq!(found.root, folder.path());
        assert_eq!(found.paths, ["a/x-0.tfrecord", "b/c/x-3.tfrecord"]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_str().unwrap();
        touch(&folder.path().join("x"));
        touch(&folder.path().join("odd/a.tfrecord"));
        touch(&folder.path().join(OsStr::from_bytes(b"odd/\xff.tfrecord")));
        touch(&folder.path().join(OsStr::from_bytes(b"odder/\xff.tfrecord")));
        let said = [
            &[][..],
            &["DIR/none.tfrecord"],
            &["DIR/*.tfrecord"],
            &["DIR"],
            &["DIR/x", "DIR/x"],
            &["DIR/odd/*"],
            &["DIR/odder/*"],
            &["DIR/*r/*"],
            &["s3://bucket/x", "/data/x"],
            &["hdfs://name/x"],
            &["s3://bucket/x/"],
            &["s3://bucket/[a-"],
            &["https://host/x-*"],
            &["https://host/{a,b}"],
            &["https://host/{2..1}"],
            &["https://host/{1..999999}/{1..9}"],
        ]
        .map(|patterns| {
            let patterns: Vec<_> =
                patterns.iter().map(|pattern| pattern.replace("DIR", here)).collect();
            discover(&patterns, &mut |_| true).unwrap_err().to_string().replace(here, "DIR")
        });
        assert_eq!(
            said,
            [
                "the list of files is empty; name one file at least",
                "DIR/none.tfrecord: no such file (looked for DIR/none.tfrecord); check the path",
                "DIR/*.tfrecord: no file matches (looked for DIR/*.tfrecord); check the pattern \
                 and the folder",
                "DIR: is a folder; name its files, for example DIR/*.tfrecord",
                "`DIR/x` is listed twice; a file is read once an epoch, so name it once",
                "DIR/odd/�.tfrecord: the name is not UTF-8; rename the file",
                "DIR/odder/�.tfrecord: the name is not UTF-8; rename the file",
                "DIR/odder/�.tfrecord: the name is not UTF-8; rename the file",
                "some files are local and others are not; a dataset's files are all local, or all \
                 in one bucket or on one host",
                "hdfs://name/x: `hdfs://` is not known; use a path, file://, s3://, gs://, az://, \
                 http:// or https://",
                "s3://bucket/x/: is a folder; name its files, for example s3://bucket/x/*.tfrecord",
                "s3://bucket/[a-: not a pattern: Pattern syntax error near position 0: invalid \
                 range pattern",
                "https://host/x-*: a web server lists no files, so it cannot be a pattern; name \
                 each file, or a range such as x-{00000..00099}.tfrecord",
                "https://host/{a,b}: the text in braces is no range such as {00000..00099}",
                "https://host/{2..1}: the range in braces is empty or too long",
                "https://host/{1..999999}/{1..9}: the ranges in braces name too many files",
            ]
        );
    }
}
