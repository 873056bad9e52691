//! The order of dynamic jobs: groups in a closed order, and the lists of pieces of them that ranks
//! are granted. Who is granted what is decided elsewhere; this is what a grant means.
//! Source: docs/ORDER.md, section 10.

mod groups;
mod list;
mod piece;

pub use groups::Groups;
pub use list::RankList;
pub use piece::{FreePieces, Piece};

use crate::job::Tail;

/// Samples that every rank has of an epoch, where all have as many: `None` with `uneven`.
/// - `samples`: what is left of the epoch where the generation begins.
///
/// It is a multiple of `batch_size`, so every rank has the same steps.
pub fn quota(tail: Tail, samples: u64, world_size: u64, batch_size: u64) -> Option<u64> {
    let (world_size, batch_size) = (world_size.max(1), batch_size.max(1));
    match tail {
        Tail::Drop => Some(samples / world_size / batch_size * batch_size),
        Tail::Pad => {
            let batches = samples.div_ceil(world_size).div_ceil(batch_size);
            Some(batches.saturating_mul(batch_size))
        }
        Tail::Uneven => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_whole_batches_below_and_above_the_fair_share() {
        assert_eq!(quota(Tail::Drop, 103, 4, 5), Some(25));
        assert_eq!(quota(Tail::Pad, 103, 4, 5), Some(30));
        assert_eq!(quota(Tail::Drop, 3, 4, 5), Some(0));
        assert_eq!(quota(Tail::Pad, 3, 4, 5), Some(5));
        assert_eq!(quota(Tail::Pad, 0, 4, 5), Some(0));
        assert_eq!(quota(Tail::Uneven, 103, 4, 5), None);
    }
}
