//! A folder of files as a source: one record per file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use shardfeed_tfrecord::example::{Value, encode_example};

use super::source::{Classes, Encoder, Source};
use super::whole;
use crate::problem::Problem;

/// Maximum depth of folders: more are a link that leads back.
const DEPTH_MAX: usize = 100;

/// Approximate size of an Example without the file, its path and its class, bytes.
const EXAMPLE_BYTES: u64 = 80;

#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    /// Files in the bytewise order of their paths.
    files: Vec<FileEntry>,
    record_bytes: Vec<u64>,
    /// Classes in bytewise order; empty if the folder has none.
    classes: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct FileEntry {
    /// Path relative to the folder.
    path: PathBuf,
    bytes: u64,
}

impl Folder {
    /// Lists the files below `root` without reading them.
    ///
    /// # Errors
    /// There are none; some have a class and some do not; one is not a regular file or is too
    /// large.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        list(root, Path::new(""), 0, &mut files)?;
        if files.is_empty() {
            let what = format!("{}: holds no files", root.display());
            return Err(Problem::failed(what)
                .hint("names that start with a dot are passed over")
                .into());
        }
        files.sort_by(|a, b| path_bytes(&a.path).cmp(path_bytes(&b.path)));
        let classes = classes(root, &files)?;
        let record_bytes = files.iter().map(|file| {
            let class = class_of(&file.path).map_or(0, <[u8]>::len);
            file.bytes + (path_bytes(&file.path).len() + class) as u64 + EXAMPLE_BYTES
        });
        Ok(Self { root: root.to_path_buf(), record_bytes: record_bytes.collect(), files, classes })
    }
}

impl Source for Folder {
    fn record_bytes(&self) -> &[u64] {
        &self.record_bytes
    }

    fn classes(&self) -> Option<Classes> {
        let names = self.classes.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        let names: Vec<_> = names.collect();
        (!names.is_empty()).then_some(Classes { first_label: 0, names })
    }

    fn encoder(&self) -> Result<Box<dyn Encoder + '_>> {
        let data = Vec::new();
        Ok(Box::new(FileEncoder { folder: self, data }))
    }
}

struct FileEncoder<'a> {
    folder: &'a Folder,
    data: Vec<u8>,
}

impl Encoder for FileEncoder<'_> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) -> Result<()> {
        let file = &self.folder.files[index];
        let path = self.folder.root.join(&file.path);
        whole::read(&path, file.bytes, &mut self.data)?;
        let data: [&[u8]; 1] = [&self.data];
        let name = [path_bytes(&file.path)];
        let mut features = vec![("data", Value::Bytes(&data)), ("path", Value::Bytes(&name))];
        let class = class_of(&file.path).map(|class| [class]);
        let label = class.and_then(|[class]| {
            let found = self.folder.classes.binary_search_by(|other| other.as_slice().cmp(class));
            found.ok().map(|label| [label as i64])
        });
        if let (Some(class), Some(label)) = (&class, &label) {
            features.push(("class", Value::Bytes(class)));
            features.push(("label", Value::Int64(label)));
        }
        encode_example(&features, out);
        Ok(())
    }
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
        files.push(FileEntry { path, bytes });
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

fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
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
        let error = crate::problem::text(&Folder::open(home.path()).unwrap_err());
        let error = error.replace(home.path().to_str().unwrap(), "$DIR");
        expect![[r#"
            error: $DIR: more than 100 folders deep
            hint: remove the link that leads back
        "#]]
        .assert_eq(&error.replace("/deep", ""));
    }
}
