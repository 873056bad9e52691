//! Maximum sizes in the state, with the reason for each.

use crate::log::refusal::{Refusal, Result};

/// Maximum length of a name, bytes: names appear in tables, file names and every lease.
pub const NAME_BYTES_MAX: usize = 200;

/// Maximum length of a free text, such as a failure's message, bytes.
pub const TEXT_BYTES_MAX: usize = 4_096;

/// Maximum number of chunks of a job's record spec; a chunk has 1 MiB.
pub const RECORD_SPEC_CHUNKS_MAX: usize = 3;

/// Maximum length of the operators in the identity of a job of an earlier release, bytes.
pub(crate) const OPERATORS_BYTES_MAX: usize = 16_384;

/// Maximum number of jobs: ten times what a team registers in a year; each is a few kilobytes.
pub const JOBS_MAX: usize = 10_000;

/// Maximum number of datasets: the same as for jobs.
pub const DATASETS_MAX: usize = 10_000;

/// Maximum number of live sessions: ten workers for each of 10,000 ranks.
pub const SESSIONS_MAX: usize = 100_000;

/// Maximum number of image decoder ids of a worker; two exist.
pub(crate) const DECODERS_MAX: usize = 16;

pub const DATA_ROOTS_MAX: usize = 64;

/// Maximum datasets of a limited principal that are neither ready nor failed: a job waits for one.
pub const PRINCIPAL_SCANS_MAX: u64 = 64;

/// Maximum number of datasets of one limited principal: a tenth of the total.
pub const PRINCIPAL_DATASETS_MAX: u64 = 1_000;

/// Maximum number of jobs of one limited principal: a tenth of the total.
pub const PRINCIPAL_JOBS_MAX: u64 = 1_000;

/// Maximum mixtures that a job keeps; views of superseded generations that read others are refused.
pub const MIXTURES_KEPT: usize = 8;

/// Maximum number of entries in the mixtures of all jobs: versions of sources, and sources of
/// stages. Each has about 100 bytes.
pub const MIXTURE_ENTRIES_MAX: u64 = 1 << 20;

/// Maximum number of them in the jobs of a limited principal.
pub const PRINCIPAL_MIXTURE_ENTRIES_MAX: u64 = 1 << 17;

/// Maximum number of live sessions of one limited principal: a quarter of the total, and more than
/// the ranks of the largest training.
pub const PRINCIPAL_SESSIONS_MAX: u64 = 25_000;

/// Maximum ranks in all generations of one limited principal's jobs: a quarter of the total.
pub const PRINCIPAL_RANKS_MAX: u64 = 500_000;

/// Maximum number of principals whose processes continued ranks of a job that a worker registered.
pub(crate) const CONTINUED_MAX: usize = 64;

/// Maximum number of concurrent scans of one principal's datasets in one session: the fourth turn
/// of a worker is left for other principals.
pub const SESSION_SCANS_OF_ONE_MAX: usize = 3;

/// Number of times that every eligible session may stall on a scan before its dataset fails.
pub const STALLS_MAX: u32 = 3;

/// Number of ended sessions that are kept: the last screens of `shardfeed worker list --all`.
pub const SESSIONS_ENDED_KEPT: usize = 1_000;

/// Number of requests whose answers are kept: 166 per second for [`REQUEST_AGE_MS`].
pub const REQUESTS_KEPT: usize = 100_000;

/// Time for which an answer is kept, ms: no client repeats a request for longer.
pub const REQUEST_AGE_MS: u64 = 600_000;

/// Number of answers that are kept regardless of age: if a proposer's clock jumps ahead, requests
/// that are being retried must not be carried out twice.
pub(crate) const REQUESTS_KEPT_LEAST: usize = 10_000;

/// Maximum size of the kept answers as JSON, bytes: some hold a number for each rank.
pub const ANSWERS_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of patterns of a dataset; each may match any number of files.
pub const PATTERNS_MAX: usize = 1_000;

/// Maximum number of parts of a dataset: 60 million files, in chunks of 1 MiB.
pub const PARTS_MAX: usize = 16_384;

/// Maximum number of chunks with sample maps of a dataset, beside one for each part: 1 GiB.
pub const MAPS_MAX: u64 = 1_024;

/// Maximum number of parts of all datasets: about 300 bytes each.
pub const PARTS_TOTAL_MAX: u64 = 1_000_000;

/// Maximum number of parts of a limited principal's datasets together.
pub const PRINCIPAL_PARTS_MAX: u64 = 65_536;

/// Maximum parts that one command claims: more would only wait in the worker, and be lost with it.
pub const SCANS_TAKEN_MAX: u32 = 256;

/// Number of generations of a job that are kept besides the current one: for history, and to report
/// to their ranks which generation took over. Those in which a rank may continue are always kept.
pub const GENERATIONS_KEPT: usize = 64;

/// Maximum number of ranks in those generations, so that 64 restarts of 10,000 ranks stay small.
pub const RANKS_KEPT: u64 = 20_000;

/// Maximum number of ranks in all generations: about 400 bytes each.
pub const RANKS_TOTAL_MAX: u64 = 2_000_000;

