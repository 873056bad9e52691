//! Access tokens: permissions of callers that present no certificate. Only digests of secrets are
//! kept.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;

use crate::answer::{Answer, Refusal};
use crate::bound::{ACCESS_TOKENS_MAX, SCOPES_MAX, check_count, check_name, check_room};
use crate::event::EventKind;
use crate::state::State;

/// Role of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read-only.
    Viewer,
    /// Viewer, plus manages jobs, datasets and workers.
    Operator,
    /// Operator, plus manages cluster members and access tokens.
    Admin,
    /// Reads data for trainers.
    Worker,
    /// Trains, and reads its own data.
    Trainer,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Worker => "worker",
            Self::Trainer => "trainer",
        })
    }
}

/// An access token, as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessToken {
    /// Id of the token; not secret.
    pub id: String,
    /// SHA-256 of the secret.
    pub digest: Digest,
    /// Name of the holder, for people and logs.
    pub name: String,
    /// Role that the token grants.
    pub role: Role,
    /// Jobs that the token covers, by name; a trailing `*` matches any suffix. Empty: all jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    /// Creation time, Unix ms.
    pub created_ms: u64,
    /// Principal that created the token.
    pub created_by: String,
    /// Expiry time, Unix ms.
    pub expires_ms: u64,
    /// Revocation time, Unix ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<u64>,
    /// Set for a join token, which can only be exchanged, once, for a token of the same role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<Join>,
}

/// Properties of a join token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Lifetime of the token that it is exchanged for, ms.
    pub ttl_ms: u64,
    /// Id of the token that it was exchanged for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_for: Option<String>,
}

/// Creates an access token. The caller keeps the secret and never sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateAccess {
    /// Id of the token.
    pub id: String,
    /// SHA-256 of the secret.
    pub digest: Digest,
    /// Name of the holder.
    pub name: String,
    /// Role that the token grants.
    pub role: Role,
    /// Jobs that the token covers; empty: all jobs.
    pub jobs: Vec<String>,
    /// Lifetime, ms.
    pub ttl_ms: u64,
    /// If set, this is a join token, to be exchanged once for a token with this lifetime, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_ttl_ms: Option<u64>,
}

/// Exchanges a join token for a token of its role, jobs and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeAccess {
    /// Id of the join token.
    pub join: String,
    /// Id of the new token.
    pub id: String,
    /// SHA-256 of the new token's secret.
    pub digest: Digest,
    /// Name of the new token's holder.
    pub name: String,
}

/// Reason why a token is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It was revoked.
    Revoked,
    /// It has expired.
    Expired,
    /// It is a join token, which has to be exchanged first.
    JoinOnly,
    /// It is a join token that was already exchanged.
    Used,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Revoked => "was revoked",
            Self::Expired => "has expired",
            Self::JoinOnly => "is a join token: exchange it first",
            Self::Used => "is a join token that was used",
        })
    }
}

/// Maximum lifetime of a token, ms: 10 years.
const TTL_MS_MAX: u64 = 10 * 366 * 86_400_000;

/// Unusable tokens older than this are removed once the maximum number of tokens is reached, ms: 30
/// days.
const REMEMBERED_MS: u64 = 30 * 86_400_000;

impl AccessToken {
    /// Checks that the token is usable now.
    ///
    /// # Errors
    /// The reason why it is not.
    pub fn check(&self, now_ms: u64) -> Result<(), Unusable> {
        self.is_alive(now_ms)?;
        match &self.join {
            None => Ok(()),
            Some(Join { used_for: None, .. }) => Err(Unusable::JoinOnly),
            Some(_) => Err(Unusable::Used),
        }
    }

