//! Starts of ranks: a rank joins a generation, comes back to one, or opens one.

use std::collections::BTreeMap;

use shardfeed_plan::{Intent, LANES_MAX};

use super::Job;
use crate::job::generation::{Generation, Rank};
use crate::job::lease::{LeaseEnded, PastLeases, RankLease};
use crate::job::origin::Origin;
use crate::job::place::{Opening, StartDecision};
use crate::log::{
    Answer, CONTINUED_MAX, EventKind, Events, Hold, PRINCIPAL_RANKS_MAX, PeerProcess,
    RANKS_TOTAL_MAX, RankCursor, RankRef, Refusal, Result, StartRank, Started, check_name,
    check_room,
};
use crate::session::{Session, principal_name};
use crate::state::{Moment, State};

impl State {
    pub(crate) fn start_rank(&mut self, moment: Moment, start: &StartRank) -> Result<Answer> {
        let session = self.sessions.live(start.session)?;
        check_start(start)?;
        self.sessions.may_serve(start)?;
        let job = self.jobs.get(&start.job)?;
        if let Some(held) = job.held.as_ref().filter(|held| held.hold == Hold::Cancelled) {
            return Err(held.refusal(&start.job));
        }
        job.check_owner(start)?;
        let continues = job.continues(start);
        if !continues {
            job.check_principal(session)?;
        }
        let limited = session.is_limited().then(|| session.principal().to_owned());
        let place = job.place(start)?;
        if matches!(place, StartDecision::Open(_)) {
            job.check_mixture(start)?;
        }
        if !matches!(place, StartDecision::Back { .. }) {
            let hint = "start fewer ranks in all jobs together";
            check_room("ranks in all generations", self.jobs.ranks, RANKS_TOTAL_MAX, hint)?;
            if let Some(principal) = &limited {
                let what = format!("ranks in all generations of jobs of {principal}");
                check_room(&what, self.jobs.ranks_of(principal), PRINCIPAL_RANKS_MAX, hint)?;
            }
        }
        if let (Some(last), Some(to)) = (&start.replaces, job.replaced(start)) {
            self.end_rank(moment, &last.lease, None, (true, Some(to)))?;
        }
        let left = match &start.intent {
            Intent::Move { from, .. } => Some(*from),
            Intent::Start { .. } | Intent::Reconnect { .. } => None,
        };
        if let Some((number, left)) = start.leaves() {
            let job = self.jobs.get_mut(&start.job)?;
            job.bring((number, start.rank), left, moment, &mut self.events);
        }
        let number = match place {
            StartDecision::Back { generation, cursor } => {
                self.come_back(moment, start, generation, cursor)?;
                generation
            }
            StartDecision::Join { generation, origin } => {
                self.join_generation(moment, start, generation, &origin)?;
                generation
            }
            StartDecision::Open(opening) => self.open_generation(moment, start, opening)?,
        };
        if let Some(peer) = &start.peer {
            let job = self.jobs.get_mut(&start.job)?;
            job.owner = job.owner.or(Some(peer.uid));
        }
        if let Some(principal) = limited {
            let job = self.jobs.get_mut(&start.job)?;
            if principal_name(&job.registered_by) != principal
                && job.continued_by.len() < CONTINUED_MAX
            {
                job.continued_by.insert(principal);
            }
        }
        if let Some(left) = left {
            self.leave_generation(moment, start, left, number);
        }
        self.started(moment, start, number)
    }

    /// Grants a rank of a generation again, to this trainer.
    fn come_back(
        &mut self,
        Moment { index, now_ms }: Moment,
        start: &StartRank,
        number: u64,
        cursor: RankCursor,
    ) -> Result<()> {
        let job = self.jobs.get_mut(&start.job)?;
        let Some(generation) = job.generations.get_mut(&number) else {
            return Ok(());
        };
        let lease = RankLease { fencing: index, session: start.session, granted_ms: now_ms };
        let Some(rank) = generation.ranks.get_mut(&start.rank) else {
            return Ok(());
        };
        let worker = rank.lease.as_ref().map(|before| self.sessions.worker_of(before.session));
        let end = (now_ms, LeaseEnded::TrainerReturned);
        let before = rank.end_lease(worker.unwrap_or_default(), end);
        rank.lease = Some(lease);
        rank.trainer.clone_from(&start.trainer);
        (rank.ended, rank.failure, rank.moved_to) = (false, None, None);
        let moment = Moment { index, now_ms };
        job.bring((number, start.rank), cursor, moment, &mut self.events);
        if let Some(generation) = job.generations.get_mut(&number) {
            generation.pools.values_mut().for_each(|pool| pool.hand_over(start.rank));
        }
        let rank = RankRef { job: start.job.clone(), generation: number, rank: start.rank };
        if let Some(before) = &before {
            self.sessions.drop_lease(before.session, &rank);
        }
        if before.is_none_or(|before| before.session != start.session) {
            self.events.tell(EventKind::RankServed {
                job: start.job.clone(),
                generation: number,
                rank: start.rank,
                worker: self.sessions.worker_of(start.session),
                epoch: cursor.epoch,
                step: cursor.step,
            });
        }
        self.sessions.file_lease(start.session, rank);
        Ok(())
    }

