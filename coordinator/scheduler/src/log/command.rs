//! Commands that change the state. A command contains everything that it needs: its proposer
//! chooses the time, the ids and the names.

mod access;
mod dataset;
mod dynamic;
mod job;
mod session;

use serde::{Deserialize, Serialize};

use crate::log::id::{LeaseRef, RankCursor, SessionId};
use crate::log::value::{Cordon, Hold};

pub use access::{CreateAccess, ExchangeAccess};
pub use dataset::{
    AddDataset, FailDataset, FailScan, Failure, FinishDataset, LeasedScan, Listing, Part,
    ReportListing, ReportScan,
};
pub use dynamic::{Claim, PoolFacts, RankRevoke, Revoke, WaitForDoubt};
pub use job::{CursorReport, PeerProcess, RegisterJob, ReportSkipped, SkippedRecord, StartRank};
pub use session::JoinSession;

/// One change of the replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Chosen by the caller; a repeated id returns the first answer. Empty: the answer is not kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    pub principal: String,
    /// Names of jobs and datasets that the principal is limited to; for a trainer without limits,
    /// `*` and its own name. Empty: the caller is an operator, an admin or a worker of the cluster,
    /// or callers are not authenticated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// Proposer's clock, Unix ms.
    pub now_ms: u64,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A worker begins a session.
    JoinSession(JoinSession),
    /// A worker ends its session; its leases and scans are free at once.
    LeaveSession { session: SessionId },
    /// Sessions were not renewed in time; proposed by the leader's timer. Ended ones are ignored.
    ExpireSessions { sessions: Vec<SessionId> },
    /// A dataset is added; workers list and scan it before it is ready.
    AddDataset(AddDataset),
    /// A worker claims parts of datasets to list or scan; logs keep the name `take_scans`.
    #[serde(rename = "take_scans")]
    ClaimScans { session: SessionId, most: u32 },
    /// A worker found the files of a dataset.
    ReportListing(ReportListing),
    /// A worker scanned a part of a dataset.
    ReportScan(ReportScan),
    /// A part of a dataset cannot be listed or scanned; the dataset has failed.
    FailScan(FailScan),
    /// Scans made no progress in time; proposed by the leader's timer. Other sessions get them.
    /// Those that are no longer under this lease are ignored.
    ReleaseScans { scans: Vec<LeasedScan> },
    /// All parts were scanned and assembled; proposed by the leader, which has read them.
    FinishDataset(FinishDataset),
    /// The parts cannot be assembled; proposed by the leader.
    FailDataset(FailDataset),
    /// A trainer registers its job.
    RegisterJob(RegisterJob),
    /// As `RegisterJob`, with a mixture: releases that know no mixtures stop at it.
    RegisterMixture(RegisterJob),
    /// As `RegisterMixture`, of sources with own record specs: releases that know none stop at it.
    RegisterMixtureOfSpecs(RegisterJob),
    /// A trainer starts its rank.
    StartRank(StartRank),
    /// A trainer has finished its rank, or is gone.
    EndRank {
        lease: LeaseRef,
        /// True if the trainer reported its final position: the worker's last report then covers
        /// everything that the trainer consumed.
        is_told: bool,
        /// Error with which the rank ended; `None` if it ended without one, or it is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
        /// First step that was not consumed; `None`: the last report has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        position: Option<RankCursor>,
    },
    /// First unconsumed steps, reported since the last such command, at most one for each lease.
    Report { cursors: Vec<CursorReport> },
    /// A worker skipped corrupt records.
    ReportSkipped(ReportSkipped),
    /// Ranks of dynamic jobs report their progress and claim more groups: 1 to
    /// [`crate::CLAIMS_MAX`] claims, at most one for each rank.
    #[serde(rename = "take_groups")]
    ClaimGroups { takes: Vec<Claim> },
    /// Ranks of a dynamic job are asked to give back work not begun; proposed by the leader.
    Revoke(Revoke),
    /// Epochs of a dynamic job waited only for samples in doubt; proposed by the leader.
    WaitForDoubt(WaitForDoubt),
    /// An operator declares a rank's trainer gone: the policy decides on its samples in doubt.
    DeclareGone { job: String, rank: u64 },
    /// An operator cordons or drains a worker, or opens it again.
    CordonWorker { worker: String, state: Cordon },
    /// An operator pauses or cancels a job, or resumes it: `hold` is `None` then.
    HoldJob {
        name: String,
        hold: Option<Hold>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// A dataset that no job refers to is removed.
    RemoveDataset { name: String },
    /// A job of which no rank is served is removed.
    RemoveJob { name: String },
    /// An admin creates an access token or a join token.
    CreateAccess(CreateAccess),
    /// An admin revokes a token.
    RevokeAccess { id: String },
    /// A join token is exchanged for an access token.
    ExchangeAccess(ExchangeAccess),
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use shardfeed_plan::Tail;

    use super::*;
    use crate::fixture::{Fixture, add, first_of_two, from, join, register};

    #[expect(clippy::needless_pass_by_value, reason = "expect! makes values")]
    fn check(command: &Command, json: Expect) {
        let text = serde_json::to_string_pretty(command).unwrap();
        json.assert_eq(&text);
        assert_eq!(serde_json::from_str::<Command>(&text).unwrap(), *command);
    }

    #[test]
    fn the_log_reads_as_it_was_written() {
        let fixture = Fixture { now_ms: 7, ..Fixture::default() };
        let start = StartRank { intent: from(1, 2, 3), ..first_of_two(5) };
        let request_id = "q".to_owned();
        check(
            &Command { request_id, ..fixture.command(Change::StartRank(start)) },
            expect![[r#"
                {
                  "request_id": "q",
                  "principal": "test",
                  "now_ms": 7,
                  "change": {
                    "start_rank": {
                      "job": "train",
                      "run": "r1",
                      "rank": 0,
                      "world_size": 2,
                      "limit": null,
                      "session": 5,
                      "trainer": "t",
                      "intent": {
                        "start": {
                          "token_generation": 1,
                          "epoch": 2,
                          "segments": [
                            [
                              2,
                              8,
                              3
                            ]
                          ]
                        }
                      },
                      "doubt": {
                        "in_doubt": "redeliver",
                        "grace_ms": 60000
                      }
                    }
                  }
                }"#]],
        );
        check(
            &fixture.command(Change::JoinSession(join("w", "i"))),
            expect![[r#"
            {
              "principal": "test",
              "now_ms": 7,
              "change": {
                "join_session": {
                  "worker": "w",
                  "host": "h",
                  "incarnation": "i",
                  "version": "0.1.0",
                  "in_process": false,
                  "ttl_ms": 10000
                }
              }
            }"#]],
        );
        check(
            &fixture.command(Change::LeaveSession { session: 3 }),
            expect![[r#"
            {
              "principal": "test",
              "now_ms": 7,
              "change": {
                "leave_session": {
                  "session": 3
                }
              }
            }"#]],
        );
        check(
            &fixture.command(add()),
            expect![[r#"
            {
              "principal": "test",
              "now_ms": 7,
              "change": {
                "add_dataset": {
                  "name": "images",
                  "patterns": [
                    "/data/*.tfrecord"
                  ],
                  "compression": "auto"
                }
              }
            }"#]],
        );
        check(
            &fixture.command(register(Tail::Pad)),
            expect![[r#"
                {
                  "principal": "test",
                  "now_ms": 7,
                  "change": {
                    "register_job": {
                      "name": "train",
                      "identity": {
                        "order": 1,
                        "content": "0707070707070707070707070707070707070707070707070707070707070707",
                        "shuffle": {
                          "order_digest": "4646464646464646464646464646464646464646464646464646464646464646",
                          "seed": 1,
                          "enabled": true,
                          "window": 10,
                          "interleave": 4,
                          "block_length": 1
                        },
                        "lanes": 2,
                        "tail": "pad",
                        "operators": "",
                        "decoder": "none"
                      },
                      "dataset": "images"
                    }
                  }
                }"#]],
        );
        let lease = LeaseRef { job: "j".to_owned(), generation: 1, rank: 2, fencing: 3 };
        let cursors = vec![CursorReport { lease, epoch: 4, step: 5 }];
        check(
            &fixture.command(Change::Report { cursors }),
            expect![[r#"
            {
              "principal": "test",
              "now_ms": 7,
              "change": {
                "report": {
                  "cursors": [
                    {
                      "lease": {
                        "job": "j",
                        "generation": 1,
                        "rank": 2,
                        "fencing": 3
                      },
                      "epoch": 4,
                      "step": 5
                    }
                  ]
                }
              }
            }"#]],
        );
    }
}