    /// Checks that the token can be exchanged now.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn check_join(&self, now_ms: u64) -> Result<(), Unusable> {
        self.is_alive(now_ms)?;
        match &self.join {
            Some(Join { used_for: Some(_), .. }) => Err(Unusable::Used),
            _ => Ok(()),
        }
    }

    fn is_alive(&self, now_ms: u64) -> Result<(), Unusable> {
        if self.revoked_ms.is_some() {
            return Err(Unusable::Revoked);
        }
        if now_ms >= self.expires_ms { Err(Unusable::Expired) } else { Ok(()) }
    }

    /// True if this join token was exchanged for exactly `made`: a caller that lost the answer may
    /// retry.
    pub fn was_exchanged_for(&self, id: &str, made: Option<&Self>, digest: Digest) -> bool {
        let used_for = self.join.as_ref().and_then(|join| join.used_for.as_deref());
        used_for == Some(id) && made.is_some_and(|made| made.digest == digest)
    }

    /// True if the token covers a job.
    pub fn covers(&self, job: &str) -> bool {
        covers(&self.jobs, job)
    }

    /// Time from which on the token is unusable, Unix ms: its revocation or its expiry.
    fn over_ms(&self) -> u64 {
        self.revoked_ms.unwrap_or(self.expires_ms).min(self.expires_ms)
    }
}

/// True if `jobs` covers a job; an empty list covers all jobs.
pub fn covers(jobs: &[String], job: &str) -> bool {
    let is_it = |named: &String| match named.strip_suffix('*') {
        Some(start) => job.starts_with(start),
        None => named == job,
    };
    jobs.is_empty() || jobs.iter().any(is_it)
}

/// All access tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Accesses {
    pub(crate) by_id: BTreeMap<String, AccessToken>,
}

impl Accesses {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Removes old unusable tokens if the maximum is reached: a clock that jumped ahead must not
    /// remove usable ones.
    fn make_room(&mut self, now_ms: u64) -> Result<(), Refusal> {
        if self.by_id.len() < ACCESS_TOKENS_MAX {
            return Ok(());
        }
        let is_needed =
            |token: &AccessToken| token.over_ms().saturating_add(REMEMBERED_MS) > now_ms;
        let needed = self.by_id.values().filter(|token| is_needed(token)).count();
        let hint = "revoke unused tokens; there is room 30 days later";
        check_room("access tokens", needed as u64, ACCESS_TOKENS_MAX as u64, hint)?;
        self.by_id.retain(|_, token| is_needed(token));
        Ok(())
    }
}

impl State {
    /// Access tokens by id, including recently expired, revoked and exchanged ones.
    pub fn access_tokens(&self) -> impl Iterator<Item = &AccessToken> {
        self.access.by_id.values()
    }

    /// Returns the access token with this id.
    pub fn access_token(&self, id: &str) -> Option<&AccessToken> {
        self.access.by_id.get(id)
    }

    pub(crate) fn create_access(
        &mut self,
        now_ms: u64,
        principal: &str,
        create: &CreateAccess,
    ) -> Result<Answer, Refusal> {
        let CreateAccess { id, digest, name, role, jobs, ttl_ms, join_ttl_ms } = create.clone();
        check_name("the token's name", &name)?;
        check_count("jobs of a token", jobs.len(), SCOPES_MAX, "name a common prefix and `*`")?;
        jobs.iter().try_for_each(|job| check_name("the job", job))?;
        check_ttl(ttl_ms)?;
        join_ttl_ms.map_or(Ok(()), check_ttl)?;
        let join = join_ttl_ms.map(|ttl_ms| Join { ttl_ms, used_for: None });
        let token = AccessToken {
            id,
            digest,
            name,
            role,
            jobs,
            created_ms: now_ms,
            created_by: principal.to_owned(),
            expires_ms: now_ms.saturating_add(ttl_ms),
            revoked_ms: None,
            join,
        };
        self.keep_access(now_ms, token)
    }

