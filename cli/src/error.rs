//! Error reports: each error is printed once, with its causes and a hint.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use shardfeed_agent::{CallError, WorkerError};
use shardfeed_coordinator::StartError;
use shardfeed_plan::{ManifestError, PlanError, StateError};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_socket::BindError;
use shardfeed_source::LoadError;
use shardfeed_telemetry::TelemetryError;
use shardfeed_tfrecord::{ReadError, ReadErrorKind};

use crate::order::OTHER_SOURCE;
use crate::output::{self, StdoutError};

pub(crate) use shardfeed_dataset_tools::problem::{Exit, Problem};

/// Prints clap's message: help on stdout, an error on stderr.
pub(crate) fn refuse(error: &clap::Error) -> ExitCode {
    // A reader that closed the stream does not need the message.
    let _ = error.print();
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Prints an error with its causes and its hint; returns the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<StdoutError>().is_some_and(StdoutError::is_closed) {
        return ExitCode::SUCCESS;
    }
    // If stderr is closed, the error cannot be reported.
    let _ = io::stderr().write_all(text(error).as_bytes());
    ExitCode::from(exit_of(error) as u8)
}

/// Returns the exit code of an error. The innermost cause with a specific code decides.
pub(crate) fn exit_of(error: &anyhow::Error) -> Exit {
    let exits = error.chain().map(|cause| told(cause).exit);
    exits.filter(|exit| *exit != Exit::Failed).last().unwrap_or_default()
}

/// Returns the report of an error: message, causes and hint.
pub(crate) fn text(error: &anyhow::Error) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut hint = None;
    for cause in error.chain() {
        let told = told(cause);
        hint = hint.or(told.hint);
        // Many errors include the message of their cause; it is printed once.
        if !said.iter().any(|earlier| earlier.contains(&told.what)) {
            said.push(told.what);
        }
    }
    let mut text = String::new();
    for (index, what) in said.iter().enumerate() {
        let label = if index == 0 { "error" } else { "  cause" };
        text += &format!("{label}: {}\n", output::printable(what));
    }
    if let Some(hint) = hint {
        text += &format!("hint: {}\n", output::printable(&hint));
    }
    text
}

/// Separator between the message and the hint.
const MARK: &str = "; ";

/// Positions at which a message may be split. Text in quotes, backticks or parentheses is part of a
/// name or of another message.
fn semicolons(message: &str) -> Vec<usize> {
    let (mut within, mut depth, mut found) = (None, 0_usize, Vec::new());
    for (at, c) in message.char_indices() {
        match (c, within) {
            ('`' | '"', None) => within = Some(c),
            (_, Some(quote)) if c == quote => within = None,
            ('(', None) => depth += 1,
            (')', None) => depth = depth.saturating_sub(1),
            (';', None) if depth == 0 && message[at..].starts_with(MARK) => found.push(at),
            _ => {}
        }
    }
    match within.is_none() && depth == 0 {
        true => found,
        // The message quotes a text that was cut off.
        false => message.match_indices(MARK).map(|(at, _)| at).collect(),
    }
}

/// Splits a message that ends in "; hint".
fn advising(message: &str) -> Problem {
    match semicolons(message).last() {
        Some(&at) => Problem::failed(&message[..at]).hint(&message[at + MARK.len()..]),
        None => Problem::failed(message),
    }
}

/// Splits a message that ends in ": hint".
fn after_colon(message: &str) -> Problem {
    match message.rsplit_once(": ") {
        Some((what, hint)) => Problem::failed(what).hint(hint),
        None => Problem::failed(message),
    }
}

fn as_a<E: Error + 'static>(
    cause: &(dyn Error + 'static),
    describe: fn(&E) -> Problem,
) -> Option<Problem> {
    cause.downcast_ref().map(describe)
}

