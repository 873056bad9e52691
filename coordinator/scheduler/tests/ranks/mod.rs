//! Workers and trainers of a dynamic job, as far as the state machine sees them.

use shardfeed_plan::dynamic::RankList;
use shardfeed_plan::{
    Digest, Intent, JobIdentity, LeftOut, Mode, ORDER_VERSION, Records, Segment, Shuffle, Steps,
    Tail,
};
use shardfeed_scheduler::{
    Answer, Change, Claim, ClaimResult, Command, CursorReport, DoubtPolicy, JoinSession, LeaseRef,
    Pool, PoolFacts, RankCursor, RegisterJob, SessionId, Speeds, StartRank, Started, State,
    WaitForDoubt,
};

const JOB: &str = "train";

/// A rank: its worker's copy of the list, and its trainer.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    list: RankList,
    started: u64,
    /// Position up to which samples may be given to the trainer.
    horizon: u64,
    version: u64,
    revoke_from: Option<u64>,
    lease: Option<LeaseRef>,
    last_lease: Option<LeaseRef>,
    session: SessionId,
    down: u64,
    pub(crate) step: u64,
    pub(crate) ended: bool,
    /// Group and offset of each sample that the trainer was given.
    pub(crate) delivered: Vec<(u64, u64)>,
}

pub(crate) struct Cluster {
    pub(crate) state: State,
    pub(crate) ranks: Vec<Rank>,
    sizes: Vec<u64>,
    batch_size: u64,
    run: u64,
    incarnations: u64,
    generation: u64,
    now_ms: u64,
    doubt: DoubtPolicy,
}

impl Cluster {
    pub(crate) fn new(sizes: Vec<u64>, batch_size: u64, ranks: usize) -> Self {
        Self::with_policy(sizes, batch_size, ranks, DoubtPolicy::default())
    }

    /// Creates a cluster.
    /// - `doubt`: policy for samples in doubt.
    pub(crate) fn with_policy(
        sizes: Vec<u64>,
        batch_size: u64,
        ranks: usize,
        doubt: DoubtPolicy,
    ) -> Self {
        let mut cluster = Self {
            state: State::new(),
            ranks: vec![],
            sizes,
            batch_size,
            run: 0,
            incarnations: 0,
            generation: 0,
            now_ms: 0,
            doubt,
        };
        let content = Digest::from_bytes([0; 32]);
        let shuffle = Shuffle {
            digest: content,
            seed: 0,
            enabled: true,
            window: 9,
            interleave: 2,
            block_length: 1,
        };
        let (records, decoder) = (Records::Operators(String::new()), "none".to_owned());
        let (tail, mode) = (Tail::Uneven, Mode::Dynamic);
        let identity = JobIdentity {
            order: ORDER_VERSION,
            content,
            shuffle,
            lanes: 1,
            tail,
            mode,
            records,
            decoder,
        };
        let (name, dataset) = (JOB.to_owned(), String::new());
        cluster.apply(Change::RegisterJob(RegisterJob {
            name,
            identity,
            dataset,
            record_spec_chunks: vec![],
            mixture: None,
        }));
        cluster.open(ranks, &[cluster.segment(ranks, 0)], None, &vec![0; ranks]);
        cluster
    }

    fn segment(&self, ranks: usize, steps: u64) -> Segment {
        let global_batch = self.batch_size * ranks as u64;
        Segment { lanes: 1, global_batch, steps: Steps::All(steps) }
    }

    fn apply(&mut self, change: Change) -> Answer {
        self.now_ms += 1;
        let (request_id, principal) = (String::new(), "sim".to_owned());
        let command = Command { request_id, principal, scope: vec![], now_ms: self.now_ms, change };
        let applied = self.state.apply(self.state.applied() + 1, &command);
        applied.answer.unwrap_or_else(|refusal| panic!("{command:?}: {refusal}"))
    }