    fn keep_access(&mut self, now_ms: u64, token: AccessToken) -> Result<Answer, Refusal> {
        check_name("the token's id", &token.id)?;
        if self.access.by_id.contains_key(&token.id) {
            let reason = format!("there is an access token `{}`; choose another id", token.id);
            return Err(Refusal::Invalid(reason));
        }
        self.access.make_room(now_ms)?;
        let (id, name, role) = (token.id.clone(), token.name.clone(), token.role);
        self.events.tell(EventKind::AccessCreated { token: id.clone(), name, role });
        self.access.by_id.insert(id, token);
        Ok(Answer::Done)
    }

    pub(crate) fn revoke_access(&mut self, now_ms: u64, id: &str) -> Result<Answer, Refusal> {
        let token = self.access.by_id.get_mut(id).ok_or_else(|| no_token(id))?;
        if token.revoked_ms.is_none() {
            token.revoked_ms = Some(now_ms);
            let name = token.name.clone();
            self.events.tell(EventKind::AccessRevoked { token: id.to_owned(), name });
        }
        Ok(Answer::Done)
    }

    pub(crate) fn exchange_access(
        &mut self,
        now_ms: u64,
        exchange: &ExchangeAccess,
    ) -> Result<Answer, Refusal> {
        let ExchangeAccess { join: from, id, digest, name } = exchange.clone();
        check_name("the token's name", &name)?;
        let known = self.access.by_id.get(&from).ok_or_else(|| no_token(&from))?;
        let refused = |why: Unusable| {
            Refusal::Denied(format!("access token `{from}` {why}; ask an admin for another one"))
        };
        if known.was_exchanged_for(&id, self.access.by_id.get(&id), digest) {
            return Ok(Answer::Done);
        }
        known.check_join(now_ms).map_err(refused)?;
        let Some(Join { ttl_ms, .. }) = &known.join else {
            let reason = format!("access token `{from}` is no join token; use it as it is");
            return Err(Refusal::Denied(reason));
        };
        let token = AccessToken {
            id: id.clone(),
            digest,
            name,
            role: known.role,
            jobs: known.jobs.clone(),
            created_ms: now_ms,
            created_by: format!("join token {from}, made by {}", known.created_by),
            expires_ms: now_ms.saturating_add(*ttl_ms),
            revoked_ms: None,
            join: None,
        };
        self.keep_access(now_ms, token)?;
        let join = self.access.by_id.get_mut(&from).and_then(|token| token.join.as_mut());
        // If it was removed to make room, it was unusable and was refused above.
        if let Some(join) = join {
            join.used_for = Some(id);
        }
        Ok(Answer::Done)
    }
}

fn check_ttl(ttl_ms: u64) -> Result<(), Refusal> {
    match (1..=TTL_MS_MAX).contains(&ttl_ms) {
        true => Ok(()),
        false => {
            let reason = format!("a token is good for 1 to {TTL_MS_MAX} ms, not {ttl_ms}");
            Err(Refusal::Invalid(reason))
        }
    }
}

