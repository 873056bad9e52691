//! Errors on the wire: a kind that determines the receiver's reaction, and a message for users.

use std::fmt;

use shardfeed_plan::PlanError;

use crate::common::v1::{Error as Wire, ErrorKind};
use crate::job::InvalidMessage;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    /// Kind, which determines the receiver's reaction.
    pub kind: ErrorKind,
    /// Description: what failed, where, and the remedy.
    pub message: String,
    pub file: Option<String>,
    /// Offset in the uncompressed file, in bytes.
    pub offset: Option<u64>,
    pub ordinal: Option<u64>,
    /// Address of the leading coordinator, if the sender knows it.
    pub leader: Option<Box<str>>,
}

impl WireError {
    /// Returns an error without a file.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message, file: None, offset: None, ordinal: None, leader: None }
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

    pub fn to_message(&self) -> Wire {
        let Self { kind, message, file, offset, ordinal, leader } = self.clone();
        let leader = leader.map(String::from);
        Wire { kind: kind.into(), message, file, offset, ordinal, leader }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for WireError {}

impl From<PlanError> for WireError {
    fn from(error: PlanError) -> Self {
        let kind = match error {
            PlanError::NoSuchStep { .. } | PlanError::NoSuchSample { .. } => ErrorKind::NotFound,
            PlanError::OtherOrderVersion { .. } => ErrorKind::Identity,
            _ => ErrorKind::Invalid,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<InvalidMessage> for WireError {
    fn from(error: InvalidMessage) -> Self {
        match error {
            InvalidMessage::Plan(error @ PlanError::OtherOrderVersion { .. }) => error.into(),
            _ => Self::new(ErrorKind::Invalid, error.to_string()),
        }
    }
}
