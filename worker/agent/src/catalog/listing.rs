//! The listing of a dataset's files in the coordinator's form: a root, and parts in chunks.

use shardfeed_plan::Digest;
use shardfeed_proto::chunk::{ListedFile, ListingChunk};
use shardfeed_proto::coordinator::v1::report_listing_request::Part;
use shardfeed_source::{Found, LoadError, changes};

use crate::catalog::entries::invalid;

/// Minimum and maximum files of one part: few enough that several workers share a small dataset,
/// many enough that a large one has not too many parts.
const PART_FILES: (usize, usize) = (64, 512);

const PARTS: usize = 1024;

/// Maximum bytes of one part, unless it is a single file.
const PART_BYTES: u64 = 16 << 30;

/// Listing of found files. The same files give the same listing on every host.
#[derive(Debug)]
pub(crate) struct Listing {
    /// Folder or URL that their paths are relative to.
    pub(crate) root: String,
    /// Its parts, in manifest order, each with the content of its chunk.
    pub(crate) parts: Vec<(Part, Vec<u8>)>,
}

impl Listing {
    /// Examines found files.
    /// - `go_on`: called during the looks, with `true` if one was completed; `false` cancels.
    ///
    /// # Errors  A file is gone, or not a regular file; `Interrupted`.
    pub(crate) fn of(found: Found, go_on: &mut dyn FnMut(bool) -> bool) -> Result<Self, LoadError> {
        let looks: Vec<_> = match found.stamps.is_empty() {
            true => {
                let seen = changes(&found, go_on)?.into_iter();
                seen.map(|(size, changed_ns)| (size, changed_ns, None)).collect()
            }
            false => {
                let seen = found.stamps.into_iter();
                seen.map(|stamp| (stamp.size_bytes, stamp.modified_ns, stamp.etag)).collect()
            }
        };
        let listed = |(path, (size, changed_ns, etag))| ListedFile {
            path,
            size,
            etag,
            changed_ns: Some(changed_ns),
        };
        let mut files: Vec<_> = found.paths.into_iter().zip(looks).map(listed).collect();
        files.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        Self::of_files(found.root.display().to_string(), files)
    }

    /// Returns the listing of files that are in manifest order.
    pub(crate) fn of_files(root: String, files: Vec<ListedFile>) -> Result<Self, LoadError> {
        let parts = cut(files).into_iter().map(|files| {
            let (count, bytes) = (files.len() as u64, files.iter().map(|file| file.size).sum());
            let content = ListingChunk::new(files).encode().map_err(invalid)?;
            let chunk = Digest::of_parts([content.as_slice()]).as_bytes().to_vec();
            Ok::<_, LoadError>((Part { chunk, files: count, bytes }, content))
        });
        let parts = parts.collect::<Result<_, _>>()?;
        Ok(Self { root, parts })
    }

    /// Returns its parts without their contents.
    pub(crate) fn wire_parts(&self) -> Vec<Part> {
        self.parts.iter().map(|(part, _)| part.clone()).collect()
    }
}

/// Divides a listing into parts, in its order.
fn cut(files: Vec<ListedFile>) -> Vec<Vec<ListedFile>> {
    let most = (files.len() / PARTS).clamp(PART_FILES.0, PART_FILES.1);
    let mut parts: Vec<Vec<ListedFile>> = Vec::new();
    let mut bytes = 0;
    for file in files {
        let is_full = match parts.last() {
            None => true,
            Some(part) => part.len() >= most || bytes + file.size > PART_BYTES,
        };
        if is_full {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += file.size;
        parts.last_mut().expect("just pushed").push(file);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(count: usize, size: u64) -> Vec<ListedFile> {
        let file =
            |index| ListedFile { path: format!("{index:07}"), size, etag: None, changed_ns: None };
        (0..count).map(file).collect()
    }

    #[test]
    fn parts_hold_all_files_in_order_and_not_too_many() {
        for (count, size, parts) in
            [(0, 1, 0), (1, 1 << 40, 1), (65, 1, 2), (10, 8 << 30, 5), (1_000_000, 1, 1954)]
        {
            let cut = cut(files(count, size));
            assert_eq!(cut.len(), parts, "{count} files of {size}");
            let all: Vec<_> = cut.into_iter().flatten().collect();
            assert_eq!(all, files(count, size));
        }
    }
}
