//! shardfeed in one process, without daemons: from a dataset's files to one rank's batches.
//!
//! The plan is pure, so embedded ranks need no coordinator to agree: each computes its own part.
//! This crate must not depend on Python, gRPC or TLS. A loader in a cluster gets its coordinators
//! through [`ClusterOptions`], from `shardfeed-cluster`.
//!
//! Start at [`open`].
#![forbid(unsafe_code)]

pub use shardfeed_client::{
    Account, BatchParts, CacheChoice, CacheOptions, ClusterOptions, ClusterPort, Commit, Contents,
    CorruptBudget, Dataset, DatasetRequest, Delivered, Delivery, DoubtPolicy, EncodedSpec,
    EpochSamples, Finding, GrantStats, InProcessWorker, Joined, Limit, LoadError, Loader,
    LoaderOptions, LoaderStats, MixtureOptions, MixtureSource, MixtureStage, Offered, OpenProgress,
    Plans, PrefetchStats, Reason, RecordParts, RecordSpec, RowPart, SampleCosts, ScanProgress,
    ScanStage, Setup, SharedIndex, SkippedRecord, SourceVersion, Spent, What, account_from,
    check_stages, default_budget_bytes, default_worker_socket, finding, interleave_default,
    spec_of, trace, use_threads, worker_answers, worker_timeline,
};

/// Opens a loader: in a cluster if the options name one, otherwise entirely in this process.
/// - `progress`: called during indexing and waits for other processes; `false` aborts.
pub fn open(
    options: LoaderOptions,
    progress: &mut dyn FnMut(&OpenProgress) -> bool,
) -> Result<Loader, LoadError> {
    Loader::open(options, progress)
}