    /// Starts all ranks of a new run, each at its own step in the open segment.
    fn open(
        &mut self,
        ranks: usize,
        segments: &[Segment],
        state_generation: Option<u64>,
        steps: &[u64],
    ) {
        self.run += 1;
        self.ranks.clear();
        for (rank, step) in steps.iter().enumerate() {
            let session = self.join(rank);
            let mut segments = segments.to_vec();
            let open = segments.last_mut().unwrap();
            open.steps = Steps::All(*step);
            let step = segments.iter().map(|segment| segment.steps.most()).sum();
            let intent = Intent::Start { state_generation, epoch: 0, segments, is_reshard: false };
            let started = self.start(rank, ranks, session, (intent, None));
            self.generation = started.generation;
            let lease = Some(self.lease(rank, started.fencing));
            self.ranks.push(Rank {
                list: RankList::new(self.batch_size, 0),
                started: 0,
                horizon: 0,
                version: 0,
                revoke_from: None,
                last_lease: lease.clone(),
                lease,
                session,
                down: 0,
                step,
                ended: false,
                delivered: vec![],
            });
        }
    }

    fn lease(&self, rank: usize, fencing: u64) -> LeaseRef {
        let (job, generation, rank) = (JOB.to_owned(), self.generation, rank as u64);
        LeaseRef { job, generation, rank, fencing }
    }

    fn join(&mut self, rank: usize) -> SessionId {
        self.incarnations += 1;
        let join = JoinSession {
            worker: format!("w{rank}"),
            host: "h".to_owned(),
            incarnation: format!("i{}", self.incarnations),
            version: String::new(),
            in_process: false,
            ttl_ms: 1,
            endpoint: String::new(),
            decoders: vec![],
            proved: false,
            data_roots: vec![],
        };
        match self.apply(Change::JoinSession(join)) {
            Answer::Joined { session } => session,
            other => panic!("{other:?}"),
        }
    }

    fn start(
        &mut self,
        rank: usize,
        ranks: usize,
        session: SessionId,
        (intent, left): (Intent, Option<RankCursor>),
    ) -> Started {
        let start = StartRank {
            job: JOB.to_owned(),
            run: Some(format!("r{}", self.run)),
            rank: rank as u64,
            world_size: ranks as u64,
            limit: None,
            session,
            trainer: format!("t{}-{rank}", self.run),
            intent,
            left,
            doubt: self.doubt,
            mixture: None,
            left_out: LeftOut::default(),
            peer: None,
            replaces: None,
        };
        match self.apply(Change::StartRank(start)) {
            Answer::Started(started) => started,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.state.job(JOB).unwrap().generations[&self.generation].pools[&0]
    }

    pub(crate) fn first_step(&self) -> u64 {
        self.state.job(JOB).unwrap().current().unwrap().origin.step()
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.state.check(), Ok(()));
        let again = State::from_snapshot(&self.state.snapshot()).unwrap();
        assert_eq!(again, self.state);
    }

    /// Applies a change; returns the duration and the answer.
    #[expect(clippy::disallowed_methods, reason = "for people; nothing depends on it")]
    pub(crate) fn timed(&mut self, change: Change) -> (std::time::Duration, Answer) {
        let before = std::time::Instant::now();
        let answer = self.apply(change);
        (before.elapsed(), answer)
    }

    pub(crate) fn take_of(&mut self, rank: usize, wants: u64) -> Claim {
        let at = self.state.job(JOB).unwrap().generations[&self.generation].pools.get(&0);
        let at = at.map_or(0, |pool| pool.next);
        let next = self.sizes[at as usize..].iter().take(64).copied().collect();
        let (groups, samples) = (self.sizes.len() as u64, self.sizes.iter().sum());
        let one = &mut self.ranks[rank];
        let released = one.revoke_from.take().map(|from| from.max(one.started));
        if let Some(released) = released {
            one.list.truncate_to(released);
        }
        Claim {
            lease: one.lease.clone().unwrap(),
            epoch: 0,
            step: one.step,
            started: one.started,
            known: one.list.pieces().len() as u64,
            wants,
            ahead: 2 * one.list.batch_size(),
            released,
            version: Some(one.version),
            facts: PoolFacts { groups, samples, at, next },
        }
    }

