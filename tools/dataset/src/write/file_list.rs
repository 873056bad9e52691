//! Files as a source: one record per file, with boxes if there are annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rayon::prelude::*;
use shardfeed_image::{Decoding, Depth, Encoded, Size};
use shardfeed_tfrecord::example::{Value, encode_example};

use super::lines::{Entry, Lines};
use super::source::{Classes, Encoder, Source};
use super::voc::{Annotation, FILE_BYTES_MAX, Fault};
use super::whole;
use crate::problem::Problem;
use crate::progress;

/// Maximum size of a list, bytes: it is kept in memory.
const LIST_BYTES_MAX: u64 = 1 << 30;

/// Approximate size of an Example without the file, its path and its boxes, bytes.
const EXAMPLE_BYTES: u64 = 400;

/// Approximate size of each object in an Example without its name, bytes.
const OBJECT_BYTES: u64 = 24;

/// First number of a class of boxes: readers of these features use 0 for the background.
const FIRST_CLASS: i64 = 1;

#[derive(Debug)]
pub(crate) struct FileList {
    /// Folder that paths are relative to.
    pub(super) root: PathBuf,
    pub(super) entries: Vec<FileEntry>,
    /// Names of the classes in bytewise order; empty if labels are integers, or there are none.
    pub(super) classes: Vec<Vec<u8>>,
    pub(super) record_bytes: Vec<u64>,
    pub(super) boxes: Option<Boxes>,
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

/// Annotations of a list's images.
#[derive(Debug)]
pub(super) struct Boxes {
    folder: PathBuf,
    /// Names in the order of their numbers.
    classes: Vec<String>,
    numbers: BTreeMap<String, i64>,
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
        Ok(Self { root, entries, classes, record_bytes, boxes: None })
    }

    /// As [`FileList::open`]; also reads each image's annotation.
    /// - `classes`: file of names, one per line; `None`: the names in the annotations.
    ///
    /// # Errors
    /// An annotation is missing or invalid, or has a class that is not among `classes`.
    pub(crate) fn open_voc(list: &Path, folder: &Path, classes: Option<&Path>) -> Result<Self> {
        let mut source = Self::open(list)?;
        let known = classes.map(read_classes).transpose()?;
        let numbers = known.as_deref().map(number);
        let bar = progress::bytes_bar("reading annotations", 0);
        let read = source.entries.par_iter().map(|entry| {
            let path = annotation_of(folder, &entry.path);
            let (annotation, bytes) = read_annotation(&path)?;
            bar.inc(bytes);
            if let Some(numbers) = &numbers {
                check_classes(&path, &annotation, numbers)?;
            }
            let names: BTreeSet<_> = annotation.objects.iter().map(|o| o.name.clone()).collect();
            let objects =
                annotation.objects.iter().map(|o| o.name.len() as u64 + OBJECT_BYTES).sum();
            anyhow::Ok((names, objects))
        });
        let read: Vec<_> = read.collect();
        bar.finish_and_clear();
        // If there are several faults, the first one is reported.
        let read: Vec<(BTreeSet<String>, u64)> = read.into_iter().collect::<Result<_, _>>()?;
        for (record, (_, objects)) in source.record_bytes.iter_mut().zip(&read) {
            *record += objects;
        }
        let found = || {
            let all: BTreeSet<_> = read.into_iter().flat_map(|(names, _)| names).collect();
            all.into_iter().collect()
        };
        let classes = known.unwrap_or_else(found);
        let numbers = number(&classes);
        source.boxes = Some(Boxes { folder: folder.to_path_buf(), classes, numbers });
        Ok(source)
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
        let (first_label, names) = match &self.boxes {
            Some(boxes) => (FIRST_CLASS, boxes.classes.clone()),
            None => (0, self.classes.iter().map(text).collect()),
        };
        (!names.is_empty()).then_some(Classes { first_label, names })
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
        match &self.list.boxes {
            Some(boxes) => self.encode_image(index, &path, boxes, out),
            None => {
                self.encode_file(index, out);
                Ok(())
            }
        }
    }
}