/// Describes one link of the chain of causes.
fn told(cause: &(dyn Error + 'static)) -> Problem {
    as_a(cause, Problem::clone)
        .or_else(|| as_a(cause, of_load))
        .or_else(|| as_a(cause, of_read))
        .or_else(|| as_a(cause, of_state))
        .or_else(|| as_a(cause, of_plan))
        .or_else(|| as_a(cause, of_call))
        .or_else(|| as_a(cause, of_worker))
        .or_else(|| as_a(cause, of_start))
        .or_else(|| as_a(cause, of_wire))
        .or_else(|| as_a(cause, of_telemetry))
        .or_else(|| as_a(cause, of_stdout))
        .or_else(|| as_a(cause, of_io))
        .unwrap_or_else(|| Problem::failed(cause.to_string()))
}

fn of_telemetry(error: &TelemetryError) -> Problem {
    let told = Problem::failed(error.to_string());
    match error.hint() {
        Some(hint) => told.hint(hint).exit(Exit::Usage),
        None => told,
    }
}

fn of_stdout(error: &StdoutError) -> Problem {
    match error {
        StdoutError::NoNames => Problem::usage(error.to_string()).hint("use -o json or -o jsonl"),
        StdoutError::Write(_) => Problem::failed(error.to_string()),
    }
}

fn of_io(error: &io::Error) -> Problem {
    let told = Problem::failed(error.to_string());
    match error.kind() {
        io::ErrorKind::NotFound => told.hint("check the path"),
        io::ErrorKind::PermissionDenied => told.hint("check the permissions").exit(Exit::Denied),
        io::ErrorKind::StorageFull => told.hint("free some space"),
        _ => told,
    }
}

fn of_call(error: &CallError) -> Problem {
    let said = match error {
        CallError::Silent(said) => said,
        CallError::Refused(error) => return of_wire(error),
    };
    let (hint, exit) = if said.is_strange() {
        let hint = "check the address (--coordinator, SHARDFEED_COORDINATOR); if the coordinators there have certificates, \
                    give --tls DIR (SHARDFEED_TLS)";
        (hint, Exit::NoLeader)
    } else if said.is_distrust() {
        let hint = "check the folder of certificates: --tls, or SHARDFEED_TLS; `shardfeed tls show` \
                    lists its contents";
        (hint, Exit::Denied)
    } else if said.is_unread() {
        let hint = "check the path; `shardfeed coordinator start --endpoint-file PATH` writes it once it serves, and \
                    `shardfeed wait leader` waits for it";
        (hint, Exit::NoLeader)
    } else {
        let hint = "check the address (--coordinator or SHARDFEED_COORDINATOR) and that `shardfeed \
                    coordinator start` runs there";
        (hint, Exit::NoLeader)
    };
    Problem::failed(error.to_string()).hint(hint).exit(exit)
}

/// Splits another process's message: the text after the first semicolon is the hint.
fn of_wire(error: &WireError) -> Problem {
    let message = &error.message;
    let parts =
        semicolons(message).first().map(|&at| (&message[..at], &message[at + MARK.len()..]));
    let told = match parts {
        Some((what, hint)) if !hint.starts_with("there is no") => Problem::failed(what).hint(hint),
        _ => Problem::failed(message),
    };
    told.exit(exit_of_kind(error.kind))
}

/// Returns the exit code for an error of another process.
pub(crate) fn exit_of_kind(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::NotFound => Exit::NotFound,
        ErrorKind::Denied => Exit::Denied,
        ErrorKind::Conflict
        | ErrorKind::Fenced
        | ErrorKind::Replaced
        | ErrorKind::Superseded
        | ErrorKind::Identity
        | ErrorKind::Cordoned
        | ErrorKind::Cancelled
        | ErrorKind::Changed
        | ErrorKind::WrongCluster
        | ErrorKind::WrongVersion => Exit::Conflict,
        ErrorKind::Retry | ErrorKind::NotLeader | ErrorKind::Unreachable => Exit::NoLeader,
        ErrorKind::Invalid => Exit::Usage,
        ErrorKind::Unspecified
        | ErrorKind::Corrupt
        | ErrorKind::Data
        | ErrorKind::Feature
        | ErrorKind::State
        | ErrorKind::Storage
        | ErrorKind::Memory => Exit::Failed,
    }
}

