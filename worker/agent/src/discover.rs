//! From what a user writes to the files of a dataset.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use shardfeed_plan::ManifestError;

use crate::error::LoadError;

/// The files of a dataset, and the folder that their paths are relative to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Absolute path of the deepest folder that holds all files.
    pub root: PathBuf,
    /// Paths relative to it.
    pub paths: Vec<String>,
}

/// Finds the files that `patterns` name: paths, `file://` URLs, or globs (`*`, `?`, `[a-z]`, `**`).
/// A glob passes over folders and over names that start with a dot, unless it says the dot.
///
/// # Errors  A path does not exist or is named twice, or a pattern matches no file.
pub fn discover(patterns: &[String]) -> Result<Found, LoadError> {
    if patterns.is_empty() {
        return Err(LoadError::NotFound("the list of files is empty".into()));
    }
    let mut files = Vec::new();
    for pattern in patterns {
        files.extend(matches(local(pattern)?)?);
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
    Ok(Found { root, paths })
}

fn local(pattern: &str) -> Result<&str, LoadError> {
    match pattern.split_once("://") {
        Some(("file", path)) => Ok(path),
        Some((scheme, _)) => Err(LoadError::NotFound(format!(
            "{pattern}: `{scheme}://` is not supported yet, only local files are; copy the files, or \
             mount the bucket"
        ))),
        None => Ok(pattern),
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
        discover(&patterns)
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
        let error = discover(&["s3://bucket/x".into()]).unwrap_err().to_string();
        assert!(error.contains("`s3://` is not supported yet"), "{error}");
    }
}
