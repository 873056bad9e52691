//! What can go wrong between a pattern and a batch: what, where, and what to do.

use std::io;
use std::path::PathBuf;

use shardfeed_pipeline::{
    BatchTooLarge, MemoryError, RowFault, SchemaError, TableCause, TableFault,
};
use shardfeed_plan::{ChangeStamp, ManifestError, PlanError, TokenError};
use shardfeed_tfrecord::{ReadError, ReadErrorKind};

use shardfeed_proto::{ErrorKind, WireError};

use crate::descriptors;

/// Why a loader cannot go on. Its position is unchanged: after mending the cause, trying again
/// gives the same batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No file under this name.
    #[error("{0}")]
    NotFound(String),
    /// A file is damaged.
    #[error("{read}; {}", .read.hint())]
    Corrupt {
        /// What is wrong, and where.
        read: Box<ReadError>,
    },
    /// A record is damaged, or is not what the features say.
    #[error("{file}: record {ordinal} at offset {offset}: {fault}")]
    Record {
        /// The file.
        file: String,
        /// Offset of the record's header in the uncompressed file, in bytes.
        offset: u64,
        /// Its ordinal.
        ordinal: u64,
        /// What is wrong with it.
        fault: Box<RowFault>,
    },
    /// A record is damaged, and so is everything near it.
    #[error(
        "{file}: record {ordinal} at offset {offset}: {reason}; none of the {tried} records nearest to it \
         in the order is good either, so none can stand in for it: check features and operators, and \
         the files with `shardfeed dataset verify`"
    )]
    NoFiller {
        /// The file.
        file: String,
        /// Offset of the record's header in the uncompressed file, in bytes.
        offset: u64,
        /// Its ordinal.
        ordinal: u64,
        /// What is wrong with it.
        reason: String,
        /// Records that were tried.
        tried: usize,
    },
    /// More was skipped than the job allows.
    #[error(
        "{what}, {skipped} in all, and corrupt_budget allows {allowed} on this rank; the first: {}; copy \
         the files again, leave these out, or raise corrupt_budget=",
        .first.join("; ")
    )]
    Budget {
        /// Of which epoch, or of which files.
        what: String,
        /// Records and files that were skipped.
        skipped: u64,
        /// How many may be.
        allowed: u64,
        /// Some of them, in words.
        first: Vec<String>,
    },
    /// A file is not the one that was indexed.
    #[error(
        "{file}: changed after it was indexed ({}; now {}); leave the files of a dataset alone while \
         it is read, and create the loader again to index it anew",
        look_of(&.look.indexed), now(&.look.found)
    )]
    Changed {
        /// The file.
        file: String,
        /// How it was, and how it is.
        look: Box<ChangedLook>,
    },
    /// A file cannot be read.
    #[error("{file}: cannot read: {source}")]
    Io {
        /// The file.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// The process has no descriptor left for something.
    #[error(
        "{what}: {source}: this process may have {limit} files open, and all are in use; raise the limit (`ulimit -n`; \
         LimitNOFILE= of a unit), or read fewer datasets at once in it"
    )]
    Descriptors {
        /// The file, or what else needs one.
        what: String,
        /// Descriptors that it may have.
        limit: usize,
        /// What the system says.
        source: io::Error,
    },
    /// A remote file cannot be read, or not be found out about.
    #[error("{file}: cannot read{}: {reason}; {hint}", at(.offset))]
    Store {
        /// Its URL.
        file: String,
        /// Where reading stopped, in bytes of the stored file.
        offset: Option<u64>,
        /// What was tried, and what was said.
        reason: String,
        /// What to do.
        hint: &'static str,
    },
    /// A table that operators look things up in cannot be used.
    #[error(transparent)]
    Table(#[from] Box<TableFault>),
    /// The numbers make no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The files make no dataset.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// What is declared of records cannot be met.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The token was refused.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The memory budget is too small.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A batch is larger than the memory budget.
    #[error("{0}; it is that of epoch {1}, step {2}")]
    BatchTooLarge(BatchTooLarge, u64, u64),
    /// Whoever assigns work refused, or a worker failed, in its words.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// An option has no meaning.
    #[error("{0}")]
    Option(String),
    /// The worker is not for this user.
    #[error("{0}")]
    Denied(String),
    /// The ledger cannot be written.
    #[error("{}: cannot write the ledger: {source}; SHARDFEED_LEDGER must be a writable folder", .path.display())]
    Ledger {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A batch could not be brought to the device.
    #[error("{0}")]
    Device(String),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The loader was closed.
    #[error("the loader was closed")]
    Closed,
    /// A thread of ours ended without a word: our bug.
    #[error("a reader stopped unexpectedly; please report this with the log above")]
    ReaderLost,
}

/// How a file was when it was indexed, and how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedLook {
    /// How it was.
    pub indexed: ChangeStamp,
    /// How it is; `None` if it is gone.
    pub found: Option<ChangeStamp>,
}

impl LoadError {
    pub(crate) fn changed(file: String, indexed: ChangeStamp, found: Option<ChangeStamp>) -> Self {
        Self::Changed { file, look: Box::new(ChangedLook { indexed, found }) }
    }

    /// What the system says of a file, or of what else needs a descriptor.
    pub(crate) fn io(what: String, source: io::Error) -> Self {
        match descriptors::is_short(&source) {
            true => Self::Descriptors { what, limit: descriptors::limit(), source },
            false => Self::Io { file: what, source },
        }
    }

    /// As it crosses a process border.
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
                    RowFault::Parse { .. } | RowFault::Operator { .. } => ErrorKind::Feature,
                    _ => ErrorKind::Memory,
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
            Self::Table(fault) => {
                let kind = match fault.cause {
                    TableCause::NotFound => ErrorKind::NotFound,
                    TableCause::Another => ErrorKind::Changed,
                    TableCause::Unreadable => ErrorKind::Data,
                };
                return at(kind, &fault.file, fault.offset, None);
            }
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Token(_) => ErrorKind::Token,
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

    /// Whether it fails the job: nobody interrupted it, no other trainer or operator took the rank, and the
    /// same request would not succeed later.
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
    /// Our own errors pass through decoders as those of a source; here they come out again.
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
