//! Parts of a coordinator's answers that several commands show.

use serde::Serialize;
use shardfeed_agent::CallError;
use shardfeed_plan::Digest;
use shardfeed_proto::{WireError, common, digest_from};

use crate::error::{Problem, exit_of_kind};
use crate::output::words::word;

/// Maximum number of names in a hint.
const NAMED_MAX: usize = 10;

/// Converts a digest; `None` if it is not known yet.
pub(super) fn digest(bytes: &[u8]) -> Option<Digest> {
    digest_from("digest", bytes).ok()
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
