//! Access to files on behalf of trainers: below its data roots a worker reads with its own rights,
//! elsewhere only what the trainer's user may open.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use rustix::fs::OFlags;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use shardfeed_plan::{fixed_folder, is_below};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_socket::Peer;

use crate::error::LoadError;
use crate::looks::{each, moved};
use crate::wait::receive;

/// Folders and URL prefixes below which a worker reads; empty: there is no restriction list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataRoots {
    /// The roots as given; folders without empty, `.` and `..` components.
    given: Vec<String>,
    /// The folders among them, with symbolic links resolved.
    resolved: Vec<String>,
}

impl DataRoots {
    /// Creates a list of absolute folders that exist, and URL prefixes.
    ///
    /// # Errors  The invalid root and the reason.
    pub fn new(given: Vec<String>) -> Result<Self, String> {
        let (mut plain, mut resolved) = (vec![], vec![]);
        for root in given {
            let path = root.strip_prefix("file://").unwrap_or(&root);
            if path.contains("://") {
                plain.push(root);
                continue;
            }
            if !path.starts_with('/') {
                return Err(format!("{root}: is neither an absolute path nor a URL"));
            }
            let folder = fs::canonicalize(path).map_err(|error| format!("{root}: {error}"))?;
            let folder = folder.to_str().ok_or_else(|| format!("{root}: the path is not UTF-8"))?;
            // Patterns are compared by name, and have no `.`, `..` or empty component.
            let parts = Path::new(path).components();
            plain.push(match parts.clone().any(|part| part == Component::ParentDir) {
                true => folder.to_owned(),
                false => parts.collect::<PathBuf>().display().to_string(),
            });
            resolved.push(folder.to_owned());
        }
        Ok(Self { given: plain, resolved })
    }

    pub fn given(&self) -> &[String] {
        &self.given
    }

    /// True if all `patterns` are below the roots, by name.
    fn cover(&self, patterns: &[String]) -> bool {
        patterns.iter().all(|pattern| {
            let folder = fixed_folder(pattern);
            is_below(&self.given, folder) || is_below(&self.resolved, folder)
        })
    }

    /// Returns true if all files are below the roots after symbolic links are resolved.
    /// - `go_on`: called during the looks, with `true` if one was completed; `false` cancels.
    ///
    /// # Errors  `Interrupted`.
    fn hold(
        &self,
        root: &Path,
        paths: &[String],
        go_on: &mut dyn FnMut(bool) -> bool,
    ) -> Result<bool, LoadError> {
        let text = root.display().to_string();
        if text.contains("://") {
            return Ok(is_below(&self.given, &text));
        }
        let files: Vec<PathBuf> = paths.iter().map(|path| root.join(path)).collect();
        let folder = |path: &PathBuf| path.parent().unwrap_or(Path::new("/")).to_owned();
        let folders: BTreeSet<PathBuf> = files.iter().map(folder).collect();
        let resolved = self.resolved.clone();
        let is_inside = move |path: &PathBuf| {
            let path = fs::canonicalize(path).ok();
            path.is_some_and(|path| is_below(&resolved, &path.display().to_string()))
        };
        let leads_inside = is_inside.clone();
        let is_file_inside = move |path: &PathBuf| {
            let is_link = fs::symlink_metadata(path).is_ok_and(|file| file.is_symlink());
            !is_link || leads_inside(path)
        };
        let folders = folders.into_iter().collect::<Vec<_>>();
        if each(folders, &mut moved(go_on), is_inside)?.contains(&false) {
            return Ok(false);
        }
        Ok(!each(files, &mut moved(go_on), is_file_inside)?.contains(&false))
    }

    /// Rejects a scan outside the roots, by name or symbolic links, before any file is examined.
    ///
    /// # Errors  `Denied`, whether such a file exists or not.
    pub fn check(&self, patterns: &[String]) -> Result<(), LoadError> {
        let is_inside = |pattern: &String| !self.leads_outside(fixed_folder(pattern));
        match self.given.is_empty() || (self.cover(patterns) && patterns.iter().all(is_inside)) {
            true => Ok(()),
            false => Err(outside(patterns)),
        }
    }

