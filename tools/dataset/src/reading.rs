//! Reads files to their ends, with a progress bar.

use std::io::{self, Read};

use indicatif::ProgressBar;
use shardfeed_source::{Found, StoredFile};

use crate::progress;

/// Returns a bar over all bytes of the files.
pub(crate) fn bar(doing: &'static str, found: &Found) -> ProgressBar {
    let size = |path| std::fs::metadata(found.root.join(path)).map_or(0, |found| found.len());
    let bytes = match found.stamps.is_empty() {
        true => found.paths.iter().map(size).sum(),
        false => found.stamps.iter().map(|stamp| stamp.size_bytes).sum(),
    };
    progress::bytes_bar(doing, bytes)
}

/// A file that reports to the bar how much was read.
pub(crate) struct Counted<'a> {
    pub(crate) file: StoredFile,
    pub(crate) bar: &'a ProgressBar,
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(out)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}
