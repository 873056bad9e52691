//! What a command comes to.

use serde::{Deserialize, Serialize};
use shardfeed_plan::dynamic::Piece;
use shardfeed_plan::{Corrupt, Difference, Digest, Segment};

use crate::command::{Cordon, Fencing, SessionId};

/// What a command that was carried out comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Nothing more to say.
    Done,
    /// A session began.
    Joined {
        /// The session.
        session: SessionId,
    },
    /// Parts to list or scan, at most as many as asked for; empty: there is nothing to do.
    Scans(Vec<ScanTask>),
    /// A rank stands.
    Started(Started),
    /// The policy decided on what was in doubt.
    Decided {
        /// How many samples.
        samples: u64,
    },
    /// What each take came to, in their order.
    Taken(Vec<Result<Taken, Refusal>>),
}

/// What a rank has of an epoch, as far as it does not know yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// What the worker shall forget first: everything from this position of its list on.
    #[serde(default)]
    pub truncated: Option<u64>,
    /// Pieces of the list that come then, at most [`crate::PIECES_TOLD_MAX`].
    pub pieces: Vec<Piece>,
    /// Whether there are more of them.
    #[serde(default)]
    pub more: bool,
    /// Position of the list up to which samples may be delivered.
    pub horizon: u64,
    /// Version of the list that the horizon counts for.
    pub version: u64,
    /// Positions of the list at which runs end, all of them.
    #[serde(default)]
    pub closed: Vec<u64>,
    /// The worker is asked to release what it has not begun from this position on.
    #[serde(default)]
    pub revoke_from: Option<u64>,
    /// Whether the rank gets nothing more in this epoch.
    pub ended: bool,
    /// Step of the epoch that the list's first batch is.
    pub first_step: u64,
    /// Samples of a full batch.
    pub batch_size: u64,
}

/// A part of a dataset to list or to scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanTask {
    /// The dataset.
    pub dataset: String,
    /// Its lease.
    pub fencing: Fencing,
    /// How its files are compressed.
    pub compression: String,
    /// What of damaged files is left out. Left out where it is written while that is nothing.
    #[serde(default, skip_serializing_if = "Corrupt::is_error")]
    pub corrupt: Corrupt,
    /// What to do.
    pub work: ScanWork,
}

/// What to do of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScanWork {
    /// Find its files.
    List {
        /// Patterns.
        patterns: Vec<String>,
    },
    /// Scan a part of its files.
    Scan {
        /// Folder that paths are relative to.
        root: String,
        /// Which part.
        part: u64,
        /// Chunk that lists them.
        chunk: Digest,
    },
}

/// Where a rank stands after a start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Its generation.
    pub generation: u64,
    /// Its lease's token.
    pub fencing: Fencing,
    /// Run that it belongs to.
    pub run: String,
    /// Epoch that it stands in.
    pub epoch: u64,
    /// Segments with which that epoch began, or goes on where the generation started.
    pub segments: Vec<Segment>,
}

/// Why a command was refused. The state is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// No such thing.
    #[error("there is no {what} `{name}`")]
    NotFound {
        /// What kind of thing.
        what: String,
        /// Its name.
        name: String,
    },
    /// The name stands for something else.
    #[error(
        "job `{name}` exists with another identity: {}; use another name, or the same values",
        describe(.differences)
    )]
    OtherIdentity {
        /// Name of the job.
        name: String,
        /// The registered one on the left, the asked one on the right.
        differences: Vec<Difference>,
    },
    /// The dataset's name stands for other files.
    #[error("dataset `{name}` exists with other {field}: {known}; use another name")]
    OtherDataset {
        /// Its name.
        name: String,
        /// `patterns`, `compression`, `corrupt` or `content`.
        field: String,
        /// What is registered.
        known: String,
    },
    /// Another rank of the same run started from another position.
    #[error(
        "rank {rank} of job `{job}` starts at epoch {epoch} step {step}, but run `{run}` was \
         started by rank {by_rank} at epoch {by_epoch} step {by_step}; load the same state on every rank"
    )]
    Conflict {
        /// The job.
        job: String,
        /// The run.
        run: String,
        /// The rank that is refused.
        rank: u64,
        /// Where it wants to start.
        epoch: u64,
        /// Where it wants to start.
        step: u64,
        /// The rank that came first.
        by_rank: u64,
        /// Where the run began.
        by_epoch: u64,
        /// Where the run began.
        by_step: u64,
    },
    /// Ranks of one run disagree about a number.
    #[error(
        "rank {rank} of job `{job}` has {name}={value}, but run `{run}` was started with \
         {name}={known}; start every rank with the same value"
    )]
    Disagree {
        /// The job.
        job: String,
        /// The run.
        run: String,
        /// The rank that is refused.
        rank: u64,
        /// `world_size`, `lanes`, `global batch`, `segments` or `limit`; boxed, as refusals shall
        /// be small.
        name: Box<str>,
        /// Its value.
        value: String,
        /// The run's.
        known: String,
    },
    /// A later generation took over.
    #[error(
        "generation {generation} of job `{job}` ended: rank {by_rank} started again at epoch \
         {by_epoch} step {by_step} as generation {by}; restart this rank from the same state"
    )]
    Superseded {
        /// The job.
        job: String,
        /// The generation that ended.
        generation: u64,
        /// The one that took over.
        by: u64,
        /// The rank that opened it.
        by_rank: u64,
        /// Where it began.
        by_epoch: u64,
        /// Where it began.
        by_step: u64,
    },
    /// The lists that a token goes on from are not kept here.
    #[error(
        "job `{job}` cannot go on at epoch {epoch} step {step}: {reason}; a dynamic epoch goes on \
         only from a token of the last generations and epochs of the same cluster: start from a \
         later token, or start the epoch anew with set_epoch({epoch})"
    )]
    Forgotten {
        /// The job.
        job: String,
        /// Epoch of the token.
        epoch: u64,
        /// Its step.
        step: u64,
        /// What is not kept.
        reason: Box<str>,
    },
    /// The worker gets nothing new.
    #[error("worker `{worker}` is {state}: it gets nothing new; use another worker, or none")]
    Cordoned {
        /// Its name.
        worker: String,
        /// `cordoned` or `draining`.
        state: Cordon,
    },
    /// The job was cancelled.
    #[error(
        "job `{job}` was cancelled by {by}{reason}; it starts again after `shardfeed job resume {job}`"
    )]
    Cancelled {
        /// Its name.
        job: String,
        /// Who cancelled it.
        by: String,
        /// Why, behind a colon; may be empty.
        reason: String,
    },
    /// The session or lease is no longer the current one.
    #[error("{what} {fencing} is no longer valid: {reason}")]
    Fenced {
        /// `session`, `lease` or `scan`.
        what: String,
        /// The stale token.
        fencing: Fencing,
        /// Why.
        reason: String,
    },
    /// The caller may not.
    #[error("{0}")]
    Denied(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A bound of the state is reached.
    #[error("{what}: at most {most}; {hint}")]
    Full {
        /// What there are too many of.
        what: String,
        /// The bound.
        most: u64,
        /// What to do.
        hint: String,
    },
    /// Another loader speaks for the rank.
    #[error(
        "rank {rank} of job `{job}` was started again in generation {generation}; this loader no longer speaks \
         for it"
    )]
    Replaced {
        /// The job.
        job: String,
        /// The rank.
        rank: u64,
        /// The generation that both started in.
        generation: u64,
    },
}

fn describe(differences: &[Difference]) -> String {
    let one = |d: &Difference| format!("{} is {} there and {} here", d.field, d.left, d.right);
    differences.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
