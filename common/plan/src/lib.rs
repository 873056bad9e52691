//! Domain model and order: which sample is delivered by which rank at which step.
//!
//! Everything here is a pure function of numbers. This crate never reads a file, a clock, the
//! environment or a library's random numbers, and never starts a thread. Resume, elasticity,
//! simulation and the results of the command line therefore use the same computation.
//!
//! Start at [`EpochPlan`]; `docs/ORDER.md` specifies what it computes.
#![forbid(unsafe_code)]

mod digest;
mod random;

mod manifest;

mod line;

mod interleave;
mod window;

mod lane;

mod segment;

mod layer;

mod mixture;

mod samples;

mod epoch;

mod corrupt;
mod data_root;
mod job;
mod state;

pub mod dynamic;

mod cursor;
mod intent;

pub use corrupt::{Corrupt, FILLERS_MAX, SkipCount};
pub use cursor::{Cursor, Position, Start};
pub use data_root::{fixed_folder, is_below};
pub use digest::{ContentDigest, Digest, DigestParseError, JobDigest, OrderDigest, order_digest};
pub use epoch::{
    BALANCE_WINDOW_MAX, BalancedPlan, EpochPlan, Placed, Slot, SlotRun, SlotSource,
    check_balance_window,
};
pub use intent::Intent;
pub use job::{
    DECODER_NONE, DatasetStage, DatasetVersion, Difference, JobIdentity, JobMixture, Mode,
    RECORD_SPEC_FIELD, Records, Tail, differences,
};
pub use lane::{Blocks, Inputs, Lane, LaneBlock, Planned, Portion, SplitRun};
pub use layer::LanePosition;
pub use line::{Line, SAMPLES_MAX, Sample, Shuffle};
pub use manifest::{ChangeStamp, Manifest, ManifestError, Shard, content_digest};
pub use mixture::{
    JOB_MIXTURE_ENTRIES_MAX, Length, Mixture, MixtureEpoch, MixtureError, SOURCES_MAX, STAGES_MAX,
    Source, Stage, StageSource, mixture_digest,
};
pub use random::{Draws, philox, stream_key};
pub use samples::lengths::Lengths;
pub use samples::pack::{
    LongSequences, PACK_BLOCK_MAX, PACK_LENGTH_MAX, PACK_VARIANTS_MAX, PACKS_MAX, PackError,
    PackLosses, PackMethod, PackSegment, PackSettings, Packing,
};
pub use samples::windows::{PartialWindows, WINDOW_SIZE_MAX, WindowSettings, Windows};
pub use segment::{
    GLOBAL_BATCH_MAX, LANES_MAX, LEFT_OUT_MAX, LeftOut, SEGMENTS_MAX, Segment, Steps,
};
pub use state::{LoaderState, STATE_FORMAT, StateError};
pub use window::Permutations;

/// Version of the order that `docs/ORDER.md` specifies; part of every job and state.
pub const ORDER_VERSION: u32 = 1;

/// Number of epochs of an order, numbered from 0. The position after the last one exists as the end
/// of a job and has no batches.
pub const EPOCHS: u64 = 1 << 48;

/// Checks that an order has this epoch.
///
/// # Errors  `NoSuchEpoch`.
pub fn check_epoch(epoch: u64) -> Result<(), PlanError> {
    if epoch < EPOCHS { Ok(()) } else { Err(PlanError::NoSuchEpoch { epoch }) }
}

