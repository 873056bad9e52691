//! Where a rank wants to stand when it starts. Source: docs/ARCHITECTURE.md, Starts.

use serde::{Deserialize, Serialize};

use crate::segment::Segment;

/// Where a rank wants to stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// A start: without a token at epoch 0, step 0, or from a token.
    Start {
        /// Generation that made the token; `None` without one.
        token_generation: Option<u64>,
        /// Epoch that it starts in.
        epoch: u64,
        /// Segments of that epoch; the last one is open and holds the steps taken.
        segments: Vec<Segment>,
    },
    /// The same loader goes to another position by itself (`set_epoch` backwards).
    Move {
        /// Generation that it leaves.
        from: u64,
        /// Epoch that it goes to.
        epoch: u64,
        /// Segments of that epoch.
        segments: Vec<Segment>,
    },
    /// The same loader goes on in its generation, through another worker or after an interruption.
    Reconnect {
        /// The generation.
        generation: u64,
        /// Epoch of the first step that it has not consumed.
        epoch: u64,
        /// That step of the epoch.
        step: u64,
    },
}
