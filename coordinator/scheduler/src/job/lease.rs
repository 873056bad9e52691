//! Leases of ranks: the session that serves each rank, and the leases that ended.

use serde::{Deserialize, Serialize};

use crate::log::{EndReason, Fencing, LEASES_KEPT, RankCursor, SessionId};

/// The right to serve a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLease {
    /// Fencing token: the log index of the grant.
    pub fencing: Fencing,
    pub session: SessionId,
    pub granted_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLease {
    pub fencing: Fencing,
    pub session: SessionId,
    pub worker: String,
    pub granted_ms: u64,
    pub ended_ms: u64,
    pub why: LeaseEnded,
    /// First step that the rank had not consumed, as far as known at that time.
    pub cursor: RankCursor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnded {
    WorkerLeft,
    /// Its worker's session was not renewed in time.
    WorkerExpired,
    /// Its worker started again.
    WorkerReplaced,
    /// Its trainer finished the rank and reported its final position.
    TrainerEnded,
    /// Its trainer is gone and did not report its final position.
    TrainerGone,
    TrainerMoved,
    /// A trainer came back to the rank, through this worker or another one.
    TrainerReturned,
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

    pub(crate) fn file(&mut self, lease: PastLease) {
        if self.kept.len() >= LEASES_KEPT {
            self.kept.remove(0);
            self.forgotten += 1;
        }
        self.kept.push(lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, first_of_two};
    use crate::{Change, StartRank};
    use shardfeed_plan::{Intent, Tail};

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
}
