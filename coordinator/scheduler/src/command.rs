//! What may change the state. Everything that a command needs is in it: time, ids and names are
//! chosen by whoever proposes it.

use serde::{Deserialize, Serialize};
use shardfeed_plan::{ContentDigest, Corrupt, Digest, Intent, JobIdentity};

use crate::access::{CreateAccess, ExchangeAccess};
use crate::doubt::DoubtPolicy;
use crate::hold::Hold;
use crate::skipped::ReportSkipped;

/// A worker's session: the log index of the command that began it.
pub type SessionId = u64;

/// The right to serve one rank, or to scan one part of a dataset: the log index of the grant.
pub type Fencing = u64;

/// One change of the replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Chosen by the caller; the same one again gets the first answer. Empty: not kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// Who asks.
    pub principal: String,
    /// Names of jobs and datasets that the principal is limited to, `*` and its name for a trainer without limits;
    /// empty: it is an operator, an admin or a worker of the cluster, or nobody proves who they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// The proposer's clock, Unix ms.
    pub now_ms: u64,
    /// What shall change.
    pub change: Change,
}

/// The changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A worker begins a session.
    JoinSession(JoinSession),
    /// A worker ends its session; its leases and scans are free at once.
    LeaveSession {
        /// The session.
        session: SessionId,
    },
    /// Sessions were not renewed in time; proposed by the leader's timer.
    ExpireSessions {
        /// The sessions; those that are gone already are passed over.
        sessions: Vec<SessionId>,
    },
    /// A dataset is named; it is listed and scanned by workers before it is ready.
    AddDataset(AddDataset),
    /// A worker asks for parts of datasets to list or scan.
    TakeScans {
        /// Its session.
        session: SessionId,
        /// Parts at most.
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
        /// The scans; those that are no longer leased so are passed over.
        scans: Vec<LeasedScan>,
    },
    /// All parts were scanned and put together; proposed by the leader, which has read them.
    FinishDataset(FinishDataset),
    /// The parts cannot be put together; proposed by the leader.
    FailDataset(FailDataset),
    /// A job is named.
    RegisterJob(RegisterJob),
    /// A trainer's rank starts, moves or comes back.
    StartRank(StartRank),
    /// A trainer is done with its rank, or gone.
    EndRank {
        /// Its lease.
        lease: LeaseRef,
        /// Whether it said how far it came: what its worker told last is all that it consumed.
        is_told: bool,
        /// The error with which it ended; `None`: it ended by itself, or nobody knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// First steps not consumed, as workers told since the last such command.
    Report {
        /// For each lease at most one.
        cursors: Vec<CursorReport>,
    },
    /// Workers met corrupt records, which they skip.
    ReportSkipped(ReportSkipped),
    /// Ranks of dynamic jobs say how far they are and ask for more.
    TakeGroups {
        /// 1 to [`crate::TAKES_MAX`], for each rank at most one.
        takes: Vec<Take>,
    },
    /// Ranks of a dynamic job shall give back what they have not begun; proposed by the leader.
    Revoke(Revoke),
    /// Epochs of a dynamic job waited for nothing but samples in doubt; proposed by the leader.
    WaitForDoubt(WaitForDoubt),
    /// An operator says that a rank's trainer does not come back: the policy decides on its samples in doubt.
    DeclareGone {
        /// Name of its job.
        job: String,
        /// The rank.
        rank: u64,
    },
    /// A worker shall get less, or more, to do.
    CordonWorker {
        /// Its name.
        worker: String,
        /// What it may get.
        state: Cordon,
    },
    /// A job is held, or goes on.
    HoldJob {
        /// Its name.
        name: String,
        /// How; `None`: it goes on.
        hold: Option<Hold>,
        /// Why, for people; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    /// A dataset that no job refers to is forgotten.
    RemoveDataset {
        /// Its name.
        name: String,
    },
    /// A job that nobody is served of is forgotten.
    RemoveJob {
        /// Its name.
        name: String,
    },
    /// Somebody may ask something from now on.
    CreateAccess(CreateAccess),
    /// Somebody may not any more.
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
    /// Host that it runs on.
    pub host: String,
    /// One start of its process.
    pub incarnation: String,
    /// Version of its software.
    pub version: String,
    /// Whether it lives in a trainer's process.
    pub in_process: bool,
    /// How long it lives without renewal.
    pub ttl_ms: u64,
    /// Path of its trainer socket, for people; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// Ids of what it decodes images with, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decoders: Vec<String>,
    /// Whether the caller proved who it is: then nobody else takes its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proved: bool,
    /// Folders and URL prefixes below which it reads; empty: it has no such list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_roots: Vec<String>,
}

/// See [`Change::AddDataset`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddDataset {
    /// Its name.
    pub name: String,
    /// Patterns of its files, absolute; none where `listing` is given.
    pub patterns: Vec<String>,
    /// How they are compressed: `auto`, `none`, `gzip` or `zlib`.
    pub compression: String,
    /// What of damaged files is left out. Left out where it is written while that is nothing.
    #[serde(default, skip_serializing_if = "Corrupt::is_error")]
    pub corrupt: Corrupt,
    /// Its files, where the caller found them already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<Listing>,
}

