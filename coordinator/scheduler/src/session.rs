//! Sessions: one for each live incarnation of a worker.

mod commands;
mod cordon;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::log::{
    Cordon, EndReason, JoinSession, RankRef, Refusal, Result, SESSIONS_ENDED_KEPT, ScanRef,
    SessionId, StartRank,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub id: SessionId,
    pub join: JoinSession,
    /// Principal that began it; if callers are authenticated, only this principal may use it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Names that the owner is limited to, as in [`crate::Command::scope`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    pub joined_ms: u64,
    #[serde(skip)]
    pub leases: BTreeSet<RankRef>,
    #[serde(skip)]
    pub scans: BTreeSet<ScanRef>,
}

impl Session {
    /// True if the owner is limited to names, or is a trainer.
    pub(crate) fn is_limited(&self) -> bool {
        !self.scope.is_empty()
    }

    pub(crate) fn principal(&self) -> &str {
        principal_name(&self.owner)
    }
}

/// Name of a principal without its token's id: a new token of the same name is the same principal.
pub fn principal_name(principal: &str) -> &str {
    principal.split_once(" (token ").map_or(principal, |(name, _)| name)
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedSession {
    pub id: SessionId,
    pub join: JoinSession,
    pub joined_ms: u64,
    pub ended_ms: u64,
    pub reason: EndReason,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sessions {
    pub(crate) live: BTreeMap<SessionId, Session>,
    pub(crate) ended: VecDeque<EndedSession>,
    #[serde(skip)]
    pub(crate) by_worker: BTreeMap<String, SessionId>,
    /// Number of live sessions of each limited principal.
    #[serde(skip)]
    limited: BTreeMap<String, u64>,
    /// Workers that are cordoned or draining, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) cordons: BTreeMap<String, Cordon>,
}

impl Sessions {
    /// Returns the session if it is live.
    ///
    /// # Errors
    /// `Fenced`, with the reason for its end as far as it is kept.
    pub(crate) fn live(&self, id: SessionId) -> Result<&Session> {
        self.live.get(&id).ok_or_else(|| {
            let ended = self.ended.iter().rev().find(|ended| ended.id == id);
            let reason = match ended.map(|ended| ended.reason) {
                Some(EndReason::Left) => "its worker left",
                Some(EndReason::Expired) => "no heartbeat arrived in time",
                Some(EndReason::Replaced) => "its worker started again",
                None => "it ended long ago, or never was",
            };
            let (what, reason) = ("session".to_owned(), format!("{reason}; join again"));
            Refusal::Fenced { what, fencing: id, reason }
        })
    }

    /// Recomputes the indexes from the sessions; jobs and datasets add their leases and scans.
    pub(crate) fn index(&mut self) {
        let named = |session: &Session| (session.join.worker.clone(), session.id);
        self.by_worker = self.live.values().map(named).collect();
        self.limited.clear();
        for session in self.live.values().filter(|session| session.is_limited()) {
            *self.limited.entry(session.principal().to_owned()).or_default() += 1;
        }
        for session in self.live.values_mut() {
            session.leases.clear();
            session.scans.clear();
        }
    }

    pub(crate) fn file_lease(&mut self, id: SessionId, rank: RankRef) {
        if let Some(session) = self.live.get_mut(&id) {
            session.leases.insert(rank);
        }
    }

    pub(crate) fn drop_lease(&mut self, id: SessionId, rank: &RankRef) {
        if let Some(session) = self.live.get_mut(&id) {
            session.leases.remove(rank);
        }
    }

    pub(crate) fn file_scan(&mut self, id: SessionId, scan: ScanRef) {
        if let Some(session) = self.live.get_mut(&id) {
            session.scans.insert(scan);
        }
    }

    pub(crate) fn drop_scan(&mut self, id: SessionId, scan: &ScanRef) {
        if let Some(session) = self.live.get_mut(&id) {
            session.scans.remove(scan);
        }
    }

    /// Name of a session's worker, as far as it is kept.
    pub(crate) fn worker_of(&self, id: SessionId) -> String {
        let live = self.live.get(&id).map(|session| &session.join);
        let ended = || self.ended.iter().rev().find(|ended| ended.id == id);
        let join = live.or_else(|| ended().map(|ended| &ended.join));
        join.map(|join| join.worker.clone()).unwrap_or_default()
    }

    /// Removes a session and keeps its end; the caller frees its leases and scans.
    fn end(&mut self, id: SessionId, ended_ms: u64, reason: EndReason) -> Option<Session> {
        let session = self.live.remove(&id)?;
        self.by_worker.remove(&session.join.worker);
        if let Some(count) = self.limited.get_mut(session.principal())
            && session.is_limited()
        {
            *count -= 1;
            if *count == 0 {
                self.limited.remove(session.principal());
            }
        }
        let Session { join, joined_ms, .. } = session.clone();
        self.ended.push_back(EndedSession { id, join, joined_ms, ended_ms, reason });
        if self.ended.len() > SESSIONS_ENDED_KEPT {
            self.ended.pop_front();
        }
        Some(session)
    }

    /// Returns the cordon state of a session.
    ///
    /// Always `Open` for a worker in a trainer's process: it takes over the work of other workers.
    pub(crate) fn cordon(&self, session: SessionId) -> Cordon {
        let join = self.live.get(&session).map(|session| &session.join);
        let cordoned = join.filter(|join| !join.in_process);
        cordoned.and_then(|join| self.cordons.get(&join.worker)).copied().unwrap_or_default()
    }

    /// Rejects a rank that a cordoned worker does not serve yet.
    pub(crate) fn may_serve(&self, start: &StartRank) -> Result<()> {
        let state = self.cordon(start.session);
        let Some(session) = self.live.get(&start.session).filter(|_| state != Cordon::Open) else {
            return Ok(());
        };
        let mut own = session.leases.iter();
        if own.any(|own| own.job == start.job && own.rank == start.rank) {
            return Ok(());
        }
        Err(Refusal::Cordoned { worker: session.join.worker.clone(), state })
    }
}
