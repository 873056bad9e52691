//! Errors between a pattern and a batch: cause, location and remedy.

use std::io;
use std::path::PathBuf;

use shardfeed_pipeline::{
    BatchTooLarge, MemoryError, RowFault, SchemaError, TableCause, TableFault,
};
use shardfeed_plan::{ChangeStamp, ManifestError, PlanError, StateError};
use shardfeed_tfrecord::{ReadError, ReadErrorKind};

use shardfeed_proto::{ErrorKind, WireError};

use crate::descriptors;

/// Error that stops a loader. Its position is unchanged: a retry gives the same batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("{0}")]
    NotFound(String),
    #[error("{read}; {}", .read.hint())]
    Corrupt { read: Box<ReadError> },
    /// A record is damaged, or does not match the features.
    #[error("{file}: record {ordinal} at offset {offset}: {fault}")]
    Record {
        file: String,
        /// Offset of the record's header in the uncompressed file, in bytes.
        offset: u64,
        ordinal: u64,
        fault: Box<RowFault>,
    },
    /// A record is damaged, and no candidate can substitute it.
    #[error(
        "{file}: record {ordinal} at offset {offset}: {reason}; none of the {tried} records \
         nearest to it in the order is good either, so none can replace it: check features and \
         operators, and the files with `shardfeed dataset verify`"
    )]
    NoFiller {
        file: String,
        /// Offset of the record's header in the uncompressed file, in bytes.
        offset: u64,
        ordinal: u64,
        reason: String,
        /// Number of records that were tried.
        tried: usize,
    },
    #[error(
        "{what}, {skipped} in all, and corrupt_budget allows {allowed} on this rank; the first: {}; copy \
         the files again, leave these out, or raise corrupt_budget=",
        .first.join("; ")
    )]
    Budget {
        /// The epoch or the files that the count is for.
        what: String,
        skipped: u64,
        allowed: u64,
        /// Human-readable descriptions of some of them.
        first: Vec<String>,
    },
    #[error(
        "{file}: changed after it was indexed ({}; now {}); leave the files of a dataset alone \
         while it is read, and create the loader again to reindex it",
        look_of(&.look.indexed), now(&.look.found)
    )]
    Changed { file: String, look: Box<ChangedLook> },
    #[error("{file}: cannot read: {source}")]
    Io { file: String, source: io::Error },
    #[error(
        "{what}: {source}: this process may have {limit} files open, and all are in use; raise the limit (`ulimit -n`; \
         LimitNOFILE= of a unit), or read fewer datasets at once in it"
    )]
    Descriptors {
        /// The file, or other object that needs a descriptor.
        what: String,
        /// Descriptors that the process may have open.
        limit: usize,
        source: io::Error,
    },
    /// A remote file cannot be read or examined.
    #[error("{file}: cannot read{}: {reason}; {hint}", at(.offset))]
    Store {
        file: String,
        /// Offset at which reading stopped, in bytes of the stored file.
        offset: Option<u64>,
        reason: String,
        hint: &'static str,
    },
    /// An object of a shared index cannot be used.
    #[error("{object}: {reason}")]
    Index {
        /// Path or URL.
        object: String,
        /// Fault, and remedy.
        reason: String,
    },
    /// A side table of an operator cannot be used.
    #[error(transparent)]
    Table(#[from] Box<TableFault>),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A batch is larger than the memory budget.
    #[error("{0}; it is that of epoch {1}, step {2}")]
    BatchTooLarge(BatchTooLarge, u64, u64),
    /// The component that assigns work rejected a call, or a worker failed; in its words.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// An option is invalid.
    #[error("{0}")]
    Option(String),
    #[error("{0}")]
    Denied(String),
    #[error("{}: cannot write the ledger: {source}; SHARDFEED_LEDGER must be a writable folder", .path.display())]
    Ledger { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Device(String),
    #[error("interrupted")]
    Interrupted,
    #[error("the loader was closed")]
    Closed,
    /// An internal thread ended unexpectedly: a bug.
    #[error("a reader stopped unexpectedly; please report this with the log above")]
    ReaderLost,
}

/// Change stamps of a file when it was indexed and now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedLook {
    pub indexed: ChangeStamp,
    /// Stamp now; `None` if the file is gone.
    pub found: Option<ChangeStamp>,
}

impl LoadError {
    pub(crate) fn changed(file: String, indexed: ChangeStamp, found: Option<ChangeStamp>) -> Self {
        Self::Changed { file, look: Box::new(ChangedLook { indexed, found }) }
    }

