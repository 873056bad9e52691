//! Objects that are kept in two places: in logs of this host, and in the index that hosts share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::CacheOptions;
use super::object_kind::ObjectKind;
use super::object_log::ObjectLog;
use super::shared_index::{READ_TOGETHER, SharedIndex};
use crate::error::LoadError;
use crate::remote::GoOn;
use crate::shared::Lock;

/// Callback with the number, the name and the content of an object; `false`: it is damaged.
type Take<'a> = &'a mut dyn FnMut(usize, &str, &[u8]) -> Result<bool, LoadError>;

/// Objects by kind and name.
pub(crate) struct KeptObjects {
    /// Folder of the logs; `None`: this host keeps nothing.
    folder: Option<PathBuf>,
    options: CacheOptions,
    /// True if a damaged object of the index counts as missing.
    is_of_hints: bool,
    /// Opened when they are needed, by their paths.
    logs: Lock<BTreeMap<PathBuf, Arc<ObjectLog>>>,
}

impl KeptObjects {
    pub(crate) fn new(options: &CacheOptions) -> Self {
        let (folder, options) = (options.folder.folder(), options.clone());
        Self { folder, options, is_of_hints: false, logs: Lock::default() }
    }

    /// Objects that are written again at the next start: a damaged one counts as missing.
    pub(crate) fn of_hints(options: &CacheOptions) -> Self {
        Self { is_of_hints: true, ..Self::new(options) }
    }

    /// True if this host keeps objects.
    pub(crate) fn is_on_host(&self) -> bool {
        self.folder.is_some()
    }

    pub(crate) fn index(&self) -> Option<&SharedIndex> {
        self.options.index.as_ref()
    }

    /// Reads the objects that other processes of this host added.
    pub(crate) fn refresh(&self) {
        self.logs.lock().values().for_each(|log| log.refresh());
    }

    /// Returns the log of this host that has an object.
    fn log(&self, kind: ObjectKind, name: &str) -> Option<Arc<ObjectLog>> {
        let path = self.folder.as_ref()?.join(log_of(kind, name));
        let mut logs = self.logs.lock();
        if let Some(log) = logs.get(&path) {
            return Some(Arc::clone(log));
        }
        let log = self.options.log(path.clone());
        logs.insert(path, Arc::clone(&log));
        Some(log)
    }

    /// Returns an object that this host has.
    pub(crate) fn here(&self, kind: ObjectKind, name: &str) -> Option<Vec<u8>> {
        self.log(kind, name)?.read(key_of(name))
    }

    /// Keeps objects of one log on this host.
    pub(crate) fn keep(
        &self,
        kind: ObjectKind,
        objects: impl IntoIterator<Item = (impl AsRef<str>, Vec<u8>)>,
    ) {
        if !self.is_on_host() {
            return;
        }
        let mut objects = objects.into_iter().peekable();
        let first = objects.peek().map(|(name, _)| self.log(kind, name.as_ref()));
        if let Some(log) = first.flatten() {
            log.add(objects.map(|(name, object)| (key_of(name.as_ref()).to_owned(), object)));
        }
    }

    /// Returns the value of an object, of this host or of the index.
    /// - `decode`: `None`: the object is damaged.
    ///
    /// # Errors  As [`KeptObjects::find_all`].
    pub(crate) fn find<T>(
        &self,
        kind: ObjectKind,
        name: &str,
        go_on: GoOn<'_>,
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let mut found = self.here(kind, name).and_then(|object| decode(&object));
        if found.is_none() {
            let objects = [(0, name.to_owned())];
            self.find_all(kind, &objects, &mut |_| go_on(), &mut |_, _, object| {
                found = decode(object);
                Ok(found.is_some())
            })?;
        }
        Ok(found)
    }

    /// Calls `take` with each object that the index has, and keeps it on this host.
    /// - `objects`: number and name of each, for `take`.
    /// - `go_on`: called now and then with the number of completed objects; `false` cancels.
    ///
    /// # Errors  The index cannot be read; one of its objects is damaged; `Interrupted`.
    pub(crate) fn find_all(
        &self,
        kind: ObjectKind,
        objects: &[(usize, String)],
        go_on: &mut dyn FnMut(usize) -> bool,
        take: Take<'_>,
    ) -> Result<(), LoadError> {
        let Some(index) = self.index() else { return Ok(()) };
        for (done, some) in (0..).step_by(READ_TOGETHER).zip(objects.chunks(READ_TOGETHER)) {
            let names: Vec<_> = some.iter().map(|(_, name)| kind.in_index(name)).collect();
            let found = index.read(&names, &mut || go_on(done))?;
            for (((number, name), object), in_index) in some.iter().zip(found).zip(&names) {
                let Some(object) = object else { continue };
                if take(*number, name, &object)? {
                    self.keep(kind, [(name, object)]);
                } else if !index.is_filling && !self.is_of_hints {
                    return Err(index.damaged(in_index));
                }
            }
        }
        Ok(())
    }
}

/// Returns the path of the log that has an object of this name. Numbers of packs have a log for each
/// program and settings.
fn log_of(kind: ObjectKind, name: &str) -> PathBuf {
    let mut log = kind.folder();
    if let Some((folder, digest)) = name.split_once('/') {
        log = format!("{log}/{folder}");
        if let Some((_, settings)) = digest.split_once('-') {
            log = format!("{log}-{settings}");
        }
    }
    log.into()
}

/// Returns the key of an object in its log: half of its name's digest; it states the whole.
fn key_of(name: &str) -> &str {
    let digest = name.split_once('/').map_or(name, |(_, digest)| digest);
    &digest[..32.min(digest.len())]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cache::CacheChoice;

    #[test]
    fn objects_are_where_earlier_releases_kept_them() {
        let kind = ObjectKind("shardfeed packs 1\n");
        let digest = "d".repeat(64);
        let at = |name: &str| (log_of(kind, name).display().to_string(), key_of(name).to_owned());
        let key = "d".repeat(32);
        assert_eq!(at(&format!("p/{digest}")), ("packs-1/p".to_owned(), key.clone()));
        assert_eq!(at(&format!("p/{digest}-s")), ("packs-1/p-s".to_owned(), key.clone()));
        assert_eq!(at(&key), ("packs-1".to_owned(), key.clone()));
    }

    #[test]
    fn an_object_of_the_index_is_kept_on_this_host_unless_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let (kind, name) = (ObjectKind("shardfeed packs 1\n"), format!("p/{}", "d".repeat(64)));
        let index = folder.path().join("index");
        let shared = SharedIndex::parse(index.to_str().unwrap()).unwrap();
        let choice = CacheChoice::Folder(folder.path().join("cache"));
        let options = CacheOptions { index: Some(shared), ..choice.into() };
        let find = || {
            let decode = |object: &[u8]| kind.decode(&name, object).map(<[u8]>::to_vec);
            KeptObjects::new(&options).find(kind, &name, &mut || true, decode)
        };
        let file = index.join(kind.in_index(&name));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        assert_eq!(find().unwrap(), None);
        fs::write(&file, b"damaged").unwrap();
        assert!(find().unwrap_err().to_string().contains("is damaged"));
        fs::write(&file, kind.encode(&name, b"body")).unwrap();
        assert_eq!(find().unwrap(), Some(b"body".to_vec()));
        fs::remove_file(&file).unwrap();
        assert_eq!(find().unwrap(), Some(b"body".to_vec()));
        KeptObjects::new(&options).keep(kind, [(&name, b"damaged".to_vec())]);
        assert_eq!(find().unwrap(), None, "a damaged object of this host counts as none");
    }
}
