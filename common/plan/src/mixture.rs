//! Mixtures of several sources by weight. Source: docs/ORDER.md, section 13.
//!
//! A [`Mixture`] is a list of stages, each of which fixes how many samples of each source a mixture
//! epoch has. [`MixtureEpoch`] computes one of them, and [`crate::EpochPlan::of_mixture`] its steps.

mod epoch;
mod lane;
mod merge;
mod stage;
mod weight;

pub use epoch::MixtureEpoch;
pub(crate) use lane::{MergedBlocks, MergedInputs, MergedLane, MergedOutputs};
pub use stage::{
    JOB_MIXTURE_ENTRIES_MAX, Length, Mixture, SOURCES_MAX, STAGES_MAX, Source, Stage, StageSource,
};

use crate::digest::Digest;
use crate::{EPOCHS, PlanError, SAMPLES_MAX};

/// Returns the digest that takes the place of the order digest and the content digest in the
/// identity of a mixture's job.
pub fn mixture_digest() -> Digest {
    Digest::of_parts([b"shardfeed mixture 1\0".as_slice()])
}

/// Reason why a mixture is invalid, or does not have an epoch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixtureError {
    /// The name of a source is empty, too long, or has characters that its reports cannot contain.
    #[error(
        "{name:?} cannot name a source of a mixture: use 1 to {} bytes without white space and \
         control characters, other than \"-\"",
        stage::NAME_BYTES_MAX
    )]
    Name { name: String },
    #[error("two sources of the mixture have the name `{name}`; give each another name")]
    SameName { name: String },
    #[error("source `{name}` has no samples in {shards} shards; remove it from the mixture")]
    Empty { name: String, shards: usize },
    #[error("source `{name}` has more than 2**63 - 1 samples or 2**32 - 1 shards")]
    SourceTooLarge { name: String },
    #[error("a mixture has 1 to {SOURCES_MAX} sources, not {sources}")]
    Sources { sources: usize },
    #[error(
        "the weight of source `{name}` is {weight:?}; use a positive decimal number of at most 40 \
         characters, such as 0.25 (to leave a source out, remove it)"
    )]
    Weight { name: String, weight: String },
    /// The weights need more digits than the computation has.
    #[error(
        "the weights differ by too many digits: as integers in proportion their sum must be below \
         2**126; round them to fewer digits"
    )]
    WeightDigits,
    #[error(
        "a mixture epoch of {samples} samples has none of source `{name}`, whose weight is too small \
         for it; use an epoch of at least {samples_min} samples"
    )]
    NoSampleOf {
        name: String,
        /// Requested length of the mixture epoch.
        samples: u64,
        /// Length from which on every source has a sample.
        samples_min: u128,
    },
    #[error("a mixture epoch has 1 to {SAMPLES_MAX} samples, not {samples}")]
    Length { samples: u128 },
    #[error(
        "in proportion to the source that ends first or last, a mixture epoch would have more than \
         2**63 - 1 samples; pass its length as a number"
    )]
    TooLong,
    #[error("a mixture has 1 to {STAGES_MAX} stages, not {stages}")]
    Stages { stages: usize },
    /// The stages do not follow each other from epoch 0.
    #[error(
        "stage {stage} begins at epoch {epoch}: the first stage begins at epoch 0, each other one \
         after the stage before it and before epoch {EPOCHS}"
    )]
    StageEpoch {
        /// Number of the stage, from 0.
        stage: usize,
        /// First epoch of the stage.
        epoch: u64,
    },
    /// The samples of a source of the stage are not given, or are those of another version.
    #[error(
        "epoch {epoch} needs source `{name}` with order digest {digest}{}; open this version of the \
         source", .found.map_or(String::new(), |found| format!(", not {found}"))
    )]
    OtherSource {
        epoch: u64,
        name: String,
        /// Order digest of its version in the stage.
        digest: Digest,
        /// Order digest of the given version.
        found: Option<Digest>,
    },
    /// The mixture of a job in a cluster has too many sources and stages.
    #[error(
        "the mixture has {entries} sources in all its stages and versions; in a cluster it has at \
         most {JOB_MIXTURE_ENTRIES_MAX}, with {SOURCES_MAX} versions of sources and {STAGES_MAX} \
         stages: use fewer"
    )]
    Entries {
        /// Number of versions, and of sources in each stage.
        entries: usize,
    },
    #[error(
        "a stage of the mixture names version {version} of its sources, which it does not have"
    )]
    NoVersion { version: u32 },
    #[error("version {version} of the sources of the mixture is in no stage; leave it out")]
    NoStage { version: u32 },
    #[error("epoch {epoch} repeats source `{name}` more than 2**64 times")]
    SourceEpochs { epoch: u64, name: String },
    /// A parameter of the order is invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
}
