//! Files as a source: one record per file.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;
use shardfeed_tfrecord::example::{Value, encode_example};

use super::lines::{Entry, Lines};
use super::source::{Classes, Encoder, Source};
use super::whole;
use crate::problem::Problem;

/// Maximum size of a list, bytes: it is kept in memory.
const LIST_BYTES_MAX: u64 = 1 << 30;

/// Approximate size of an Example without the file and its path, bytes.
const EXAMPLE_BYTES: u64 = 400;

#[derive(Debug)]
pub(crate) struct FileList {
    /// Folder that paths are relative to.
    pub(super) root: PathBuf,
    pub(super) entries: Vec<FileEntry>,
    /// Names of the classes in bytewise order; empty if labels are integers, or there are none.
    pub(super) classes: Vec<Vec<u8>>,
    pub(super) record_bytes: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct FileEntry {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Label of the file, or the number of its class.
    pub(super) label: Option<i64>,
}

impl FileEntry {
    pub(super) fn path_bytes(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }
}

impl FileList {
    /// Reads the list and the metadata of each file, but no file.
    ///
    /// # Errors
    /// The list cannot be parsed; a file does not exist, is not a regular file or is too large.
    pub(crate) fn open(list: &Path) -> Result<Self> {
        let context = || format!("cannot read {}", list.display());
        let mut bytes = Vec::new();
        let file = File::open(list).with_context(context)?;
        // A pipe has no length.
        let length = file.metadata().with_context(context)?.len();
        if length <= LIST_BYTES_MAX {
            file.take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(context)?;
        }
        if length.max(bytes.len() as u64) > LIST_BYTES_MAX {
            let what = format!("{}: more than {LIST_BYTES_MAX} bytes", list.display());
            return Err(Problem::failed(what).hint("write the list in parts").into());
        }
        let Lines { entries, classes } = Lines::parse(&bytes).map_err(|error| {
            let hint = "write one path a line, and behind it nothing, or in every line a label; behind a tab any \
                        text is one";
            Problem::failed(format!("{}: {error}", list.display())).hint(hint)
        })?;
        let root = list.parent().unwrap_or(Path::new("")).to_path_buf();
        let found = entries.into_par_iter().map(|entry| {
            let bytes = bytes_of(list, &root, &entry)?;
            Ok(FileEntry { path: entry.path.into(), bytes, label: entry.label })
        });
        let entries = found.collect::<Result<Vec<_>>>()?;
        let record_bytes =
            |file: &FileEntry| file.bytes + file.path_bytes().len() as u64 + EXAMPLE_BYTES;
        let record_bytes = entries.iter().map(record_bytes).collect();
        let classes = classes.into_iter().map(String::into_bytes).collect();
        Ok(Self { root, entries, classes, record_bytes })
    }

    /// Returns the label of a record and its name.
    fn label(&self, index: usize) -> Option<(i64, Option<&[u8]>)> {
        let label = self.entries[index].label?;
        let name = usize::try_from(label).ok().and_then(|label| self.classes.get(label));
        Some((label, name.map(Vec::as_slice)))
    }
}

fn bytes_of(list: &Path, root: &Path, entry: &Entry) -> Result<u64> {
    let path = root.join(&entry.path);
    let (list, line, shown) = (list.display(), entry.line, path.display());
    let found =
        fs::metadata(&path).with_context(|| format!("{list}: line {line}: cannot read {shown}"))?;
    if found.is_dir() {
        let what = format!("{list}: line {line}: {shown} is a folder");
        return Err(Problem::failed(what).hint("write the paths of its files").into());
    }
    whole::check(&path, &found)?;
    Ok(found.len())
}

impl Source for FileList {
    fn record_bytes(&self) -> &[u64] {
        &self.record_bytes
    }

    fn classes(&self) -> Option<Classes> {
        let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
        let names: Vec<_> = self.classes.iter().map(text).collect();
        (!names.is_empty()).then_some(Classes { first_label: 0, names })
    }

    fn encoder(&self) -> Result<Box<dyn Encoder + '_>> {
        Ok(Box::new(EntryEncoder { list: self, data: Vec::new() }))
    }
}

/// Reads one file at a time.
struct EntryEncoder<'a> {
    list: &'a FileList,
    data: Vec<u8>,
}

impl Encoder for EntryEncoder<'_> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) -> Result<()> {
        let entry = &self.list.entries[index];
        let path = self.list.root.join(&entry.path);
        whole::read(&path, entry.bytes, &mut self.data)?;
        let data: [&[u8]; 1] = [&self.data];
        let path = [entry.path_bytes()];
        let mut features = vec![("data", Value::Bytes(&data)), ("path", Value::Bytes(&path))];
        let label = self.list.label(index);
        let number = label.map(|(label, _)| [label]);
        let class = label.and_then(|(_, class)| class).map(|class| [class]);
        if let Some(class) = &class {
            features.push(("class", Value::Bytes(class)));
        }
        if let Some(number) = &number {
            features.push(("label", Value::Int64(number)));
        }
        encode_example(&features, out);
        Ok(())
    }
}
