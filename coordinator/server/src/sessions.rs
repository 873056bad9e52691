//! Renewals of sessions: in the leader's memory, by its monotonic clock. That a session ends is a
//! command; here is only when to propose it.

use std::collections::BTreeMap;
use std::time::Duration;

use shardfeed_scheduler::SessionId;
use tokio::time::Instant;

/// Sessions that one command ends, at most: a command is applied in one go.
pub(crate) const EXPIRE_BATCH_MAX: usize = 256;

/// What is known of live sessions beyond the state.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    live: BTreeMap<SessionId, Renewal>,
}

#[derive(Debug)]
struct Renewal {
    deadline: Instant,
    /// Last heartbeat that reached this leader.
    seen: Option<Instant>,
    /// That it ends was proposed: from then on no heartbeat can promise that it lives.
    is_ending: bool,
}

impl Sessions {
    /// A session began or sent a heartbeat; it lives on for a full `ttl`.
    /// - Returns whether it does: not if its end was proposed.
    pub(crate) fn renew(&mut self, session: SessionId, ttl: Duration, now: Instant) -> bool {
        if self.live.get(&session).is_some_and(|renewal| renewal.is_ending) {
            return false;
        }
        let renewal = Renewal { deadline: now + ttl, seen: Some(now), is_ending: false };
        self.live.insert(session, renewal);
        true
    }

    /// Follows the state: sessions that ended are forgotten, those that this leader has not heard of
    /// yet (it has just started) get a full ttl.
    /// - `live`: sessions of the state with their ttl.
    pub(crate) fn follow(&mut self, live: &BTreeMap<SessionId, Duration>, now: Instant) {
        self.live.retain(|session, _| live.contains_key(session));
        for (session, ttl) in live {
            let fresh = || Renewal { deadline: now + *ttl, seen: None, is_ending: false };
            self.live.entry(*session).or_insert_with(fresh);
        }
    }

    /// Grants everybody some more time.
    pub(crate) fn postpone(&mut self, by: Duration) {
        self.live.values_mut().for_each(|renewal| renewal.deadline += by);
    }

    /// Sessions that were not renewed in time, at most [`EXPIRE_BATCH_MAX`]: their end is proposed now.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<SessionId> {
        let late = self.live.iter_mut().filter(|(_, renewal)| renewal.deadline <= now);
        let late = late.take(EXPIRE_BATCH_MAX).map(|(session, renewal)| {
            renewal.is_ending = true;
            *session
        });
        late.collect()
    }

    /// When this leader heard of a session last.
    pub(crate) fn seen(&self, session: SessionId) -> Option<Instant> {
        self.live.get(&session)?.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_for_a_whole_ttl_ends_a_session() {
        let (start, ttl) = (Instant::now(), Duration::from_secs(10));
        let mut sessions = Sessions::default();
        sessions.follow(&BTreeMap::from([(1, ttl), (2, ttl)]), start);
        assert_eq!(sessions.seen(1), None);
        assert!(sessions.renew(1, ttl, start + ttl / 2));
        assert_eq!(sessions.expire(start + ttl), [2]);
        assert_eq!(sessions.expire(start + 2 * ttl), [1, 2]);
        // A follow does not renew.
        sessions.follow(&BTreeMap::from([(2, ttl)]), start + ttl);
        assert_eq!(sessions.expire(start + ttl), [2]);
        assert_eq!(sessions.seen(1), None);
    }

    #[test]
    fn no_heartbeat_is_good_for_a_session_whose_end_was_proposed() {
        let (start, ttl) = (Instant::now(), Duration::from_secs(10));
        let mut sessions = Sessions::default();
        sessions.renew(1, ttl, start);
        sessions.renew(2, ttl, start + ttl / 2);
        assert_eq!(sessions.expire(start + ttl), [1]);
        assert!(!sessions.renew(1, ttl, start + ttl));
        assert!(sessions.renew(2, ttl, start + ttl));
        // Until it is known what came of that.
        sessions.follow(&BTreeMap::from([(2, ttl)]), start + ttl);
        assert!(sessions.renew(1, ttl, start + ttl));
    }

    #[test]
    fn time_in_which_nobody_listened_does_not_count() {
        let (start, ttl) = (Instant::now(), Duration::from_secs(10));
        let mut sessions = Sessions::default();
        sessions.renew(1, ttl, start);
        sessions.postpone(5 * ttl);
        assert!(sessions.expire(start + 5 * ttl).is_empty());
        assert_eq!(sessions.expire(start + 6 * ttl), [1]);
    }

    #[test]
    fn a_batch_is_bounded() {
        let (start, ttl) = (Instant::now(), Duration::from_secs(1));
        let mut sessions = Sessions::default();
        assert!((0..1000).all(|session| sessions.renew(session, ttl, start)));
        assert_eq!(sessions.expire(start + ttl).len(), EXPIRE_BATCH_MAX);
    }
}
