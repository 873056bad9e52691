//! The domain's words and the order: which sample is delivered by which rank at which step.
//!
//! Everything here is a pure function of numbers. This crate never reads a file, a clock, the
//! environment or a library's random numbers, and never starts a thread: that is what makes
//! resume, elasticity, simulation and the command line's answers one mechanism.
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

mod epoch;
mod progress;

mod corrupt;
mod data_root;
mod job;
mod token;

pub mod dynamic;

mod cursor;
mod intent;

pub use corrupt::{Corrupt, FILLERS_MAX, SkipCount};
pub use cursor::{Cursor, Position, Start};
pub use data_root::{fixed_folder, is_below};
pub use digest::{ContentDigest, Digest, DigestParseError, JobDigest};
pub use epoch::{EpochPlan, Placed, Planned, Slot, SlotRun, SlotSource};
pub use intent::Intent;
pub use job::{
    DECODER_NONE, Difference, JobIdentity, Mode, RECORD_SPEC_FIELD, Records, Tail, differences,
};
pub use lane::{Blocks, Inputs, Lane, LaneBlock};
pub use layer::LanePosition;
pub use line::{Line, Sample, Shuffle};
pub use manifest::{ChangeStamp, Manifest, ManifestError, Shard};
pub use random::{Draws, philox, stream_key};
pub use segment::{GLOBAL_BATCH_MAX, LANES_MAX, SEGMENTS_MAX, Segment, Steps};
pub use token::{TOKEN_FORMAT, Token, TokenError};
pub use window::Permutations;

/// Version of the order that `docs/ORDER.md` specifies. It is part of every job and token.
pub const ORDER_VERSION: u32 = 0;

/// Epochs that an order has, numbered from 0. The position after the last one exists as the end of
/// a job, and has no batches.
pub const EPOCHS: u64 = 1 << 48;

/// Refuses an epoch that no order has.
///
/// # Errors  `NoSuchEpoch`.
pub fn check_epoch(epoch: u64) -> Result<(), PlanError> {
    if epoch < EPOCHS { Ok(()) } else { Err(PlanError::NoSuchEpoch { epoch }) }
}

/// Why an order cannot be computed. Nothing is changed by a refused call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Every shard is empty, or there is none.
    #[error("the dataset has no records: {shards} shards, all empty")]
    NoSamples {
        /// Shards of the dataset.
        shards: usize,
    },
    /// A parameter is zero that must not be.
    #[error("`{name}` must be at least 1")]
    Zero {
        /// The parameter, as users write it.
        name: &'static str,
    },
    /// A parameter is beyond its bound.
    #[error("`{name}` is {value}, but may be at most {most}")]
    TooLarge {
        /// The parameter, as users write it.
        name: &'static str,
        /// Its value.
        value: u64,
        /// Its bound.
        most: u64,
    },
    /// An epoch at or beyond [`EPOCHS`].
    #[error("epoch must be at least 0 and below 2**48, not {epoch}")]
    NoSuchEpoch {
        /// The epoch asked for.
        epoch: u64,
    },
    /// The lanes do not divide the global batch.
    #[error(
        "lanes={lanes} does not divide the global batch of {global_batch} (batch_size {batch_size} \
         x world_size {world_size}); use batch_size={} or {}, or one of lanes={}",
        .batch_sizes.0, .batch_sizes.1, list(.lane_counts)
    )]
    LanesDoNotDivide {
        /// Lanes asked for, or kept from the token.
        lanes: u64,
        /// batch_size x world_size.
        global_batch: u64,
        /// Samples per rank and step.
        batch_size: u64,
        /// Data-parallel ranks.
        world_size: u64,
        /// The nearest batch sizes below (or the smallest) and above that would do.
        batch_sizes: (u64, u64),
        /// The nearest lane counts that would do.
        lane_counts: Vec<u64>,
    },
    /// The ranks do not divide the global batch.
    #[error("world_size={world_size} does not divide the global batch of {global_batch}")]
    WorldDoesNotDivide {
        /// Data-parallel ranks.
        world_size: u64,
        /// Samples of one step of all ranks.
        global_batch: u64,
    },
    /// Not one cursor for each rank.
    #[error("{cursors} cursors were given for {world_size} ranks; give one for each rank")]
    CursorsDoNotFit {
        /// Cursors given.
        cursors: u64,
        /// Data-parallel ranks.
        world_size: u64,
    },
    /// The rank is not below the world size.
    #[error("rank={rank} is not in 0..{world_size}: ranks count from 0 to world_size - 1")]
    RankOutOfRange {
        /// The rank asked for.
        rank: u64,
        /// Data-parallel ranks.
        world_size: u64,
    },
    /// More changes of lanes or global batch in one epoch than a token can hold.
    #[error(
        "lanes or the global batch changed more than {SEGMENTS_MAX} times in this epoch; keep the \
         global batch, or go on to the next epoch with set_epoch()"
    )]
    TooManySegments,
    /// A segment says that it went further than the epoch goes.
    #[error(
        "the position is beyond the epoch: {steps} steps were taken with lanes={lanes} and a global \
         batch of {global_batch}, but only {steps_max} exist; it belongs to another dataset or job"
    )]
    BeyondEnd {
        /// Lanes of the segment.
        lanes: u64,
        /// Its global batch.
        global_batch: u64,
        /// Steps that it claims.
        steps: u64,
        /// Steps that it has.
        steps_max: u64,
    },
    /// A dynamic job with equal steps.
    #[error(
        "mode=\"dynamic\" has tail=\"uneven\" only: with equal steps no rank could take another's work; \
         pass tail=\"uneven\", or mode=\"deterministic\" for tail=\"{tail}\""
    )]
    DynamicTail {
        /// The tail asked for.
        tail: Tail,
    },
    /// Ranks at different steps outside `tail="uneven"`.
    #[error("only tail=\"uneven\" lets ranks stop at different steps")]
    UnevenSteps,
    /// A block to shuffle has more samples than a permutation can hold.
    #[error(
        "a shuffle block of {samples} samples is too large; use shuffle_window <= {}",
        u32::MAX
    )]
    WindowTooLarge {
        /// Samples of the block.
        samples: u64,
    },
    /// A step that the epoch, or this rank's part of it, does not have.
    #[error("epoch {epoch} has {steps} steps for this rank; there is no step {step}")]
    NoSuchStep {
        /// The epoch.
        epoch: u64,
        /// The step asked for.
        step: u64,
        /// Steps that there are.
        steps: u64,
    },
    /// A shard or ordinal that the dataset does not have.
    #[error("shard {shard} has no sample {ordinal}")]
    NoSuchSample {
        /// Shard ordinal.
        shard: u32,
        /// Ordinal in the shard.
        ordinal: u64,
    },
}

fn list(values: &[u64]) -> String {
    values.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}
