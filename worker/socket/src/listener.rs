//! The worker's socket.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    shutdown, socket_with,
};

use crate::connection::Connection;
use crate::peer::{Allow, Peer};
use crate::preamble::{HandshakeError, exchange};
use crate::socket_path::{PathKind, SOCKET_PATH_BYTES_MAX, is_too_long, look};
use crate::wire::{self, Deadline};

/// Permissions of the socket: the worker's user and the socket's group.
const SOCKET_MODE: u32 = 0o660;
const DIRECTORY_MODE: u32 = 0o750;

/// Connections that may wait to be accepted: more than a host has trainers.
const BACKLOG: i32 = 128;

#[derive(Clone, Debug, Default)]
pub struct ListenOptions {
    /// Group of the socket, and of its directory if created; `None` leaves it to the system.
    pub gid: Option<u32>,
    /// Processes that are served, of those that can connect.
    pub allow: Allow,
}

/// Reason why a worker cannot listen at `path`. Existing files are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "the socket path {path} has {bytes} bytes, more than {SOCKET_PATH_BYTES_MAX}: \
         use a shorter one"
    )]
    PathTooLong { path: PathBuf, bytes: usize },
    #[error("{path} is there and is not a socket: choose another path, or remove it yourself")]
    NotASocket { path: PathBuf },
    #[error(
        "another worker listens on {path}{}: stop it, or choose another path",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    Live {
        path: PathBuf,
        /// Process id of that worker, if it is known.
        pid: Option<u32>,
    },
    /// A system call failed.
    #[error("{operation} for the trainer socket {path}: {source}")]
    Io { path: PathBuf, operation: &'static str, source: io::Error },
}

#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// [`Listener::stop`] was called, and all earlier connections are accepted.
    #[error("the trainer socket is stopped")]
    Stopped,
    /// A system call failed for lack of descriptors or memory: retry after a delay.
    #[error("accept a trainer: {source}")]
    Io { source: io::Error },
}

/// A socket that trainers connect to.
///
/// Its file is removed on drop, unless another worker has replaced it.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
    options: ListenOptions,
    stopped: AtomicBool,
}

/// A connection before its handshake.
#[derive(Debug)]
pub struct Incoming {
    socket: OwnedFd,
    peer: Peer,
    allowed: bool,
}

impl Listener {
    /// Listens at `path`, and creates its directory if it does not exist.
    ///
    /// A socket that a dead worker left is replaced. To check whether that worker is alive, this
    /// connects to it and disconnects: the live one's [`Incoming::handshake`] returns `Closed`.
    pub fn bind(path: &Path, options: ListenOptions) -> Result<Self, BindError> {
        if is_too_long(path) {
            let bytes = path.as_os_str().len();
            return Err(BindError::PathTooLong { path: path.into(), bytes });
        }
        let refused = |operation| {
            move |source: io::Error| BindError::Io { path: path.into(), operation, source }
        };
        make_directory(directory(path), options.gid).map_err(refused("make the directory"))?;
        // Held until the socket listens, so that no other worker takes it for a dead one before.
        let _lock = lock_directory(path).map_err(refused("lock the directory"))?;
        make_way(path)?;
        let socket = open().map_err(refused("open a socket"))?;
        let address = SocketAddrUnix::new(path).map_err(|errno| refused("bind")(errno.into()))?;
        bind(&socket, &address).map_err(|errno| refused("bind")(errno.into()))?;
        let metadata = fs::symlink_metadata(path).map_err(refused("look at the file"))?;
        let file = (metadata.dev(), metadata.ino());
        let stopped = AtomicBool::new(false);
        let listener = Self { socket, path: path.into(), file, options, stopped };
        let gid = listener.options.gid;
        chown(path, None, gid).map_err(refused("set the group"))?;
        let mode = Permissions::from_mode(SOCKET_MODE);
        fs::set_permissions(path, mode).map_err(refused("set the mode"))?;
        listen(&listener.socket, BACKLOG).map_err(|errno| refused("listen")(errno.into()))?;
        Ok(listener)
    }

    /// Returns the next connection; `None` if `timeout` passes.
    pub fn accept(&self, timeout: Duration) -> Result<Option<Incoming>, AcceptError> {
        let deadline = Deadline::after(timeout);
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let peer = Peer::of(&socket).map_err(|source| AcceptError::Io { source })?;
                    let allowed = self.options.allow.admits(&peer);
                    return Ok(Some(Incoming { socket, peer, allowed }));
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) if self.stopped.load(Ordering::Acquire) => {
                    return Err(AcceptError::Stopped);
                }
                Err(Errno::AGAIN) => {
                    let ready = wire::wait(self.socket.as_fd(), PollFlags::IN, deadline);
                    if !ready.map_err(|errno| AcceptError::Io { source: errno.into() })? {
                        return Ok(None);
                    }
                }
                Err(errno) => return Err(AcceptError::Io { source: errno.into() }),
            }
        }
    }

    /// Rejects further connections; a thread that waits in [`accept`](Self::accept) returns.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes waiting threads. A listening socket that is open can be shut down.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If the lock is held (by `bind` itself where it fails), a dead socket may be left, which
        // the next worker replaces.
        let Ok(directory) = File::open(directory(&self.path)) else {
            return;
        };
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let file = fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        if file.is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Incoming {
    /// Process that connected.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// True if the process is to be served; a rejected one should be notified after the handshake.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Performs the handshake.
    ///
    /// It may take `timeout`, so other trainers should not have to wait for this call.
    ///
    /// # Errors  See [`HandshakeError`]. `Closed` is harmless: it may be a check for a live worker.
    pub fn handshake<Out, In>(
        self,
        timeout: Duration,
    ) -> Result<Connection<Out, In>, HandshakeError> {
        exchange(self.socket.as_fd(), timeout)?;
        Ok(Connection::new(self.socket))
    }
}

/// Directory of `path`; the current one if `path` has no parent.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Creates `directory` and its parents if they do not exist.
fn make_directory(directory: &Path, gid: Option<u32>) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(above) = directory.parent().filter(|above| !above.as_os_str().is_empty()) {
        make_directory(above, gid)?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
        // Another worker created it first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    chown(directory, None, gid)?;
    // The process's umask may have removed the group's bits.
    fs::set_permissions(directory, Permissions::from_mode(DIRECTORY_MODE))
}

/// Locks the directory against other starting workers until the file is closed.
fn lock_directory(path: &Path) -> io::Result<File> {
    let directory = File::open(directory(path))?;
    retry_on_intr(|| flock(&directory, FlockOperation::LockExclusive))?;
    Ok(directory)
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes the socket of a dead worker.
fn make_way(path: &Path) -> Result<(), BindError> {
    let refused =
        |operation| move |source: io::Error| BindError::Io { path: path.into(), operation, source };
    match look(path).map_err(refused("look at the file"))? {
        PathKind::Nothing => return Ok(()),
        PathKind::Other => return Err(BindError::NotASocket { path: path.into() }),
        PathKind::Socket => {}
    }
    let probe = open().map_err(refused("open a socket"))?;
    let address = SocketAddrUnix::new(path).map_err(|errno| refused("connect")(errno.into()))?;
    match retry_on_intr(|| rustix::net::connect(&probe, &address)) {
        Ok(()) => {
            let pid = Peer::of(&probe).ok().and_then(|peer| peer.pid);
            Err(BindError::Live { path: path.into(), pid })
        }
        // Its queue is full: alive, but not accepting.
        Err(Errno::AGAIN) => Err(BindError::Live { path: path.into(), pid: None }),
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(refused("remove a dead one")),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(refused("connect")(errno.into())),
    }
}
