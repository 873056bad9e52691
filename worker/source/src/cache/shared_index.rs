//! The index that hosts share: a folder or a bucket that keeps what was found in the files of
//! datasets, so that other hosts need not read them.
//!
//! Its objects are those of a host's cache: index entries of the files of a folder, sample maps, and
//! numbers of packs. All are addressed by digests and have a checksum with their address, so one
//! index serves any number of datasets, and hosts may write it at the same time. Releases with
//! another format use other names.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use shardfeed_plan::Digest;
use shardfeed_tfrecord::NewFile;

use crate::cache::object_kind::ObjectKind;
use crate::cache::{Entries, IndexedFile};
use crate::discover::{local, settled};
use crate::error::LoadError;
use crate::looks::file_state::FileState;
use crate::looks::{aside, each};
use crate::remote::{self, GoOn};
use crate::shared::Lock;

/// Maximum number of objects that are read and held together.
pub(crate) const READ_TOGETHER: usize = 256;

/// Index entries of the files of a folder; the number is the version of their format.
const ENTRIES: ObjectKind = ObjectKind("shardfeed index 4\n");

const DAMAGED: &str =
    "is damaged or of other files; remove it, or replace it by `shardfeed dataset index`";

/// Remedy where an index must be filled, and cannot be written.
const UNWRITTEN: &str = "make the index writable for the process that counts samples, or fill it \
                         elsewhere with `shardfeed dataset index`";

/// A folder or a place in a bucket, as a user named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedIndex {
    place: IndexLocation,
    /// True if the command that fills it uses it: damaged objects are replaced, and everything that is
    /// found is written, not only what this host had to read.
    pub(crate) is_filling: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum IndexLocation {
    Folder(PathBuf),
    /// URL without a slash at its end.
    Url(String),
}

impl fmt::Display for SharedIndex {
    /// Writes the path or URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            IndexLocation::Folder(folder) => write!(f, "{}", folder.display()),
            IndexLocation::Url(url) => write!(f, "{url}"),
        }
    }
}

impl SharedIndex {
    /// Returns the index that a user names: a path, or a URL of a kind that files may have.
    ///
    /// # Errors  The text is empty, or no such URL.
    pub fn parse(text: &str) -> Result<Self, LoadError> {
        let refused = |why: &str| LoadError::Option(format!("index={text:?}: {why}"));
        let place = match local(text) {
            Some("") => return Err(refused("is empty; name a folder or a URL")),
            Some(folder) => IndexLocation::Folder(folder.into()),
            None => {
                let location = remote::Location::parse(text.trim_end_matches('/'));
                let location = location.map_err(|error| refused(&error.to_string()))?;
                location.store_path().map_err(|error| refused(&error.to_string()))?;
                IndexLocation::Url(location.url().trim_end_matches('/').to_owned())
            }
        };
        Ok(Self { place, is_filling: false })
    }

    /// Returns this index for the command that fills it: see [`SharedIndex::is_filling`].
    #[must_use]
    pub fn filling(self) -> Self {
        Self { is_filling: true, ..self }
    }

    /// Makes its folder, if it is one.
    ///
    /// # Errors  The folder cannot be made.
    pub fn make(&self) -> Result<(), LoadError> {
        match &self.place {
            IndexLocation::Folder(folder) => folder_exists(folder, true),
            IndexLocation::Url(_) => Ok(()),
        }
    }

    /// Returns the index in a form that does not depend on the working directory.
    ///
    /// # Errors  There is no working directory.
    pub fn absolute(self) -> Result<Self, LoadError> {
        let place = match self.place {
            IndexLocation::Folder(folder) => match std::path::absolute(&folder) {
                // Without a slash at its end, and without `..` if it exists.
                Ok(absolute) => {
                    let plain: PathBuf = absolute.components().collect();
                    IndexLocation::Folder(settled(plain.clone()).unwrap_or(plain))
                }
                Err(source) => return Err(LoadError::io(folder.display().to_string(), source)),
            },
            url @ IndexLocation::Url(_) => url,
        };
        Ok(Self { place, ..self })
    }

    fn object(&self, name: &str) -> String {
        match &self.place {
            IndexLocation::Folder(folder) => folder.join(name).display().to_string(),
            IndexLocation::Url(url) => format!("{url}/{name}"),
        }
    }

    /// Returns the contents of objects; `None`: there is no such object.
    ///
    /// # Errors  The index cannot be read; `Interrupted`.
    pub(crate) fn read(
        &self,
        names: &[String],
        go_on: GoOn<'_>,
    ) -> Result<Vec<Option<Vec<u8>>>, LoadError> {
        let objects: Vec<_> = names.iter().map(|name| self.object(name)).collect();
        let IndexLocation::Folder(folder) = &self.place else {
            return remote::contents(&objects, go_on);
        };
        let (folder, is_filling) = (folder.clone(), self.is_filling);
        let mut go_on = |_| go_on();
        aside(&mut go_on, move || folder_exists(&folder, is_filling))??;
        let read = |path: &String| match fs::read(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(LoadError::io(path.clone(), source)),
        };
        each(objects, &mut go_on, read)?.into_iter().collect()
    }

