//! Results of commands.

use serde::{Deserialize, Serialize};
use shardfeed_plan::dynamic::GroupRange;
use shardfeed_plan::{Corrupt, Digest, Segment};

use crate::log::id::{Fencing, SessionId};
use crate::log::refusal::Refusal;

/// Result of a command that was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The command has no further result.
    Done,
    /// A session began.
    Joined { session: SessionId },
    /// Parts to list or scan, at most the requested number; empty if there are none.
    Scans(Vec<ScanTask>),
    /// A rank was started.
    Started(Started),
    /// The policy decided on samples in doubt.
    Decided { samples: u64 },
    /// Result of each claim, in the order of the claims.
    Taken(Vec<Result<ClaimResult, Refusal>>),
}

/// State of a rank's list in one epoch, without the group ranges that the rank already knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimResult {
    /// Position of the list from which on the worker discards its copy before it applies the rest.
    #[serde(default)]
    pub truncated: Option<u64>,
    /// Group ranges of the list that follow, at most [`crate::PIECES_TOLD_MAX`].
    pub pieces: Vec<GroupRange>,
    #[serde(default)]
    pub more: bool,
    /// Position of the list up to which samples may be delivered.
    pub horizon: u64,
    /// Version of the list to which the horizon applies.
    pub version: u64,
    /// All positions of the list at which runs end.
    #[serde(default)]
    pub closed: Vec<u64>,
    /// Position from which on the worker is asked to release samples that it has not begun.
    #[serde(default)]
    pub revoke_from: Option<u64>,
    /// True if the rank receives nothing more in this epoch.
    pub ended: bool,
    /// Step of the epoch at which the list's first batch lies.
    pub first_step: u64,
    pub batch_size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanTask {
    pub dataset: String,
    pub fencing: Fencing,
    pub compression: String,
    #[serde(default, skip_serializing_if = "Corrupt::is_error")]
    pub corrupt: Corrupt,
    pub work: ScanWork,
    /// Program of the dataset, as in [`crate::AddDataset`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScanWork {
    /// Find the dataset's files.
    List { patterns: Vec<String> },
    /// Scan a part of the dataset's files, which the chunk of this digest lists.
    Scan { root: String, part: u64, chunk: Digest },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub generation: u64,
    pub fencing: Fencing,
    pub run: String,
    pub epoch: u64,
    /// Segments of that epoch: those it began with or, in a generation's first epoch, its origin's.
    pub segments: Vec<Segment>,
}