    fn join_generation(
        &mut self,
        Moment { index, now_ms }: Moment,
        start: &StartRank,
        number: u64,
        origin: &Origin,
    ) -> Result<()> {
        let job = self.jobs.get_mut(&start.job)?;
        let Some(generation) = job.generations.get_mut(&number) else {
            return Ok(());
        };
        let cursor = origin.cursor();
        let lease = RankLease { fencing: index, session: start.session, granted_ms: now_ms };
        let rank = Rank {
            trainer: start.trainer.clone(),
            lease: Some(lease),
            start: cursor,
            cursor,
            cursor_ms: now_ms,
            ended: false,
            failure: None,
            moved_to: None,
            past: PastLeases::default(),
        };
        generation.join(start.rank, rank);
        if generation.is_complete() {
            self.events.tell(EventKind::GenerationComplete {
                job: start.job.clone(),
                generation: number,
                world_size: generation.world_size,
            });
        }
        self.jobs.ranks += 1;
        let rank = RankRef { job: start.job.clone(), generation: number, rank: start.rank };
        self.sessions.file_lease(start.session, rank);
        Ok(())
    }

    /// Opens a generation and adds its first rank; unless a move opens it, every earlier one ends.
    fn open_generation(&mut self, moment: Moment, start: &StartRank, open: Opening) -> Result<u64> {
        let job = self.jobs.get_mut(&start.job)?;
        let Opening { number, parent, run, implicit, by_move, origin, pool } = open;
        let generation = Generation {
            number,
            parent,
            run: run.unwrap_or_else(|| format!("implicit-{number}")),
            implicit,
            by_move,
            world_size: start.world_size,
            limit: start.limit,
            mixture: start.mixture,
            sealed_to: origin.epoch,
            origin: origin.clone(),
            left_out: start.left_out.clone(),
            opened_by: start.rank,
            started_ms: moment.now_ms,
            ranks: BTreeMap::new(),
            superseded_by: None,
            pools: pool.into_iter().map(|pool| (origin.epoch, *pool)).collect(),
            doubt: start.doubt,
            begun: BTreeMap::new(),
            cursors: BTreeMap::new(),
        };
        self.events.tell(EventKind::GenerationOpened {
            job: start.job.clone(),
            generation: number,
            run: generation.run.clone(),
            world_size: start.world_size,
            rank: start.rank,
            epoch: origin.epoch,
            step: origin.step(),
            moved_from: parent.filter(|_| by_move),
        });
        job.recount_skipped(generation.mixture);
        job.open(generation);
        let dropped = job.forget();
        for generation in dropped {
            self.jobs.ranks -= generation.ranks.len() as u64;
            for (session, rank) in generation.leases_of(&start.job) {
                self.sessions.drop_lease(session, &rank);
            }
        }
        self.join_generation(moment, start, number, &origin)?;
        Ok(number)
    }

    /// Frees the rank in the generation that its trainer moved from.
    fn leave_generation(&mut self, moment: Moment, start: &StartRank, from: u64, to: u64) {
        let of = RankRef { job: start.job.clone(), generation: from, rank: start.rank };
        let freed = self.free_rank(&of, moment.now_ms, LeaseEnded::TrainerMoved);
        let job = self.jobs.by_name.get_mut(&start.job);
        let Some(generation) = job.and_then(|job| job.generations.get_mut(&from)) else {
            return;
        };
        // Without a lease, samples of the rank may still be in doubt; its position is known now.
        if freed.is_none() && generation.superseded_by.is_none() {
            let pools = generation.pools.values_mut();
            pools.for_each(|pool| pool.release(start.rank, 0, (moment.now_ms, true)));
        }
        if let Some(rank) = generation.ranks.get_mut(&start.rank) {
            rank.moved_to = Some(to);
        }
    }

    fn started(&self, moment: Moment, start: &StartRank, number: u64) -> Result<Answer> {
        let job = self.jobs.get(&start.job)?;
        let generation = job.generations.get(&number);
        let placed = generation.and_then(|generation| {
            let epoch = generation.ranks.get(&start.rank)?.cursor.epoch;
            let segments = generation.segments_for(start.rank, epoch)?;
            Some(Started {
                generation: number,
                fencing: moment.index,
                run: generation.run.clone(),
                epoch,
                segments,
            })
        });
        Ok(Answer::Started(placed.expect("the rank was placed in that generation just before")))
    }
}

