//! Authentication and authorization of calls.

use shardfeed_plan::Digest;
use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1::Lease;
use shardfeed_scheduler::{AccessToken, State, Unusable, covers};
use shardfeed_tls::Role;
use tonic::Request;

use super::audit;
use super::rights::{Reach, Rpc, Rules};
use super::who::{Denied, Who, denied};
use crate::error::Result;
use crate::leader::core::Core;
use crate::metrics::Denial;
use crate::net::front::Front;
use crate::net::port::Remote;

/// Data of a request outside its message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) remote: Option<Remote>,
    /// Access token that was presented.
    bearer: Option<Result<Bearer, &'static str>>,
}

/// Callers that a service is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// All authenticated callers.
    Known,
    /// Other coordinators.
    Nodes,
}

/// An access token: its id, and the digest of the presented secret.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bearer {
    id: String,
    digest: Digest,
}

/// Prefix of access tokens, by which people and secret scanners recognize them.
const TOKEN_BEGINS: &str = "shardfeed_";

const TOKEN_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Object {
    #[default]
    Nothing,
    Job(String),
    Named(String),
    /// A worker that starts a session.
    Joins(String),
    Session(u64),
    /// A session, and a job.
    Of(u64, String),
    Lease(Option<Lease>),
    Takes(Vec<u64>),
}

impl Object {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Nothing | Self::Takes(_) => String::new(),
            Self::Job(name) | Self::Named(name) | Self::Joins(name) | Self::Of(_, name) => {
                name.chars().take(200).collect()
            }
            Self::Session(session) => format!("session {session}"),
            Self::Lease(lease) => lease.as_ref().map_or_else(String::new, |lease| {
                format!("{} rank {}", lease.job.chars().take(200).collect::<String>(), lease.rank)
            }),
        }
    }

    fn job(&self) -> Option<&str> {
        match self {
            Self::Job(job) | Self::Of(_, job) => Some(job),
            Self::Lease(Some(lease)) => Some(&lease.job),
            _ => None,
        }
    }
}

impl Seen {
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        let remote = request.extensions().get::<Remote>().cloned();
        let shown = request.metadata().get("authorization");
        let bearer = shown.map(|shown| {
            let text = shown.to_str().map_err(|_| "is no text")?;
            Bearer::parse(text.strip_prefix("Bearer ").ok_or("is not of the kind Bearer")?)
        });
        Self { remote, bearer }
    }

    /// Authenticates the caller, which must prove its identity.
    pub(crate) fn who(&self, front: &Front, core: &Core, rpc: Rpc) -> Result<Who, Denied> {
        if front.tls.is_none() {
            return Ok(Who::default());
        }
        if let Some(bearer) = &self.bearer {
            let bearer = bearer.as_ref().map_err(|what| {
                let message = format!(
                    "the access token {what}; write it as `shardfeed access create` gave it"
                );
                Denied { reason: Denial::Malformed, message }
            })?;
            return core.read(|state| bearer.who(state, core.host.wall_ms(), rpc));
        }
        let identity = self.remote.as_ref().and_then(|remote| remote.identity.clone());
        let identity = identity.ok_or_else(|| {
            let message =
                "this cluster authenticates callers; give --tls DIR (SHARDFEED_TLS) with tls.crt \
                 and tls.key of a certificate of it, or --token-file FILE (SHARDFEED_TOKEN_FILE) \
                 with an access token";
            Denied { reason: Denial::Nothing, message: message.to_owned() }
        })?;
        let principal = identity.to_string();
        Ok(Who { role: Some(identity.role), principal, ..Who::default() })
    }

    /// Checks, before its message is read, that a service is for the caller.
    ///
    /// # Errors  `Denied`; `NotLeader` if another node may know a token that this one does not.
    pub(crate) fn gate(&self, front: &Front, of: Gate) -> Result<()> {
        if front.tls.is_none() {
            return Ok(());
        }
        if of == Gate::Nodes {
            return check_peer(front, self);
        }
        if self.bearer.is_none() && self.remote.as_ref().is_some_and(|r| r.identity.is_some()) {
            return Ok(());
        }
        let core = front.core()?;
        let Err(denied) = self.who(front, core, Rpc::ExchangeAccess) else {
            return Ok(());
        };
        core.available_to(Some(&denied))?;
        let reason = denied.reason;
        let denied = WireError::from(denied);
        self.record(core, String::new(), &denied, reason);
        Err(denied)
    }

    /// Audits and counts a call that was denied before its message was read.
    fn record(&self, core: &Core, principal: String, denied: &WireError, reason: Denial) {
        let entry = audit::Entry {
            at_ms: core.host.wall_ms(),
            principal,
            remote: self.address(),
            outcome: "DENIED".to_owned(),
            message: denied.message.clone(),
            ..audit::Entry::default()
        };
        core.refused(entry, reason);
    }

    pub(crate) fn trust(&self) {
        if let Some(remote) = &self.remote {
            remote.mark.trust();
        }
    }

    pub(crate) fn address(&self) -> String {
        self.remote.as_ref().map_or_else(String::new, |remote| remote.address.to_string())
    }
}

