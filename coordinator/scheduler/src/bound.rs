//! What the state may hold at most, and why.

use crate::answer::Refusal;

/// Bytes of a name at most: it stands in tables, file names and every lease.
pub const NAME_BYTES_MAX: usize = 200;

/// Bytes of a free text at most, as a failure's message.
pub const TEXT_BYTES_MAX: usize = 4_096;

/// Chunks of a job's record spec at most; a chunk has 1 MiB.
pub const RECORD_SPEC_CHUNKS_MAX: usize = 3;

/// Bytes of the operators of a job of an earlier release at most, whose identity holds them as text.
pub(crate) const OPERATORS_BYTES_MAX: usize = 16_384;

/// Jobs at most: ten times what a team registers in a year; each is a few kilobytes.
pub const JOBS_MAX: usize = 10_000;

/// Datasets at most: as jobs.
pub const DATASETS_MAX: usize = 10_000;

/// Live sessions at most: ten workers for each of 10,000 ranks.
pub const SESSIONS_MAX: usize = 100_000;

/// Texts by which a worker may say what it decodes images with: there are two.
pub(crate) const DECODERS_MAX: usize = 16;

/// Data roots of a worker at most.
pub const DATA_ROOTS_MAX: usize = 64;

/// Datasets of one limited principal that are not ready and have not failed, at most: each of its jobs waits
/// for one.
pub const PRINCIPAL_SCANS_MAX: u64 = 64;

/// Datasets of one limited principal at most: a tenth of what there may be.
pub const PRINCIPAL_DATASETS_MAX: u64 = 1_000;

/// Jobs of one limited principal at most: likewise.
pub const PRINCIPAL_JOBS_MAX: u64 = 1_000;

/// Live sessions of one limited principal at most: a quarter of what there may be, and more than the ranks of the
/// largest training.
pub const PRINCIPAL_SESSIONS_MAX: u64 = 25_000;

/// Ranks in all generations of the jobs of one limited principal at most: likewise.
pub const PRINCIPAL_RANKS_MAX: u64 = 500_000;

/// Principals at most whose processes continued ranks of a job that a worker registered.
pub(crate) const CONTINUED_MAX: usize = 64;

/// Scans of one principal's datasets that one session has at a time, at most: a worker has one more turn, which
/// is left for others.
pub const SESSION_SCANS_OF_ONE_MAX: usize = 3;

/// A dataset fails after every session that may scan it made no progress so often.
pub const STALLS_MAX: u32 = 3;

/// Ended sessions that are remembered: the last screens of `shardfeed worker list --all`.
pub const SESSIONS_ENDED_KEPT: usize = 1_000;

/// Requests whose answers are remembered: 166 a second for [`REQUEST_AGE_MS`].
pub const REQUESTS_KEPT: usize = 100_000;

/// How long an answer is remembered: no client repeats a request for longer.
pub const REQUEST_AGE_MS: u64 = 600_000;

/// Answers that no age forgets: a proposer whose clock jumps ahead must not let requests that are being
/// repeated just now be carried out twice.
pub(crate) const REQUESTS_KEPT_LEAST: usize = 10_000;

/// Bytes of remembered answers at most, as JSON: some hold a number for each rank.
pub const ANSWERS_BYTES_MAX: u64 = 64 << 20;

/// Patterns of a dataset at most; each may match any number of files.
pub const PATTERNS_MAX: usize = 1_000;

/// Parts of a dataset at most: 60 million files, in chunks of 1 MiB.
pub const PARTS_MAX: usize = 16_384;

/// Parts of all datasets at most: about 300 bytes each.
pub const PARTS_TOTAL_MAX: u64 = 1_000_000;

/// Parts of a limited principal's datasets together.
pub const PRINCIPAL_PARTS_MAX: u64 = 65_536;

/// Parts that one command takes at most: more only wait in the worker, and die with it.
pub const SCANS_TAKEN_MAX: u32 = 256;

/// Generations of a job that are kept besides the current one: for history, and to tell their
/// ranks what took over.
pub const GENERATIONS_KEPT: usize = 64;

/// Ranks in those generations at most, so that 64 restarts of 10,000 ranks stay small.
pub const RANKS_KEPT: u64 = 20_000;

/// Ranks in all generations at most: about 400 bytes each.
pub const RANKS_TOTAL_MAX: u64 = 2_000_000;

/// Runs of a job that are remembered, so that a late rank of an earlier run is not a new one.
pub const RUNS_KEPT: usize = 1_000;

/// Sealed epochs of a job that are kept, for history.
pub const SEALED_KEPT: usize = 16;

