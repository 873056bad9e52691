//! Commands that change the state. A command contains everything that it needs: its proposer
//! chooses the time, the ids and the names.

use serde::{Deserialize, Serialize};
use shardfeed_plan::{ContentDigest, Corrupt, Digest, Intent, JobIdentity};

use crate::access::{CreateAccess, ExchangeAccess};
use crate::cursor::RankCursor;
use crate::doubt::DoubtPolicy;
use crate::hold::Hold;
use crate::skipped::ReportSkipped;

/// Id of a worker's session: the log index of the command that began it.
pub type SessionId = u64;

/// Fencing token of the right to serve one rank or to scan one part of a dataset: the log index of
/// the grant.
pub type Fencing = u64;

/// One change of the replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Id chosen by the caller; a repeated id returns the first answer. Empty: the answer is not
    /// kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// Name of the caller.
    pub principal: String,
    /// Names of jobs and datasets that the principal is limited to; for a trainer without limits,
    /// `*` and its own name. Empty: the caller is an operator, an admin or a worker of the cluster,
    /// or callers are not authenticated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// Proposer's clock, Unix ms.
    pub now_ms: u64,
    /// The change itself.
    pub change: Change,
}

/// All changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A worker begins a session.
    JoinSession(JoinSession),
    /// A worker ends its session; its leases and scans are free at once.
    LeaveSession {
        /// Id of the session.
        session: SessionId,
    },
    /// Sessions were not renewed in time; proposed by the leader's timer.
    ExpireSessions {
        /// Ids of the sessions; those that have already ended are ignored.
        sessions: Vec<SessionId>,
    },
    /// A dataset is added; workers list and scan it before it is ready.
    AddDataset(AddDataset),
    /// A worker claims parts of datasets to list or scan; logs keep the name `take_scans`.
    #[serde(rename = "take_scans")]
    ClaimScans {
        /// Session of the worker.
        session: SessionId,
        /// Maximum number of parts.
        most: u32,
    },
    /// The files of a dataset were found.
    ReportListing(ReportListing),
    /// A part of a dataset was scanned.
    ReportScan(ReportScan),
    /// A part of a dataset cannot be listed or scanned; the dataset has failed.
    FailScan(FailScan),
    /// Scans made no progress in time; proposed by the leader's timer. Other sessions get them.
    ReleaseScans {
        /// The scans; those that are no longer under this lease are ignored.
        scans: Vec<LeasedScan>,
    },
    /// All parts were scanned and assembled; proposed by the leader, which has read them.
    FinishDataset(FinishDataset),
    /// The parts cannot be assembled; proposed by the leader.
    FailDataset(FailDataset),
    /// A job is registered.
    RegisterJob(RegisterJob),
    /// A trainer's rank starts, moves or comes back.
    StartRank(StartRank),
    /// A trainer has finished its rank, or is gone.
    EndRank {
        /// Lease of the rank.
        lease: LeaseRef,
        /// True if the trainer reported its final position: the worker's last report then covers
        /// everything that the trainer consumed.
        is_told: bool,
        /// Error with which the rank ended; `None` if it ended without one, or the reason is
        /// unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
        /// First step that was not consumed; `None`: the last report has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        position: Option<RankCursor>,
    },
    /// First unconsumed steps, as reported by workers since the last such command.
    Report {
        /// Reports, at most one for each lease.
        cursors: Vec<CursorReport>,
    },
    /// Workers found corrupt records, which they skip.
    ReportSkipped(ReportSkipped),
    /// Ranks of dynamic jobs report their progress and claim more groups.
    #[serde(rename = "take_groups")]
    ClaimGroups {
        /// Claims: 1 to [`crate::CLAIMS_MAX`], at most one for each rank.
        takes: Vec<Claim>,
    },
    /// Ranks of a dynamic job are asked to give back work that they have not begun; proposed by the
    /// leader.
    Revoke(Revoke),
    /// Epochs of a dynamic job waited only for samples in doubt; proposed by the leader.
    WaitForDoubt(WaitForDoubt),
    /// An operator declares that a rank's trainer does not come back: the policy decides on its
    /// samples in doubt.
    DeclareGone {
        /// Name of the job.
        job: String,
        /// The rank.
        rank: u64,
    },
    /// A worker is cordoned, drained or opened again.
    CordonWorker {
        /// Name of the worker.
        worker: String,
        /// New cordon state.
        state: Cordon,
    },
    /// A job is paused, cancelled or resumed.
    HoldJob {
        /// Name of the job.
        name: String,
        /// Kind of hold; `None`: the job is resumed.
        hold: Option<Hold>,
        /// Reason, for people; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// A dataset that no job refers to is removed.
    RemoveDataset {
        /// Name of the dataset.
        name: String,
    },
    /// A job of which no rank is served is removed.
    RemoveJob {
        /// Name of the job.
        name: String,
    },
    /// An access token is created.
    CreateAccess(CreateAccess),
    /// An access token is revoked.
    RevokeAccess {
        /// Id of the token.
        id: String,
    },
    /// A join token is exchanged.
    ExchangeAccess(ExchangeAccess),
}