fn of_start(error: &StartError) -> Problem {
    let told = advising(&error.to_string());
    match error {
        StartError::Option(_) => told.exit(Exit::Usage),
        error if error.is_final() => told.exit(Exit::Conflict),
        _ => told,
    }
}

fn of_worker(error: &WorkerError) -> Problem {
    match error {
        WorkerError::Socket(error @ BindError::Io { .. }) => Problem::failed(error.to_string())
            .hint("choose another path with --socket, in a folder that this user may write to"),
        WorkerError::Socket(error) => after_colon(&error.to_string()),
        WorkerError::Refused(error) => of_wire(error),
        other => Problem::failed(other.to_string()),
    }
}

fn of_load(error: &LoadError) -> Problem {
    let text = error.to_string();
    match error {
        LoadError::Corrupt { read } => of_read(read),
        LoadError::Plan(error) => of_plan(error),
        LoadError::State(error) => of_state(error),
        LoadError::Manifest(error @ ManifestError::ListedTwice { path }) => {
            let what = error.to_string();
            let what = what.split("; ").next().unwrap_or(&what);
            Problem::failed(what).hint(format!("name each file once: two of FILES match `{path}`"))
        }
        LoadError::NotFound(_) | LoadError::Changed { .. } | LoadError::Table(_) => advising(&text),
        LoadError::Store { hint, .. } => {
            let what = text.strip_suffix(hint).unwrap_or(&text);
            Problem::failed(what.trim_end_matches("; ")).hint(*hint)
        }
        LoadError::Wire(error) => Problem::failed(text).exit(exit_of_kind(error.kind)),
        LoadError::Denied(text) => after_colon(text).exit(Exit::Denied),
        _ => Problem::failed(text),
    }
}

fn of_read(error: &ReadError) -> Problem {
    let hint = match &error.kind {
        ReadErrorKind::TooLarge { .. } => "split such records into smaller ones".to_owned(),
        kind if error.is_io() || matches!(kind, ReadErrorKind::NotATfrecord { .. }) => {
            error.hint().to_owned()
        }
        _ => format!("{}; `shardfeed dataset verify` lists all that is damaged", error.hint()),
    };
    Problem::failed(error.to_string()).hint(hint)
}

fn of_state(error: &StateError) -> Problem {
    let text = error.to_string();
    match error {
        StateError::Plan(error) => of_plan(error),
        StateError::OtherJob { .. } => {
            let what = text.split_once(';').map_or(text.as_str(), |(what, _)| what);
            Problem::failed(what).hint(OTHER_SOURCE)
        }
        StateError::Uneven(_) => Problem::usage(
            "a state of a job with tail=\"uneven\" speaks for one rank and its world size only",
        )
        .hint("leave out --world-size, --batch-size and --lanes: they are in the state"),
        _ => advising(&text),
    }
}

