//! Position of a rank.

use serde::{Deserialize, Serialize};
use shardfeed_plan::EPOCHS;

use crate::log::bound::STEP_MAX;

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