impl Job {
    /// Rejects a process of another user than the job's owner; root may start any job.
    fn check_owner(&self, start: &StartRank) -> Result<()> {
        match (self.owner, start.peer) {
            (Some(owner), Some(PeerProcess { uid, .. })) if uid != owner && uid != 0 => {
                Err(Refusal::Denied(format!(
                    "job `{}` is of user {owner}; user {uid} may not start its ranks: give the loader \
                     another job=, or run it as user {owner}",
                    self.name
                )))
            }
            _ => Ok(()),
        }
    }

    /// True if this is the process whose rank a worker serves or served: only it knows its id.
    fn continues(&self, start: &StartRank) -> bool {
        let mut ranks = self.generations.values().filter_map(|known| known.ranks.get(&start.rank));
        ranks.any(|rank| rank.trainer == start.trainer)
    }

    /// Rejects a limited principal that did not register the job.
    ///
    /// Workers are not limited: they identify their trainers by user.
    pub(crate) fn check_principal(&self, session: &Session) -> Result<()> {
        let (who, registrar) = (session.principal(), principal_name(&self.registered_by));
        let is_theirs = registrar.is_empty() || who == registrar || self.continued_by.contains(who);
        if !session.is_limited() || is_theirs {
            return Ok(());
        }
        Err(Refusal::Denied(format!(
            "job `{}` is of {registrar}; {who} may not start its ranks: give the loader another job=, or have an \
             operator remove the job",
            self.name
        )))
    }

    /// Moves a rank of a generation forward to the position that its trainer reports.
    fn bring(
        &mut self,
        (number, rank): (u64, u64),
        to: RankCursor,
        Moment { now_ms, .. }: Moment,
        events: &mut Events,
    ) {
        let Some(generation) = self.generations.get_mut(&number) else {
            return;
        };
        if let Some(pool) = generation.pools.get_mut(&to.epoch) {
            pool.restore(rank, to.step);
        }
        let sealed = generation.advance(rank, to, now_ms);
        self.seal(sealed, events);
        self.recount(number);
    }

    fn open(&mut self, generation: Generation) {
        let number = generation.number;
        if !generation.by_move {
            for earlier in self.generations.values_mut() {
                earlier.superseded_by.get_or_insert_with(|| generation.as_successor());
            }
        }
        if !generation.implicit {
            self.saw(&generation.run, number);
        }
        self.opened += 1;
        self.generations.insert(number, generation);
    }
}

