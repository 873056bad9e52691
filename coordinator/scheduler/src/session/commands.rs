//! Begin and end of sessions.

use std::collections::{BTreeMap, BTreeSet};

use super::{Session, principal_name};
use crate::log::{
    Answer, Command, DATA_ROOTS_MAX, DECODERS_MAX, EVENT_RANKS_MAX, EndReason, EventKind,
    JoinSession, PRINCIPAL_SESSIONS_MAX, Refusal, Result, SESSIONS_MAX, SessionId, check_count,
    check_label, check_name, check_room, check_text,
};
use crate::state::{Moment, State};

impl State {
    pub(crate) fn join_session(
        &mut self,
        Moment { index, now_ms }: Moment,
        Command { principal, scope, .. }: &Command,
        join: &JoinSession,
    ) -> Result<Answer> {
        check_name("the worker's name", &join.worker)?;
        check_name("the worker's incarnation", &join.incarnation)?;
        for (what, label) in [
            ("the worker's host", &join.host),
            ("the worker's version", &join.version),
            ("the worker's endpoint", &join.endpoint),
        ] {
            check_label(what, label)?;
        }
        check_count("decoders of a worker", join.decoders.len(), DECODERS_MAX, "list fewer")?;
        for decoder in &join.decoders {
            check_name("the decoder", decoder)?;
        }
        let roots = join.data_roots.len();
        check_count("data roots of a worker", roots, DATA_ROOTS_MAX, "name their common folders")?;
        for root in &join.data_roots {
            check_text("a data root", root)?;
        }
        let earlier = self.sessions.by_worker.get(&join.worker).copied();
        if let Some(earlier) = earlier {
            let known = self.sessions.live(earlier)?;
            // A limited principal cannot keep a worker name from a worker of the whole cluster.
            let gives_way = scope.is_empty() && !known.scope.is_empty();
            if join.proved && known.owner != *principal && !gives_way {
                return Err(Refusal::Denied(format!(
                    "worker `{}` is of {}, not of {principal}; give this worker another name \
                     (--name)",
                    join.worker, known.owner
                )));
            }
            if known.join.incarnation == join.incarnation && !gives_way {
                return Ok(Answer::Joined { session: earlier });
            }
            self.end_session(earlier, now_ms, EndReason::Replaced);
        } else {
            let live = self.sessions.live.len() as u64;
            let hint = "stop workers, or wait until those that are gone expire";
            check_room("live workers", live, SESSIONS_MAX as u64, hint)?;
            if !scope.is_empty() {
                let principal = principal_name(principal);
                let own = self.sessions.limited.get(principal).copied().unwrap_or(0);
                let what = format!("live sessions of {principal}");
                check_room(&what, own, PRINCIPAL_SESSIONS_MAX, hint)?;
            }
        }
        let (leases, scans) = (BTreeSet::new(), BTreeSet::new());
        let join = join.clone();
        self.sessions.by_worker.insert(join.worker.clone(), index);
        self.events.tell(EventKind::WorkerJoined {
            worker: join.worker.clone(),
            session: index,
            host: join.host.clone(),
            version: join.version.clone(),
        });
        let (owner, scope) = (principal.clone(), scope.clone());
        let session = Session { id: index, join, owner, scope, joined_ms: now_ms, leases, scans };
        if session.is_limited() {
            *self.sessions.limited.entry(session.principal().to_owned()).or_default() += 1;
        }
        self.sessions.live.insert(index, session);
        Ok(Answer::Joined { session: index })
    }

    pub(crate) fn leave_session(&mut self, moment: Moment, session: SessionId) -> Result<Answer> {
        self.sessions.live(session)?;
        self.end_session(session, moment.now_ms, EndReason::Left);
        Ok(Answer::Done)
    }

    pub(crate) fn expire_sessions(&mut self, moment: Moment, sessions: &[SessionId]) -> Answer {
        for session in sessions {
            self.end_session(*session, moment.now_ms, EndReason::Expired);
        }
        Answer::Done
    }

