//! Checks of fields of messages, and of answers.

use shardfeed_plan::Digest;
use shardfeed_proto::{ErrorKind, WireError, digest_from};
use shardfeed_scheduler::Answer;

use crate::error::{Result, invalid};

/// Rejects a list that is longer than one call allows.
pub(crate) fn check_len(field: &'static str, len: usize, most: usize) -> Result<()> {
    match len <= most {
        true => Ok(()),
        false => Err(invalid(format!("`{field}` has {len} entries; at most {most} are allowed"))),
    }
}

/// Returns a digest; `None` for a field without bytes.
pub(crate) fn optional_digest(field: &'static str, bytes: &[u8]) -> Result<Option<Digest>> {
    Ok((!bytes.is_empty()).then(|| digest_from(field, bytes)).transpose()?)
}

/// Returns the error for an answer of another kind: the request id was used for another command.
pub(crate) fn unexpected(answer: &Answer) -> WireError {
    tracing::error!(?answer, "a command got another command's answer");
    let message = "this request id was used for another request before; use a new one";
    WireError::new(ErrorKind::Unspecified, message)
}