impl Bearer {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err("is longer than access tokens are");
        }
        let (id, secret) = text
            .strip_prefix(TOKEN_BEGINS)
            .and_then(|rest| rest.split_once('_'))
            .filter(|(id, secret)| !id.is_empty() && !secret.is_empty())
            .ok_or("is none: it is not of the form shardfeed_ID_SECRET")?;
        Ok(Self { id: id.to_owned(), digest: Digest::of_parts([secret.as_bytes()]) })
    }

    fn who(&self, state: &State, now_ms: u64, rpc: Rpc) -> Result<Who, Denied> {
        // The error for a wrong secret must not reveal that the id exists.
        let wrong = || {
            let message =
                "there is no such access token; it may be of another cluster, or forgotten";
            Denied { reason: Denial::Unknown, message: message.to_owned() }
        };
        let token = state.access_token(&self.id).ok_or_else(wrong)?;
        if !same(token.digest.as_bytes(), self.digest.as_bytes()) {
            return Err(wrong());
        }
        let checked = match rpc {
            // The change itself rejects a used token; a repeated call gets the first answer.
            Rpc::ExchangeAccess => match token.check_join(now_ms) {
                Err(Unusable::Used) => Ok(()),
                checked => checked,
            },
            _ => token.check(now_ms),
        };
        checked.map_err(|why| {
            let hint = match why {
                Unusable::JoinOnly => "give it with --join-token-file",
                _ => "ask an admin for another one",
            };
            let message = format!("access token `{}` {why}; {hint}", token.id);
            Denied { reason: Denial::Unusable, message }
        })?;
        let AccessToken { id, name, role, jobs, expires_ms, .. } = token.clone();
        let role = role_of(role);
        Ok(Who {
            role: Some(role),
            principal: format!("{role}:{name} (token {id})"),
            jobs,
            token: Some(id),
            expires_ms: Some(expires_ms),
        })
    }
}

/// Returns true if two digests are equal, in a time that does not depend on their difference.
fn same(left: &[u8; 32], right: &[u8; 32]) -> bool {
    left.iter().zip(right).fold(0, |differs, (left, right)| differs | (left ^ right)) == 0
}

fn role_of(role: shardfeed_scheduler::AccessRole) -> Role {
    match role {
        shardfeed_scheduler::AccessRole::Viewer => Role::Viewer,
        shardfeed_scheduler::AccessRole::Operator => Role::Operator,
        shardfeed_scheduler::AccessRole::Admin => Role::Admin,
        shardfeed_scheduler::AccessRole::Worker => Role::Worker,
        shardfeed_scheduler::AccessRole::Trainer => Role::Trainer,
    }
}