fn no_token(id: &str) -> Refusal {
    Refusal::NotFound { what: "access token".to_owned(), name: id.to_owned() }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::Change;
    use crate::fixture::Fixture;

    fn create(id: &str) -> CreateAccess {
        CreateAccess {
            id: id.to_owned(),
            digest: Digest::of_parts([id.as_bytes()]),
            name: "ada".to_owned(),
            role: Role::Operator,
            jobs: vec![],
            ttl_ms: 1_000,
            join_ttl_ms: None,
        }
    }

    fn exchange(join: &str, id: &str) -> Change {
        let (join, id) = (join.to_owned(), id.to_owned());
        let digest = Digest::of_parts([id.as_bytes()]);
        Change::ExchangeAccess(ExchangeAccess { join, id, digest, name: "w-1".to_owned() })
    }

    #[test]
    fn a_token_is_good_until_it_expires_or_is_revoked() {
        let mut fixture = Fixture { now_ms: 50, ..Fixture::default() };
        fixture.done(Change::CreateAccess(create("a")));
        let check = |fixture: &Fixture, now| fixture.state.access_token("a").unwrap().check(now);
        assert_eq!(check(&fixture, 1_049), Ok(()));
        assert_eq!(check(&fixture, 1_050), Err(Unusable::Expired));
        let again = State::from_snapshot(&fixture.state.snapshot()).unwrap();
        assert_eq!(again, fixture.state);
        fixture.refused(
            Change::CreateAccess(create("a")),
            expect!["there is an access token `a`; choose another id"],
        );
        fixture.now_ms = 60;
        fixture.done(Change::RevokeAccess { id: "a".to_owned() });
        fixture.done(Change::RevokeAccess { id: "a".to_owned() });
        assert_eq!(check(&fixture, 60), Err(Unusable::Revoked));
        let unknown = Change::RevokeAccess { id: "b".to_owned() };
        fixture.refused(unknown, expect!["there is no access token `b`"]);
        // It is listed as long as there is room.
        fixture.now_ms = 60 + REMEMBERED_MS;
        fixture.done(Change::CreateAccess(create("c")));
        let ids: Vec<_> = fixture.state.access_tokens().map(|token| token.id.as_str()).collect();
        assert_eq!(ids, ["a", "c"]);
    }

    #[test]
    fn a_join_token_is_exchanged_once() {
        let mut fixture = Fixture::default();
        let join = CreateAccess {
            role: Role::Worker,
            jobs: vec!["a*".to_owned()],
            join_ttl_ms: Some(5_000),
            ..create("j")
        };
        fixture.done(Change::CreateAccess(join));
        let token = |fixture: &Fixture, id| fixture.state.access_token(id).unwrap().clone();
        assert_eq!(token(&fixture, "j").check(0), Err(Unusable::JoinOnly));
        fixture.request("r", exchange("j", "w"));
        let made = token(&fixture, "w");
        assert_eq!((made.role, made.expires_ms, made.check(0)), (Role::Worker, 5_000, Ok(())));
        assert!(made.covers("abc") && !made.covers("b"));
        // Repeating the request repeats the same exchange; a different one is refused.
        fixture.request("r", exchange("j", "w"));
        fixture.refused(
            exchange("j", "x"),
            expect![[r#"
                access token `j` is a join token that was used; ask an admin
                for another one"#]],
        );
        fixture.refused(
            exchange("w", "x"),
            expect!["access token `w` is no join token; use it as it is"],
        );
        fixture.now_ms = 1_000;
        fixture
            .done(Change::CreateAccess(CreateAccess { join_ttl_ms: Some(5_000), ..create("k") }));
        fixture.now_ms = 2_000;
        fixture.refused(
            exchange("k", "x"),
            expect!["access token `k` has expired; ask an admin for another one"],
        );
    }

    #[test]
    fn a_clock_that_jumped_ahead_makes_no_token_good_for_longer() {
        let mut fixture = Fixture { now_ms: 1_000_000, ..Fixture::default() };
        fixture.done(Change::CreateAccess(create("a")));
        fixture.now_ms = 50;
        fixture.done(Change::CreateAccess(create("b")));
        assert_eq!(fixture.state.access_token("b").unwrap().expires_ms, 1_050);
    }

    #[test]
    fn a_scope_names_jobs_or_their_beginnings() {
        let jobs = ["train".to_owned(), "eval-*".to_owned()];
        assert!(covers(&jobs, "train") && covers(&jobs, "eval-") && covers(&jobs, "eval-1"));
        assert!(!covers(&jobs, "train2") && !covers(&jobs, "eval"));
        assert!(covers(&[], "anything"));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut fixture = Fixture::default();
        fixture.refused(
            Change::CreateAccess(CreateAccess { ttl_ms: 0, ..create("a") }),
            expect!["a token is good for 1 to 316224000000 ms, not 0"],
        );
        fixture.refused(
            Change::CreateAccess(CreateAccess { name: String::new(), ..create("a") }),
            expect!["the token's name is empty"],
        );
    }
}
