//! Ids of sessions, leases, ranks and scans, and positions of ranks.

use serde::{Deserialize, Serialize};
use shardfeed_plan::EPOCHS;

use crate::log::bound::STEP_MAX;

/// Id of a worker's session: the log index of the command that began it.
pub type SessionId = u64;

/// Fencing token of the right to serve a rank or scan a part of a dataset: log index of the grant.
pub type Fencing = u64;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankRef {
    pub job: String,
    pub generation: u64,
    pub rank: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseRef {
    pub job: String,
    pub generation: u64,
    pub rank: u64,
    pub fencing: Fencing,
}

/// A listing or scan of a session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanRef {
    pub dataset: String,
    /// Number of the part; `None`: the listing.
    pub part: Option<u64>,
}

/// First step that a rank has not consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RankCursor {
    pub epoch: u64,
    pub step: u64,
}

impl RankCursor {
    /// True if such a step can exist.
    pub(crate) fn is_possible(&self) -> bool {
        self.epoch <= EPOCHS && self.step <= STEP_MAX
    }
}