impl Who {
    /// Checks that the caller may make a call. The error's message lists the roles that may.
    pub(crate) fn may(&self, rpc: Rpc, object: &Object, core: &Core) -> Result<(), Denied> {
        let Some(role) = self.role else {
            return Ok(());
        };
        let Rules { roles, reach, .. } = rpc.rules();
        if !roles.contains(&role) {
            let who = roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(", ");
            let message = format!("{} may not call {rpc:?}; it is for: {who}", self.principal);
            return Err(Denied { reason: Denial::Role, message });
        }
        let limited = !self.jobs.is_empty();
        match (reach, object.job()) {
            (Reach::Job, Some(job)) if !covers(&self.jobs, job) => {
                let job: String = job.chars().take(200).collect();
                let jobs = self.jobs.join(", ");
                let message =
                    format!("{} is not for job `{job}`; its jobs: {jobs}", self.principal);
                return Err(Denied { reason: Denial::Job, message });
            }
            (Reach::Whole, _) if limited => {
                let message = format!(
                    "{} is for some jobs only, and {rpc:?} is about more; ask an admin",
                    self.principal
                );
                return Err(Denied { reason: Denial::Job, message });
            }
            _ => {}
        }
        core.read(|state| self.owns(object, state))
    }

    /// Checks that the object of a call belongs to the caller.
    fn owns(&self, object: &Object, state: &State) -> Result<(), Denied> {
        let is_theirs = |session: u64| match state.session(session) {
            Some(session) if session.owner != self.principal => {
                let message = format!(
                    "session {} is of {}, not of {}; a worker speaks for its own sessions",
                    session.id, session.owner, self.principal
                );
                Err(Denied { reason: Denial::Session, message })
            }
            // An ended session gets its own error later.
            _ => Ok(()),
        };
        match object {
            Object::Session(session) | Object::Of(session, _) => is_theirs(*session),
            Object::Takes(sessions) => sessions.iter().try_for_each(|session| is_theirs(*session)),
            Object::Lease(Some(lease)) => {
                let rank = state.rank(&lease.job, lease.generation, lease.rank);
                // Another lease gets its own error later.
                let held = rank.and_then(|rank| rank.lease.as_ref());
                let held = held.filter(|held| held.fencing == lease.fencing);
                let holder = held.map(|held| held.session);
                holder.map_or(Ok(()), is_theirs)
            }
            // The state itself decides about a name.
            _ => Ok(()),
        }
    }
}

/// Checks that the caller is another node; otherwise returns `Denied`.
pub(crate) fn check_peer(front: &Front, seen: &Seen) -> Result<()> {
    let identity = seen.remote.as_ref().and_then(|remote| remote.identity.as_ref());
    if front.tls.is_none() || identity.is_some_and(|identity| identity.role == Role::Coordinator) {
        seen.trust();
        return Ok(());
    }
    let who = identity.map_or("an unauthenticated caller".to_owned(), ToString::to_string);
    let error = denied(format!("{who} may not call the service for other coordinators"));
    if let Ok(core) = front.core() {
        let principal = identity.map_or_else(String::new, ToString::to_string);
        seen.record(core, principal, &error, Denial::Node);
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_an_id_and_a_secret() {
        let parsed = Bearer::parse("shardfeed_ab12_c2VjcmV0_x").unwrap();
        assert_eq!(parsed.id, "ab12");
        assert_eq!(parsed.digest, Digest::of_parts([&b"c2VjcmV0_x"[..]]));
        for text in ["", "shardfeed_", "shardfeed_a", "shardfeed_a_", "shardfeed__b", "other_a_b"] {
            assert!(Bearer::parse(text).is_err(), "{text}");
        }
        assert!(Bearer::parse(&format!("shardfeed_a_{}", "x".repeat(600))).is_err());
    }

    #[test]
    fn digests_are_compared_whole() {
        let digest = |text: &str| *Digest::of_parts([text.as_bytes()]).as_bytes();
        assert!(same(&digest("a"), &digest("a")) && !same(&digest("a"), &digest("b")));
        let mut last = digest("a");
        last[31] ^= 1;
        assert!(!same(&digest("a"), &last));
    }
}
