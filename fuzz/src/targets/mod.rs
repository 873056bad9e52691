//! The targets, one for each place.

pub(crate) mod cache;
pub(crate) mod compressed;
pub(crate) mod example;
pub(crate) mod framing;
pub(crate) mod image;
pub(crate) mod job;
pub(crate) mod socket;
pub(crate) mod table;
pub(crate) mod token;

use std::path::PathBuf;

use tempfile::TempDir;

/// A file of this thread; it goes with the thread.
fn scratch(name: &str) -> PathBuf {
    thread_local! {
        static FOLDER: TempDir = tempfile::tempdir().expect("there is a place for temporary files");
    }
    FOLDER.with(|folder| folder.path().join(name))
}
