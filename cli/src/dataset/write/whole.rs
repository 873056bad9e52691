//! Files that become part of a record as they are.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use shardfeed_tfrecord::ChunkOptions;

use crate::error::Problem;

/// Refuses what is no file, or too large for a record.
pub(super) fn check(path: &Path, found: &fs::Metadata) -> Result<(), Problem> {
    let most = ChunkOptions::default().record_bytes_max;
    if !found.is_file() {
        let what = format!("{}: neither a file nor a folder", path.display());
        return Err(Problem::failed(what).hint("move it out of the source"));
    }
    // The record is a little larger than the file.
    if found.len() > most - (1 << 20) {
        let what =
            format!("{}: {} bytes are more than a record may have", path.display(), found.len());
        return Err(
            Problem::failed(what).hint(format!("split it: readers take up to {most} bytes"))
        );
    }
    Ok(())
}

/// Reads a file that had `bytes` when it was found; replaces what is in `data`.
pub(super) fn read(path: &Path, bytes: u64, data: &mut Vec<u8>) -> anyhow::Result<()> {
    data.clear();
    // One byte more than expected tells a file that grew from one that did not.
    let read = File::open(path)
        .and_then(|source| source.take(bytes + 1).read_to_end(data))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if read as u64 != bytes {
        return Err(changed(path).into());
    }
    Ok(())
}

/// The error of a source that is not what it was.
pub(super) fn changed(path: &Path) -> Problem {
    Problem::failed(format!("{}: changed while it was read", path.display()))
        .hint("leave the source alone while it is written")
}
