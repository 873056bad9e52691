//! Outcomes of talking to a worker: a message, or no worker that can be used.

use std::time::Duration;

use shardfeed_proto::trainer::v1 as wire;
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_reader::Skipped;
use shardfeed_source::LoadError;

use crate::link::received::Received;

/// Unsolicited message of a worker.
#[derive(Debug)]
pub(crate) enum Heard<B = Received> {
    Started(wire::Started),
    /// `batch`: `None`: a dynamic job: the rank gets no more samples of an epoch of `step` steps.
    Batch {
        start: u64,
        epoch: u64,
        step: u64,
        batch: Option<B>,
        skipped: Vec<Skipped>,
    },
    Failed {
        start: u64,
        error: WireError,
    },
    /// The worker no longer serves this trainer, for this reason; no message follows.
    Goodbye(String),
    /// A dynamic job: received batches are no longer valid.
    Again {
        start: u64,
    },
    /// The worker is alive; batches of a dynamic job stay valid for this duration.
    Pong {
        nonce: u64,
        good_for: Option<Duration>,
    },
    Other,
}

/// Reason why no worker can be used, or why a request failed.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// It is missing or went away: it may come, or be replaced.
    Absent(String),
    /// It accepts no trainers: it has to be replaced.
    Cordoned(String),
    /// It answered, and another request would fail again; a connection stays usable.
    Refused(LoadError),
}

impl From<Unavailable> for LoadError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Absent(reason) => WireError::new(ErrorKind::Unreachable, reason).into(),
            Unavailable::Cordoned(reason) => WireError::new(ErrorKind::Cordoned, reason).into(),
            Unavailable::Refused(error) => error,
        }
    }
}

impl From<LoadError> for Unavailable {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Wire(error) if error.kind == ErrorKind::Cordoned => {
                Self::Cordoned(error.message)
            }
            error => Self::Refused(error),
        }
    }
}
