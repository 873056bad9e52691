//! A rank starts: it joins a generation, comes back to one, or opens one.

use std::collections::BTreeMap;

use shardfeed_plan::{Intent, LANES_MAX};

use crate::answer::{Answer, Refusal, Started};
use crate::bound::{RANKS_TOTAL_MAX, SEALED_KEPT, check_name, check_room};
use crate::command::StartRank;
use crate::cursor::RankCursor;
use crate::event::Happening;
use crate::generation::{Generation, Rank};
use crate::history::{LeaseEnd, LeaseEnded, PastLeases};
use crate::hold::Hold;
use crate::job::Job;
use crate::lease::{RankLease, RankRef};
use crate::origin::Origin;
use crate::place::{Opening, Place};
use crate::state::{Moment, State};

impl State {
    pub(crate) fn start_rank(
        &mut self,
        moment: Moment,
        start: &StartRank,
    ) -> Result<Answer, Refusal> {
        self.sessions.live(start.session)?;
        check_start(start)?;
        self.sessions.may_serve(start)?;
        let job = self.jobs.get(&start.job)?;
        if let Some(held) = job.held.as_ref().filter(|held| held.hold == Hold::Cancelled) {
            return Err(held.refusal(&start.job));
        }
        let place = job.place(start)?;
        if !matches!(place, Place::Back { .. }) {
            let hint = "start fewer ranks in all jobs together";
            check_room("ranks in all generations", self.jobs.ranks, RANKS_TOTAL_MAX, hint)?;
        }
        let left = match &start.intent {
            Intent::Move { from, .. } => Some(*from),
            Intent::Start { .. } | Intent::Reconnect { .. } => None,
        };
        let number = match place {
            Place::Back { generation, cursor } => {
                self.come_back(moment, start, generation, cursor)?;
                generation
            }
            Place::Join { generation, origin } => {
                self.join_generation(moment, start, generation, &origin)?;
                generation
            }
            Place::Open(opening) => self.open_generation(moment, start, opening)?,
        };
        if let Some(left) = left {
            self.leave_generation(moment, start, left, number);
        }
        self.started(moment, start, number)
    }

