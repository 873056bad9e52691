//! From what a user writes to the files of a dataset.

mod list;

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use shardfeed_plan::{ChangeStamp, ManifestError};

use crate::error::LoadError;
use crate::remote;

pub use list::absolute_pattern;

/// The files of a dataset, and the folder that their paths are relative to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Absolute path, or URL, of the deepest folder that holds all files.
    pub root: PathBuf,
    /// Paths relative to it.
    pub paths: Vec<String>,
    /// How remote files looked when they were found, in the order of `paths`; empty: nobody looked.
    pub stamps: Vec<ChangeStamp>,
}

/// Finds the files that `patterns` name: paths, URLs (`file://`, `s3://`, `gs://`, `az://`, `http://`,
/// `https://`), or globs (`*`, `?`, `[a-z]`, `**`). A glob passes over folders and over names that start
/// with a dot, unless it says the dot. Web servers list nothing: there a range in braces stands for its
/// numbers (`x-{00..99}`). `@LIST` stands for the files that the lines of a local text name, which may be
/// relative to its folder.
/// - `go_on`: asked now and then while a store is waited for; `false` gives up.
///
/// # Errors  A path does not exist or is named twice, a pattern matches no file, or a store refuses;
/// `Interrupted`.
pub fn discover(patterns: &[String], go_on: &mut dyn FnMut() -> bool) -> Result<Found, LoadError> {
    if patterns.is_empty() {
        return Err(LoadError::NotFound("the list of files is empty".into()));
    }
    let patterns = &list::with_lists(patterns)?;
    let is_remote = |pattern: &&String| local(pattern).is_none();
    match patterns.iter().filter(is_remote).count() {
        0 => {}
        count if count == patterns.len() => return discover_remote(patterns, go_on),
        _ => {
            return Err(LoadError::NotFound(
                "some files are local and others are not; a dataset's files are all local, or all in \
                 one bucket or on one host"
                    .into(),
            ));
        }
    }
    let mut files = Vec::new();
    for pattern in patterns {
        files.extend(matches(local(pattern).expect("no pattern is remote"))?);
    }
    files.sort();
    if let Some(pair) = files.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(ManifestError::ListedTwice { path: pair[0].display().to_string() }.into());
    }
    let root = common_folder(&files);
    let relative = |file: &PathBuf| {
        let path = file.strip_prefix(&root).unwrap_or(file);
        path.to_str().map(str::to_owned).ok_or_else(|| {
            LoadError::NotFound(format!(
                "{}: the name is not UTF-8; rename the file",
                file.display()
            ))
        })
    };
    let paths = files.iter().map(relative).collect::<Result<_, _>>()?;
    Ok(Found { root, paths, stamps: Vec::new() })
}

fn discover_remote(
    patterns: &[String],
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Found, LoadError> {
    let mut files = Vec::new();
    // Of files that are named one by one all are looked at together.
    let is_pattern = |pattern: &&String| pattern.contains(['*', '?', '[', '{']);
    let (globs, named): (Vec<_>, Vec<_>) = patterns.iter().partition(is_pattern);
    let mut hosts: Vec<Vec<String>> = Vec::new();
    for url in named {
        let root = remote::Location::parse(url)?.root();
        match hosts.iter_mut().find(|urls| urls[0].starts_with(&format!("{root}/"))) {
            Some(urls) => urls.push(url.clone()),
            None => hosts.push(vec![url.clone()]),
        }
    }
    for urls in hosts {
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
    Ok(Found { root: root.into(), paths, stamps })
}

/// The path that a pattern is, unless it is the URL of something elsewhere.
fn local(pattern: &str) -> Option<&str> {
    match pattern.split_once("://") {
        Some(("file", path)) => Some(path),
        Some(_) => None,
        None => Some(pattern),
    }
}

fn matches(pattern: &str) -> Result<Vec<PathBuf>, LoadError> {
    let path = absolute(Path::new(pattern))?;
    if path.is_dir() {
        return Err(LoadError::NotFound(format!(
            "{pattern}: is a folder; name its files, for example {}",
            Path::new(pattern).join("*.tfrecord").display()
        )));
    }
    if path.exists() {
        return Ok(vec![path]);
    }
    if !pattern.contains(['*', '?', '[']) {
        return Err(LoadError::NotFound(format!(
            "{pattern}: no such file (looked for {}); check the path",
            path.display()
        )));
    }
    let options = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let text = if Path::new(pattern).is_absolute() {
        pattern.to_owned()
    } else {
        let here = absolute(Path::new("."))?;
        let here = here.to_str().expect("checked: UTF-8").trim_end_matches("/.");
        format!("{}/{pattern}", Pattern::escape(here))
    };
    let found = glob::glob_with(&text, options)
        .map_err(|error| LoadError::NotFound(format!("{pattern}: not a pattern: {error}")))?;
    let mut files = Vec::new();
    for entry in found {
        let file = entry.map_err(|error| LoadError::Io {
            file: error.path().display().to_string(),
            source: error.into(),
        })?;
        if !file.is_dir() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(LoadError::NotFound(format!(
            "{pattern}: no file matches (looked for {text}); check the pattern and the folder"
        )));
    }
    Ok(files)
}

fn absolute(path: &Path) -> Result<PathBuf, LoadError> {
    let error = |source| LoadError::Io { file: path.display().to_string(), source };
    let absolute = std::path::absolute(path).map_err(error)?;
    match absolute.to_str() {
        Some(_) => Ok(absolute),
        None => Err(LoadError::NotFound(format!("{}: the path is not UTF-8", absolute.display()))),
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
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"").unwrap();
    }

    fn find(patterns: &[&str], folder: &Path) -> Result<Found, LoadError> {
        let patterns: Vec<_> =
            patterns.iter().map(|p| folder.join(p).to_str().unwrap().to_owned()).collect();
        discover(&patterns, &mut || true)
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
        let found = find(&["a/x-0.tfrecord", "b/**/*.tfrecord"], folder.path()).unwrap();
        assert_eq!(found.root, folder.path());
        assert_eq!(found.paths, ["a/x-0.tfrecord", "b/c/x-3.tfrecord"]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let text = |pattern| find(&[pattern], folder.path()).unwrap_err().to_string();
        assert!(text("none.tfrecord").contains("none.tfrecord: no such file"));
        assert!(text("*.tfrecord").contains("no file matches"));
        assert!(text("").contains("is a folder; name its files"));
        let error = |patterns: &[&str]| {
            let patterns: Vec<_> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
            discover(&patterns, &mut || true).unwrap_err().to_string()
        };
        assert!(error(&["hdfs://name/x"]).contains("`hdfs://` is not known"));
        assert!(error(&["s3://bucket/x/"]).contains("s3://bucket/x/*.tfrecord"));
        assert!(error(&["s3://bucket/x", "/data/x"]).contains("all local, or all in one bucket"));
        assert!(error(&["https://host/x-*"]).contains("lists no files"));
    }
}