/// The files of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Folder that their paths are relative to.
    pub root: String,
    /// The files in manifest order, cut into parts.
    pub parts: Vec<Part>,
}

/// A listing or the scan of a part that is leased.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeasedScan {
    /// The dataset.
    pub dataset: String,
    /// Which part of its listing; `None`: the listing.
    pub part: Option<u64>,
    /// The scan's lease.
    pub fencing: Fencing,
}

/// Where a listing or a part of it is kept: a chunk by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Digest of the chunk that holds it.
    pub chunk: Digest,
    /// Files in it.
    pub files: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// See [`Change::ReportListing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportListing {
    /// The reporter's session.
    pub session: SessionId,
    /// The dataset.
    pub dataset: String,
    /// The scan's lease.
    pub fencing: Fencing,
    /// Folder that its paths are relative to.
    pub root: String,
    /// Its files in manifest order, cut into parts.
    pub parts: Vec<Part>,
}

/// See [`Change::ReportScan`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportScan {
    /// The reporter's session.
    pub session: SessionId,
    /// The dataset.
    pub dataset: String,
    /// Which part of its listing.
    pub part: u64,
    /// The scan's lease.
    pub fencing: Fencing,
    /// Digest of the chunk that holds what was found.
    pub chunk: Digest,
    /// Records found.
    pub records: u64,
}

/// See [`Change::FailScan`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailScan {
    /// The reporter's session.
    pub session: SessionId,
    /// The dataset.
    pub dataset: String,
    /// The scan's lease.
    pub fencing: Fencing,
    /// What is wrong.
    pub failure: Failure,
}

/// Why a dataset cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Name of the error's kind, as on the wire.
    pub kind: String,
    /// What is wrong, and what to do.
    pub message: String,
    /// File, if one is to blame.
    pub file: Option<String>,
    /// Offset in the uncompressed file, in bytes.
    pub offset: Option<u64>,
    /// Ordinal of the record.
    pub ordinal: Option<u64>,
    /// Worker that reported it, and for whom it speaks; empty: the coordinator found it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reported_by: String,
}

/// See [`Change::FinishDataset`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishDataset {
    /// The dataset.
    pub dataset: String,
    /// Its attempt: counts how often it was added.
    pub attempt: u64,
    /// Its content.
    pub content: ContentDigest,
    /// Shards.
    pub shards: u64,
    /// Records.
    pub records: u64,
}

/// See [`Change::FailDataset`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailDataset {
    /// The dataset.
    pub dataset: String,
    /// Its attempt: counts how often it was added.
    pub attempt: u64,
    /// What is wrong.
    pub failure: Failure,
}

