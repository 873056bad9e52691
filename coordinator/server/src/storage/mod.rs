//! Data on the disk: the log's machine, chunks and their replication, backups.

pub(crate) mod archive;
pub(crate) mod chunks;
pub(crate) mod copies;
pub(crate) mod folders;
pub(crate) mod machine;
pub(crate) mod manifests;
pub(crate) mod turns;
