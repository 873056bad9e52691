//! Errors of tables, with location and remedy.

use std::io;

/// Reason why a table cannot be read. `file` is its path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    #[error("{file}: cannot open the table: {source}")]
    Open { file: String, source: io::Error },
    /// The file is not a table, or a table of another version.
    #[error("{file}: {what}")]
    NotATable { file: String, what: String },
    #[error(
        "{file}: has {found} bytes, but its header says {expected}: it was cut off, or is still being \
         written; copy it again"
    )]
    Length { file: String, expected: u64, found: u64 },
    #[error(
        "{file}: damaged at offset {offset}: {what}; copy the table again, and leave it alone while it is used"
    )]
    Damaged { file: String, offset: u64, what: String },
    #[error("{file}: cannot read the table at offset {offset}: {source}")]
    Io { file: String, offset: u64, source: io::Error },
}

impl TableError {
    pub fn file(&self) -> &str {
        match self {
            Self::Open { file, .. }
            | Self::NotATable { file, .. }
            | Self::Length { file, .. }
            | Self::Damaged { file, .. }
            | Self::Io { file, .. } => file,
        }
    }

    /// Returns the offset in the file, if the error concerns a part of it.
    pub fn offset(&self) -> Option<u64> {
        match self {
            Self::Damaged { offset, .. } | Self::Io { offset, .. } => Some(*offset),
            _ => None,
        }
    }

    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    #[error("rows {first} and {second} have the same key; a key identifies one row")]
    Duplicate { first: usize, second: usize },
    #[error("{0}")]
    Columns(String),
    /// The keys were chosen so that no hash distributes them.
    #[error("the {keys} keys do not spread over pages under any of {seeds} seeds; use other keys")]
    Spread { keys: usize, seeds: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}
