//! Formats values of a coordinator's answers for people.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use shardfeed_plan::Digest;
use shardfeed_proto::{WireError, common, digest_from};

use super::CallError;
use crate::duration;
use crate::error::{Problem, exit_of_kind};
use crate::output;

/// Maximum number of names in a hint.
const NAMED_MAX: usize = 10;

/// Placeholder for an unknown value.
pub(super) const NONE: &str = "-";

/// Returns the word of an enum's name: `SHARD_STATE_DONE` is `done`.
pub(crate) fn word(name: &str, prefix: &str) -> String {
    match name.strip_prefix(prefix).unwrap_or(name) {
        "UNSPECIFIED" => "unknown".into(),
        word => word.to_ascii_lowercase(),
    }
}

/// Converts a digest; `None` if it is not known yet.
pub(super) fn digest(bytes: &[u8]) -> Option<Digest> {
    digest_from("digest", bytes).ok()
}

/// Formats a number, or the placeholder.
pub(crate) fn number(number: Option<u64>) -> String {
    number.map_or_else(|| NONE.into(), output::count)
}

/// Formats a duration, or the placeholder.
pub(crate) fn time(ms: Option<u64>) -> String {
    ms.map_or_else(|| NONE.into(), duration::text)
}

/// Formats a time in UTC, as in logs.
pub(crate) fn clock(unix_ms: u64) -> String {
    let moment = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms));
    moment.map_or_else(|| NONE.into(), |at| humantime::format_rfc3339_seconds(at).to_string())
}

/// Formats a text, or the placeholder.
pub(crate) fn text(text: &str) -> String {
    if text.is_empty() { NONE.into() } else { text.to_owned() }
}

/// Formats a percentage, rounded down so that 100 % means all.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return NONE.into();
    }
    let tenths = u128::from(part.min(whole)) * 1000 / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// An error that a coordinator keeps.
#[derive(Debug, Serialize)]
pub(super) struct Failure {
    /// Kind of the error, in one word.
    kind: String,
    pub(super) message: String,
    file: Option<String>,
    /// Offset in the uncompressed file, bytes.
    offset: Option<u64>,
    /// Ordinal of the record.
    ordinal: Option<u64>,
}

impl Failure {
    pub(super) fn new(error: common::v1::Error) -> Self {
        let WireError { kind, message, file, offset, ordinal, .. } =
            WireError::from_message(Some(error));
        Self { kind: word(kind.as_str_name(), "ERROR_KIND_"), message, file, offset, ordinal }
    }
}

/// Adds all names to an error about `name` if that one does not exist.
/// - `things`: noun for the named objects, in the plural.
pub(super) fn naming(
    error: CallError,
    things: &str,
    name: &str,
    known: Result<Vec<String>, CallError>,
) -> anyhow::Error {
    let (CallError::Refused(refusal), Ok(known)) = (&error, known) else {
        return error.into();
    };
    if known.iter().any(|known| known == name) {
        return error.into();
    }
    let problem = Problem::failed(&refusal.message).hint(there_are(things, &known));
    problem.exit(exit_of_kind(refusal.kind)).into()
}

/// Lists the existing names.
pub(super) fn there_are(things: &str, known: &[String]) -> String {
    if known.is_empty() {
        return format!("there are no {things} yet");
    }
    let more = if known.len() > NAMED_MAX { ", …" } else { "" };
    let named: Vec<_> = known.iter().take(NAMED_MAX).map(String::as_str).collect();
    format!("there are these {things}: {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_is_a_hundred_percent() {
        for (part, whole, text) in [
            (0, 0, "-"),
            (0, 7, "0.0 %"),
            (999_999, 1_000_000, "99.9 %"),
            (u64::MAX, u64::MAX, "100.0 %"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }

    #[test]
    fn states_are_words() {
        assert_eq!(word("SHARD_STATE_DONE", "SHARD_STATE_"), "done");
        assert_eq!(word("SHARD_STATE_UNSPECIFIED", "SHARD_STATE_"), "unknown");
    }
}
