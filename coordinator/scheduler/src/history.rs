//! History of ranks: previous leases, and samples that came back from their lists.

use serde::{Deserialize, Serialize};
use shardfeed_plan::dynamic::GroupRange;

use crate::bound::{LEASES_KEPT, RETURNED_PIECES_KEPT, RETURNS_KEPT};
use crate::command::{Fencing, SessionId};
use crate::cursor::RankCursor;
use crate::lease::RankLease;
use crate::session::EndReason;

/// A lease of a rank that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLease {
    /// Fencing token of the lease.
    pub fencing: Fencing,
    /// Session that had the lease.
    pub session: SessionId,
    /// Worker of that session.
    pub worker: String,
    /// Time of the grant, Unix ms.
    pub granted_ms: u64,
    /// Time of the end, Unix ms.
    pub ended_ms: u64,
    /// Reason for the end.
    pub why: LeaseEnded,
    /// First step that the rank had not consumed, as far as known at that time.
    pub cursor: RankCursor,
}

/// Reason why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnded {
    /// Its worker left.
    WorkerLeft,
    /// Its worker's session was not renewed in time.
    WorkerExpired,
    /// Its worker started again.
    WorkerReplaced,
    /// Its trainer finished the rank and reported its final position.
    TrainerEnded,
    /// Its trainer is gone and did not report its final position.
    TrainerGone,
    /// Its trainer moved to another generation.
    TrainerMoved,
    /// A trainer came back to the rank, through this worker or another one.
    TrainerReturned,
    /// The job was cancelled.
    JobCancelled,
}

impl LeaseEnded {
    /// True if the trainer has reported its final position.
    pub(crate) fn is_told(self) -> bool {
        matches!(self, Self::TrainerEnded | Self::TrainerMoved)
    }
}

impl From<EndReason> for LeaseEnded {
    fn from(reason: EndReason) -> Self {
        match reason {
            EndReason::Left => Self::WorkerLeft,
            EndReason::Expired => Self::WorkerExpired,
            EndReason::Replaced => Self::WorkerReplaced,
        }
    }
}

/// The end of a lease.
#[derive(Clone, Debug)]
pub(crate) struct LeaseEnd {
    pub(crate) at_ms: u64,
    /// Name of the worker.
    pub(crate) worker: String,
    pub(crate) why: LeaseEnded,
}

/// The last leases of a rank that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLeases {
    /// The last [`LEASES_KEPT`], oldest first.
    pub kept: Vec<PastLease>,
    /// Number of earlier ones.
    pub forgotten: u64,
}

impl PastLeases {
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(crate) fn file(&mut self, lease: &RankLease, cursor: RankCursor, end: &LeaseEnd) {
        if self.kept.len() >= LEASES_KEPT {
            self.kept.remove(0);
            self.forgotten += 1;
        }
        self.kept.push(PastLease {
            fencing: lease.fencing,
            session: lease.session,
            worker: end.worker.clone(),
            granted_ms: lease.granted_ms,
            ended_ms: end.at_ms,
            why: end.why,
            cursor,
        });
    }
}

/// Samples that came back from a rank's list in a dynamic job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// Time of the return, Unix ms.
    pub at_ms: u64,
    /// Rank that had them.
    pub rank: u64,
    /// Reason for the return.
    pub why: Returned,
    /// Group ranges that came back.
    pub pieces: Vec<GroupRange>,
}

/// Reason why group ranges came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Returned {
    /// The rank is no longer served.
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

/// The last returns of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returns {
    /// The last returns, oldest first.
    pub kept: Vec<Return>,
    /// Number of earlier ones.
    pub forgotten: u64,
}

impl Returns {
    /// Total number of returns.
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
    use shardfeed_plan::{Intent, Tail};

    use super::*;
    use crate::fixture::{Fixture, JOB, dynamic_job, first_of_two, taken};
    use crate::{Change, StartRank};

    #[test]
    fn the_last_leases_of_a_rank_say_who_had_it_and_why_it_moved() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        fixture.now_ms = 100;
        fixture.start(first_of_two(session));
        fixture.report(0, 0, 3);
        let mut session = session;
        for round in 0..10 {
            fixture.now_ms = 200 + round;
            fixture.done(match round % 2 {
                0 => Change::ExpireSessions { sessions: vec![session] },
                _ => Change::LeaveSession { session },
            });
            session = fixture.join(&format!("w{round}"));
            let intent = Intent::Reconnect { generation: 0, epoch: 0, step: 3 };
            fixture.start(StartRank { session, intent, ..first_of_two(session) });
        }
        let past = &fixture.current().ranks[&0].past;
        assert_eq!((past.kept.len(), past.forgotten), (LEASES_KEPT, 2));
        let first = &past.kept[0];
        let told = (first.worker.as_str(), first.granted_ms, first.ended_ms, first.why);
        assert_eq!(told, ("w1", 201, 202, LeaseEnded::WorkerExpired));
        assert_eq!(first.cursor, RankCursor { epoch: 0, step: 3 });
        assert_eq!(past.kept.last().unwrap().why, LeaseEnded::WorkerLeft);
    }

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
