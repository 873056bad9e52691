//! What addresses say instead of an answer, and what that comes to in words.

use std::error::Error;
use std::io;
use std::time::Duration;

use shardfeed_proto::{ErrorKind, WireError};
use tonic::{Code, Status};

use crate::cluster::address::{Address, Addresses};

/// What an address said instead of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Nobody is there.
    Nobody(String),
    /// No answer in time, or the connection broke.
    Silent(String),
    /// Somebody is there, and no coordinator.
    Stranger(String),
    /// A coordinator that cannot answer now: another one leads, or none.
    NotNow(WireError),
}

/// How one attempt ended, if not with an answer.
pub(super) enum Unanswered {
    /// It is worth asking somebody else, or later.
    Said(Reply),
    /// The coordinator refuses.
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

    /// Who leads, if that is said.
    pub(super) fn leader(&self) -> Option<Address> {
        match self {
            Self::NotNow(error) => error.leader.as_deref()?.parse().ok(),
            _ => None,
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Nobody(reason) | Self::Silent(reason) | Self::Stranger(reason) => reason,
            Self::NotNow(error) => {
                error.message.split_once("; ").map_or(&error.message, |(what, _)| what)
            }
        }
    }
}

impl Unanswered {
    /// What a status means: a coordinator's own word has details, the transport's has none.
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
            Some(_) => Reply::Nobody(cause::<io::Error>(status).map_or(reason, io_reason)),
            None => match status.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => {
                    Reply::Silent(reason)
                }
                _ => Reply::Stranger(reason),
            },
        })
    }
}

fn io_reason(error: &io::Error) -> String {
    error.to_string()
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

/// No address of a cluster gave an answer: the last word of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    said: Vec<(Address, Reply)>,
}

impl Silence {
    pub(super) fn hear(&mut self, address: Address, reply: Reply) {
        match self.said.iter_mut().find(|(known, _)| *known == address) {
            Some((_, known)) => *known = reply,
            None => self.said.push((address, reply)),
        }
    }

    /// Whether nobody has said anything yet.
    pub(super) fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// Whether there is no coordinator at any of the addresses, so that waiting is of little use.
    pub fn is_nowhere(&self) -> bool {
        let nowhere = |reply: &Reply| matches!(reply, Reply::Nobody(_) | Reply::Stranger(_));
        self.said.iter().all(|(_, reply)| nowhere(reply))
    }

    /// Whether whoever answers is no coordinator.
    pub fn is_strange(&self) -> bool {
        let strange = |reply: &Reply| matches!(reply, Reply::Stranger(_));
        !self.said.is_empty() && self.said.iter().all(|(_, reply)| strange(reply))
    }

    /// As others know it: the same request again, later.
    pub(crate) fn to_wire(&self) -> WireError {
        WireError::new(ErrorKind::Retry, self.to_string())
    }

    /// After as much patience as there was.
    pub(crate) fn unreachable(&self, listed: &Addresses, waited: Duration) -> WireError {
        let word = if listed.is_one() { "address" } else { "addresses" };
        let message = format!(
            "{} did not answer for {:.0} s ({}); check the {word} and that `shardfeed coordinator \
             start` runs there, then start again",
            listed.named(),
            waited.as_secs_f64(),
            self.reasons(),
        );
        WireError::new(ErrorKind::Unreachable, message)
    }

    fn reasons(&self) -> String {
        match &self.said[..] {
            [] => "it was not asked".into(),
            [(_, reply)] => reply.reason().to_owned(),
            said => {
                let each = |(address, reply): &(Address, Reply)| match reply {
                    Reply::Stranger(reason) => format!("{address}: no coordinator, {reason}"),
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
            [(address, Reply::Stranger(reason))] => {
                write!(f, "what answers at {address} is no coordinator: {reason}")
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

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// No address gave one.
    #[error(transparent)]
    Silent(#[from] Silence),
    /// The coordinator refuses.
    #[error(transparent)]
    Refused(#[from] WireError),
}