    /// True if the bytes of a file, or their checksums, are damaged.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Corrupt { read } => {
                !matches!(read.kind, ReadErrorKind::Open(_) | ReadErrorKind::Io(_))
            }
            _ => false,
        }
    }

    /// True if a file does not exist.
    pub fn is_missing_file(&self) -> bool {
        match self {
            Self::NotFound(_) => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// Wraps a system error of a file, or of another object that needs a descriptor.
    pub(crate) fn io(what: String, source: io::Error) -> Self {
        match descriptors::is_short(&source) {
            true => Self::Descriptors { what, limit: descriptors::limit(), source },
            false => Self::Io { file: what, source },
        }
    }

    /// Converts the error to its form between processes.
    pub fn to_wire(&self) -> WireError {
        let at = |kind, file: &str, offset, ordinal| WireError {
            kind,
            message: self.to_string(),
            file: Some(file.to_owned()),
            offset,
            ordinal,
            leader: None,
        };
        let kind = match self {
            Self::Wire(error) => return error.clone(),
            Self::Corrupt { read } => {
                let kind = match &read.kind {
                    ReadErrorKind::Open(io) if io.kind() == io::ErrorKind::NotFound => {
                        ErrorKind::NotFound
                    }
                    ReadErrorKind::Open(_) | ReadErrorKind::Io(_) => ErrorKind::Data,
                    _ => ErrorKind::Corrupt,
                };
                return at(kind, &read.file, Some(read.offset), Some(read.ordinal));
            }
            Self::Record { file, offset, ordinal, fault } => {
                let kind = match **fault {
                    RowFault::Memory { .. } => ErrorKind::Memory,
                    _ => ErrorKind::Feature,
                };
                return at(kind, file, Some(*offset), Some(*ordinal));
            }
            Self::NoFiller { file, offset, ordinal, .. } => {
                return at(ErrorKind::Corrupt, file, Some(*offset), Some(*ordinal));
            }
            Self::Budget { .. } => ErrorKind::Corrupt,
            Self::Changed { file, .. } => return at(ErrorKind::Changed, file, None, None),
            Self::Io { file, .. } => return at(ErrorKind::Data, file, None, None),
            Self::Store { file, offset, .. } => return at(ErrorKind::Data, file, *offset, None),
            Self::Index { object, .. } => return at(ErrorKind::Data, object, None, None),
            Self::Table(fault) => {
                let kind = match fault.cause {
                    TableCause::NotFound => ErrorKind::NotFound,
                    TableCause::Another => ErrorKind::Changed,
                    TableCause::Unreadable => ErrorKind::Data,
                };
                return at(kind, &fault.file, fault.offset, None);
            }
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::State(_) => ErrorKind::State,
            Self::Memory(_)
            | Self::BatchTooLarge(..)
            | Self::Plan(_)
            | Self::Manifest(_)
            | Self::Schema(_)
            | Self::Option(_)
            | Self::Denied(_)
            | Self::Descriptors { .. }
            | Self::Ledger { .. } => ErrorKind::Invalid,
            Self::Interrupted => ErrorKind::Retry,
            Self::Device(_) | Self::Closed | Self::ReaderLost => ErrorKind::Unspecified,
        };
        WireError::new(kind, self.to_string())
    }

    /// True if the error fails the job: it is no interruption, the rank was not taken over by
    /// another trainer or an operator, and a retry of the request would not succeed later.
    pub fn fails_job(&self) -> bool {
        use ErrorKind::{Cancelled, Cordoned, Fenced, NotLeader, Retry, Superseded, Unreachable};
        let others = [Cancelled, Cordoned, Fenced, NotLeader, Retry, Superseded, Unreachable];
        !others.contains(&self.to_wire().kind)
    }
}

impl From<TableFault> for LoadError {
    fn from(fault: TableFault) -> Self {
        Box::new(fault).into()
    }
}

impl From<ReadError> for LoadError {
    /// Returns an error of this type that passed through a decoder as the error of its source.
    fn from(error: ReadError) -> Self {
        let read = match error.kind {
            ReadErrorKind::Io(source) => match source.downcast::<Self>() {
                Ok(inner) => return inner,
                Err(source) => ReadError { kind: ReadErrorKind::Io(source), ..error },
            },
            kind => ReadError { kind, ..error },
        };
        Self::Corrupt { read: Box::new(read) }
    }
}

fn at(offset: &Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at offset {offset}"))
}

fn look_of(stamp: &ChangeStamp) -> String {
    match &stamp.etag {
        Some(etag) => format!("{} bytes, ETag {etag}", stamp.size_bytes),
        None => {
            format!(
                "{} bytes, modified at {:.3} s",
                stamp.size_bytes,
                stamp.modified_ns as f64 / 1e9
            )
        }
    }
}

fn now(found: &Option<ChangeStamp>) -> String {
    match found {
        None => "it is gone".into(),
        Some(stamp) => look_of(stamp),
    }
}
