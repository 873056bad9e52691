//! What can be wrong with certificates, said so that it can be mended.

use std::io;
use std::path::PathBuf;

/// What can be wrong with certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path}: cannot read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file or folder cannot be written.
    #[error("{path}: cannot write: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not what it must be.
    #[error("{path}: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The certificate is not good any more, or not yet.
    #[error(
        "{path}: the certificate {reason}; renew it (`shardfeed tls rotate`), or mend the clock"
    )]
    OutOfTime {
        /// The file.
        path: PathBuf,
        /// Since, or from, when.
        reason: String,
    },
    /// A subject that cannot be.
    #[error("{0}")]
    Subject(String),
    /// It is there already.
    #[error("{path} is there already; {hint}")]
    Exists {
        /// The file.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// The certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

impl TlsError {
    pub(crate) fn content(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Content { path: path.into(), reason: reason.into() }
    }
}
