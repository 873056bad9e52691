//! Errors of certificates, with enough detail to fix them.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: cannot read: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}: cannot write: {source}")]
    Write { path: PathBuf, source: io::Error },
    /// The reason contains the remedy.
    #[error("{path}: {reason}")]
    Content { path: PathBuf, reason: String },
    /// The certificate has expired or is not valid yet; the reason says since when, or until when.
    #[error(
        "{path}: the certificate {reason}; renew it (`shardfeed tls rotate`), or mend the clock"
    )]
    OutOfTime { path: PathBuf, reason: String },
    #[error("{0}")]
    Subject(String),
    #[error("{path} is there already; {hint}")]
    Exists { path: PathBuf, hint: &'static str },
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

impl TlsError {
    pub(crate) fn content(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Content { path: path.into(), reason: reason.into() }
    }
}
