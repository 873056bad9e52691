//! Errors of certificates, with enough detail to fix them.

use std::io;
use std::path::PathBuf;

/// Error of a certificate, key or folder.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path}: cannot read: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file or folder cannot be written.
    #[error("{path}: cannot write: {source}")]
    Write {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file has invalid content.
    #[error("{path}: {reason}")]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Reason and remedy.
        reason: String,
    },
    /// The certificate has expired or is not valid yet.
    #[error(
        "{path}: the certificate {reason}; renew it (`shardfeed tls rotate`), or mend the clock"
    )]
    OutOfTime {
        /// Path of the certificate.
        path: PathBuf,
        /// Time since which it has expired, or until it becomes valid.
        reason: String,
    },
    /// The subject is invalid.
    #[error("{0}")]
    Subject(String),
    /// The file exists already.
    #[error("{path} is there already; {hint}")]
    Exists {
        /// Path of the file.
        path: PathBuf,
        /// Remedy.
        hint: &'static str,
    },
    /// The certificate cannot be created.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

impl TlsError {
    pub(crate) fn content(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Content { path: path.into(), reason: reason.into() }
    }
}