fn check_start(start: &StartRank) -> Result<()> {
    let StartRank { job, run, rank, world_size, trainer, .. } = start;
    check_name("the job's name", job)?;
    check_name("the trainer's id", trainer)?;
    if let Some(run) = run {
        check_name("the run", run)?;
    }
    if *world_size == 0 || *world_size > LANES_MAX {
        let reason = format!("world_size={world_size} is not in 1..={LANES_MAX}");
        return Err(Refusal::Invalid(reason));
    }
    if rank >= world_size {
        return Err(Refusal::Invalid(format!(
            "rank={rank} is not in 0..{world_size}: ranks count from 0 to world_size - 1"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shardfeed_plan::Tail;

    use super::*;
    use crate::fixture::{Fixture, first_of_two, fresh, join, register};
    use crate::{Change, Command, JoinSession, ReportSkipped, SessionId};

    const TOM: (&str, &str) = ("trainer:tom (token 1)", "trainer:tom");
    const MALLORY: (&str, &str) = ("trainer:mallory", "trainer:mallory");

    /// Applies a change as a principal; trainers are limited.
    fn by(
        fixture: &mut Fixture,
        (principal, name): (&str, &str),
        change: Change,
    ) -> Result<Answer> {
        let is_trainer = name.starts_with("trainer:");
        let scope = if is_trainer { vec!["*".to_owned(), name.to_owned()] } else { vec![] };
        let command = Command { principal: principal.to_owned(), scope, ..fixture.command(change) };
        let answer = fixture.state.apply(fixture.state.applied() + 1, &command).answer;
        assert_eq!(fixture.state.check(), Ok(()));
        answer
    }

    fn session(fixture: &mut Fixture, who: (&str, &str)) -> SessionId {
        let join = Change::JoinSession(JoinSession { in_process: true, ..join(who.0, "i1") });
        match by(fixture, who, join).unwrap() {
            Answer::Joined { session } => session,
            other => panic!("{other:?}"),
        }
    }

    fn start(session: SessionId, run: &str, trainer: &str) -> Change {
        let (run, trainer) = (Some(run.to_owned()), trainer.to_owned());
        Change::StartRank(StartRank { run, trainer, intent: fresh(), ..first_of_two(session) })
    }

    #[test]
    fn a_peer_supersedes_no_other_principals_job() {
        let (mut fixture, _) = Fixture::with_job(Tail::Drop);
        let job = |name: &str| {
            let Change::RegisterJob(mut job) = register(Tail::Drop) else { unreachable!() };
            job.name = name.to_owned();
            Change::RegisterJob(job)
        };
        by(&mut fixture, TOM, job("toms")).unwrap();
        let of = |change: Change, name: &str| {
            let Change::StartRank(start) = change else { unreachable!() };
            Change::StartRank(StartRank { job: name.to_owned(), ..start })
        };
        let (toms, mallorys) = (session(&mut fixture, TOM), session(&mut fixture, MALLORY));
        by(&mut fixture, TOM, of(start(toms, "r1", "t1"), "toms")).unwrap();
        let attack = of(start(mallorys, "r2", "m1"), "toms");
        let refusal = by(&mut fixture, MALLORY, attack).unwrap_err();
        assert!(matches!(refusal, Refusal::Denied(_)), "{refusal:?}");
        assert!(
            refusal.to_string().contains("is of trainer:tom; trainer:mallory may not"),
            "{refusal}"
        );
        let records = vec![];
        let job = "toms".to_owned();
        let report = ReportSkipped { session: mallorys, job, records, mixture: None };
        let refusal = by(&mut fixture, MALLORY, Change::ReportSkipped(report)).unwrap_err();
        assert!(matches!(refusal, Refusal::Denied(_)), "{refusal:?}");
        // The owner, also with another token of the same name, and workers can start it again.
        let renewed = ("trainer:tom (token 2)", "trainer:tom");
        let again = session(&mut fixture, renewed);
        by(&mut fixture, renewed, of(start(again, "r2", "t2"), "toms")).unwrap();
        let worker = session(&mut fixture, ("worker:w7", "worker:w7"));
        by(&mut fixture, ("worker:w7", "worker:w7"), of(start(worker, "r3", "t3"), "toms"))
            .unwrap();
    }

    #[test]
    fn a_process_that_loses_its_worker_goes_on_and_a_peer_does_not() {
        let (mut fixture, worker) = Fixture::with_job(Tail::Drop);
        by(&mut fixture, ("worker:w", "worker:w"), start(worker, "r1", "toms process")).unwrap();
        let (toms, mallorys) = (session(&mut fixture, TOM), session(&mut fixture, MALLORY));
        let refusal = by(&mut fixture, MALLORY, start(mallorys, "r2", "m1")).unwrap_err();
        assert!(matches!(refusal, Refusal::Denied(_)), "{refusal:?}");
        by(&mut fixture, TOM, start(toms, "r1", "toms process")).unwrap();
        // The training now belongs to that principal, also after a restart.
        by(&mut fixture, TOM, start(toms, "r2", "toms next process")).unwrap();
        by(&mut fixture, MALLORY, start(mallorys, "r3", "m1")).unwrap_err();
    }

    #[test]
    fn at_its_quota_of_ranks_a_limited_principal_stops_nobody_else() {
        let (mut fixture, worker) = Fixture::with_job(Tail::Drop);
        let job = |name: &str| {
            let Change::RegisterJob(mut job) = register(Tail::Drop) else { unreachable!() };
            job.name = name.to_owned();
            Change::RegisterJob(job)
        };
        by(&mut fixture, MALLORY, job("flood")).unwrap();
        let mallorys = session(&mut fixture, MALLORY);
        let of = |run: &str| {
            let (job, run) = ("flood".to_owned(), Some(run.to_owned()));
            Change::StartRank(StartRank { job, run, ..first_of_two(mallorys) })
        };
        by(&mut fixture, MALLORY, of("r1")).unwrap();
        let flood = fixture.state.jobs.by_name.get_mut("flood").unwrap();
        let generation = flood.generations.values_mut().next().unwrap();
        generation.world_size = PRINCIPAL_RANKS_MAX;
        let rank = Rank { lease: None, ..generation.ranks[&0].clone() };
        generation.ranks.extend((1..PRINCIPAL_RANKS_MAX).map(|number| (number, rank.clone())));
        fixture.state.jobs.index(&mut fixture.state.sessions);
        let said = by(&mut fixture, MALLORY, of("r2")).unwrap_err().to_string();
        assert!(said.contains("jobs of trainer:mallory: at most 500000"), "{said}");
        by(&mut fixture, ("worker:w", "worker:w"), start(worker, "r1", "t1")).unwrap();
    }
}
