//! The replicated state machine: datasets, jobs, runs, generations, sessions and leases.
//!
//! [`State`] holds everything that the coordinators agree on, and only [`State::apply`] changes it.
//! This crate never reads a clock, a file, the environment or a random number, never waits and
//! never starts a thread: the same commands at the same log indexes produce the same state, byte
//! for byte, on every replica.
//!
//! Start at [`State::apply`] and [`Change`]; `place.rs` holds the rules of starts.
#![forbid(unsafe_code)]

mod access;
mod answer;
mod bound;
mod command;
mod encoding;

mod state;

mod dedupe;
mod session;

mod dataset;
mod scan;

mod job;

mod generation;
mod origin;

mod cordon;
mod cursor;
mod event;
mod history;
mod hold;
mod lease;
mod phase;
mod place;
mod start;

mod doubt;
mod pool;
mod skipped;

mod balance;
mod claim;
mod inherit;

mod invariant;

#[cfg(test)]
mod fixture;

pub use access::{AccessToken, CreateAccess, ExchangeAccess, Join, Role, Unusable, covers};
pub use answer::{Answer, ClaimResult, Refusal, ScanTask, ScanWork, Started};
pub use balance::Speeds;
pub use bound::{
    ACCESS_TOKENS_MAX, ANSWERS_BYTES_MAX, CLAIMS_MAX, CORDONS_MAX, DATA_ROOTS_MAX, DATASETS_MAX,
    EPOCHS_BEGUN_KEPT, EPOCHS_KEPT, EVENT_RANKS_MAX, EVENTS_KEPT, GENERATION_MAX, GENERATIONS_KEPT,
    GRACE_MS_MAX, JOBS_MAX, LEASES_KEPT, NAME_BYTES_MAX, PARTS_MAX, PARTS_TOTAL_MAX, PATTERNS_MAX,
    PIECES_KEPT, PIECES_TOLD_MAX, PRINCIPAL_DATASETS_MAX, PRINCIPAL_JOBS_MAX, PRINCIPAL_PARTS_MAX,
    PRINCIPAL_RANKS_MAX, PRINCIPAL_SCANS_MAX, PRINCIPAL_SESSIONS_MAX, RANKS_KEPT, RANKS_TOTAL_MAX,
    RECORD_SPEC_CHUNKS_MAX, REQUEST_AGE_MS, REQUESTS_KEPT, RETURNED_PIECES_KEPT, RETURNS_KEPT,
    REVOKES_MAX, RUNS_KEPT, SCANS_TAKEN_MAX, SEALED_KEPT, SESSION_SCANS_OF_ONE_MAX,
    SESSIONS_ENDED_KEPT, SESSIONS_MAX, SIZES_TOLD_MAX, SKIPPED_KEPT, SKIPPED_RUNS_MAX, STALLS_MAX,
    STEP_MAX, TEXT_BYTES_MAX,
};
pub use command::{
    AddDataset, Change, Claim, Command, Cordon, CursorReport, FailDataset, FailScan, Failure,
    Fencing, FinishDataset, JoinSession, LeaseRef, LeasedScan, Listing, Part, Peer, PoolFacts,
    RankRevoke, RegisterJob, ReportListing, ReportScan, Revoke, SessionId, StartRank, WaitForDoubt,
};
pub use cursor::{RankCursor, SealedEpoch};
pub use dataset::{Dataset, Phase, Ready};
pub use doubt::{Doubt, DoubtPolicy, InDoubt};
pub use encoding::{EncodingError, answer_from_bytes, answer_to_bytes};
pub use event::{Event, EventKind};
pub use generation::{Generation, Rank, Successor};
pub use history::{LeaseEnded, PastLease, PastLeases, Return, Returned, Returns};
pub use hold::{Held, Hold};
pub use invariant::Breach;
pub use job::Job;
pub use lease::{RankLease, RankRef, Verdict};
pub use origin::Origin;
pub use phase::JobPhase;
pub use pool::{Pool, RankAssignment, Tally};
pub use scan::{PartState, Progress, Scan, ScanLease, ScanPart, ScanRef};
pub use session::{EndReason, EndedSession, Session, principal_name};
pub use shardfeed_plan::Intent;
pub use skipped::{ReportSkipped, SampleRuns, SkippedRecord};
pub use state::{Applied, SNAPSHOT_FORMAT, SnapshotError, State};