    /// Grants a rank of a generation anew, to this trainer.
    fn come_back(
        &mut self,
        Moment { index, now_ms }: Moment,
        start: &StartRank,
        number: u64,
        cursor: RankCursor,
    ) -> Result<(), Refusal> {
        let job = self.jobs.get_mut(&start.job)?;
        let Some(generation) = job.generations.get_mut(&number) else {
            return Ok(());
        };
        let lease = RankLease { fencing: index, session: start.session, granted_ms: now_ms };
        let before = generation.lend(start.rank, Some(lease));
        if let Some(before) = &before {
            let worker = self.sessions.worker_of(before.session);
            let why = LeaseEnded::TrainerReturned;
            generation.file_end(start.rank, before, &LeaseEnd { at_ms: now_ms, worker, why });
        }
        if let Some(pool) = generation.pools.get_mut(&cursor.epoch) {
            pool.restore(start.rank, cursor.step);
        }
        if let Some(rank) = generation.ranks.get_mut(&start.rank) {
            rank.trainer.clone_from(&start.trainer);
            (rank.ended, rank.moved_to) = (false, None);
        }
        let sealed = generation.advance(start.rank, cursor, now_ms, SEALED_KEPT);
        generation.pools.values_mut().for_each(|pool| pool.hand_over(start.rank));
        job.seal(sealed).into_iter().for_each(|what| self.events.tell(what));
        let rank = RankRef { job: start.job.clone(), generation: number, rank: start.rank };
        if let Some(before) = &before {
            self.sessions.drop_lease(before.session, &rank);
        }
        if before.is_none_or(|before| before.session != start.session) {
            self.events.tell(Happening::RankServed {
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

    /// Adds a rank to a generation.
    fn join_generation(
        &mut self,
        Moment { index, now_ms }: Moment,
        start: &StartRank,
        number: u64,
        origin: &Origin,
    ) -> Result<(), Refusal> {
        let job = self.jobs.get_mut(&start.job)?;
        let Some(generation) = job.generations.get_mut(&number) else {
            return Ok(());
        };
        let cursor = RankCursor { epoch: origin.epoch, step: origin.step() };
        let lease = RankLease { fencing: index, session: start.session, granted_ms: now_ms };
        let rank = Rank {
            trainer: start.trainer.clone(),
            lease: Some(lease),
            start: cursor,
            cursor,
            cursor_ms: now_ms,
            ended: false,
            moved_to: None,
            past: PastLeases::default(),
        };
        generation.join(start.rank, rank);
        if generation.is_complete() {
            self.events.tell(Happening::GenerationComplete {
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

    /// Opens a generation and adds its first rank; unless it is opened by a move, every earlier one
    /// ends.
    fn open_generation(
        &mut self,
        moment: Moment,
        start: &StartRank,
        opening: Opening,
    ) -> Result<u64, Refusal> {
        let job = self.jobs.get_mut(&start.job)?;
        let Opening { number, parent, run, implicit, by_move, origin, pool } = opening;
        let generation = Generation {
            number,
            parent,
            run: run.unwrap_or_else(|| format!("implicit-{number}")),
            implicit,
            by_move,
            world_size: start.world_size,
            limit: start.limit,
            over: BTreeMap::new(),
            sealed_to: origin.epoch,
            origin: origin.clone(),
            opened_by: start.rank,
            started_ms: moment.now_ms,
            ranks: BTreeMap::new(),
            superseded_by: None,
            pools: pool.into_iter().map(|pool| (origin.epoch, *pool)).collect(),
            begun: BTreeMap::new(),
            cursors: BTreeMap::new(),
            served: 0,
        };
        self.events.tell(Happening::GenerationOpened {
            job: start.job.clone(),
            generation: number,
            run: generation.run.clone(),
            world_size: start.world_size,
            rank: start.rank,
            epoch: origin.epoch,
            step: origin.step(),
            moved_from: parent.filter(|_| by_move),
        });
        job.open(generation);
        let dropped = job.forget();
        for generation in dropped {
            self.jobs.ranks -= generation.ranks.len() as u64;
            for (session, rank) in generation.leases() {
                let (job, generation) = (start.job.clone(), generation.number);
                self.sessions.drop_lease(session, &RankRef { job, generation, rank });
            }
        }
        self.join_generation(moment, start, number, &origin)?;
        Ok(number)
    }

    /// Frees the rank in the generation that its trainer moved from.
    fn leave_generation(&mut self, moment: Moment, start: &StartRank, from: u64, to: u64) {
        let job = self.jobs.by_name.get_mut(&start.job);
        let Some(generation) = job.and_then(|job| job.generations.get_mut(&from)) else {
            return;
        };
        let lease = generation.ranks.get(&start.rank).and_then(|rank| rank.lease.as_ref());
        let worker = lease.map(|lease| self.sessions.worker_of(lease.session)).unwrap_or_default();
        let end = LeaseEnd { at_ms: moment.now_ms, worker, why: LeaseEnded::TrainerMoved };
        let before = generation.free(start.rank, &end);
        if let Some(rank) = generation.ranks.get_mut(&start.rank) {
            rank.moved_to = Some(to);
        }
        if let Some(before) = before {
            let rank = RankRef { job: start.job.clone(), generation: from, rank: start.rank };
            self.sessions.drop_lease(before.session, &rank);
        }
    }

    fn started(&self, moment: Moment, start: &StartRank, number: u64) -> Result<Answer, Refusal> {
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
    /// Adds a generation; unless it is opened by a move, every earlier one ends.
    fn open(&mut self, generation: Generation) {
        let number = generation.number;
        if !generation.by_move {
            for earlier in std::mem::take(&mut self.usable) {
                if let Some(earlier) = self.generations.get_mut(&earlier) {
                    earlier.superseded_by = Some(generation.as_successor());
                }
            }
        }
        if !generation.implicit {
            self.saw(&generation.run, number);
        }
        self.opened += 1;
        self.usable.insert(number);
        self.generations.insert(number, generation);
    }
}

fn check_start(start: &StartRank) -> Result<(), Refusal> {
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