/// See [`Change::RegisterJob`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterJob {
    /// Its name.
    pub name: String,
    /// What fixes its order.
    pub identity: JobIdentity,
    /// Dataset of the same content that it reads; empty in one process, where it has no name.
    pub dataset: String,
    /// Chunks of its `RecordSpec`, in order. Empty in one process, for a job that is registered, and for
    /// one of an earlier release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub record_spec_chunks: Vec<Digest>,
}

/// See [`Change::StartRank`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRank {
    /// The job.
    pub job: String,
    /// The start of the ranks that this one belongs to, as the launcher names it.
    pub run: Option<String>,
    /// Data-parallel rank.
    pub rank: u64,
    /// Data-parallel ranks.
    pub world_size: u64,
    /// Slots of an epoch that exist at most.
    pub limit: Option<u64>,
    /// Session of the worker that serves it.
    pub session: SessionId,
    /// One loader of one process: the same one may come back.
    pub trainer: String,
    /// Where from.
    pub intent: Intent,
    /// Of a dynamic job: what becomes of samples in doubt.
    #[serde(default)]
    pub doubt: DoubtPolicy,
    /// The trainer's process, where its worker knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
}

/// A process on a worker's host, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The process; 0: not visible to the worker.
    pub pid: u32,
}

/// A lease by what it is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseRef {
    /// The job.
    pub job: String,
    /// The generation.
    pub generation: u64,
    /// The rank.
    pub rank: u64,
    /// The token.
    pub fencing: Fencing,
}

/// How far a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorReport {
    /// Its lease.
    pub lease: LeaseRef,
    /// Epoch of the first step that it has not consumed.
    pub epoch: u64,
    /// That step of the epoch.
    pub step: u64,
}

/// See [`Change::TakeGroups`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Take {
    /// Lease of the rank.
    pub lease: LeaseRef,
    /// Epoch whose list is meant; the rank may still be in the one before.
    pub epoch: u64,
    /// The first step of that epoch that the rank has not consumed.
    pub step: u64,
    /// Position in the list up to which the worker may have begun to deliver.
    pub started: u64,
    /// Pieces of the list that the worker has, after what it released.
    pub known: u64,
    /// Samples that it would like to have and not to have begun; 0 = only tell.
    pub wants: u64,
    /// Samples beyond what is consumed that shall lie before the horizon; a batch always does.
    pub ahead: u64,
    /// It gives back what lies from this position on, which is not below `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<u64>,
    /// What the plan says of the epoch.
    pub facts: PoolFacts,
}

/// The groups of an epoch, as the plan says: the same for every generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFacts {
    /// Groups of the epoch.
    pub groups: u64,
    /// Samples of the epoch.
    pub samples: u64,
    /// Group whose size is told first: the first one that was never granted, as the leader saw it.
    pub at: u64,
    /// Samples of that group and those after it, at most [`crate::SIZES_TOLD_MAX`].
    pub next: Vec<u64>,
}

/// See [`Change::Revoke`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoke {
    /// The job.
    pub job: String,
    /// Its generation.
    pub generation: u64,
    /// Epoch of the lists.
    pub epoch: u64,
    /// At most [`crate::REVOKES_MAX`]; those that no longer make sense are passed over.
    pub revokes: Vec<RankRevoke>,
}

/// See [`Change::WaitForDoubt`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitForDoubt {
    /// The job.
    pub job: String,
    /// Its generation.
    pub generation: u64,
    /// Epochs that wait.
    pub epochs: Vec<u64>,
    /// How long the leader has seen them wait since the last such command, ms.
    pub ms: u64,
}

/// One rank that shall give back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRevoke {
    /// The rank.
    pub rank: u64,
    /// Position in its list from which on.
    pub from: u64,
}

/// What a worker may get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cordon {
    /// Everything.
    #[default]
    Open,
    /// No scan, no rank and no group that it does not have yet.
    Cordoned,
    /// As cordoned; it also gives back scans, and groups that it has not begun.
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
