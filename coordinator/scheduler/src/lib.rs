//! The replicated state machine: datasets, jobs, runs, generations, sessions and leases.
//!
//! [`State`] holds everything that the coordinators agree on, and only [`State::apply`] changes it.
//! This crate never reads a clock, a file, the environment or a random number, never waits and
//! never starts a thread: the same commands at the same log indexes produce the same state, byte
//! for byte, on every replica.
//!
//! Start at [`State::apply`] and [`Change`]; `job/place.rs` holds the rules of starts.
#![forbid(unsafe_code)]

mod access;
mod dataset;
mod dynamic;
mod invariant;
mod job;
mod log;
mod session;
mod state;

#[cfg(test)]
mod fixture;

pub use access::{AccessToken, Join, Unusable, covers};
pub use dataset::scan::{PartState, Progress, Scan, ScanLease, ScanPart};
pub use dataset::{Dataset, Phase, Ready};
pub use dynamic::balance::Speeds;
pub use dynamic::history::{Return, Returned, Returns};
pub use dynamic::pool::{Doubt, Pool, RankAssignment, Tally};
pub use invariant::breach::Breach;
pub use job::generation::{Generation, Rank, SealedEpoch, Successor};
pub use job::lease::{LeaseEnded, PastLease, PastLeases, RankLease, Verdict};
pub use job::origin::Origin;
pub use job::phase::JobPhase;
pub use job::skipped::SampleRuns;
pub use job::{Held, Job};
pub use log::answer::{Answer, ClaimResult, ScanTask, ScanWork, Started};
pub use log::bound::{
    ACCESS_TOKENS_MAX, ANSWERS_BYTES_MAX, CLAIMS_MAX, CORDONS_MAX, DATA_ROOTS_MAX, DATASETS_MAX,
    EPOCHS_BEGUN_KEPT, EPOCHS_KEPT, EVENT_RANKS_MAX, EVENTS_KEPT, GENERATION_MAX, GENERATIONS_KEPT,
    GRACE_MS_MAX, JOBS_MAX, LEASES_KEPT, MAPS_MAX, MIXTURE_ENTRIES_MAX, MIXTURES_KEPT,
    NAME_BYTES_MAX, PARTS_MAX, PARTS_TOTAL_MAX, PATTERNS_MAX, PIECES_KEPT, PIECES_TOLD_MAX,
    PRINCIPAL_DATASETS_MAX, PRINCIPAL_JOBS_MAX, PRINCIPAL_MIXTURE_ENTRIES_MAX, PRINCIPAL_PARTS_MAX,
    PRINCIPAL_RANKS_MAX, PRINCIPAL_SCANS_MAX, PRINCIPAL_SESSIONS_MAX, RANKS_KEPT, RANKS_TOTAL_MAX,
    RECORD_SPEC_CHUNKS_MAX, REQUEST_AGE_MS, REQUESTS_KEPT, RETURNED_PIECES_KEPT, RETURNS_KEPT,
    REVOKES_MAX, RUNS_KEPT, SCANS_TAKEN_MAX, SEALED_KEPT, SESSION_SCANS_OF_ONE_MAX,
    SESSIONS_ENDED_KEPT, SESSIONS_MAX, SIZES_TOLD_MAX, SKIPPED_KEPT, SKIPPED_RUNS_MAX, STALLS_MAX,
    STEP_MAX, TEXT_BYTES_MAX,
};
pub use log::command::{
    AddDataset, Change, Claim, Command, CreateAccess, CursorReport, ExchangeAccess, FailDataset,
    FailScan, Failure, FinishDataset, JoinSession, LeasedScan, Listing, Part, PeerProcess,
    PoolFacts, RankRevoke, RegisterJob, ReportListing, ReportScan, ReportSkipped, Revoke,
    SkippedRecord, StartRank, WaitForDoubt,
};
pub use log::cursor::RankCursor;
pub use log::encoding::EncodingError;
pub use log::event::{Event, EventKind};
pub use log::id::{Fencing, LeaseRef, RankRef, ScanRef, SessionId};
pub use log::refusal::Refusal;
pub use log::value::{AccessRole, Cordon, DoubtPolicy, EndReason, Hold, InDoubt};
pub use session::{EndedSession, Session, principal_name};
pub use shardfeed_plan::Intent;
pub use state::{Applied, SNAPSHOT_FORMAT, SnapshotError, State};