/// Runs of a job that are kept, so that a late rank of an earlier run does not open a new one.
pub const RUNS_KEPT: usize = 1_000;

/// Number of sealed epochs of a job that are kept, for history.
pub const SEALED_KEPT: usize = 16;

/// Number of epochs of a generation whose start time is kept until they are sealed.
pub const EPOCHS_BEGUN_KEPT: usize = 64;

/// Number of epochs of a dynamic job's generation whose lists are kept: one that ranks leave, one
/// that they enter, and two to go back to.
pub const EPOCHS_KEPT: usize = 4;

/// Maximum grace period of samples in doubt, ms: one week.
pub const GRACE_MS_MAX: u64 = 7 * 24 * 3_600_000;

/// Maximum number of group ranges in the lists of a job's earlier generations, about 40 bytes each:
/// the lists of four epochs of a million groups.
pub const PIECES_KEPT: u64 = 4_000_000;

/// Maximum claims in one command: those that are collected while the previous command is written.
pub const CLAIMS_MAX: usize = 256;

/// Maximum number of group sizes in one claim, so that a command stays small.
pub const SIZES_TOLD_MAX: usize = 2_048;

/// Maximum group ranges that one claim grants or returns; the worker sends another claim for more.
pub const PIECES_TOLD_MAX: usize = 4_096;

/// Maximum number of revocations in one command.
pub const REVOKES_MAX: usize = 64;

/// Maximum number of cordoned workers: the same as for sessions.
pub const CORDONS_MAX: usize = 100_000;

/// Highest generation number that a loader state may name, so that later ones can be numbered.
pub const GENERATION_MAX: u64 = 1 << 62;

pub const STEP_MAX: u64 = 1 << 62;

/// Number of corrupt records of a job whose location and reason are kept, about 400 bytes each;
/// also the maximum number of records in one report. The samples of further records are kept as
/// runs, up to [`SKIPPED_RUNS_MAX`].
pub const SKIPPED_KEPT: usize = 1_000;

/// Maximum number of runs of adjacent corrupt samples of a job, besides those of [`SKIPPED_KEPT`]:
/// about 30 bytes each. Counts are exact up to this number; beyond it, only known runs still grow.
pub const SKIPPED_RUNS_MAX: u64 = 100_000;

/// Number of events that are kept: about 250 bytes each, at most 2 KiB; a cluster of 1,000 workers
/// has several hundred a day.
pub const EVENTS_KEPT: usize = 10_000;

/// Maximum number of ranks that one event names.
pub const EVENT_RANKS_MAX: usize = 64;

/// Maximum length of a failure's message in an event, bytes; the whole is kept where it failed.
pub(crate) const EVENT_TEXT_BYTES_MAX: usize = 400;

/// Number of ended leases that are kept for each rank: a rank with more changes workers constantly,
/// and the events show that.
pub const LEASES_KEPT: usize = 8;

/// Number of returned parts of lists that are kept, for one epoch in one generation.
pub const RETURNS_KEPT: usize = 256;

/// Maximum number of group ranges in those.
pub const RETURNED_PIECES_KEPT: usize = 4_096;

/// Maximum number of access tokens: people, and one token for each worker.
pub const ACCESS_TOKENS_MAX: usize = 20_000;

/// Maximum number of jobs that a token names.
pub(crate) const SCOPES_MAX: usize = 64;

/// Rejects a name that is empty, too long or not printable.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let length = name.len();
    let reason = if name.is_empty() {
        "is empty".to_owned()
    } else if length > NAME_BYTES_MAX {
        format!("has {length} bytes; at most {NAME_BYTES_MAX} are allowed")
    } else if name.chars().any(char::is_control) {
        format!("{name:?} has characters that cannot be printed")
    } else {
        return Ok(());
    };
    Err(Refusal::Invalid(format!("{what} {reason}")))
}

/// As [`check_name`], but allows an empty label.
pub(crate) fn check_label(what: &str, label: &str) -> Result<()> {
    if label.is_empty() { Ok(()) } else { check_name(what, label) }
}

pub(crate) fn check_text(what: &str, text: &str) -> Result<()> {
    check_length(what, text, TEXT_BYTES_MAX)
}

pub(crate) fn check_length(what: &str, text: &str, most: usize) -> Result<()> {
    let length = text.len();
    if length <= most {
        return Ok(());
    }
    let reason = format!("{what} has {length} bytes; at most {most} are allowed");
    Err(Refusal::Invalid(reason))
}

/// Returns the text, cut to [`TEXT_BYTES_MAX`] at a character boundary.
pub(crate) fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

/// Rejects one more item if the maximum is reached.
pub(crate) fn check_room(what: &str, held: u64, most: u64, hint: &str) -> Result<()> {
    if held < most {
        return Ok(());
    }
    Err(Refusal::Full { what: what.to_owned(), most, hint: hint.to_owned() })
}

pub(crate) fn check_count(what: &str, count: usize, most: usize, hint: &str) -> Result<()> {
    // There must have been room for the last one.
    check_room(what, (count as u64).saturating_sub(1), most as u64, hint)
}
