//! Errors of certificates, with enough detail to fix them.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: cannot read: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}: cannot write: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("{path}: {reason}")]
    Content {
        path: PathBuf,
        /// Reason and remedy.
        reason: String,
    },
    /// The certificate has expired or is not valid yet.
    #[error(
        "{path}: the certificate {reason}; renew it (`shardfeed tls rotate`), or mend the clock"
    )]
    OutOfTime {
        path: PathBuf,
        /// Time since which it has expired, or until it becomes valid.
        reason: String,
    },
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
