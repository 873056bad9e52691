//! What a loader is told.

use std::path::PathBuf;
use std::time::Duration;

use shardfeed_agent::{COORDINATOR_TIMEOUT, CacheOptions, DoubtPolicy, FileRules};
use shardfeed_pipeline::RecordSpec;
use shardfeed_plan::{Corrupt, Mode, Tail};
use shardfeed_tfrecord::CompressionChoice;

use crate::skipped::CorruptBudget;

/// Everything that makes a loader. Defaults are those of the Python package.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// Files: paths, `file://` URLs, globs.
    pub files: Vec<String>,
    /// A dataset of the cluster by its name, instead of files.
    pub dataset: Option<String>,
    /// How the files are compressed.
    pub compression: CompressionChoice,
    /// What happens when a record or a file is corrupt. Of a dataset by name: of a record; what of its
    /// files is left out was said when it was added.
    pub corrupt: Corrupt,
    /// How much may be skipped.
    pub corrupt_budget: CorruptBudget,
    /// What becomes of records; `None`: they stay as they are.
    pub records: Option<RecordSpec>,
    /// Samples per rank and step.
    pub batch_size: u64,
    /// Seed of the order.
    pub seed: u64,
    /// Whether the order is shuffled.
    pub shuffle: bool,
    /// Samples of a lane that are shuffled among each other.
    pub shuffle_window: u64,
    /// Splits that are read in turn; `None`: [`interleave_default`].
    pub interleave: Option<u64>,
    /// Consecutive samples taken from a split in its turn.
    pub block_length: u64,
    /// Equal pieces of the line; `None`: world size at creation.
    pub lanes: Option<u64>,
    /// What happens at the end of an epoch; with [`Mode::Dynamic`] it must be [`Tail::Uneven`].
    pub tail: Tail,
    /// Who decides which rank delivers a sample.
    pub mode: Mode,
    /// Slots of an epoch that exist at most.
    pub limit: Option<u64>,
    /// This rank.
    pub rank: u64,
    /// Data-parallel ranks.
    pub world_size: u64,
    /// Name of the job.
    pub job: Option<String>,
    /// Batches ready or in work at most; `None`: as many as turn out to be of use.
    pub prefetch: Option<usize>,
    /// Bytes for records in reading and batches ahead; `None`: a quarter of the memory there is.
    pub memory_budget_bytes: Option<u64>,
    /// Where indexes are kept, and how much of remote files.
    pub cache: CacheOptions,
    /// The cluster; `None`: everything in this process.
    pub cluster: Option<ClusterOptions>,
    /// Of a dynamic job: what becomes of samples in doubt.
    pub doubt: DoubtPolicy,
}

/// How a trainer uses a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Addresses of its coordinators, with commas between them.
    pub coordinator: String,
    /// Path of this host's worker's socket; `None`: `SHARDFEED_WORKER`, else the usual place, if there
    /// is one.
    pub worker: Option<PathBuf>,
    /// Whether a worker that is not there is replaced by one in this process.
    pub fallback: bool,
    /// How long a coordinator, or a worker that must not be replaced, is waited for.
    pub timeout: Duration,
    /// The start of the ranks that this one belongs to, as the launcher names it.
    pub run: Option<String>,
    /// Ranks on this host, as far as the launcher says; 0: unknown.
    pub ranks_on_host: u64,
}

impl ClusterOptions {
    /// The defaults, for a coordinator, or several with commas.
    pub fn new(coordinator: impl Into<String>) -> Self {
        Self {
            coordinator: coordinator.into(),
            worker: None,
            fallback: true,
            timeout: COORDINATOR_TIMEOUT,
            run: None,
            ranks_on_host: 0,
        }
    }
}

/// Splits that are read in turn if nobody says: without shuffle one, which keeps the order of the files.
pub fn interleave_default(shuffle: bool) -> u64 {
    if shuffle { 16 } else { 1 }
}

impl LoaderOptions {
    /// How its files are read.
    pub fn file_rules(&self) -> FileRules {
        FileRules { compression: self.compression, corrupt: self.corrupt }
    }
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            dataset: None,
            compression: CompressionChoice::Auto,
            corrupt: Corrupt::Error,
            corrupt_budget: CorruptBudget::Usual,
            records: None,
            batch_size: 1,
            seed: 0,
            shuffle: true,
            shuffle_window: 10_000,
            interleave: None,
            block_length: 1,
            lanes: None,
            tail: Tail::Drop,
            mode: Mode::Deterministic,
            limit: None,
            rank: 0,
            world_size: 1,
            job: None,
            prefetch: None,
            memory_budget_bytes: None,
            cache: CacheOptions::default(),
            cluster: None,
            doubt: DoubtPolicy::default(),
        }
    }
}
