//! Access tokens: permissions of callers without a certificate. Only digests of secrets are kept.

mod commands;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use shardfeed_plan::Digest;

use crate::log::{ACCESS_TOKENS_MAX, AccessRole, Result, check_room};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessToken {
    /// Id of the token; not secret.
    pub id: String,
    /// SHA-256 of the secret.
    pub digest: Digest,
    /// Name of the holder, for people and logs.
    pub name: String,
    pub role: AccessRole,
    /// Jobs that the token covers, by name; a trailing `*` matches any suffix. Empty: all jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    pub created_ms: u64,
    pub created_by: String,
    pub expires_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<u64>,
    /// Set for a join token, which can only be exchanged, once, for a token of the same role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<Join>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Lifetime of the token that it is exchanged for, ms.
    pub ttl_ms: u64,
    /// Id of the token that it was exchanged for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_for: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    Revoked,
    Expired,
    /// It is a join token, which has to be exchanged first.
    JoinOnly,
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

/// Unusable tokens older than this are removed once there are too many tokens, ms: 30 days.
const REMEMBERED_MS: u64 = 30 * 86_400_000;

impl AccessToken {
    pub fn check(&self, now_ms: u64) -> Result<(), Unusable> {
        self.is_alive(now_ms)?;
        match &self.join {
            None => Ok(()),
            Some(Join { used_for: None, .. }) => Err(Unusable::JoinOnly),
            Some(_) => Err(Unusable::Used),
        }
    }

    /// Checks that the token can be exchanged now.
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

    /// True if this join token was exchanged for `made`: a caller that lost the answer may retry.
    pub fn was_exchanged_for(&self, id: &str, made: Option<&Self>, digest: Digest) -> bool {
        let used_for = self.join.as_ref().and_then(|join| join.used_for.as_deref());
        used_for == Some(id) && made.is_some_and(|made| made.digest == digest)
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
    fn make_room(&mut self, now_ms: u64) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_names_jobs_or_their_beginnings() {
        let jobs = ["train".to_owned(), "eval-*".to_owned()];
        assert!(covers(&jobs, "train") && covers(&jobs, "eval-") && covers(&jobs, "eval-1"));
        assert!(!covers(&jobs, "train2") && !covers(&jobs, "eval"));
        assert!(covers(&[], "anything"));
    }
}
