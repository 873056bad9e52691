//! Ways in which a rank joins a generation, and the first position of its reader.

use shardfeed_plan::{Cursor, Intent, LeftOut};
use shardfeed_reader::{Plans, StartPosition};
use shardfeed_source::LoadError;

use crate::course::plan_at;

/// Way in which a rank joins a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It starts at the cursor's position.
    Start,
    /// It starts at the cursor's position, and leaves the generation that it is in with all its
    /// ranks.
    Reshard,
    /// It moves itself from this generation to the cursor's position.
    Move {
        from: u64,
    },
    Joined {
        generation: u64,
    },
}

impl Entry {
    /// Returns the position where reading starts, `in_hand` batches after the cursor.
    pub(super) fn start_position(
        self,
        cursor: &Cursor,
        plans: &Plans,
        (rank, left): (u64, Option<(u64, u64)>),
        in_hand: usize,
    ) -> Result<StartPosition, LoadError> {
        let (epoch, step) = (cursor.epoch(), cursor.step());
        let segments = cursor.segments().to_vec();
        let intent = match self {
            Self::Start | Self::Reshard => {
                // The cursor's generation follows that of the state that it was resumed from.
                let state_generation = cursor.generation().checked_sub(1);
                Intent::Start {
                    state_generation,
                    epoch,
                    segments,
                    is_reshard: self == Self::Reshard,
                }
            }
            Self::Move { from } => Intent::Move { from, epoch, segments },
            Self::Joined { generation } => Intent::Reconnect { generation, epoch, step },
        };
        let is_dynamic = cursor.identity().is_dynamic();
        debug_assert!(!is_dynamic || in_hand == 0, "granted samples are not carried over");
        let left_out = match self {
            Self::Start | Self::Reshard if !is_dynamic => cursor.left_out().clone(),
            // Of the generation, or of another epoch.
            _ => LeftOut::default(),
        };
        let mut ahead = cursor.clone();
        for _ in 0..in_hand {
            let steps = plan_at(plans, &ahead)?.rank_steps(rank);
            ahead.advance(steps);
        }
        let (epoch, step) = (ahead.epoch(), ahead.step());
        let segments = ahead.segments().to_vec();
        let left = left.filter(|_| is_dynamic);
        Ok(StartPosition { intent, left, left_out, epoch, segments, step })
    }
}
