//! What a store of the log must do. One suite (`conformance`) holds every implementation to it.

#[cfg(test)]
mod conformance;
#[cfg(test)]
pub(crate) mod memory;

use std::io;
use std::ops::Range;

use crate::record::{Position, Record, Vote};

/// The durable log of one node. One owner, blocking calls.
/// Ensures: the entries held are those after `purged` up to `last`, without holes; an index is read as
/// it was last written or not at all.
pub(crate) trait LogStore: Send + 'static {
    /// What the log holds.
    fn state(&self) -> LogState;

    /// Makes `changes`, in order and as one: all of them are durable when this returns, or none is.
    /// Votes go through here as well, so that they are never reordered against entries.
    /// # Errors  Any error poisons the store: its owner must not use it again, as what is on disk is
    /// known only after it has been opened anew.
    fn write(&mut self, changes: &[Change]) -> Result<(), LogError>;

    /// Reads the entries of `range` that the log holds, in order.
    fn read(&self, range: Range<u64>) -> Result<Vec<Record>, LogError>;
}

/// One change of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Adds entries; the first follows `last`.
    Append(Vec<Record>),
    /// Removes the entries after this index; all of them, if `None`.
    TruncateAfter(Option<u64>),
    /// Removes the entries up to this one, itself included. It may lie after `last`: then a snapshot
    /// took the log's place.
    Purge(Position),
    /// Replaces the vote.
    Vote(Vote),
    /// Notes up to where entries are committed. A hint that saves replay, not a promise.
    Committed(Position),
}

/// What a log holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogState {
    /// The last entry removed at the front.
    pub(crate) purged: Option<Position>,
    /// The last entry, or `purged` if there is none.
    pub(crate) last: Option<Position>,
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<Position>,
}

impl LogState {
    /// The index that the next entry must have.
    pub(crate) fn next_index(&self) -> u64 {
        self.last.map_or(0, |last| last.index + 1)
    }

    /// The first index that the log may hold.
    pub(crate) fn first_index(&self) -> u64 {
        self.purged.map_or(0, |purged| purged.index + 1)
    }
}

/// Why the log cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// A bug of ours, refused before it reaches the disk.
    #[error("entry {found} was to follow entry {expected} - 1: the log would have a hole")]
    Gap { expected: u64, found: u64 },
    #[error("the log's database: {0}")]
    Io(#[from] io::Error),
    #[error("an entry has format version {found}")]
    NewerFormat { found: u16 },
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