impl EntryEncoder<'_> {
    fn encode_file(&self, index: usize, out: &mut Vec<u8>) {
        let data: [&[u8]; 1] = [&self.data];
        let path = [self.list.entries[index].path_bytes()];
        let features = vec![("data", Value::Bytes(&data)), ("path", Value::Bytes(&path))];
        self.encode_labelled(index, ("class", "label"), features, out);
    }

    /// Encodes a record with the label of the list, if it has one.
    /// - `names`: names of the features with the class and with its number.
    fn encode_labelled(
        &self,
        index: usize,
        names: (&str, &str),
        features: Vec<(&str, Value<'_>)>,
        out: &mut Vec<u8>,
    ) {
        // The label lives shorter than the other features.
        let mut features = features;
        let label = self.list.label(index);
        let number = label.map(|(label, _)| [label]);
        let class = label.and_then(|(_, class)| class).map(|class| [class]);
        if let Some(class) = &class {
            features.push((names.0, Value::Bytes(class)));
        }
        if let Some(number) = &number {
            features.push((names.1, Value::Int64(number)));
        }
        encode_example(&features, out);
    }

    fn encode_image(&self, at: usize, path: &Path, boxes: &Boxes, out: &mut Vec<u8>) -> Result<()> {
        let entry = &self.list.entries[at];
        let annotated = annotation_of(&boxes.folder, &entry.path);
        let (annotation, _) = read_annotation(&annotated)?;
        let (format, size) = look_at(path, &self.data)?;
        let Annotation { width, height, objects } = &annotation;
        if (size.width, size.height) != (*width as usize, *height as usize) {
            let what = format!(
                "{}: is for an image of {width} x {height} pixels, but {} has {} x {}",
                annotated.display(),
                path.display(),
                size.width,
                size.height
            );
            let hint = "boxes would be at other places: annotate the image as it is, or take the one that was \
                        annotated";
            return Err(Problem::failed(what).hint(hint).into());
        }
        let side = |side: fn(&super::voc::Bounds) -> f32| -> Vec<f32> {
            objects.iter().map(|object| side(&object.bounds)).collect()
        };
        let flags = |flag: fn(&super::voc::Object) -> bool| -> Vec<i64> {
            objects.iter().map(|object| flag(object).into()).collect()
        };
        let (xmin, ymin) = (side(|b| b.xmin), side(|b| b.ymin));
        let (xmax, ymax) = (side(|b| b.xmax), side(|b| b.ymax));
        let names: Vec<_> = objects.iter().map(|object| object.name.as_bytes()).collect();
        let labels = objects.iter().map(|object| boxes.numbers.get(&object.name).copied());
        let labels: Option<Vec<_>> = labels.collect();
        // All names existed when the annotations were read before.
        let labels = labels.ok_or_else(|| whole::changed(&annotated))?;
        let difficult = flags(|object| object.is_difficult);
        let truncated = flags(|object| object.is_truncated);
        let encoded: [&[u8]; 1] = [&self.data];
        let file_name = [entry.path.file_name().unwrap_or_default().as_bytes()];
        let (source_id, format) = ([entry.path_bytes()], [format.as_bytes()]);
        let (width, height) = ([i64::from(*width)], [i64::from(*height)]);
        let features = vec![
            ("image/encoded", Value::Bytes(&encoded)),
            ("image/format", Value::Bytes(&format)),
            ("image/filename", Value::Bytes(&file_name)),
            ("image/source_id", Value::Bytes(&source_id)),
            ("image/width", Value::Int64(&width)),
            ("image/height", Value::Int64(&height)),
            ("image/object/bbox/xmin", Value::Float32(&xmin)),
            ("image/object/bbox/ymin", Value::Float32(&ymin)),
            ("image/object/bbox/xmax", Value::Float32(&xmax)),
            ("image/object/bbox/ymax", Value::Float32(&ymax)),
            ("image/object/class/text", Value::Bytes(&names)),
            ("image/object/class/label", Value::Int64(&labels)),
            ("image/object/difficult", Value::Int64(&difficult)),
            ("image/object/truncated", Value::Int64(&truncated)),
        ];
        self.encode_labelled(at, ("image/class/text", "image/class/label"), features, out);
        Ok(())
    }
}

/// Returns the format and size of an image, from its header.
fn look_at(path: &Path, bytes: &[u8]) -> Result<(&'static str, Size), Problem> {
    let decoding = Decoding { channels: 3, depth: Depth::Eight };
    let failed = |error| {
        Problem::failed(format!("{}: {error}", path.display()))
            .hint("leave it out of the list, or convert it to JPEG or PNG")
    };
    let size = Encoded::open(bytes, decoding).map_err(failed)?.size();
    Ok((if bytes.starts_with(&[0xff, 0xd8]) { "jpeg" } else { "png" }, size))
}

/// Returns the path of an image's annotation: the same name, in the folder of annotations.
fn annotation_of(folder: &Path, image: &Path) -> PathBuf {
    let mut name = image.file_stem().unwrap_or_default().to_os_string();
    name.push(".xml");
    folder.join(name)
}

/// Reads an annotation; returns it with its size in bytes.
fn read_annotation(path: &Path) -> Result<(Annotation, u64)> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    let annotation = Annotation::parse(&bytes).map_err(|fault: Fault| {
        Problem::failed(format!("{}: {fault}", path.display()))
            .hint("fix the annotation, or leave its image out of the list")
    })?;
    Ok((annotation, bytes.len() as u64))
}

fn read_classes(path: &Path) -> Result<Vec<String>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let mut seen = BTreeSet::new();
    let mut names = Vec::new();
    for (index, name) in lines {
        if !seen.insert(name) {
            let what = format!("{}: line {}: `{name}` is there twice", path.display(), index + 1);
            return Err(Problem::failed(what).hint("name each class once").into());
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

fn number(classes: &[String]) -> BTreeMap<String, i64> {
    classes.iter().cloned().zip(FIRST_CLASS..).collect()
}

fn check_classes(
    path: &Path,
    annotation: &Annotation,
    known: &BTreeMap<String, i64>,
) -> Result<(), Problem> {
    match annotation.objects.iter().find(|object| !known.contains_key(&object.name)) {
        None => Ok(()),
        Some(object) => {
            let what = format!(
                "{}: line {}: class `{}` is not in --classes",
                path.display(),
                object.line,
                object.name
            );
            Err(Problem::failed(what).hint("add it to that file, or fix the annotation"))
        }
    }
}
