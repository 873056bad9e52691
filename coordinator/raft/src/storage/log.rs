//! Contract of a log store. One suite (`conformance`) checks every implementation.

#[cfg(test)]
mod conformance;
#[cfg(test)]
pub(crate) mod memory;

use std::io;
use std::ops::Range;

use crate::storage::record::{Position, Record, Vote};

/// The durable log of one node. It has one owner, and its calls block.
/// Ensures: the log holds the entries after `purged` up to `last`, without holes; an index is read
/// as it was last written or not at all.
pub(crate) trait LogStore: Send + 'static {
    fn state(&self) -> LogState;

    /// Makes `changes` in order and atomically: all of them are durable when this returns, or none
    /// is. Votes are written here too, so that they are never reordered against entries.
    /// # Errors  Any error poisons the store: its owner must not use it again, as the content of
    /// the disk is unknown until it is opened again.
    fn write(&mut self, changes: &[LogChange]) -> Result<()>;

    /// Reads the entries of `range` that the log holds, in order.
    fn read(&self, range: Range<u64>) -> Result<Vec<Record>>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogChange {
    /// Appends entries; the first follows `last`.
    Append(Vec<Record>),
    /// Removes the entries after this index; all of them, if `None`.
    TruncateAfter(Option<u64>),
    /// Removes the entries up to and including this one. It may lie beyond `last` after a snapshot.
    Purge(Position),
    Vote(Vote),
    /// Records the last committed entry. A hint that saves replay, not a promise.
    Committed(Position),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogState {
    /// Last entry removed at the front.
    pub(crate) purged: Option<Position>,
    /// Last entry, or `purged` if there is none.
    pub(crate) last: Option<Position>,
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<Position>,
}

impl LogState {
    pub(crate) fn next_index(&self) -> u64 {
        self.last.map_or(0, |last| last.index + 1)
    }

    /// Returns the first index that the log may hold.
    pub(crate) fn first_index(&self) -> u64 {
        self.purged.map_or(0, |purged| purged.index + 1)
    }
}

pub(crate) type Result<T, E = LogError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// A bug in this crate, rejected before it reaches the disk.
    #[error("entry {found} was to follow entry {expected} - 1: the log would have a hole")]
    Gap { expected: u64, found: u64 },
    #[error("the log's database: {0}")]
    Io(#[from] io::Error),
    #[error("an entry has format version {found}")]
    NewerFormat { found: u16 },
    /// The file is intact, but not one of ours.
    #[error("{reason}")]
    Foreign { reason: String },
    #[error("the log is damaged at {place}: {reason}")]
    Corrupt { place: String, reason: String },
}

impl From<LogError> for io::Error {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Io(source) => io::Error::new(source.kind(), LogError::Io(source)),
            other => io::Error::other(other),
        }
    }
}