/// See [`Change::JoinSession`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinSession {
    /// Name of the worker; a later session of the same name and another incarnation ends the
    /// earlier one.
    pub worker: String,
    /// Host of the worker.
    pub host: String,
    /// Id of one start of the worker's process.
    pub incarnation: String,
    /// Version of the worker's software.
    pub version: String,
    /// True if the worker runs inside a trainer's process.
    pub in_process: bool,
    /// Lifetime of the session without renewal, ms.
    pub ttl_ms: u64,
    /// Path of the trainer socket, for people; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// Ids of the image decoders, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decoders: Vec<String>,
    /// True if the caller was authenticated: then no other principal may replace it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proved: bool,
    /// Folders and URL prefixes below which the worker reads; empty: no such list was set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_roots: Vec<String>,
}

/// See [`Change::AddDataset`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddDataset {
    /// Name of the dataset.
    pub name: String,
    /// Absolute patterns of the files; empty if `listing` is given.
    pub patterns: Vec<String>,
    /// Compression: `auto`, `none`, `gzip` or `zlib`.
    pub compression: String,
    /// Policy for damaged files. Not serialized if it is the default (`Corrupt::is_error`).
    #[serde(default, skip_serializing_if = "Corrupt::is_error")]
    pub corrupt: Corrupt,
    /// The dataset's files, if the caller has already found them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<Listing>,
}

/// The files of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Folder that the paths are relative to.
    pub root: String,
    /// The files in manifest order, split into parts.
    pub parts: Vec<Part>,
}

/// A listing, or the scan of a part, that is leased.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeasedScan {
    /// Name of the dataset.
    pub dataset: String,
    /// Number of the part; `None`: the listing.
    pub part: Option<u64>,
    /// Fencing token of the scan's lease.
    pub fencing: Fencing,
}

/// A part of a listing, stored as a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Digest of the chunk.
    pub chunk: Digest,
    /// Number of files in the part.
    pub files: u64,
    /// Total size of these files, bytes.
    pub bytes: u64,
}

/// See [`Change::ReportListing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportListing {
    /// Session of the reporter.
    pub session: SessionId,
    /// Name of the dataset.
    pub dataset: String,
    /// Fencing token of the scan's lease.
    pub fencing: Fencing,
    /// Folder that the paths are relative to.
    pub root: String,
    /// The files in manifest order, split into parts.
    pub parts: Vec<Part>,
}

/// See [`Change::ReportScan`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportScan {
    /// Session of the reporter.
    pub session: SessionId,
    /// Name of the dataset.
    pub dataset: String,
    /// Number of the part.
    pub part: u64,
    /// Fencing token of the scan's lease.
    pub fencing: Fencing,
    /// Digest of the chunk that holds the result.
    pub chunk: Digest,
    /// Number of records found.
    pub records: u64,
}

/// See [`Change::FailScan`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailScan {
    /// Session of the reporter.
    pub session: SessionId,
    /// Name of the dataset.
    pub dataset: String,
    /// Fencing token of the scan's lease.
    pub fencing: Fencing,
    /// The failure.
    pub failure: Failure,
}

/// Reason why a dataset cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Name of the error's kind, as on the wire.
    pub kind: String,
    /// Description of the error, and a hint for the user.
    pub message: String,
    /// File that caused the error, if any.
    pub file: Option<String>,
    /// Offset in the uncompressed file, bytes.
    pub offset: Option<u64>,
    /// Ordinal of the record.
    pub ordinal: Option<u64>,
    /// Worker that reported the error, and its principal if that differs; empty: the coordinator
    /// found it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reported_by: String,
}

/// See [`Change::FinishDataset`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishDataset {
    /// Name of the dataset.
    pub dataset: String,
    /// Attempt: how many times the dataset was added.
    pub attempt: u64,
    /// Content digest.
    pub content: ContentDigest,
    /// Number of shards.
    pub shards: u64,
    /// Number of records.
    pub records: u64,
}

/// See [`Change::FailDataset`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailDataset {
    /// Name of the dataset.
    pub dataset: String,
    /// Attempt: how many times the dataset was added.
    pub attempt: u64,
    /// The failure.
    pub failure: Failure,
}

