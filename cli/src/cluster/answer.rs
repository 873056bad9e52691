//! Errors about a name that does not exist: they list the names that do.

use shardfeed_agent::CallError;

use crate::error::{Problem, exit_of_kind};

const NAMED_MAX: usize = 10;

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

pub(super) fn there_are(things: &str, known: &[String]) -> String {
    if known.is_empty() {
        return format!("there are no {things} yet");
    }
    let more = if known.len() > NAMED_MAX { ", …" } else { "" };
    let named: Vec<_> = known.iter().take(NAMED_MAX).map(String::as_str).collect();
    format!("there are these {things}: {}{more}", named.join(", "))
}
