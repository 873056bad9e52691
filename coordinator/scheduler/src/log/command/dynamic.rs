//! Commands of the pools of dynamic jobs.

use serde::{Deserialize, Serialize};

use crate::log::id::LeaseRef;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub lease: LeaseRef,
    /// Epoch of the list; the rank may still be in the previous epoch.
    pub epoch: u64,
    /// First step of that epoch that the rank has not consumed.
    pub step: u64,
    /// Position in the list up to which the worker may have begun to deliver.
    pub started: u64,
    /// Number of group ranges of the list that the worker has after this release.
    pub known: u64,
    /// Number of samples that the worker wants to have without having begun them; 0: none.
    pub wants: u64,
    /// Samples beyond the consumed ones that should lie before the horizon; at least a batch does.
    pub ahead: u64,
    /// Position from which on the worker gives back the list; not below `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<u64>,
    /// Version of the list that `released` cuts: a late copy of a claim cuts no later list. `None`
    /// in claims of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    pub facts: PoolFacts,
}

/// The groups of an epoch, from the plan: the same for every generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFacts {
    pub groups: u64,
    pub samples: u64,
    /// Group of the first size in `next`: the first group never granted, as the leader saw it.
    pub at: u64,
    /// Samples of that group and the following ones, at most [`crate::SIZES_TOLD_MAX`] groups.
    pub next: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoke {
    pub job: String,
    pub generation: u64,
    pub epoch: u64,
    /// At most [`crate::REVOKES_MAX`]; those that no longer apply are ignored.
    pub revokes: Vec<RankRevoke>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitForDoubt {
    pub job: String,
    pub generation: u64,
    pub epochs: Vec<u64>,
    /// Time that the leader has seen them wait since the last such command, ms.
    pub ms: u64,
}

/// Revocation of the end of one rank's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRevoke {
    pub rank: u64,
    /// Position in the list from which on the rank gives back samples.
    pub from: u64,
}
