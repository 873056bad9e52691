//! What is wrong with a table, where, and what to do.

use std::io;

/// Why a table cannot be read. `file` is its path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// It cannot be opened.
    #[error("{file}: cannot open the table: {source}")]
    Open {
        /// The file.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// It is no table, or one of another version.
    #[error("{file}: {what}")]
    NotATable {
        /// The file.
        file: String,
        /// Why not.
        what: String,
    },
    /// It is not as long as its header says.
    #[error(
        "{file}: has {found} bytes, but its header says {expected}: it was cut off, or is still being \
         written; copy it again"
    )]
    Length {
        /// The file.
        file: String,
        /// Bytes that the header says.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// What stands there is not what was written.
    #[error(
        "{file}: damaged at offset {offset}: {what}; copy the table again, and leave it alone while it is used"
    )]
    Damaged {
        /// The file.
        file: String,
        /// Where the damaged part begins, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: String,
    },
    /// It cannot be read.
    #[error("{file}: cannot read the table at offset {offset}: {source}")]
    Io {
        /// The file.
        file: String,
        /// Where, in bytes.
        offset: u64,
        /// What the system says.
        source: io::Error,
    },
}

impl TableError {
    /// The table's path.
    pub fn file(&self) -> &str {
        match self {
            Self::Open { file, .. }
            | Self::NotATable { file, .. }
            | Self::Length { file, .. }
            | Self::Damaged { file, .. }
            | Self::Io { file, .. } => file,
        }
    }

    /// Where in the file, if it is about a part of it.
    pub fn offset(&self) -> Option<u64> {
        match self {
            Self::Damaged { offset, .. } | Self::Io { offset, .. } => Some(*offset),
            _ => None,
        }
    }

    /// Whether there is no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Why a table cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A key is there twice.
    #[error("rows {first} and {second} have the same key; a key stands for one row")]
    Duplicate {
        /// The row of the first one, from 0.
        first: usize,
        /// The row of the second one.
        second: usize,
    },
    /// The columns are none that a table can have.
    #[error("{0}")]
    Columns(String),
    /// The keys were chosen so that no hash spreads them.
    #[error("the {keys} keys do not spread over pages under any of {seeds} seeds; use other keys")]
    Spread {
        /// How many there are.
        keys: usize,
        /// What was tried.
        seeds: u64,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}