    /// Writes an object.
    ///
    /// # Errors  The index cannot be written; `Interrupted`.
    pub(crate) fn write(&self, name: &str, bytes: &[u8], go_on: GoOn<'_>) -> Result<(), LoadError> {
        let object = self.object(name);
        let written = match &self.place {
            IndexLocation::Url(_) => remote::put(&object, bytes.to_vec(), go_on),
            IndexLocation::Folder(_) => {
                let (path, bytes) = (PathBuf::from(&object), bytes.to_vec());
                let written = aside(&mut |_| go_on(), move || write_file(&path, &bytes))?;
                let reason = |error| format!("cannot write: {error}");
                written.map_err(|error| LoadError::Index { object, reason: reason(error) })
            }
        };
        written.map_err(|error| match error {
            LoadError::Index { object, reason } if self.is_filling => {
                LoadError::Index { object, reason: format!("{reason}; {UNWRITTEN}") }
            }
            error => error,
        })
    }

    /// Writes an object of a dataset that is being opened, which does not fail if the index cannot
    /// be written: the process warns once, and does not try again, as each failure may take minutes.
    pub(crate) fn offer(&self, name: &str, bytes: &[u8], go_on: GoOn<'_>) -> Result<(), LoadError> {
        static WARNED: Lock<BTreeSet<String>> = Lock::new(BTreeSet::new());
        let warned = || WARNED.lock();
        if !self.is_filling && warned().contains(&self.to_string()) {
            return Ok(());
        }
        match self.write(name, bytes, go_on) {
            Err(error) if !self.is_filling && !matches!(error, LoadError::Interrupted) => {
                if warned().insert(self.to_string()) {
                    tracing::warn!(
                        "{error}; hosts that share this index read the files themselves: make it \
                         writable, or fill it with `shardfeed dataset index`"
                    );
                }
                Ok(())
            }
            written => written,
        }
    }

    /// Returns the error for an object that is not what its name says.
    pub(crate) fn damaged(&self, name: &str) -> LoadError {
        LoadError::Index { object: self.object(name), reason: DAMAGED.into() }
    }

    /// Returns the index entries of the files of a folder, by their paths relative to it.
    ///
    /// # Errors  The index cannot be read, or is damaged; `Interrupted`.
    pub(crate) fn entries(&self, root: &Path, go_on: GoOn<'_>) -> Result<Entries, LoadError> {
        let name = entries_name(root);
        let found = self.read(std::slice::from_ref(&name), go_on)?;
        let Some(bytes) = found.into_iter().flatten().next() else { return Ok(Entries::new()) };
        let body = ENTRIES.decode(&name, &bytes);
        match body.and_then(|body| postcard::from_bytes(body).ok()) {
            Some(entries) => Ok(entries),
            None if self.is_filling => Ok(Entries::new()),
            None => Err(self.damaged(&name)),
        }
    }

    /// Adds index entries of the files of a folder. Of two hosts that add some at the same time, one
    /// may replace what the other one wrote: its files are then scanned again.
    ///
    /// # Errors  As [`SharedIndex::offer`].
    pub(crate) fn add(&self, root: &Path, more: Entries, go_on: GoOn<'_>) -> Result<(), LoadError> {
        if more.is_empty() {
            return Ok(());
        }
        let mut entries = self.entries(root, go_on)?;
        let encoded = |of: &Entries| postcard::to_stdvec(of).expect("entries are plain data");
        let before = encoded(&entries);
        let shared = |(path, entry): (String, Box<IndexedFile>)| {
            let IndexedFile { state, compression, index } = *entry;
            let state = FileState::remote(state.stamp);
            (path, Box::new(IndexedFile { state, compression, index }))
        };
        entries.extend(more.into_iter().map(shared));
        let body = encoded(&entries);
        if body == before {
            return Ok(());
        }
        let name = entries_name(root);
        self.offer(&name, &ENTRIES.encode(&name, &body), go_on)
    }
}

/// Returns the name of the object with the index entries of a folder's files.
fn entries_name(root: &Path) -> String {
    let digest = Digest::of_parts([root.as_os_str().as_encoded_bytes()]).to_string();
    format!("{}/{}", ENTRIES.folder(), &digest[..24])
}

/// Makes the folder of an index that is filled; rejects another one that does not exist.
fn folder_exists(folder: &Path, is_filling: bool) -> Result<(), LoadError> {
    let of = |source| LoadError::io(folder.display().to_string(), source);
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(of(io::ErrorKind::NotADirectory.into())),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(of(error)),
        Err(_) if is_filling => fs::create_dir_all(folder).map_err(of),
        Err(_) => Err(LoadError::Option(format!(
            "index={:?}: there is no such folder; make it, or fill it with `shardfeed dataset index`",
            folder.display().to_string()
        ))),
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let mut file = NewFile::beside(path)?;
    file.file().write_all(bytes)?;
    file.finish()
}
