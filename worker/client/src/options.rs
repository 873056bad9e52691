use std::path::PathBuf;
use std::time::Duration;

use shardfeed_pipeline::RecordSpec;
use shardfeed_plan::{Corrupt, Length, Mode, Start, Tail};
use shardfeed_proto::COORDINATOR_TIMEOUT;
use shardfeed_reader::DoubtPolicy;
use shardfeed_source::{CacheOptions, FileRules, SharedIndex};
use shardfeed_tfrecord::CompressionChoice;

use crate::cluster_port::ClusterPort;
use crate::skipped::CorruptBudget;

/// All options of a loader. Defaults are those of the Python package.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// Files: paths, `file://` URLs, globs.
    pub files: Vec<String>,
    /// Sources to mix, instead of files.
    pub mixture: Option<MixtureOptions>,
    /// A dataset of the cluster by its name, instead of files.
    pub dataset: Option<String>,
    /// Index of the files that hosts share.
    pub index: Option<SharedIndex>,
    pub compression: CompressionChoice,
    /// Policy for corrupt records and files.
    ///
    /// Of a named dataset it covers records only: its policy for files was set when it was added.
    pub corrupt: Corrupt,
    /// Number of corrupt records that may be skipped.
    pub corrupt_budget: CorruptBudget,
    /// Parsing and operators of records; `None` leaves records unchanged. With a mixture those of the
    /// job: the sources that have others are named by their digests.
    pub records: Option<RecordSpec>,
    /// Samples per rank and step.
    pub batch_size: u64,
    pub seed: u64,
    pub shuffle: bool,
    /// Samples of a lane that are shuffled together.
    pub shuffle_window: u64,
    /// Splits that are interleaved; `None`: [`interleave_default`].
    pub interleave: Option<u64>,
    /// Consecutive samples read from a split before the next split.
    pub block_length: u64,
    /// Equal parts of the epoch sequence; `None`: world size at creation.
    pub lanes: Option<u64>,
    /// Policy for the end of an epoch; must be [`Tail::Uneven`] with [`Mode::Dynamic`].
    pub tail: Tail,
    /// Assignment of samples to ranks: planned or dynamic.
    pub mode: Mode,
    /// Maximum number of entries of an epoch.
    pub limit: Option<u64>,
    pub rank: u64,
    /// Data-parallel ranks.
    pub world_size: u64,
    /// Number of this process among those that get the same batches; 0: the first, or the only one.
    pub replica: u64,
    pub job: Option<String>,
    /// Maximum number of batches ready or in work; `None` adapts the number automatically.
    pub prefetch: Option<usize>,
    /// Bytes for records being read and prefetched batches; `None`: a quarter of available memory.
    pub memory_budget_bytes: Option<u64>,
    /// Folder for indexes, and size of the cache of remote files.
    pub cache: CacheOptions,
    /// The cluster; `None` runs everything in this process.
    pub cluster: Option<ClusterOptions>,
    /// Policy for samples in doubt of a dynamic job.
    pub doubt: DoubtPolicy,
    /// True if batches name the parts of records that their rows consist of.
    pub parts: bool,
    /// True if a state is loaded next, whose lanes are those of the job: it is registered then.
    pub resumes: bool,
}

/// A mixture of sources by weight. Source: docs/ORDER.md, section 13.
#[derive(Clone, Debug)]
pub struct MixtureOptions {
    /// Versions of sources, in the order of their shards.
    pub sources: Vec<MixtureSource>,
    pub stages: Vec<MixtureStage>,
}

#[derive(Clone, Debug)]
pub struct MixtureSource {
    /// Name; versions of one source have the same.
    pub name: String,
    /// A dataset of the cluster by its name, instead of files.
    pub dataset: Option<String>,
    /// Files: paths, URLs, globs.
    pub files: Vec<String>,
    /// Index of the files that hosts share.
    pub index: Option<SharedIndex>,
    pub compression: CompressionChoice,
    /// Parsing, operators and samples of its records; `None` leaves records unchanged.
    pub records: Option<RecordSpec>,
}

#[derive(Clone, Debug)]
pub struct MixtureStage {
    pub first_epoch: u64,
    /// Length of its mixture epochs.
    pub length: Length,
    /// Index and weight of each source; a weight is a decimal as it was written.
    pub weights: Vec<(usize, String)>,
}

/// Options of a trainer in a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Access to coordinators: `shardfeed_cluster::GrpcCluster`.
    pub port: &'static dyn ClusterPort,
    /// Addresses of the coordinators, separated by commas.
    pub coordinator: String,
    /// Socket path of this host's worker.
    ///
    /// `None`: `SHARDFEED_WORKER`, else the default path, if a socket exists there.
    pub worker: Option<PathBuf>,
    /// True if a missing worker is replaced by one in this process.
    pub fallback: bool,
    /// Maximum wait for a coordinator, or for a worker that must not be replaced.
    pub timeout: Duration,
    /// Id of the run that this rank belongs to, as the launcher names it.
    pub run: Option<String>,
    /// Ranks on this host, as reported by the launcher; 0: unknown.
    pub ranks_on_host: u64,
}

impl ClusterOptions {
    /// Returns the defaults for a coordinator, or for several separated by commas.
    pub fn new(coordinator: impl Into<String>, port: &'static dyn ClusterPort) -> Self {
        Self {
            port,
            coordinator: coordinator.into(),
            worker: None,
            fallback: true,
            timeout: COORDINATOR_TIMEOUT,
            run: None,
            ranks_on_host: 0,
        }
    }
}

/// Default number of interleaved splits: 1 without shuffling, which keeps the order of the files.
pub fn interleave_default(shuffle: bool) -> u64 {
    if shuffle { 16 } else { 1 }
}

impl LoaderOptions {
    pub fn file_rules(&self) -> FileRules {
        FileRules { compression: self.compression, corrupt: self.corrupt }
    }

    /// Changes the rank and its part of each global batch.
    pub(crate) fn set_part(&mut self, start: &Start) {
        (self.rank, self.world_size) = (start.rank, start.world_size);
        self.batch_size = start.batch_size;
    }
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            mixture: None,
            dataset: None,
            index: None,
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
            replica: 0,
            job: None,
            prefetch: None,
            memory_budget_bytes: None,
            cache: CacheOptions::default(),
            cluster: None,
            doubt: DoubtPolicy::default(),
            parts: false,
            resumes: false,
        }
    }
}
