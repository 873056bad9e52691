//! Values made of files that are read again when they change.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum interval between checks of the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Stamp that detects changes of the files: for each its modification time, length and inode.
type Stamp = Vec<Option<(i64, i64, u64, u64)>>;

type Make<C, E> = Box<dyn Fn() -> Result<C, E> + Send + Sync>;

/// A value made of files, and made again when they change. Files that became unusable, such as a
/// certificate whose key has not been written yet, are logged and change nothing.
pub struct Watched<C, E> {
    /// Content of the files, plural, for logs.
    what: &'static str,
    files: Vec<PathBuf>,
    make: Make<C, E>,
    seen: Mutex<Seen<C>>,
}

struct Seen<C> {
    looked: Instant,
    stamp: Stamp,
    /// Stamp of files that could not be used, for which a warning was logged.
    failed: Option<Stamp>,
    made: Arc<C>,
}

impl<C, E> fmt::Debug for Watched<C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").field(&self.files).finish()
    }
}

impl<C, E: fmt::Display> Watched<C, E> {
    /// Makes the value of `files`.
    /// - `what`: their content, plural, for logs.
    pub fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<C, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // Files that change meanwhile are read again later.
        let stamp = stamp(&files);
        let made = Arc::new(make()?);
        let seen = Mutex::new(Seen { looked: Instant::now(), stamp, failed: None, made });
        Ok(Self { what, files, make: Box::new(make), seen })
    }

    pub fn now(&self) -> Arc<C> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.looked.elapsed() >= LOOK_EVERY {
            seen.looked = Instant::now();
            let stamp = stamp(&self.files);
            let Self { what, files, .. } = self;
            if stamp != seen.stamp {
                match (self.make)() {
                    Ok(made) => {
                        tracing::info!(?files, "{what} were read again");
                        (seen.made, seen.stamp, seen.failed) = (Arc::new(made), stamp, None);
                    }
                    // Retried at the next check: another file may follow, or the clock may change.
                    Err(error) if seen.failed.as_ref() == Some(&stamp) => {
                        tracing::debug!(%error, "{what} still cannot be used");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "{what} changed and cannot be used; those before stay");
                        seen.failed = Some(stamp);
                    }
                }
            }
        }
        Arc::clone(&seen.made)
    }
}

fn stamp(files: &[PathBuf]) -> Stamp {
    let of = |file: &PathBuf| {
        let found = fs::metadata(file).ok()?;
        Some((found.mtime(), found.mtime_nsec(), found.len(), found.ino()))
    };
    files.iter().map(of).collect()
}