    /// True if symbolic links in the existing part of a folder's path lead outside the roots.
    fn leads_outside(&self, folder: &str) -> bool {
        let there = Path::new(folder).ancestors().find_map(|path| fs::canonicalize(path).ok());
        let is_local = !folder.contains("://");
        is_local && there.is_some_and(|path| !is_below(&self.resolved, &path.display().to_string()))
    }
}

fn outside(patterns: &[String]) -> LoadError {
    let place = patterns.first().map_or("", String::as_str);
    let message = format!("{place}: lies below no data root of this worker (--data-root)");
    WireError::new(ErrorKind::Denied, message).into()
}

/// User whose rights are used to list and open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    /// The worker's, everywhere: for itself, for root, or for its own user.
    Own,
    /// The worker's, below these roots.
    Below(DataRoots),
    Of(User),
}

impl Rights {
    /// Returns the worker's rights below its data roots, or everywhere if it has none.
    pub fn below(roots: &DataRoots) -> Self {
        if roots.given.is_empty() { Self::Own } else { Self::Below(roots.clone()) }
    }

    /// Returns the rights to read `patterns` for a trainer; `peer`: `None` in its own process.
    ///
    /// # Errors  `Denied`: the worker cannot determine which files the trainer's user may open.
    pub fn of(
        roots: &DataRoots,
        peer: Option<Peer>,
        patterns: &[String],
    ) -> Result<Self, LoadError> {
        let Some(user) = user_of(peer) else {
            return Ok(Self::Own);
        };
        let is_local = patterns
            .iter()
            .all(|pattern| pattern.split_once("://").is_none_or(|(scheme, _)| scheme == "file"));
        if roots.cover(patterns) {
            Ok(Self::Below(roots.clone()))
        } else if is_local && geteuid().is_root() {
            Ok(Self::Of(user))
        } else {
            let place = patterns.first().map_or("", String::as_str);
            let message = format!(
                "{place}: lies below no data root of this worker, which serves user {} only below those; start it \
                 with --data-root for these files",
                user.uid
            );
            Err(WireError::new(ErrorKind::Denied, message).into())
        }
    }

    /// Rejects files that these rights do not open; call it within [`Rights::run`].
    /// - `go_on`: called during the looks, with `true` if one was completed; `false` cancels.
    ///
    /// # Errors  `Denied` or `Io`, with the file's name; `Interrupted`.
    pub fn check(
        &self,
        root: &Path,
        paths: &[String],
        go_on: &mut dyn FnMut(bool) -> bool,
    ) -> Result<(), LoadError> {
        match self {
            Self::Own => Ok(()),
            Self::Below(roots) => match roots.hold(root, paths, go_on)? {
                true => Ok(()),
                false => Err(outside(&[root.display().to_string()])),
            },
            Self::Of(_) => {
                let paths = paths.iter().map(|path| root.join(path)).collect();
                // The caller's thread has the rights already.
                let open = |path: &PathBuf| {
                    let file = || path.display().to_string();
                    let opened = open_file(path).map(drop);
                    opened.map_err(|source| LoadError::Io { file: file(), source })
                };
                each(paths, &mut moved(go_on), open)?.into_iter().collect()
            }
        }
    }

