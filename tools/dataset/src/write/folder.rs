//! A folder of files as a source: one record per file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use anyhow::{Context, Result};

use super::file_list::{FileEntry, FileList};
use super::whole;
use crate::problem::Problem;

/// Maximum depth of folders: more are a link that leads back.
const DEPTH_MAX: usize = 100;

/// Approximate size of an Example without the file, its path and its class, bytes.
const EXAMPLE_BYTES: u64 = 80;

/// Lists the files below `root` without reading them.
///
/// # Errors
/// There are none; some have a class and some do not; one is not a regular file or is too large.
pub(super) fn open(root: &Path) -> Result<FileList> {
    let mut entries = Vec::new();
    list(root, Path::new(""), 0, &mut entries)?;
    if entries.is_empty() {
        let what = format!("{}: holds no files", root.display());
        return Err(Problem::failed(what)
            .hint("names that start with a dot are passed over")
            .into());
    }
    entries.sort_by(|a, b| a.path_bytes().cmp(b.path_bytes()));
    let classes = classes(root, &entries)?;
    let mut record_bytes = Vec::with_capacity(entries.len());
    for file in &mut entries {
        let class = class_of(&file.path).unwrap_or_default();
        let label = classes.binary_search_by(|other| other.as_slice().cmp(class)).ok();
        file.label = label.map(|label| label as i64);
        let named = (file.path_bytes().len() + class.len()) as u64;
        record_bytes.push(file.bytes + named + EXAMPLE_BYTES);
    }
    Ok(FileList { root: root.to_path_buf(), entries, classes, record_bytes })
}

/// Lists the files in `root/folder` and its subfolders.
fn list(root: &Path, folder: &Path, depth: usize, files: &mut Vec<FileEntry>) -> Result<()> {
    let absolute = root.join(folder);
    let context = || format!("cannot read {}", absolute.display());
    if depth > DEPTH_MAX {
        let what = format!("{}: more than {DEPTH_MAX} folders deep", absolute.display());
        return Err(Problem::failed(what).hint("remove the link that leads back").into());
    }
    for entry in fs::read_dir(&absolute).with_context(context)? {
        let name = entry.with_context(context)?.file_name();
        if name.as_bytes().starts_with(b".") {
            continue;
        }
        let path = folder.join(&name);
        let absolute = root.join(&path);
        // Links are followed: their targets are meant.
        let found = fs::metadata(&absolute)
            .with_context(|| format!("cannot read {}", absolute.display()))?;
        if found.is_dir() {
            list(root, &path, depth + 1, files)?;
            continue;
        }
        whole::check(&absolute, &found)?;
        let bytes = found.len();
        files.push(FileEntry { path, bytes, label: None });
    }
    Ok(())
}

/// Returns the names of the classes; empty if no file is in a subfolder.
fn classes(root: &Path, files: &[FileEntry]) -> Result<Vec<Vec<u8>>, Problem> {
    let classes: BTreeSet<_> = files.iter().filter_map(|file| class_of(&file.path)).collect();
    let loose = files.iter().find(|file| class_of(&file.path).is_none());
    match loose {
        Some(loose) if !classes.is_empty() => {
            let path = root.join(&loose.path);
            let what = format!("{}: is in no class folder, as other files are", path.display());
            Err(Problem::failed(what).hint("move it into a class folder, or out of the source"))
        }
        _ => Ok(classes.into_iter().map(<[u8]>::to_vec).collect()),
    }
}

/// Returns the first folder of a path.
fn class_of(path: &Path) -> Option<&[u8]> {
    let mut components = path.components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(class)), Some(_)) => Some(class.as_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn folders_without_an_end_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let mut folder = home.path().to_owned();
        for _ in 0..=DEPTH_MAX {
            folder.push("deep");
            fs::create_dir(&folder).unwrap();
        }
        let error = crate::problem::text(&open(home.path()).unwrap_err());
        let error = error.replace(home.path().to_str().unwrap(), "$DIR");
        expect![[r#"
            error: $DIR: more than 100 folders deep
            hint: remove the link that leads back
        "#]]
        .assert_eq(&error.replace("/deep", ""));
    }
}
