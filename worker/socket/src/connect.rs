//! Connects a trainer to its worker.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::connection::Connection;
use crate::peer::Peer;
use crate::preamble::{HandshakeError, Versions, exchange};
use crate::socket_path::{SOCKET_PATH_BYTES_MAX, is_too_long};

/// Reason why there is no connection to the worker at `path`.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "the socket path {path} has {bytes} bytes, more than {SOCKET_PATH_BYTES_MAX}: \
         use a shorter one"
    )]
    PathTooLong { path: PathBuf, bytes: usize },
    #[error("no worker at {path}: there is no such file; is the worker started, is this its path?")]
    Missing { path: PathBuf },
    #[error("{path} is not a socket: is this the worker's path?")]
    NotASocket { path: PathBuf },
    #[error("no process listens at {path}: its worker has ended; start it again")]
    Dead { path: PathBuf },
    #[error(
        "this user may not connect to {path}: run as the worker's user or add this one to the \
         socket's group"
    )]
    Forbidden { path: PathBuf },
    /// A process of an untrusted user listens there.
    #[error(
        "{peer} listens at {path}, but that user neither owns the file nor is this one or root: \
         it may not be the worker"
    )]
    Foreign { path: PathBuf, peer: Peer },
    #[error("the worker at {path} did not answer in {} ms: is it stopped?", .waited.as_millis())]
    Silent { path: PathBuf, waited: Duration },
    #[error("the worker at {path} closed the connection at once: it is ending, or see its log")]
    Closed { path: PathBuf },
    #[error("{path} is the socket of another program: it began with {began_with}")]
    NotShardfeed {
        path: PathBuf,
        /// First bytes received, escaped and quoted.
        began_with: String,
    },
    /// The two sides have no version in common.
    #[error(
        "the worker at {path} speaks {theirs} of the trainer protocol, this side {ours}: \
         upgrade the older one"
    )]
    Version { path: PathBuf, ours: Versions, theirs: Versions },
    #[error("connect to the worker at {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// Connects to the worker that listens at `path`.
/// - `timeout`: maximum time for the worker's answer; a busy one answers in milliseconds.
pub fn connect<Out, In>(
    path: &Path,
    timeout: Duration,
) -> Result<Connection<Out, In>, ConnectError> {
    let begun = Instant::now();
    if is_too_long(path) {
        let bytes = path.as_os_str().len();
        return Err(ConnectError::PathTooLong { path: path.into(), bytes });
    }
    let socket = open(path, timeout)?;
    let system = |source| ConnectError::Io { path: path.into(), source };
    let peer = Peer::of(&socket).map_err(system)?;
    let is_owner = || fs::metadata(path).is_ok_and(|metadata| metadata.uid() == peer.uid);
    if !peer.is_us_or_root() && !is_owner() {
        return Err(ConnectError::Foreign { path: path.into(), peer });
    }
    let left = timeout.saturating_sub(begun.elapsed());
    exchange(socket.as_fd(), left).map_err(|error| {
        let path = path.into();
        match error {
            HandshakeError::Silent { .. } => ConnectError::Silent { path, waited: timeout },
            HandshakeError::Closed => ConnectError::Closed { path },
            HandshakeError::NotShardfeed { began_with } => {
                ConnectError::NotShardfeed { path, began_with }
            }
            HandshakeError::Version { ours, theirs } => {
                ConnectError::Version { path, ours, theirs }
            }
            HandshakeError::Io { source } => ConnectError::Io { path, source },
        }
    })?;
    Ok(Connection::new(socket))
}

fn open(path: &Path, timeout: Duration) -> Result<OwnedFd, ConnectError> {
    let system = |errno: Errno| ConnectError::Io { path: path.into(), source: errno.into() };
    let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = socket_with(unix, stream, SocketFlags::CLOEXEC, None).map_err(system)?;
    let address = SocketAddrUnix::new(path).map_err(system)?;
    // A stopped worker's queue of connections may be full. Only this timeout limits the wait; zero
    // would mean no limit.
    let limit = Some(timeout.max(Duration::from_millis(1)));
    set_socket_timeout(&socket, Timeout::Send, limit).map_err(system)?;
    let connected = retry_on_intr(|| rustix::net::connect(&socket, &address));
    connected.map_err(|errno| {
        let path = path.to_path_buf();
        // The file of a dead socket may be gone by now, because a starting worker replaces it.
        let is_other = || fs::metadata(&path).is_ok_and(|found| !found.file_type().is_socket());
        match errno {
            Errno::NOENT | Errno::NOTDIR => ConnectError::Missing { path },
            Errno::ACCESS | Errno::PERM => ConnectError::Forbidden { path },
            Errno::AGAIN => ConnectError::Silent { path, waited: timeout },
            Errno::CONNREFUSED if is_other() => ConnectError::NotASocket { path },
            Errno::CONNREFUSED => ConnectError::Dead { path },
            errno => system(errno),
        }
    })?;
    Ok(socket)
}
