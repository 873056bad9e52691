//! Renewals of sessions: in the leader's memory, by its monotonic clock. A command ends a session;
//! this module only decides when to propose it.

use std::collections::BTreeMap;
use std::time::Duration;

use shardfeed_scheduler::SessionId;
use tokio::time::Instant;

/// Maximum sessions that one command ends, because a command is applied without interruption.
pub(crate) const EXPIRE_BATCH_MAX: usize = 256;

/// Data of live sessions that is not in the state.
#[derive(Debug, Default)]
pub(crate) struct LiveSessions {
    live: BTreeMap<SessionId, Renewal>,
}

#[derive(Debug)]
struct Renewal {
    deadline: Instant,
    /// Last heartbeat that reached this leader.
    seen: Option<Instant>,
    /// True once its end is proposed: from then on no heartbeat may be answered as a renewal.
    is_ending: bool,
}

impl LiveSessions {
    /// Renews a session that began or sent a heartbeat, for a full `ttl`.
    /// - Returns false, without renewal, if the session's end was proposed.
    pub(crate) fn renew(&mut self, session: SessionId, ttl: Duration, now: Instant) -> bool {
        if self.live.get(&session).is_some_and(|renewal| renewal.is_ending) {
            return false;
        }
        let renewal = Renewal { deadline: now + ttl, seen: Some(now), is_ending: false };
        self.live.insert(session, renewal);
        true
    }

    /// Follows the state: forgets sessions that ended, and gives a full ttl to sessions that this
    /// leader does not know yet because it has just started.
    /// - `live`: sessions of the state with their ttl.
    pub(crate) fn follow(&mut self, live: &BTreeMap<SessionId, Duration>, now: Instant) {
        self.live.retain(|session, _| live.contains_key(session));
        for (session, ttl) in live {
            let fresh = || Renewal { deadline: now + *ttl, seen: None, is_ending: false };
            self.live.entry(*session).or_insert_with(fresh);
        }
    }

    pub(crate) fn postpone(&mut self, by: Duration) {
        self.live.values_mut().for_each(|renewal| renewal.deadline += by);
    }

    /// Returns sessions to be ended now: not renewed in time, at most [`EXPIRE_BATCH_MAX`].
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<SessionId> {
        let late = self.live.iter_mut().filter(|(_, renewal)| renewal.deadline <= now);
        let late = late.take(EXPIRE_BATCH_MAX).map(|(session, renewal)| {
            renewal.is_ending = true;
            *session
        });
        late.collect()
    }

    /// Returns the time of a session's last heartbeat at this leader.
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
        let mut sessions = LiveSessions::default();
        sessions.follow(&BTreeMap::from([(1, ttl), (2, ttl)]), start);
        assert_eq!(sessions.seen(1), None);
        assert!(sessions.renew(1, ttl, start + ttl / 2));
        assert_eq!(sessions.expire(start + ttl), [2]);
        assert_eq!(sessions.expire(start + 2 * ttl), [1, 2]);
        // `follow` does not renew.
        sessions.follow(&BTreeMap::from([(2, ttl)]), start + ttl);
        assert_eq!(sessions.expire(start + ttl), [2]);
        assert_eq!(sessions.seen(1), None);
    }

    #[test]
    fn no_heartbeat_is_good_for_a_session_whose_end_was_proposed() {
        let (start, ttl) = (Instant::now(), Duration::from_secs(10));
        let mut sessions = LiveSessions::default();
        sessions.renew(1, ttl, start);
        sessions.renew(2, ttl, start + ttl / 2);
        assert_eq!(sessions.expire(start + ttl), [1]);
        assert!(!sessions.renew(1, ttl, start + ttl));
        assert!(sessions.renew(2, ttl, start + ttl));
        // Until the outcome of that proposal is known.
        sessions.follow(&BTreeMap::from([(2, ttl)]), start + ttl);
        assert!(sessions.renew(1, ttl, start + ttl));
    }

    #[test]
    fn time_in_which_nobody_listened_does_not_count() {
        let (start, ttl) = (Instant::now(), Duration::from_secs(10));
        let mut sessions = LiveSessions::default();
        sessions.renew(1, ttl, start);
        sessions.postpone(5 * ttl);
        assert!(sessions.expire(start + 5 * ttl).is_empty());
        assert_eq!(sessions.expire(start + 6 * ttl), [1]);
    }

    #[test]
    fn a_batch_is_bounded() {
        let (start, ttl) = (Instant::now(), Duration::from_secs(1));
        let mut sessions = LiveSessions::default();
        assert!((0..1000).all(|session| sessions.renew(session, ttl, start)));
        assert_eq!(sessions.expire(start + ttl).len(), EXPIRE_BATCH_MAX);
    }
}
