//! Creation, exchange and revocation of access tokens.

use super::{AccessToken, Join, Unusable};
use crate::log::{
    Answer, CreateAccess, EventKind, ExchangeAccess, Refusal, Result, SCOPES_MAX, check_count,
    check_name,
};
use crate::state::State;

/// Maximum lifetime of a token, ms: 10 years.
const TTL_MS_MAX: u64 = 10 * 366 * 86_400_000;

impl State {
    /// Access tokens by id, including recently expired, revoked and exchanged ones.
    pub fn access_tokens(&self) -> impl Iterator<Item = &AccessToken> {
        self.access.by_id.values()
    }

    pub fn access_token(&self, id: &str) -> Option<&AccessToken> {
        self.access.by_id.get(id)
    }

    pub(crate) fn create_access(
        &mut self,
        now_ms: u64,
        principal: &str,
        create: &CreateAccess,
    ) -> Result<Answer> {
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

    fn keep_access(&mut self, now_ms: u64, token: AccessToken) -> Result<Answer> {
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

    pub(crate) fn revoke_access(&mut self, now_ms: u64, id: &str) -> Result<Answer> {
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
    ) -> Result<Answer> {
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

fn check_ttl(ttl_ms: u64) -> Result<()> {
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
    use shardfeed_plan::Digest;

    use super::*;
    use crate::access::{REMEMBERED_MS, covers};
    use crate::fixture::Fixture;
    use crate::{AccessRole, Change};

    fn create(id: &str) -> CreateAccess {
        CreateAccess {
            id: id.to_owned(),
            digest: Digest::of_parts([id.as_bytes()]),
            name: "ada".to_owned(),
            role: AccessRole::Operator,
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
            role: AccessRole::Worker,
            jobs: vec!["a*".to_owned()],
            join_ttl_ms: Some(5_000),
            ..create("j")
        };
        fixture.done(Change::CreateAccess(join));
        let token = |fixture: &Fixture, id| fixture.state.access_token(id).unwrap().clone();
        assert_eq!(token(&fixture, "j").check(0), Err(Unusable::JoinOnly));
        fixture.request("r", exchange("j", "w"));
        let made = token(&fixture, "w");
        assert_eq!(
            (made.role, made.expires_ms, made.check(0)),
            (AccessRole::Worker, 5_000, Ok(()))
        );
        assert!(covers(&made.jobs, "abc") && !covers(&made.jobs, "b"));
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