/// See [`Change::RegisterJob`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterJob {
    /// Name of the job.
    pub name: String,
    /// Identity, which determines the job's order.
    pub identity: JobIdentity,
    /// Dataset with the same content; empty in one process, where it has no name.
    pub dataset: String,
    /// Chunks of the job's `RecordSpec`, in order. Empty in one process, for a job that is already
    /// registered, and for one of an earlier release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub record_spec_chunks: Vec<Digest>,
}

/// See [`Change::StartRank`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRank {
    /// Name of the job.
    pub job: String,
    /// Run that the rank belongs to, as the launcher names it.
    pub run: Option<String>,
    /// Data-parallel rank.
    pub rank: u64,
    /// Number of data-parallel ranks.
    pub world_size: u64,
    /// Maximum number of entries in an epoch.
    pub limit: Option<u64>,
    /// Session of the worker that serves the rank.
    pub session: SessionId,
    /// Id of one loader in one process: the same loader may come back.
    pub trainer: String,
    /// Position to start from.
    pub intent: Intent,
    /// For a dynamic job whose loader leaves an epoch early: first step of that epoch that it did
    /// not consume, in the generation that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<RankCursor>,
    /// For a dynamic job: policy for samples in doubt.
    #[serde(default)]
    pub doubt: DoubtPolicy,
    /// The trainer's process, if the worker knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
}

impl StartRank {
    /// Generation that the loader is in, and the position at which it left an epoch of it.
    pub(crate) fn leaves(&self) -> Option<(u64, RankCursor)> {
        let left = self.left?;
        match self.intent {
            Intent::Reconnect { generation: from, .. } | Intent::Move { from, .. } => {
                Some((from, left))
            }
            Intent::Start { .. } => None,
        }
    }
}

/// A process on a worker's host, as identified by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id; 0: not visible to the worker.
    pub pid: u32,
}

/// Identifies a lease of a rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseRef {
    /// Name of the job.
    pub job: String,
    /// Generation of the job.
    pub generation: u64,
    /// The rank.
    pub rank: u64,
    /// Fencing token.
    pub fencing: Fencing,
}

/// Progress of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorReport {
    /// Lease of the rank.
    pub lease: LeaseRef,
    /// Epoch of the first step that the rank has not consumed.
    pub epoch: u64,
    /// That step, counted within the epoch.
    pub step: u64,
}

/// See [`Change::ClaimGroups`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Lease of the rank.
    pub lease: LeaseRef,
    /// Epoch of the list; the rank may still be in the previous epoch.
    pub epoch: u64,
    /// First step of that epoch that the rank has not consumed.
    pub step: u64,
    /// Position in the list up to which the worker may have begun to deliver.
    pub started: u64,
    /// Number of group ranges of the list that the worker has after this release.
    pub known: u64,
    /// Number of samples that the worker wants to have without having begun them; 0: it claims
    /// none.
    pub wants: u64,
    /// Number of samples beyond the consumed ones that should lie before the horizon; at least a
    /// batch always does.
    pub ahead: u64,
    /// Position from which on the worker gives back the list; not below `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<u64>,
    /// Version of the list that `released` cuts: a late copy of a claim cuts no later list. `None`
    /// in claims of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Facts about the epoch from the plan.
    pub facts: PoolFacts,
}

/// The groups of an epoch, from the plan: the same for every generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFacts {
    /// Number of groups in the epoch.
    pub groups: u64,
    /// Number of samples in the epoch.
    pub samples: u64,
    /// Group of the first size in `next`: the first group that was never granted, as the leader saw
    /// it.
    pub at: u64,
    /// Number of samples of that group and the following ones, at most [`crate::SIZES_TOLD_MAX`]
    /// groups.
    pub next: Vec<u64>,
}

/// See [`Change::Revoke`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoke {
    /// Name of the job.
    pub job: String,
    /// Generation of the job.
    pub generation: u64,
    /// Epoch of the lists.
    pub epoch: u64,
    /// At most [`crate::REVOKES_MAX`]; those that no longer apply are ignored.
    pub revokes: Vec<RankRevoke>,
}

/// See [`Change::WaitForDoubt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitForDoubt {
    /// Name of the job.
    pub job: String,
    /// Generation of the job.
    pub generation: u64,
    /// Epochs that wait.
    pub epochs: Vec<u64>,
    /// Time that the leader has seen them wait since the last such command, ms.
    pub ms: u64,
}

/// Revocation of the end of one rank's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRevoke {
    /// The rank.
    pub rank: u64,
    /// Position in the list from which on the rank gives back samples.
    pub from: u64,
}

/// Cordon state of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cordon {
    /// The worker may receive any work.
    #[default]
    Open,
    /// The worker receives no new scan, rank or group.
    Cordoned,
    /// As `Cordoned`; the worker also gives back scans, and groups that it has not begun.
    Draining,
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
                    "shuffle": {
                      "content": "0707070707070707070707070707070707070707070707070707070707070707",
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
