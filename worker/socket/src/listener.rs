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
use crate::preamble::{HandshakeError, Versions, exchange};
use crate::socket_path::{Found, SOCKET_PATH_BYTES_MAX, is_too_long, look};
use crate::wire::{self, Deadline};

/// Who may connect: the worker's user and the socket's group.
const SOCKET_MODE: u32 = 0o660;
const DIRECTORY_MODE: u32 = 0o750;

/// Connections that may wait to be accepted: more trainers than a host has.
const BACKLOG: i32 = 128;

/// Who is served at a socket, and how.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Group of the socket and of its directory if that is made; none leaves it to the system.
    pub gid: Option<u32>,
    /// Which of those who can connect are served.
    pub allow: Allow,
    /// What this side speaks.
    pub versions: Versions,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { gid: None, allow: Allow::default(), versions: Versions::OURS }
    }
}

/// Why a worker cannot listen at `path`. Nothing that was there is changed.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The path is longer than the system allows.
    #[error(
        "the socket path {path} has {bytes} bytes, more than {SOCKET_PATH_BYTES_MAX}: \
         use a shorter one"
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        bytes: usize,
    },
    /// There is something else.
    #[error("{path} is there and is not a socket: choose another path, or remove it yourself")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Another worker uses it.
    #[error(
        "another worker listens on {path}{}: stop it, or choose another path",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    Live {
        /// The path.
        path: PathBuf,
        /// Its process, if that can be told.
        pid: Option<u32>,
    },
    /// The system refused.
    #[error("{operation} for the trainer socket {path}: {source}")]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// Why nobody was accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// [`Listener::stop`] was called, and all who had connected before are accepted.
    #[error("the trainer socket is stopped")]
    Stopped,
    /// The system refused, for want of descriptors or memory: worth another try, after a while.
    #[error("accept a trainer: {source}")]
    Io {
        /// What it says.
        source: io::Error,
    },
}

/// A socket that trainers connect to. Its file is removed when it is dropped, unless another worker
/// has replaced it.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
    options: ListenOptions,
    stopped: AtomicBool,
}

/// Someone who has connected and not yet said who it is.
#[derive(Debug)]
pub struct Incoming {
    socket: OwnedFd,
    peer: Peer,
    allowed: bool,
    versions: Versions,
}

impl Listener {
    /// Listens at `path`, whose directory is made if it is not there. A socket that a dead worker
    /// left is replaced. To see whether a worker is alive it connects to it and leaves: that one's
    /// [`Incoming::handshake`] then says `Closed`.
    ///
    /// # Errors  See [`BindError`].
    pub fn bind(path: &Path, options: ListenOptions) -> Result<Self, BindError> {
        if is_too_long(path) {
            let bytes = path.as_os_str().len();
            return Err(BindError::PathTooLong { path: path.into(), bytes });
        }
        let refused = |operation| {
            move |source: io::Error| BindError::Io { path: path.into(), operation, source }
        };
        make_directory(directory(path), options.gid).map_err(refused("make the directory"))?;
        // Held until the socket listens: nobody else can take it for a dead one before.
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

    /// The next who connected; none if `timeout` passes.
    ///
    /// # Errors  See [`AcceptError`].
    pub fn accept(&self, timeout: Duration) -> Result<Option<Incoming>, AcceptError> {
        let deadline = Deadline::after(timeout);
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let peer = Peer::of(&socket).map_err(|source| AcceptError::Io { source })?;
                    let allowed = self.options.allow.admits(&peer);
                    let versions = self.options.versions;
                    return Ok(Some(Incoming { socket, peer, allowed, versions }));
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

    /// Refuses further connections; a thread that waits in [`accept`](Self::accept) returns.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // It wakes those who wait. A listening socket that is open can be shut down.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Whoever holds the lock (`bind` itself where it fails) leaves a dead socket at worst, which
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
    /// Who it is.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether it is to be served; one that is not should be told so, after the handshake.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Makes sure that it is shardfeed. It may take `timeout`, so other trainers should not have to
    /// wait for this call.
    ///
    /// # Errors  See [`HandshakeError`]. `Closed` is nothing to worry about: some only look whether
    /// a worker is alive.
    pub fn handshake<Out, In>(
        self,
        timeout: Duration,
    ) -> Result<Connection<Out, In>, HandshakeError> {
        let version = exchange(self.socket.as_fd(), self.versions, timeout)?;
        Ok(Connection::new(self.socket, self.peer, version))
    }
}

/// The directory of `path`; one that is named by nothing is the current one.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Makes `directory`, and those above it, if they are not there.
fn make_directory(directory: &Path, gid: Option<u32>) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(above) = directory.parent().filter(|above| !above.as_os_str().is_empty()) {
        make_directory(above, gid)?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
        // Another worker was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    chown(directory, None, gid)?;
    // The process's umask may have taken the group's bits.
    fs::set_permissions(directory, Permissions::from_mode(DIRECTORY_MODE))
}

/// Keeps other workers from doing the same at the same time, until the file is closed.
fn lock_directory(path: &Path) -> io::Result<File> {
    let directory = File::open(directory(path))?;
    retry_on_intr(|| flock(&directory, FlockOperation::LockExclusive))?;
    Ok(directory)
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes the socket of a worker that is gone.
fn make_way(path: &Path) -> Result<(), BindError> {
    let refused =
        |operation| move |source: io::Error| BindError::Io { path: path.into(), operation, source };
    match look(path).map_err(refused("look at the file"))? {
        Found::Nothing => return Ok(()),
        Found::Other => return Err(BindError::NotASocket { path: path.into() }),
        Found::Socket => {}
    }
    let probe = open().map_err(refused("open a socket"))?;
    let address = SocketAddrUnix::new(path).map_err(|errno| refused("connect")(errno.into()))?;
    match retry_on_intr(|| rustix::net::connect(&probe, &address)) {
        Ok(()) => {
            let pid = Peer::of(&probe).ok().and_then(|peer| peer.pid);
            Err(BindError::Live { path: path.into(), pid })
        }
        // Its queue is full: alive, if not well.
        Err(Errno::AGAIN) => Err(BindError::Live { path: path.into(), pid: None }),
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(refused("remove a dead one")),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(refused("connect")(errno.into())),
    }
}