/// Epochs of a generation whose beginning is remembered until they are sealed.
pub const EPOCHS_BEGUN_KEPT: usize = 64;

/// Epochs of a generation of a dynamic job whose lists are kept: one that ranks leave, one that
/// they enter, and two to go back to.
pub const EPOCHS_KEPT: usize = 4;

/// The longest grace of samples in doubt, ms: a week.
pub const GRACE_MS_MAX: u64 = 7 * 24 * 3_600_000;

/// Pieces in the lists of a job's earlier generations at most, about 40 bytes each: the lists of
/// four epochs of a million groups.
pub const PIECES_KEPT: u64 = 4_000_000;

/// Takes in one command: what a leader gathers while the one before it is written.
pub const TAKES_MAX: usize = 256;

/// Group sizes that one take tells, so that a command stays small.
pub const SIZES_TOLD_MAX: usize = 2_048;

/// Pieces that one take is granted or told at most; a worker asks again for more.
pub const PIECES_TOLD_MAX: usize = 4_096;

/// Revocations in one command.
pub const REVOKES_MAX: usize = 64;

/// Workers that are cordoned at most: as sessions.
pub const CORDONS_MAX: usize = 100_000;

/// Generations are numbered up to this by tokens; the ones after it could not be counted on.
pub const GENERATION_MAX: u64 = 1 << 62;

/// Steps of an epoch are numbered up to this.
pub const STEP_MAX: u64 = 1 << 62;

/// Corrupt records of a job whose place and reason are kept, about 400 bytes each; and records of one
/// report. The samples of the others are kept as runs, up to [`SKIPPED_RUNS_MAX`].
pub const SKIPPED_KEPT: usize = 1_000;

/// Runs of neighbouring corrupt samples of a job, beside those of [`SKIPPED_KEPT`]: about 30 bytes each.
/// Counts are exact up to here; a run that is known still grows beyond.
pub const SKIPPED_RUNS_MAX: u64 = 100_000;

/// Events that are kept: about 250 bytes each, 2 KiB at most; a cluster of 1,000 workers has some hundred
/// a day.
pub const EVENTS_KEPT: usize = 10_000;

/// Ranks that one event names at most.
pub const EVENT_RANKS_MAX: usize = 64;

/// Bytes of a failure's message in an event at most; the whole one stands where it failed.
pub(crate) const EVENT_TEXT_BYTES_MAX: usize = 400;

/// Leases of a rank that ended and are remembered: who has more changes workers for a living, and the
/// events tell of it.
pub const LEASES_KEPT: usize = 8;

/// Parts of lists that came back, of one epoch in one generation, that are remembered.
pub const RETURNS_KEPT: usize = 256;

/// Pieces in those at most.
pub const RETURNED_PIECES_KEPT: usize = 4_096;

/// Access tokens at most: people, and a token for each worker.
pub const ACCESS_TOKENS_MAX: usize = 20_000;

/// Jobs that a token names, at most.
pub(crate) const SCOPES_MAX: usize = 64;

/// Refuses a name that is empty, long or not printable.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
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

/// As [`check_name`], but may be empty.
pub(crate) fn check_label(what: &str, label: &str) -> Result<(), Refusal> {
    if label.is_empty() { Ok(()) } else { check_name(what, label) }
}

/// Refuses a free text that is too long.
pub(crate) fn check_text(what: &str, text: &str) -> Result<(), Refusal> {
    check_length(what, text, TEXT_BYTES_MAX)
}

/// Refuses a text that is longer than `most` bytes.
pub(crate) fn check_length(what: &str, text: &str, most: usize) -> Result<(), Refusal> {
    let length = text.len();
    if length <= most {
        return Ok(());
    }
    let reason = format!("{what} has {length} bytes; at most {most} are allowed");
    Err(Refusal::Invalid(reason))
}

/// The text, cut to [`TEXT_BYTES_MAX`] at a character's border.
pub(crate) fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

/// Refuses one more than there may be.
pub(crate) fn check_room(what: &str, held: u64, most: u64, hint: &str) -> Result<(), Refusal> {
    if held < most {
        return Ok(());
    }
    Err(Refusal::Full { what: what.to_owned(), most, hint: hint.to_owned() })
}

/// Refuses a list that is longer than it may be.
pub(crate) fn check_count(
    what: &str,
    count: usize,
    most: usize,
    hint: &str,
) -> Result<(), Refusal> {
    // There must have been room for the last one.
    check_room(what, (count as u64).saturating_sub(1), most as u64, hint)
}
