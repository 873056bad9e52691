//! The data of a node on disk: the log, snapshots, its identity, and the mark that shows whether the
//! database lost commits.

pub(crate) mod committer;
pub(crate) mod directory;
pub(crate) mod framing;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod redb_log;
pub(crate) mod snapshot;
pub(crate) mod witness;