    /// Opens a file with these rights, and checks the opened file: its path may have been replaced
    /// by a symbolic link since [`Rights::check`].
    ///
    /// # Errors  Those of the system; `PermissionDenied`.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        match self {
            Self::Own => open_file(path),
            Self::Below(roots) => {
                let file = open_file(path)?;
                let opened = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
                if is_below(&roots.resolved, &opened.display().to_string()) {
                    return Ok(file);
                }
                let message = "leads to no data root of this worker (--data-root)";
                Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
            }
            Self::Of(user) => std::thread::scope(|scope| {
                let open = || {
                    user.assume()?;
                    open_file(path)
                };
                let thread = std::thread::Builder::new().name("shardfeed-open".into());
                let opened = thread.spawn_scoped(scope, open)?.join();
                opened
                    .unwrap_or_else(|_| Err(io::Error::other("the thread that opens it panicked")))
            }),
        }
    }

    /// Runs `work` with these rights on a separate thread, so that hung storage does not block the
    /// caller. Threads that `work` starts have the same rights.
    /// - `go_on`: called now and then with the time since the last progress; `false` cancels.
    ///
    /// # Errors  Those of `work`; `Interrupted`.
    pub fn run<T: Send + 'static>(
        &self,
        go_on: &mut dyn FnMut(Duration) -> bool,
        work: impl FnOnce(&mut dyn FnMut(bool) -> bool) -> Result<T, LoadError> + Send + 'static,
    ) -> Result<T, LoadError> {
        let (rights, stop) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let (sender, receiver) = bounded(1);
        let moves = Arc::new(AtomicU64::new(0));
        let (stopped, told) = (Arc::clone(&stop), Arc::clone(&moves));
        let run = move || {
            let mut tell = |is_moving: bool| {
                told.fetch_add(u64::from(is_moving), Ordering::Relaxed);
                !stopped.load(Ordering::Relaxed)
            };
            let result = rights.assume().and_then(|()| work(&mut tell));
            // The receiver is gone after an interrupt.
            let _ = sender.send(result);
        };
        std::thread::Builder::new()
            .name("shardfeed-list".into())
            .spawn(run)
            .map_err(|source| LoadError::Io { file: "threads".into(), source })?;
        let mut last = (0, Instant::now());
        let received = receive(&receiver, || {
            let told = moves.load(Ordering::Relaxed);
            if told != last.0 {
                last = (told, Instant::now());
            }
            go_on(last.1.elapsed())
        });
        stop.store(true, Ordering::Relaxed);
        received
    }

    /// Gives this thread the rights of the other user.
    fn assume(&self) -> Result<(), LoadError> {
        let Self::Of(user) = self else {
            return Ok(());
        };
        user.assume().map_err(|error| {
            let message = format!(
                "the worker cannot take the rights of user {}: {error}; start it with --data-root for these files",
                user.uid
            );
            WireError::new(ErrorKind::Denied, message).into()
        })
    }
}

/// Opens a file for reading, without waiting for a writer of a FIFO, which is rejected later.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

/// A user with other rights than the worker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<Gid>,
}

impl User {
    /// Gives this thread the user's rights. Only the effective ids change: if the real ones did,
    /// that user could send signals to the worker.
    fn assume(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(None::<Gid>, gid, None::<Gid>)?;
        Ok(set_thread_res_uid(None::<Uid>, uid, None::<Uid>)?)
    }
}

/// Returns the user of a trainer's process; `None` if it has the worker's rights. Access depends
/// only on the user, not on the process.
pub fn user_of(peer: Option<Peer>) -> Option<User> {
    let peer = peer.filter(|peer| !is_own(peer))?;
    Some(User { uid: peer.uid, gid: peer.gid, groups: groups_of(&peer) })
}

/// True if a trainer's user has the worker's rights anyway.
pub fn is_own(peer: &Peer) -> bool {
    peer.uid == 0 || peer.uid == geteuid().as_raw()
}

