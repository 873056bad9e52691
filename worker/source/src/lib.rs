//! The files that a dataset is made of: found, indexed and read, on local file systems and in
//! object stores, with the rights of the user who reads.
//!
//! This crate must not know ranks, orders or coordinators. Start at [`Dataset`] and [`Files`].
#![forbid(unsafe_code)]

mod error;

mod backoff;
pub mod descriptors;
mod looks;
mod shared;
mod storage_meter;
pub mod trace;
mod wait;

mod discover;
mod rights;
mod rules;

mod blocks;
mod cache;
mod index;
mod sidecar;

mod remote;

mod dataset;
mod files;
mod stored;

pub use backoff::jittered;
#[doc(hidden)]
pub use cache::fuzzing;
pub use cache::object_log::OpenLogs;
pub use cache::shared_index::SharedIndex;
pub use cache::{Cache, CacheChoice, CacheOptions, Entries, IndexedFile};
pub use dataset::{
    CountedFile, DamagedRecord, Dataset, DatasetFile, Grouping, HeldMap, LeftOut, MapRef, Mixed,
    OpenSource, PackTally, RowTally, SampleMap, SampleMaps, SamplePart, SamplePlace, SampleTally,
    SourceVersion, WindowTally, keep_dataset, keep_files, kept_dataset, leave_out,
};
pub use discover::{Found, absolute_pattern, discover};
pub use error::{ChangedLook, LoadError};
pub use files::{Files, ShardBytes};
pub use index::{
    OnProgress, OpenProgress, ScanProgress, ScanStage, changes, local_stamps, waiting,
};
pub use remote::{RemoteStats, is_remote};
pub use rights::{DataRoots, Rights, User, is_own, user_of};
pub use rules::FileRules;
pub use shared::{Lock, PerProcess, wait_for};
pub use sidecar::{Count, Fault, Sidecars};
pub use storage_meter::StorageMeter;
pub use stored::StoredFile;
pub use wait::Task;
