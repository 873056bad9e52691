//! Errors on the wire: a kind that determines the receiver's reaction, and a message for users.

use std::fmt;

use prost::Message;
use tonic::{Code, Status};

use crate::common::v1::{Error as Wire, ErrorKind};

/// An error that is sent between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    /// Kind, which determines the receiver's reaction.
    pub kind: ErrorKind,
    /// Description: what failed, where, and the remedy.
    pub message: String,
    /// File that caused the error.
    pub file: Option<String>,
    /// Offset in the uncompressed file, in bytes.
    pub offset: Option<u64>,
    /// Ordinal of the record.
    pub ordinal: Option<u64>,
    /// Address of the leading coordinator, if the sender knows it.
    pub leader: Option<Box<str>>,
}

impl WireError {
    /// Returns an error without a file.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            file: None,
            offset: None,
            ordinal: None,
            leader: None,
        }
    }

    /// Converts from the protobuf message; a missing one is a bug of the sender.
    pub fn from_message(error: Option<Wire>) -> Self {
        let Some(error) = error else {
            return Self::new(ErrorKind::Unspecified, "the other side failed and did not say why");
        };
        let kind = error.kind();
        let Wire { message, file, offset, ordinal, leader, .. } = error;
        let leader = leader.map(String::into_boxed_str);
        Self { kind, message, file, offset, ordinal, leader }
    }

    /// Converts to the protobuf message.
    pub fn to_message(&self) -> Wire {
        let Self { kind, message, file, offset, ordinal, leader } = self.clone();
        let leader = leader.map(String::from);
        Wire { kind: kind.into(), message, file, offset, ordinal, leader }
    }

    /// Converts to a gRPC status whose details contain the complete error.
    pub fn to_status(&self) -> Status {
        let details = self.to_message().encode_to_vec();
        Status::with_details(code_of(self.kind), self.message.clone(), details.into())
    }

    /// Converts from a gRPC status, our own or the transport's.
    pub fn from_status(status: &Status) -> Self {
        match Wire::decode(status.details()) {
            Ok(error) if !status.details().is_empty() => Self::from_message(Some(error)),
            _ => Self::new(
                kind_of(status.code()),
                format!("{}: {}", status.code(), status.message()),
            ),
        }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for WireError {}

/// Maps kinds to gRPC codes.
fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Retry | ErrorKind::Unreachable => Code::Unavailable,
        ErrorKind::NotLeader
        | ErrorKind::WrongCluster
        | ErrorKind::WrongVersion
        | ErrorKind::Cordoned
        | ErrorKind::Cancelled => Code::FailedPrecondition,
        ErrorKind::Fenced | ErrorKind::Replaced | ErrorKind::Superseded | ErrorKind::Conflict => {
            Code::Aborted
        }
        ErrorKind::Identity => Code::AlreadyExists,
        ErrorKind::Invalid | ErrorKind::State | ErrorKind::Feature => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::Corrupt | ErrorKind::Changed | ErrorKind::Data => Code::DataLoss,
        ErrorKind::Storage | ErrorKind::Memory => Code::ResourceExhausted,
        ErrorKind::Unspecified => Code::Internal,
    }
}

/// Maps a status of the transport to a kind.
fn kind_of(code: Code) -> ErrorKind {
    match code {
        // HTTP/2 has ENHANCE_YOUR_CALM for a peer that sends too fast.
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::ResourceExhausted => {
            ErrorKind::Retry
        }
        Code::Unimplemented => ErrorKind::WrongVersion,
        Code::InvalidArgument => ErrorKind::Invalid,
        Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Denied,
        // The transport reports a peer with another protocol by these codes.
        Code::Unknown | Code::Internal => ErrorKind::Retry,
        _ => ErrorKind::Unspecified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crosses_a_status_whole() {
        let error = WireError {
            file: Some("a".into()),
            offset: Some(7),
            ordinal: Some(0),
            ..WireError::new(ErrorKind::Corrupt, "a: record 0 at offset 7: damaged")
        };
        assert_eq!(WireError::from_status(&error.to_status()), error);
        let calm = Status::resource_exhausted("h2 protocol error: http2 error");
        assert_eq!(WireError::from_status(&calm).kind, ErrorKind::Retry);
        let status = Status::unavailable("down");
        assert_eq!(WireError::from_status(&status).kind, ErrorKind::Retry);
    }
}
