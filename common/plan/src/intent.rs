//! Requested position of a rank at its start. Source: docs/ARCHITECTURE.md, Starts.

use serde::{Deserialize, Serialize};

use crate::segment::Segment;

/// Requested position of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// Start from a state, or without one at epoch 0, step 0.
    Start {
        /// Generation that made the state; `None` without a state.
        #[serde(rename = "token_generation")]
        state_generation: Option<u64>,
        /// Epoch in which it starts.
        epoch: u64,
        /// Segments of that epoch; the last one is open and contains the steps taken.
        segments: Vec<Segment>,
        /// True if a running loader leaves the state's generation, as all its ranks do (`reshard`):
        /// it never returns to that generation, even from the same position.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_reshard: bool,
    },
    /// The same loader moves to another position (`set_epoch` backwards).
    Move {
        /// Generation that it leaves.
        from: u64,
        epoch: u64,
        segments: Vec<Segment>,
    },
    /// The same loader continues in its generation, by another worker or after an interruption.
    Reconnect {
        generation: u64,
        /// Epoch of the first step that it has not consumed.
        epoch: u64,
        /// First step of that epoch that it has not consumed.
        step: u64,
    },
}

impl Intent {
    /// True for a reshard of the ranks of `generation`, or of those that left it before.
    pub fn is_reshard_of(&self, generation: u64) -> bool {
        match self {
            Self::Start { state_generation, is_reshard, .. } => {
                *is_reshard && *state_generation >= Some(generation)
            }
            Self::Move { .. } | Self::Reconnect { .. } => false,
        }
    }
}