    fn learn(&mut self, rank: usize, taken: ClaimResult) {
        let one = &mut self.ranks[rank];
        if one.list.pieces().is_empty() {
            one.list = RankList::new(taken.batch_size, taken.first_step);
        }
        if let Some(truncated) = taken.truncated {
            one.list.truncate_to(truncated);
        }
        taken.pieces.into_iter().for_each(|piece| one.list.append(piece));
        taken.closed.into_iter().for_each(|end| one.list.close_at(end));
        (one.revoke_from, one.ended, one.horizon) = (taken.revoke_from, taken.ended, taken.horizon);
        one.version = taken.version;
        assert!(!taken.more);
    }

    /// Claims for many ranks in one command, each of which has begun all its samples.
    pub(crate) fn take_many(&mut self, ranks: std::ops::Range<usize>) {
        let takes = ranks.clone().map(|rank| {
            self.ranks[rank].started = self.ranks[rank].list.samples();
            self.take_of(rank, 20)
        });
        let takes = takes.collect();
        match self.apply(Change::ClaimGroups { takes }) {
            Answer::Taken(all) => {
                ranks.zip(all).for_each(|(rank, taken)| self.learn(rank, taken.unwrap()));
            }
            other => panic!("{other:?}"),
        }
    }

    fn take(&mut self, rank: usize) {
        let take = self.take_of(rank, 2 * self.batch_size);
        match self.apply(Change::ClaimGroups { takes: vec![take] }) {
            Answer::Taken(mut all) => self.learn(rank, all.remove(0).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// Delivers one batch, if the rank has one or gets one.
    pub(crate) fn step(&mut self, rank: usize) {
        if self.ranks[rank].lease.is_none() || self.ranks[rank].is_over() {
            return;
        }
        let is_open = |one: &Rank| one.next_batch().filter(|batch| batch.end <= one.horizon);
        if is_open(&self.ranks[rank]).is_none() || self.ranks[rank].revoke_from.is_some() {
            self.take(rank);
        }
        let one = &mut self.ranks[rank];
        if let Some(positions) = is_open(one) {
            one.started = positions.end;
            one.step += 1;
            for piece in one.list.pieces_in(positions) {
                one.delivered.extend((piece.from..piece.to).map(|at| (piece.group, at)));
            }
        }
    }

    /// Reports a rank's progress.
    /// - `take`: reports it by a claim for no samples, whose answer updates the list.
    pub(crate) fn report(&mut self, rank: usize, take: bool) {
        let Some(lease) = self.ranks[rank].lease.clone() else {
            return;
        };
        if take {
            let take = self.take_of(rank, 0);
            match self.apply(Change::ClaimGroups { takes: vec![take] }) {
                Answer::Taken(mut all) => self.learn(rank, all.remove(0).unwrap()),
                other => panic!("{other:?}"),
            }
            return;
        }
        let step = self.ranks[rank].step;
        self.apply(Change::Report { cursors: vec![CursorReport { lease, epoch: 0, step }] });
    }

    /// Applies `ms` of waiting that the leader has seen.
    pub(crate) fn wait(&mut self, ms: u64) {
        let (job, generation, epochs) = (JOB.to_owned(), self.generation, vec![0]);
        self.apply(Change::WaitForDoubt(WaitForDoubt { job, generation, epochs, ms }));
    }

    /// An operator declares a rank gone; returns the number of samples that were in doubt.
    pub(crate) fn declare_gone(&mut self, rank: usize) -> u64 {
        match self.apply(Change::DeclareGone { job: JOB.to_owned(), rank: rank as u64 }) {
            Answer::Decided { samples } => samples,
            other => panic!("{other:?}"),
        }
    }

    /// Reports a rank's progress twice under its previous lease.
    pub(crate) fn late_report(&mut self, rank: usize) {
        let lease = self.ranks[rank].last_lease.clone().unwrap();
        let step = self.ranks[rank].step;
        for _ in 0..2 {
            let lease = lease.clone();
            self.apply(Change::Report { cursors: vec![CursorReport { lease, epoch: 0, step }] });
        }
    }

    /// Kills a rank's worker without a report of its trainer's progress.
    pub(crate) fn kill_worker(&mut self, rank: usize, rounds: u64) {
        if self.ranks[rank].lease.take().is_some() {
            self.ranks[rank].down = rounds + 1;
            let sessions = vec![self.ranks[rank].session];
            self.apply(Change::ExpireSessions { sessions });
        }
    }

    /// Trainers whose workers were gone for the given rounds come back through others.
    pub(crate) fn revive(&mut self) {
        for rank in 0..self.ranks.len() {
            self.ranks[rank].down = self.ranks[rank].down.saturating_sub(1);
            let Rank { lease, down, ended, .. } = &self.ranks[rank];
            if lease.is_some() || *down > 0 || *ended {
                continue;
            }
            let session = self.join(rank);
            let (generation, step) = (self.generation, self.ranks[rank].step);
            let intent = Intent::Reconnect { generation, epoch: 0, step };
            let started = self.start(rank, self.ranks.len(), session, (intent, None));
            let lease = self.lease(rank, started.fencing);
            let one = &mut self.ranks[rank];
            (one.session, one.lease, one.last_lease) = (session, Some(lease.clone()), Some(lease));
            (one.list, one.started, one.horizon) = (RankList::new(self.batch_size, 0), 0, 0);
            one.revoke_from = None;
            self.catch_up(rank);
        }
    }

    /// A trainer leaves the epoch before its end, through a worker that knows nothing of it.
    pub(crate) fn leave(&mut self, rank: usize) {
        if self.ranks[rank].ended {
            return;
        }
        let session = self.join(rank);
        let (generation, step) = (self.generation, self.ranks[rank].step);
        let intent = Intent::Reconnect { generation, epoch: 1, step: 0 };
        let left = Some(RankCursor { epoch: 0, step });
        self.start(rank, self.ranks.len(), session, (intent, left));
        let one = &mut self.ranks[rank];
        (one.lease, one.revoke_from, one.ended) = (None, None, true);
    }

    /// A new worker learns the list and its trainer's position in it.
    fn catch_up(&mut self, rank: usize) {
        let take = self.take_of(rank, 0);
        match self.apply(Change::ClaimGroups { takes: vec![take] }) {
            Answer::Taken(mut all) => self.learn(rank, all.remove(0).unwrap()),
            other => panic!("{other:?}"),
        }
        let one = &mut self.ranks[rank];
        let position = one.list.position_of_step(one.step);
        one.started = position.unwrap_or_else(|| one.list.samples());
    }

    pub(crate) fn balance(&mut self, speeds: &[u64]) {
        let speeds: Speeds = (0..).zip(speeds.iter().copied()).collect();
        for revoke in self.state.balance(JOB, &speeds) {
            self.apply(Change::Revoke(revoke));
        }
        // A worker that is asked to give back samples answers at once.
        for rank in 0..self.ranks.len() {
            self.report(rank, true);
            if self.ranks[rank].revoke_from.is_some() {
                self.report(rank, true);
            }
        }
    }

    /// Starts the same ranks again from loader states of the current generation.
    pub(crate) fn restart(&mut self, steps: &[u64]) {
        let ranks = self.ranks.len();
        let token = Some(self.generation);
        self.open(ranks, &[self.segment(ranks, 0)], token, steps);
        (0..ranks).for_each(|rank| self.catch_up(rank));
    }

    /// Starts other ranks from loader states of the current generation.
    pub(crate) fn resize(&mut self, ranks: usize, batch_size: u64, segments: &[Segment]) {
        self.batch_size = batch_size;
        let open = segments.last().unwrap().steps.most();
        let token = Some(self.generation);
        self.open(ranks, segments, token, &vec![open; ranks]);
    }

    /// Delivers the remaining samples.
    pub(crate) fn finish(&mut self) {
        let speeds = vec![1; self.ranks.len()];
        let mut rounds = 0;
        while !self.ranks.iter().all(Rank::is_over) {
            for rank in 0..self.ranks.len() {
                self.step(rank);
                self.report(rank, true);
            }
            self.balance(&speeds);
            self.check();
            rounds += 1;
            assert!(rounds < 20_000, "the epoch does not end");
        }
    }
}

impl Rank {
    /// True if the trainer was notified that the epoch is over.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }

    /// Positions of the next batch.
    fn next_batch(&self) -> Option<std::ops::Range<u64>> {
        self.list.positions_of(self.step)
    }
}
