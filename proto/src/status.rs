//! Errors as gRPC statuses.

use prost::Message;
use tonic::{Code, Status};

use crate::common::v1::{Error as Wire, ErrorKind};
use crate::error::WireError;

impl WireError {
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
