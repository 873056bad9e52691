//! Conversions between results of scans and the entries that workers exchange.

use std::path::Path;

use shardfeed_plan::{ChangeStamp, Corrupt, Digest};
use shardfeed_proto::chunk::{FileEntry, LeftOutEntry, ListedFile, REASON_BYTES_MAX};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_source::{FileRules, IndexedFile, LeftOut, LoadError, is_remote, leave_out};
use shardfeed_tfrecord::{Break, Compression, FOOTER_BYTES, HEADER_BYTES, Mark, ShardIndex};

/// Converts another worker's result to a local one; `None` if the whole file was left out.
pub(crate) fn indexed(
    entry: &FileEntry,
    rules: FileRules,
) -> Result<Option<(String, Box<IndexedFile>)>, LoadError> {
    let FileEntry { path, left_out, .. } = entry.clone();
    if left_out.as_ref().is_some_and(|left| left.is_whole) {
        return Ok(None);
    }
    let broken = left_out.map(|left| {
        let LeftOutEntry { ordinal, offset, reason: message, .. } = left;
        Break { ordinal, offset, message }
    });
    let compression: Compression = entry.compression.parse().map_err(invalid)?;
    let framing = (HEADER_BYTES + FOOTER_BYTES) as u64;
    let marks = entry.marks.iter().map(|&(ordinal, offset)| Mark { ordinal, offset });
    let index = ShardIndex {
        compression,
        records: entry.records,
        data_bytes: entry.data_bytes,
        record_bytes_max: entry.record_bytes_max,
        stream_bytes: entry.data_bytes.saturating_add(framing.saturating_mul(entry.records)),
        digest: *entry.digest.as_bytes(),
        marks: marks.collect(),
        data_verified: rules.corrupt == Corrupt::SkipFile,
        corrupt_records: 0,
        first_corrupt: None,
        broken,
    };
    let indexed = IndexedFile::new(stamp_of_entry(entry), rules, index);
    Ok(Some((path, Box::new(indexed))))
}

/// Returns the change stamp of a file when it was scanned.
pub(crate) fn stamp_of_entry(entry: &FileEntry) -> ChangeStamp {
    let FileEntry { size_bytes, modified_ns, .. } = *entry;
    ChangeStamp { size_bytes, modified_ns, etag: entry.etag.clone() }
}

/// Converts a local scan result to an entry for other workers.
pub(crate) fn entry_of(
    root: &Path,
    path: &str,
    indexed: &IndexedFile,
    corrupt: Corrupt,
) -> FileEntry {
    debug_assert!(root.is_absolute() || is_remote(root));
    let (stamp, mut index) = (indexed.stamp(), indexed.index().clone());
    let left_out = leave_out(&mut index, 0, corrupt).map(|left| {
        let LeftOut { ordinal, offset, is_whole, mut reason, .. } = left;
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        LeftOutEntry { ordinal, offset, is_whole, reason }
    });
    FileEntry {
        path: path.to_owned(),
        size_bytes: stamp.size_bytes,
        modified_ns: stamp.modified_ns,
        etag: stamp.etag.clone(),
        compression: index.compression.to_string(),
        records: index.records,
        data_bytes: index.data_bytes,
        record_bytes_max: index.record_bytes_max,
        digest: Digest::from_bytes(index.digest),
        marks: index.marks.iter().map(|mark| (mark.ordinal, mark.offset)).collect(),
        left_out,
        samples: None,
    }
}

pub(crate) fn listed_of(entry: &FileEntry) -> ListedFile {
    ListedFile {
        path: entry.path.clone(),
        size: entry.size_bytes,
        etag: entry.etag.clone(),
        changed_ns: Some(entry.modified_ns),
    }
}

/// Returns the error for a message of the coordinator that has no meaning.
pub(crate) fn invalid(error: impl std::fmt::Display) -> LoadError {
    let message = format!("the coordinator's answer makes no sense: {error}");
    WireError::new(ErrorKind::Unspecified, message).into()
}
