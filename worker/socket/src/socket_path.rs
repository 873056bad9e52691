//! Path of the socket in the file system.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Maximum bytes of the path of a unix socket on Linux.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Kind of file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathKind {
    Nothing,
    Socket,
    Other,
}

pub(crate) fn is_too_long(path: &Path) -> bool {
    path.as_os_str().as_bytes().len() > SOCKET_PATH_BYTES_MAX
}

/// Returns the kind of file at `path`; a link is not followed.
pub(crate) fn look(path: &Path) -> io::Result<PathKind> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => Ok(PathKind::Socket),
        Ok(_) => Ok(PathKind::Other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PathKind::Nothing),
        Err(error) => Err(error),
    }
}