/// Reason why an order cannot be computed. A rejected call changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("the dataset has no records: {shards} shards, all empty")]
    NoSamples { shards: usize },
    #[error("the record counts of the {shards} shards add up to more than 2**63 - 1")]
    TooManySamples { shards: usize },
    #[error(
        "the job has order version {found}, this shardfeed computes order version {ORDER_VERSION}, \
         which is another order; {}", if *found < ORDER_VERSION {
             "finish the job with the release that registered it, or start it again without a state, \
              under another name or after `shardfeed job remove`"
         } else {
             "upgrade shardfeed to the version that registered the job"
         }
    )]
    OtherOrderVersion { found: u32 },
    #[error("`{name}` must be at least 1")]
    Zero {
        /// User-visible name of the parameter.
        name: &'static str,
    },
    #[error("`{name}` is {value}, but may be at most {most}")]
    TooLarge {
        /// User-visible name of the parameter.
        name: &'static str,
        value: u64,
        most: u64,
    },
    #[error("epoch must be at least 0 and below 2**48, not {epoch}")]
    NoSuchEpoch { epoch: u64 },
    #[error(
        "lanes={lanes} does not divide the global batch of {global_batch} (batch_size {batch_size} \
         x world_size {world_size}); use batch_size={} or {}, or one of lanes={}",
        .batch_sizes.0, .batch_sizes.1, list(.lane_counts)
    )]
    LanesDoNotDivide {
        /// Requested number of lanes, or that of the state.
        lanes: u64,
        /// batch_size x world_size.
        global_batch: u64,
        batch_size: u64,
        world_size: u64,
        /// Nearest valid batch sizes below (or the smallest) and above.
        batch_sizes: (u64, u64),
        lane_counts: Vec<u64>,
    },
    #[error("world_size={world_size} does not divide the global batch of {global_batch}")]
    WorldDoesNotDivide {
        world_size: u64,
        /// Samples per step of all ranks.
        global_batch: u64,
    },
    #[error("{cursors} cursors were given for {world_size} ranks; give one for each rank")]
    CursorsDoNotFit { cursors: u64, world_size: u64 },
    #[error("rank={rank} is not in 0..{world_size}: ranks count from 0 to world_size - 1")]
    RankOutOfRange { rank: u64, world_size: u64 },
    #[error(
        "lanes or the global batch changed more than {SEGMENTS_MAX} times in this epoch; keep the \
         global batch, or start the next epoch with set_epoch()"
    )]
    TooManySegments,
    #[error(
        "the position is beyond the epoch: {steps} steps were taken with lanes={lanes} and a global \
         batch of {global_batch}, but only {steps_max} exist; it belongs to another dataset or job"
    )]
    BeyondEnd { lanes: u64, global_batch: u64, steps: u64, steps_max: u64 },
    #[error(
        "mode=\"dynamic\" has tail=\"uneven\" only: with equal steps no rank could take another's work; \
         pass tail=\"uneven\", or mode=\"deterministic\" for tail=\"{tail}\""
    )]
    DynamicTail { tail: Tail },
    #[error("only tail=\"uneven\" lets ranks stop at different steps")]
    UnevenSteps,
    /// A shuffle block has more samples than a permutation can hold.
    #[error(
        "a shuffle block of {samples} samples is too large; use shuffle_window <= {}",
        u32::MAX
    )]
    WindowTooLarge { samples: u64 },
    #[error("epoch {epoch} has {steps} steps for this rank; there is no step {step}")]
    NoSuchStep { epoch: u64, step: u64, steps: u64 },
    #[error(
        "mixture epoch {epoch} has no sample {ordinal} of shard {shard} of source epoch \
         {source_epoch} of its source {source_number}"
    )]
    NotInEpoch { source_number: u32, source_epoch: u64, shard: u32, ordinal: u64, epoch: u64 },
    /// A mixture is invalid, or does not have an epoch.
    #[error(transparent)]
    Mixture(Box<MixtureError>),
    #[error("shard {shard} has no sample {ordinal}")]
    NoSuchSample { shard: u32, ordinal: u64 },
}

impl From<MixtureError> for PlanError {
    fn from(error: MixtureError) -> Self {
        match error {
            MixtureError::Plan(error) => error,
            error => Self::Mixture(Box::new(error)),
        }
    }
}

/// Checks that no parameter is zero, and that none exceeds its maximum.
/// - `parameters`: name, value and maximum of each.
fn check_parameters(parameters: &[(&'static str, u64, u64)]) -> Result<(), PlanError> {
    if let Some((name, ..)) = parameters.iter().find(|(_, value, _)| *value == 0) {
        return Err(PlanError::Zero { name });
    }
    match parameters.iter().find(|(_, value, most)| value > most) {
        Some(&(name, value, most)) => Err(PlanError::TooLarge { name, value, most }),
        None => Ok(()),
    }
}

fn list(values: &[u64]) -> String {
    values.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}
