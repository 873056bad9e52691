//! Replies of addresses that are no answers, and their human-readable summary.

use std::error::Error;
use std::io;
use std::time::Duration;

use shardfeed_proto::{ErrorKind, WireError};
use tonic::{Code, Status};

use crate::cluster::address::Address;
use crate::cluster::whereabouts::Whereabouts;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Nothing listens there.
    Nobody(String),
    /// No answer in time, or the connection broke.
    Silent(String),
    /// A server that is no coordinator.
    Stranger(String),
    /// A server that the client does not trust, or that does not trust the client.
    Distrust(String),
    /// A coordinator that cannot answer now: another one leads, or none.
    NotNow(WireError),
}

/// Outcome of an attempt without an answer.
pub(super) enum Unanswered {
    /// Another address, or a later attempt, may succeed.
    Said(Reply),
    Refused(WireError),
}

impl Reply {
    pub(super) fn late(limit: Duration) -> Self {
        let limit = match limit.as_millis() {
            ms @ 0..1000 => format!("{ms} ms"),
            ms => format!("{} s", (ms + 500) / 1000),
        };
        Self::Silent(format!("no answer within {limit}"))
    }

    /// Returns the leader, if the reply names it.
    pub(super) fn leader(&self) -> Option<Address> {
        match self {
            Self::NotNow(error) => error.leader.as_deref()?.parse().ok(),
            _ => None,
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Nobody(reason)
            | Self::Silent(reason)
            | Self::Stranger(reason)
            | Self::Distrust(reason) => reason,
            Self::NotNow(error) => {
                error.message.split_once("; ").map_or(&error.message, |(what, _)| what)
            }
        }
    }
}

impl Unanswered {
    /// Interprets a status: an error of a coordinator has details, one of the transport has none.
    pub(super) fn of(status: &Status) -> Self {
        if !status.details().is_empty() {
            let error = WireError::from_status(status);
            return match error.kind {
                ErrorKind::Retry | ErrorKind::NotLeader => Self::Said(Reply::NotNow(error)),
                _ => Self::Refused(error),
            };
        }
        let reason = innermost(status);
        Self::Said(match cause::<io::Error>(status).map(io::Error::kind) {
            Some(
                io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof,
            ) => Reply::Silent(reason),
            // The error kind of all TLS failures.
            Some(io::ErrorKind::InvalidData) => Reply::Distrust(distrust(&reason)),
            Some(_) => {
                Reply::Nobody(cause::<io::Error>(status).map_or(reason, ToString::to_string))
            }
            None => match status.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => {
                    Reply::Silent(reason)
                }
                _ => Reply::Stranger(reason),
            },
        })
    }
}

/// Adds an explanation to a TLS error.
fn distrust(reason: &str) -> String {
    let is = |what: &str| reason.contains(what);
    let hint = if is("InvalidContentType") {
        ": it speaks no TLS"
    } else if is("UnknownIssuer") || is("BadSignature") {
        ": ca.crt here is of another authority"
    } else if is("fatal alert") {
        ": it does not believe the certificate here"
    } else {
        ""
    };
    format!("{reason}{hint}")
}

fn causes<'a>(status: &'a Status) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(status.source(), |error| (*error).source())
}

fn cause<T: Error + 'static>(status: &Status) -> Option<&T> {
    causes(status).find_map(|error| error.downcast_ref())
}

fn innermost(status: &Status) -> String {
    let innermost = causes(status).last().map(ToString::to_string);
    innermost.unwrap_or_else(|| match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    })
}

/// Failure of all addresses of a cluster: the last reply of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    said: Vec<(Address, Reply)>,
    /// Reason why the addresses are unknown.
    unread: Option<String>,
}

impl Silence {
    pub(super) fn hear(&mut self, address: Address, reply: Reply) {
        match self.said.iter_mut().find(|(known, _)| *known == address) {
            Some((_, known)) => *known = reply,
            None => self.said.push((address, reply)),
        }
    }

    /// Records an attempt to read the file of addresses.
    /// - `unread`: reason why it failed.
    pub(super) fn read(&mut self, unread: Option<String>) {
        self.unread = unread;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.said.is_empty() && self.unread.is_none()
    }

    /// True if the file of addresses cannot be read, or does not exist.
    pub fn is_unread(&self) -> bool {
        self.unread.is_some()
    }

    /// True if no address has a coordinator, so that waiting is of little use.
    pub fn is_nowhere(&self) -> bool {
        let nowhere = |reply: &Reply| {
            matches!(reply, Reply::Nobody(_) | Reply::Stranger(_) | Reply::Distrust(_))
        };
        self.said.iter().all(|(_, reply)| nowhere(reply))
    }

    /// True if all replies come from servers that are no coordinators.
    pub fn is_strange(&self) -> bool {
        let strange = |reply: &Reply| matches!(reply, Reply::Stranger(_));
        !self.said.is_empty() && self.said.iter().all(|(_, reply)| strange(reply))
    }

    /// True if all replies are failures of TLS.
    pub fn is_distrust(&self) -> bool {
        let distrust = |reply: &Reply| matches!(reply, Reply::Distrust(_));
        !self.said.is_empty() && self.said.iter().all(|(_, reply)| distrust(reply))
    }

    /// Returns the error for other processes: the same request may succeed later.
    pub(crate) fn to_wire(&self) -> WireError {
        WireError::new(ErrorKind::Retry, self.to_string())
    }

    /// Returns the error after the timeout.
    pub(crate) fn unreachable(&self, place: &Whereabouts, waited: Duration) -> WireError {
        let message = format!(
            "{} did not answer for {:.0} s ({}); check {} and that `shardfeed coordinator start` runs \
             there, then start again",
            place.named(),
            waited.as_secs_f64(),
            self.reasons(),
            place.to_check(),
        );
        WireError::new(ErrorKind::Unreachable, message)
    }

    fn reasons(&self) -> String {
        match &self.said[..] {
            [] => self.unread.clone().unwrap_or_else(|| "it was not asked".into()),
            [(_, reply)] => reply.reason().to_owned(),
            said => {
                let each = |(address, reply): &(Address, Reply)| match reply {
                    Reply::Stranger(reason) => format!("{address}: no coordinator, {reason}"),
                    Reply::Distrust(reason) => format!("{address}: no trust, {reason}"),
                    reply => format!("{address}: {}", reply.reason()),
                };
                said.iter().map(each).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

impl std::fmt::Display for Silence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.said[..] {
            [] => f.write_str(&self.reasons()),
            [(address, Reply::Stranger(reason))] => {
                write!(f, "the server at {address} is no coordinator: {reason}")
            }
            [(address, Reply::Distrust(reason))] => {
                write!(f, "there is no trust with the coordinator at {address}: {reason}")
            }
            [(address, reply @ Reply::NotNow(_))] => {
                write!(f, "the coordinator at {address} cannot answer now: {}", reply.reason())
            }
            [(address, reply)] => {
                write!(f, "the coordinator at {address} does not answer: {}", reply.reason())
            }
            _ => write!(f, "no coordinator answers: {}", self.reasons()),
        }
    }
}

impl Error for Silence {}

/// Reason why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// No address gave an answer.
    #[error(transparent)]
    Silent(#[from] Silence),
    #[error(transparent)]
    Refused(#[from] WireError),
}
