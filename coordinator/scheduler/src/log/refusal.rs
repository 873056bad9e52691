//! Reasons why commands are refused.

use serde::{Deserialize, Serialize};
use shardfeed_plan::Difference;

use crate::log::id::Fencing;
use crate::log::value::Cordon;

/// Reason why a command was refused. The state is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    #[error("there is no {what} `{name}`")]
    NotFound { what: String, name: String },
    /// The differences have the registered value on the left, the requested one on the right.
    #[error(
        "job `{name}` exists with another identity: {}; use another name, or the same values",
        describe(.differences)
    )]
    OtherIdentity { name: String, differences: Vec<Difference> },
    /// `field`: `patterns`, `compression`, `corrupt` or `content`.
    #[error("dataset `{name}` exists with other {field}: {known}; use another name")]
    OtherDataset { name: String, field: String, known: String },
    #[error(
        "rank {rank} of job `{job}` starts at epoch {epoch} step {step}, but run `{run}` was \
         started by rank {by_rank} at epoch {by_epoch} step {by_step}; load the same state on every rank"
    )]
    Conflict {
        job: String,
        run: String,
        rank: u64,
        epoch: u64,
        step: u64,
        by_rank: u64,
        by_epoch: u64,
        by_step: u64,
    },
    /// `name`: `world_size`, `limit`, `in_doubt`, `in_doubt_grace`, `lanes`, `global batch` or
    /// `segments`; boxed to keep refusals small.
    #[error(
        "rank {rank} of job `{job}` has {name}={value}, but run `{run}` was started with \
         {name}={known}; start every rank with the same value"
    )]
    Disagree { job: String, run: String, rank: u64, name: Box<str>, value: String, known: String },
    #[error(
        "generation {generation} of job `{job}` ended: rank {by_rank} started again at epoch \
         {by_epoch} step {by_step} as generation {by}; restart this rank from the same state"
    )]
    Superseded { job: String, generation: u64, by: u64, by_rank: u64, by_epoch: u64, by_step: u64 },
    /// The lists that a loader state continues from are not kept.
    #[error(
        "job `{job}` cannot continue at epoch {epoch} step {step}: {reason}; a dynamic epoch \
         continues only from a state of the last generations and epochs of the same cluster: start \
         from a later state, or restart the epoch with set_epoch({epoch})"
    )]
    Forgotten { job: String, epoch: u64, step: u64, reason: Box<str> },
    #[error("worker `{worker}` is {state}: it gets nothing new; use another worker, or none")]
    Cordoned { worker: String, state: Cordon },
    /// The reason follows a colon; it may be empty.
    #[error(
        "job `{job}` was cancelled by {by}{reason}; it starts again after `shardfeed job resume {job}`"
    )]
    Cancelled { job: String, by: String, reason: String },
    /// `what`: `session`, `lease` or `scan`.
    #[error("{what} {fencing} is no longer valid: {reason}")]
    Fenced { what: String, fencing: Fencing, reason: String },
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{what}: at most {most}; {hint}")]
    Full { what: String, most: u64, hint: String },
    #[error(
        "rank {rank} of job `{job}` was started again in generation {generation}; this loader no longer speaks \
         for it"
    )]
    Replaced { job: String, rank: u64, generation: u64 },
}

pub(crate) type Result<T, E = Refusal> = std::result::Result<T, E>;

fn describe(differences: &[Difference]) -> String {
    let one = |d: &Difference| format!("{} is {} there and {} here", d.field, d.left, d.right);
    differences.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
