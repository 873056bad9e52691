//! State of a file when it was examined: its change stamp and its identity.

use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use shardfeed_plan::ChangeStamp;

use crate::error::LoadError;
use crate::remote::{is_remote, stamps};

/// Multiple of the page sizes of common systems.
const PAGE: u64 = 1 << 16;

/// Identity of a local file, which also changes when the file is rewritten. Only the cache compares
/// it: a file may be moved between hosts while it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Inode {
    pub(crate) device: u64,
    pub(crate) number: u64,
    /// Time of the last change of content or attributes, ns since 1970.
    pub(crate) changed_ns: i128,
}

/// State of a file when it was examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileState {
    pub(crate) stamp: ChangeStamp,
    pub(crate) inode: Inode,
}

impl FileState {
    pub(crate) fn of(path: &Path) -> Result<Self, LoadError> {
        let metadata = fs::metadata(path);
        Self::new(
            path,
            &metadata.map_err(|source| LoadError::io(path.display().to_string(), source))?,
        )
    }

    pub(crate) fn new(path: &Path, metadata: &fs::Metadata) -> Result<Self, LoadError> {
        let file = || path.display().to_string();
        if !metadata.is_file() {
            return Err(LoadError::NotFound(format!("{}: is not a regular file", file())));
        }
        let stamp = stamp_of(metadata).map_err(|source| LoadError::Io { file: file(), source })?;
        let changed_ns =
            i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec());
        let inode = Inode { device: metadata.dev(), number: metadata.ino(), changed_ns };
        Ok(Self { stamp, inode })
    }

    /// Creates the state of a remote file, or for other hosts: it consists of the stamp only.
    pub(crate) fn remote(stamp: ChangeStamp) -> Self {
        Self { stamp, inode: Inode::default() }
    }
}

pub(crate) fn stamp(path: &Path) -> Result<ChangeStamp, LoadError> {
    if is_remote(path) {
        let seen = stamps(&[path.display().to_string()], &mut || true)?;
        let first = seen.into_iter().next();
        return first.map(|(_, stamp)| stamp).ok_or(LoadError::ReaderLost);
    }
    FileState::of(path).map(|state| state.stamp)
}

pub(crate) fn stamp_of(metadata: &fs::Metadata) -> io::Result<ChangeStamp> {
    let modified_ns = match metadata.modified()?.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    Ok(ChangeStamp { size_bytes: metadata.len(), modified_ns, etag: None })
}

/// Removes the pages of a range from the system's cache, except for those not yet written.
pub(crate) fn forget(file: &File, range: Range<u64>) -> io::Result<()> {
    // Pages that are removed are whole ones.
    let (first, end) = (range.start / PAGE * PAGE, range.end.next_multiple_of(PAGE));
    let length = NonZeroU64::new(end.saturating_sub(first));
    Ok(rustix::fs::fadvise(file, first, length, rustix::fs::Advice::DontNeed)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_accepts_any_range_of_a_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100_000).unwrap();
        for range in [0..0, 0..1, 5..70_000, 0..100_000, 99_999..100_000, 0..1 << 50] {
            forget(&file, range.clone()).unwrap_or_else(|error| panic!("{range:?}: {error}"));
        }
    }
}