fn of_plan(error: &PlanError) -> Problem {
    let text = error.to_string();
    match error {
        PlanError::LanesDoNotDivide {
            lanes,
            global_batch,
            batch_size,
            world_size,
            batch_sizes,
            lane_counts,
        } => {
            let counts: Vec<_> = lane_counts.iter().map(u64::to_string).collect();
            let (counts, (least, most)) = (counts.join(", "), batch_sizes);
            Problem::usage(format!(
                "--lanes {lanes} does not divide the global batch of {global_batch} (--batch-size \
                 {batch_size} x --world-size {world_size})"
            ))
            .hint(format!("use --batch-size {least} or {most}, or one of --lanes {counts}"))
        }
        PlanError::WorldDoesNotDivide { .. } => {
            Problem::usage(text).hint("use a --world-size that divides it")
        }
        PlanError::RankOutOfRange { rank, world_size } => {
            Problem::usage(format!("--rank {rank} is not below --world-size {world_size}"))
                .hint("ranks count from 0; give --world-size the number of them")
        }
        PlanError::Zero { .. } | PlanError::TooLarge { .. } | PlanError::NoSuchEpoch { .. } => {
            Problem::usage(text)
        }
        PlanError::NoSamples { .. } => {
            Problem::failed(text).hint("name files that have records, or rewrite them")
        }
        PlanError::NoSuchStep { steps: 0, .. } => Problem::failed(text).hint(
            "there are fewer samples than a global batch; use --tail pad, or smaller batches",
        ),
        PlanError::NoSuchStep { steps, .. } => Problem::failed(text)
            .hint(format!("steps count from 0: give --step 0 to {}", steps - 1)),
        _ => advising(&text),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// A new kind does not compile in `exit_of_kind` and changes this list.
    #[test]
    fn each_kind_of_error_has_an_exit_code() {
        let kinds = (0..1_000).filter_map(|number| ErrorKind::try_from(number).ok());
        let line = |kind: ErrorKind| {
            let code = exit_of(&WireError::new(kind, "x").into()) as u8;
            format!("{code} {}\n", kind.as_str_name().trim_start_matches("ERROR_KIND_"))
        };
        let mut lines: Vec<String> = kinds.map(line).collect();
        lines.sort();
        expect![[r#"
            1 CORRUPT
            1 DATA
            1 FEATURE
            1 MEMORY
            1 STATE
            1 STORAGE
            1 UNSPECIFIED
            2 INVALID
            3 NOT_FOUND
            4 DENIED
            5 CANCELLED
            5 CHANGED
            5 CONFLICT
            5 CORDONED
            5 FENCED
            5 IDENTITY
            5 REPLACED
            5 SUPERSEDED
            5 WRONG_CLUSTER
            5 WRONG_VERSION
            6 NOT_LEADER
            6 RETRY
            6 UNREACHABLE
        "#]]
        .assert_eq(&lines.concat());
    }

    #[test]
    fn what_this_system_refuses_says_what_to_do() {
        let io = |number| anyhow::Error::from(io::Error::from_raw_os_error(number));
        let errors = [
            ("a file that is not there", io(2)),
            ("one of another user", io(13)),
            ("a disk that is full", io(28)),
            ("anything else", io(5)),
        ];
        let line = |(when, error): &(&str, anyhow::Error)| {
            let Problem { what, hint, exit, .. } = told(error.as_ref());
            format!("{when}: {} {what}; {}\n", exit as u8, hint.unwrap_or_default())
        };
        expect![[r#"
            a file that is not there: 1 No such file or directory (os error 2); check the path
            one of another user: 4 Permission denied (os error 13); check the permissions
            a disk that is full: 1 No space left on device (os error 28); free some space
            anything else: 1 Input/output error (os error 5); 
        "#]]
        .assert_eq(&errors.iter().map(line).collect::<String>());
    }

    #[test]
    fn what_somebody_else_said_is_not_taken_for_a_hint() {
        let wire = |message: &str| {
            let Problem { what, hint, .. } = of_wire(&WireError::new(ErrorKind::Conflict, message));
            (what, hint.unwrap_or_default())
        };
        let parts = |what: &str, hint: &str| (what.to_owned(), hint.to_owned());
        assert_eq!(wire("no leader; ask again; soon"), parts("no leader", "ask again; soon"));
        assert_eq!(wire("no job `a; b`; there are: c"), parts("no job `a; b`", "there are: c"));
        assert_eq!(wire("a (1; now 2); leave it"), parts("a (1; now 2)", "leave it"));
        assert_eq!(wire("the name \"a; b\" is bad"), parts("the name \"a; b\" is bad", ""));
        assert_eq!(wire("it said `a; do b"), parts("it said `a", "do b"));
        let Problem { what, hint, .. } = advising("the first: a (x; y); b; copy them");
        assert_eq!((what, hint.unwrap()), parts("the first: a (x; y); b", "copy them"));
    }
}
