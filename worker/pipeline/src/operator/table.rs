//! Tables beside the records, from which operators look up columns.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;
use shardfeed_table::{Table, TableError};

/// Reference to a table: its content and its local path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRef {
    /// Digest of the content; part of a job's identity.
    pub digest: Digest,
    /// Path; not part of the identity, because it may differ between hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// Error that makes a table unusable; no record causes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct TableFault {
    /// Path of the table; empty if none was given.
    pub file: String,
    /// Position of the error in the file, in bytes.
    pub offset: Option<u64>,
    pub cause: TableCause,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableCause {
    NotFound,
    /// The table is not the one that was declared.
    Another,
    /// The file is damaged, or cannot be read.
    Unreadable,
}

impl From<TableError> for TableFault {
    fn from(error: TableError) -> Self {
        let cause = if error.is_missing() { TableCause::NotFound } else { TableCause::Unreadable };
        let what = match cause {
            TableCause::NotFound => {
                format!("{error}; workers open tables under the same path as trainers do")
            }
            _ => error.to_string(),
        };
        Self { file: error.file().to_owned(), offset: error.offset(), cause, what }
    }
}

/// A table of a job, opened once for all operators that use it.
#[derive(Debug)]
pub(crate) struct Side {
    wanted: TableRef,
    opened: OnceLock<Table>,
}

impl Side {
    pub(crate) fn new(wanted: TableRef) -> Self {
        Self { wanted, opened: OnceLock::new() }
    }

    pub(crate) fn is(&self, other: &TableRef) -> bool {
        self.wanted == *other
    }

    pub(crate) fn open(&self) -> Result<&Table, TableFault> {
        if let Some(table) = self.opened.get() {
            return Ok(table);
        }
        let TableRef { digest, path } = &self.wanted;
        let another = |file: &str, what| TableFault {
            file: file.to_owned(),
            offset: None,
            cause: TableCause::Another,
            what,
        };
        let Some(path) = path else {
            let what = format!(
                "the job looks things up in the table {digest:.12}, and its path is unknown; name \
                 it with --table"
            );
            return Err(another("", what));
        };
        let table = Table::open(path)?;
        if table.digest() != *digest {
            let what = format!(
                "{path}: is the table {:.12}, but the job was declared with {digest:.12}; give all hosts \
                 the same table, under a new name if its content is new",
                table.digest()
            );
            return Err(another(path, what));
        }
        Ok(self.opened.get_or_init(|| table))
    }
}
