//! The targets, one module per input format.

pub(crate) mod cache;
pub(crate) mod compressed;
pub(crate) mod example;
pub(crate) mod framing;
pub(crate) mod image;
pub(crate) mod job;
pub(crate) mod measured;
pub(crate) mod sample_map;
pub(crate) mod socket;
pub(crate) mod state;
pub(crate) mod table;

use std::path::PathBuf;

use tempfile::TempDir;

/// Returns the path of a temporary file of this thread, deleted when the thread ends.
fn scratch(name: &str) -> PathBuf {
    thread_local! {
        static FOLDER: TempDir = tempfile::tempdir().expect("there is a place for temporary files");
    }
    FOLDER.with(|folder| folder.path().join(name))
}