/// Returns the supplementary groups of the process, if it is visible and still has that user.
fn groups_of(peer: &Peer) -> Vec<Gid> {
    let status = peer.pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
    let status = status.unwrap_or_default();
    let numbers = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let words = line.unwrap_or_default().split_whitespace();
        words.filter_map(|word| word.parse::<u32>().ok()).collect::<Vec<_>>()
    };
    match numbers("Uid:").as_slice() {
        uids @ [_, ..] if uids.iter().all(|uid| *uid == peer.uid) => {
            numbers("Groups:").into_iter().map(Gid::from_raw).collect()
        }
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn a_link_out_of_a_data_root_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("data")).unwrap();
        fs::create_dir_all(at("secret")).unwrap();
        for name in ["data/a", "secret/a"] {
            fs::write(at(name), b"").unwrap();
        }
        std::os::unix::fs::symlink(at("secret/a"), at("data/file")).unwrap();
        std::os::unix::fs::symlink(at("secret"), at("data/folder")).unwrap();
        std::os::unix::fs::symlink(at("data"), at("alias")).unwrap();
        let roots = DataRoots::new(vec![at("alias").display().to_string()]).unwrap();
        let holds =
            |root: &str, path: &str| roots.hold(&at(root), &texts(&[path]), &mut |_| true).unwrap();
        assert!(holds("data", "a") && holds("alias", "a"));
        for path in ["file", "folder/a", "none/a"] {
            assert!(!holds("data", path), "{path}");
        }
        assert!(!holds("secret", "a"));
        let denied = |pattern: &str| {
            let pattern = at(pattern).display().to_string();
            roots
                .check(std::slice::from_ref(&pattern))
                .unwrap_err()
                .to_string()
                .replace(&pattern, "IT")
        };
        assert_eq!(denied("secret/a"), denied("secret/none"));
        assert!(roots.check(&[at("data/*").display().to_string()]).is_ok());
        assert!(DataRoots::default().check(&texts(&["/anything"])).is_ok());
        let other = DataRoots::new(texts(&["/tmp/.//", "file:///tmp", "/tmp/../tmp"])).unwrap();
        assert_eq!(other.given, ["/tmp", "/tmp", "/tmp"]);
        assert!(DataRoots::new(texts(&["relative"])).is_err());
        assert!(DataRoots::new(texts(&["/no/such/folder"])).is_err());
    }

    #[test]
    fn another_users_trainer_reads_what_that_user_could_open() {
        let peer = |uid| Some(Peer { pid: None, uid, gid: uid });
        let none = DataRoots::default();
        let own = geteuid().as_raw();
        assert_eq!(Rights::of(&none, peer(own), &texts(&["/x"])).unwrap(), Rights::Own);
        assert_eq!(Rights::of(&none, None, &texts(&["s3://b/x"])).unwrap(), Rights::Own);
        // The worker's own credentials for a store must not serve other users.
        assert!(Rights::of(&none, peer(77_001), &texts(&["s3://b/x"])).is_err());
        let bucket = DataRoots::new(texts(&["s3://b"])).unwrap();
        assert!(Rights::of(&bucket, peer(77_001), &texts(&["s3://b/x"])).is_ok());
        if !geteuid().is_root() {
            assert!(Rights::of(&none, peer(77_001), &texts(&["/x"])).is_err());
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(folder.path(), 0o755);
        for (name, bits) in [("open", 0o644), ("closed", 0o600)] {
            fs::write(folder.path().join(name), b"").unwrap();
            mode(&folder.path().join(name), bits);
        }
        let rights = Rights::of(&none, peer(77_001), &texts(&["/x"])).unwrap();
        let opens = |name: &'static str| {
            let (rights, root) = (rights.clone(), folder.path().to_owned());
            let checks = rights.clone();
            rights.run(&mut |_| true, move |go_on| checks.check(&root, &texts(&[name]), go_on))
        };
        opens("open").unwrap();
        let denied = opens("closed").unwrap_err().to_string();
        assert!(denied.contains("Permission denied"), "{denied}");
        // This thread kept its own rights.
        File::open(folder.path().join("closed")).unwrap();
    }

    #[test]
    fn a_path_that_is_swapped_after_the_check_opens_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir_all(at("data")).unwrap();
        fs::write(at("data/a"), b"theirs").unwrap();
        fs::write(at("secret"), b"secret").unwrap();
        fs::set_permissions(at("secret"), PermissionsExt::from_mode(0o600)).unwrap();
        let roots = DataRoots::new(vec![at("data").display().to_string()]).unwrap();
        let user = User { uid: 77_001, gid: 77_001, groups: vec![] };
        let mut all = vec![Rights::Below(roots)];
        if geteuid().is_root() {
            all.push(Rights::Of(user));
        }
        for rights in all {
            let (checks, root) = (rights.clone(), at("data"));
            let check = move |go_on: &mut dyn FnMut(bool) -> bool| {
                checks.check(&root, &texts(&["a"]), go_on)
            };
            rights.run(&mut |_| true, check).unwrap();
            rights.open(&at("data/a")).unwrap();
            fs::rename(at("data/a"), at("data/kept")).unwrap();
            std::os::unix::fs::symlink(at("secret"), at("data/a")).unwrap();
            let error = rights.open(&at("data/a")).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{rights:?}: {error}");
            fs::rename(at("data/kept"), at("data/a")).unwrap();
        }
        // The worker itself can read the file.
        Rights::Own.open(&at("secret")).unwrap();
    }

    #[test]
    fn storage_that_hangs_holds_nobody_up() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let mut asked = 0;
        let result = Rights::Own.run(
            &mut |_| {
                asked += 1;
                asked < 3
            },
            move |_| {
                let _ = receiver.recv();
                Ok(())
            },
        );
        assert!(matches!(result, Err(LoadError::Interrupted)), "{result:?}");
        drop(sender);
    }
}