    fn end_session(&mut self, id: SessionId, now_ms: u64, reason: EndReason) {
        let Some(session) = self.sessions.end(id, now_ms, reason) else {
            return;
        };
        let worker = session.join.worker;
        self.events.tell(EventKind::WorkerEnded { worker: worker.clone(), session: id, reason });
        let mut unserved = BTreeMap::<_, Vec<u64>>::new();
        for rank in &session.leases {
            if self.free_rank(rank, now_ms, reason.into()) == Some(true) {
                unserved.entry((&rank.job, rank.generation)).or_default().push(rank.rank);
            }
        }
        for ((job, generation), mut ranks) in unserved {
            let (job, worker, count) = (job.clone(), worker.clone(), ranks.len() as u64);
            ranks.truncate(EVENT_RANKS_MAX);
            let what = EventKind::RanksUnserved { job, generation, ranks, count, worker, reason };
            self.events.tell(what);
        }
        for scan in &session.scans {
            self.datasets.free(scan);
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use crate::fixture::{Fixture, first_of_two, join};
    use crate::{
        Answer, Change, EndReason, JoinSession, NAME_BYTES_MAX, SESSIONS_ENDED_KEPT, SESSIONS_MAX,
    };
    use shardfeed_plan::Tail;

    fn reasons(fixture: &Fixture) -> Vec<EndReason> {
        fixture.state.ended_sessions().map(|ended| ended.reason).collect()
    }

    #[test]
    fn another_incarnation_ends_the_earlier_session_and_frees_what_it_held() {
        let (mut fixture, session) = Fixture::with_job(Tail::Drop);
        fixture.start(first_of_two(session));
        let again = Change::JoinSession(join("w", "i2"));
        let answer = fixture.apply(again).unwrap();
        assert_eq!(answer, Answer::Joined { session: fixture.state.applied() });
        assert_eq!(reasons(&fixture), [EndReason::Replaced]);
        assert_eq!(fixture.current().ranks[&0].lease, None);
        assert_eq!(fixture.current().ranks_served(), 0);
        fixture.refused(
            Change::LeaveSession { session },
            expect![[r#"
            session 1 is no longer valid: its worker started again; join
            again"#]],
        );
    }

    #[test]
    fn the_last_ended_sessions_are_remembered() {
        let mut fixture = Fixture::default();
        for _ in 0..SESSIONS_ENDED_KEPT + 5 {
            let session = fixture.join("a");
            fixture.done(Change::LeaveSession { session });
        }
        assert_eq!(fixture.state.ended_sessions().count(), SESSIONS_ENDED_KEPT);
        fixture.refused(
            Change::LeaveSession { session: 1 },
            expect![[r#"
            session 1 is no longer valid: it ended long ago, or never
            was; join again"#]],
        );
    }

    #[test]
    fn names_are_short_and_printable() {
        let mut fixture = Fixture::default();
        let named = |worker: &str| Change::JoinSession(join(worker, "i1"));
        fixture.refused(named(""), expect!["the worker's name is empty"]);
        fixture.refused(
            named("a\u{7}"),
            expect![[r#"
            the worker's name "a\u{7}" has characters that cannot be
            printed"#]],
        );
        fixture.refused(
            named(&"a".repeat(NAME_BYTES_MAX + 1)),
            expect!["the worker's name has 201 bytes; at most 200 are allowed"],
        );
        fixture.refused(
            Change::JoinSession(join("a", "")),
            expect!["the worker's incarnation is empty"],
        );
        let host = "\n".to_owned();
        let odd = Change::JoinSession(JoinSession { host, ..join("a", "i1") });
        fixture.refused(
            odd,
            expect![[r#"the worker's host "\n" has characters that cannot be printed"#]],
        );
        fixture.apply(named(&"a".repeat(NAME_BYTES_MAX))).unwrap();
    }

    #[test]
    fn there_is_a_bound_for_live_sessions() {
        let mut fixture = Fixture::default();
        for worker in 0..SESSIONS_MAX as u64 {
            let command = fixture.command(Change::JoinSession(join(&format!("w{worker}"), "i")));
            fixture.state.apply(worker + 1, &command).answer.unwrap();
        }
        let mut joined = |incarnation| fixture.apply(Change::JoinSession(join("w5", incarnation)));
        assert_eq!(joined("i"), Ok(Answer::Joined { session: 6 }));
        joined("j").unwrap();
        fixture.refused(
            Change::JoinSession(join("one more", "i")),
            expect![[r#"
            live workers: at most 100000; stop workers, or wait until
            those that are gone expire"#]],
        );
    }
}
