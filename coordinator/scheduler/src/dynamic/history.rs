//! Samples that came back from the lists of ranks, and the reasons.

use serde::{Deserialize, Serialize};
use shardfeed_plan::dynamic::GroupRange;

use crate::log::{RETURNED_PIECES_KEPT, RETURNS_KEPT};

/// Samples that came back from a rank's list in a dynamic job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    pub at_ms: u64,
    pub rank: u64,
    pub why: Returned,
    pub pieces: Vec<GroupRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Returned {
    Unserved,
    /// The worker was asked for them, for ranks that had nothing left or because it was draining.
    AskedBack,
    /// The rank moved to a later epoch without them.
    Left,
    /// The rank came from an earlier generation, in which other ranks have some of its samples.
    TakenOver,
    /// They were in doubt, and the policy `in_doubt="redeliver"` applied.
    InDoubt,
    /// They were in doubt, and the policy `in_doubt="drop"` applied: no rank gets them.
    Dropped,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returns {
    /// The last returns, oldest first.
    pub kept: Vec<Return>,
    /// Number of earlier ones.
    pub forgotten: u64,
}

impl Returns {
    pub fn count(&self) -> u64 {
        self.kept.len() as u64 + self.forgotten
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.forgotten == 0
    }

    pub(crate) fn file(
        &mut self,
        at_ms: u64,
        rank: u64,
        why: Returned,
        mut pieces: Vec<GroupRange>,
    ) {
        if pieces.is_empty() {
            return;
        }
        pieces.truncate(RETURNED_PIECES_KEPT);
        self.kept.push(Return { at_ms, rank, why, pieces });
        let count = |kept: &[Return]| kept.iter().map(|one| one.pieces.len()).sum::<usize>();
        while self.kept.len() > RETURNS_KEPT || count(&self.kept) > RETURNED_PIECES_KEPT {
            self.kept.remove(0);
            self.forgotten += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{JOB, dynamic_job, first_of_two, taken};
    use crate::{Change, StartRank};

    #[test]
    fn what_comes_back_of_a_list_is_remembered_with_its_reason() {
        let (mut fixture, session) = dynamic_job();
        let other = fixture.join("v");
        fixture.start(first_of_two(session));
        fixture.start(StartRank { rank: 1, trainer: "u".into(), ..first_of_two(other) });
        let granted = taken(&mut fixture, 0, 0, 20).pieces;
        fixture.now_ms = 50;
        fixture.done(Change::ExpireSessions { sessions: vec![session] });
        let returns = &fixture.current().pools[&0].returns;
        // The first batch is in doubt.
        let pieces = vec![GroupRange { from: 4, ..granted[0] }, granted[1]];
        let back = Return { at_ms: 50, rank: 0, why: Returned::Unserved, pieces };
        assert_eq!((returns.kept.as_slice(), returns.forgotten), ([back.clone()].as_slice(), 0));
        fixture.now_ms = 60;
        fixture.apply(Change::DeclareGone { job: JOB.into(), rank: 0 }).unwrap();
        let returns = &fixture.current().pools[&0].returns;
        let pieces = vec![GroupRange { to: 4, ..granted[0] }];
        let decided = Return { at_ms: 60, rank: 0, why: Returned::InDoubt, pieces };
        assert_eq!(returns.kept.as_slice(), [back, decided].as_slice());
    }

    #[test]
    fn returns_are_bounded_in_number_and_in_pieces() {
        let piece = GroupRange { group: 1, from: 0, to: 2 };
        let mut returns = Returns::default();
        for _ in 0..RETURNS_KEPT + 3 {
            returns.file(1, 0, Returned::Left, vec![piece]);
        }
        assert_eq!((returns.kept.len(), returns.forgotten), (RETURNS_KEPT, 3));
        returns.file(1, 0, Returned::Left, vec![piece; RETURNED_PIECES_KEPT + 1]);
        assert_eq!((returns.kept.len(), returns.kept[0].pieces.len()), (1, RETURNED_PIECES_KEPT));
        returns.file(1, 0, Returned::Left, vec![]);
        assert_eq!(returns.kept.len(), 1);
    }
}
