//! Fixtures for tests.

use expect_test::Expect;
use shardfeed_plan::{
    DECODER_NONE, Digest, Intent, JobIdentity, LeftOut, Mode, ORDER_VERSION, Records, Segment,
    Shuffle, Steps, Tail,
};

use crate::{
    AddDataset, Answer, Applied, Change, Claim, ClaimResult, Command, CursorReport, Dataset,
    DoubtPolicy, FinishDataset, Generation, JoinSession, LeaseRef, Part, Phase, PoolFacts,
    RankCursor, Refusal, RegisterJob, ReportListing, ReportScan, ScanTask, SessionId, StartRank,
    Started, State,
};

pub(crate) const JOB: &str = "train";
pub(crate) const DATASET: &str = "images";

#[derive(Clone, Debug, Default)]
pub(crate) struct Fixture {
    pub(crate) state: State,
    pub(crate) now_ms: u64,
}

impl Fixture {
    /// A session `w`, a dataset that is ready and a job that reads it.
    pub(crate) fn with_job(tail: Tail) -> (Self, SessionId) {
        let mut fixture = Self::default();
        let session = fixture.join("w");
        fixture.ready_dataset(session);
        fixture.done(register(tail));
        (fixture, session)
    }

    pub(crate) fn request(&mut self, request_id: &str, change: Change) -> Applied {
        let request_id = request_id.to_owned();
        let command = Command { request_id, ..self.command(change) };
        let index = self.state.applied() + 1;
        let applied = self.state.apply(index, &command);
        assert_eq!(self.state.check(), Ok(()));
        applied
    }

    pub(crate) fn command(&self, change: Change) -> Command {
        let (request_id, principal) = (String::new(), "test".to_owned());
        Command { request_id, principal, scope: vec![], now_ms: self.now_ms, change }
    }

    pub(crate) fn apply(&mut self, change: Change) -> Result<Answer, Refusal> {
        self.request("", change).answer
    }

    pub(crate) fn done(&mut self, change: Change) {
        assert_eq!(self.apply(change), Ok(Answer::Done));
    }

    /// Applies a change that must be refused with this message and without effect.
    #[expect(clippy::needless_pass_by_value, reason = "expect! makes values")]
    pub(crate) fn refused(&mut self, change: Change, says: Expect) {
        let before = self.contents();
        let refusal = self.apply(change).unwrap_err();
        assert_eq!(self.contents(), before);
        says.assert_eq(&wrapped(&refusal.to_string()));
    }

    pub(crate) fn contents(&self) -> String {
        let State { sessions, datasets, jobs, .. } = &self.state;
        serde_json::to_string(&(sessions, datasets, jobs)).unwrap()
    }

    pub(crate) fn join(&mut self, worker: &str) -> SessionId {
        match self.apply(Change::JoinSession(join(worker, "i1"))).unwrap() {
            Answer::Joined { session } => session,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn take(&mut self, session: SessionId, most: u32) -> Vec<ScanTask> {
        match self.apply(Change::ClaimScans { session, most }).unwrap() {
            Answer::Scans(tasks) => tasks,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn start(&mut self, start: StartRank) -> Started {
        match self.apply(Change::StartRank(start)).unwrap() {
            Answer::Started(started) => started,
            other => panic!("{other:?}"),
        }
    }

    /// Starts all ranks from the same position; returns the last one's generation.
    pub(crate) fn start_all(&mut self, start: &StartRank) -> u64 {
        let ranks = 0..start.world_size;
        let started = ranks.map(|rank| {
            let trainer = format!("{}-{rank}", start.trainer);
            self.start(StartRank { rank, trainer, ..start.clone() }).generation
        });
        started.last().unwrap()
    }

    pub(crate) fn report(&mut self, rank: u64, epoch: u64, step: u64) {
        let lease = self.lease(rank);
        self.done(Change::Report { cursors: vec![CursorReport { lease, epoch, step }] });
    }

    pub(crate) fn lease(&self, rank: u64) -> LeaseRef {
        let current = self.current();
        let fencing = current.ranks[&rank].lease.as_ref().unwrap().fencing;
        LeaseRef { job: JOB.to_owned(), generation: current.number, rank, fencing }
    }

    pub(crate) fn current(&self) -> &Generation {
        self.state.job(JOB).unwrap().current().unwrap()
    }

    pub(crate) fn cursor(&self, rank: u64) -> RankCursor {
        self.current().ranks[&rank].cursor
    }

    pub(crate) fn ready_dataset(&mut self, session: SessionId) {
        self.done(add());
        let fencing = self.take(session, 1)[0].fencing;
        self.done(listing(session, fencing, 1));
        let fencing = self.take(session, 1)[0].fencing;
        self.done(scanned(session, fencing, 0));
        let attempt = self.state.dataset(DATASET).unwrap().attempt;
        self.done(finish(attempt, 1));
    }
}

pub(crate) fn phase_name(dataset: &Dataset) -> &'static str {
    match dataset.phase {
        Phase::Listing { .. } => "listing",
        Phase::Scanning(_) => "scanning",
        Phase::Assembling(_) => "assembling",
        Phase::Ready(_) => "ready",
        Phase::Failed { .. } => "failed",
    }
}

/// Wraps the text to short lines.
pub(crate) fn wrapped(text: &str) -> String {
    const COLUMNS: usize = 60;
    let (mut lines, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        if column > 0 {
            let breaks = column + word.len() > COLUMNS;
            lines.push(if breaks { '\n' } else { ' ' });
            column = if breaks { 0 } else { column + 1 };
        }
        lines.push_str(word);
        column += word.len();
    }
    lines
}

pub(crate) fn join(worker: &str, incarnation: &str) -> JoinSession {
    JoinSession {
        worker: worker.to_owned(),
        host: "h".to_owned(),
        incarnation: incarnation.to_owned(),
        version: "0.1.0".to_owned(),
        in_process: false,
        ttl_ms: 10_000,
        endpoint: String::new(),
        decoders: vec![],
        proved: false,
        data_roots: vec![],
    }
}

pub(crate) fn add_dataset() -> AddDataset {
    let patterns = vec!["/data/*.tfrecord".to_owned()];
    let compression = "auto".to_owned();
    AddDataset {
        name: DATASET.to_owned(),
        patterns,
        compression,
        corrupt: shardfeed_plan::Corrupt::Error,
        listing: None,
        program: None,
    }
}

pub(crate) fn add() -> Change {
    Change::AddDataset(add_dataset())
}

pub(crate) fn digest(byte: u8) -> Digest {
    Digest::from_bytes([byte; 32])
}

/// A listing with parts of 10 files and 1,000 bytes.
pub(crate) fn listing(session: SessionId, fencing: u64, parts: u8) -> Change {
    let part = |number: u8| Part { chunk: digest(number), files: 10, bytes: 1_000 };
    Change::ReportListing(ReportListing {
        session,
        dataset: DATASET.to_owned(),
        fencing,
        root: "/data".to_owned(),
        parts: (0..parts).map(part).collect(),
    })
}

/// A scanned part with 50 records.
pub(crate) fn scanned(session: SessionId, fencing: u64, part: u64) -> Change {
    let (dataset, chunk) = (DATASET.to_owned(), digest((part as u8).wrapping_add(100)));
    let maps = vec![];
    Change::ReportScan(ReportScan { session, dataset, part, fencing, chunk, records: 50, maps })
}

pub(crate) fn finish(attempt: u64, parts: u64) -> Change {
    let (dataset, content) = (DATASET.to_owned(), digest(7));
    let (shards, records) = (10 * parts, 50 * parts);
    Change::FinishDataset(FinishDataset { dataset, attempt, content, shards, records })
}

pub(crate) fn identity(tail: Tail) -> JobIdentity {
    let content = digest(7);
    let shuffle = Shuffle {
        digest: digest(70),
        seed: 1,
        enabled: true,
        window: 10,
        interleave: 4,
        block_length: 1,
    };
    let (records, decoder) = (Records::Operators(String::new()), DECODER_NONE.to_owned());
    JobIdentity {
        order: ORDER_VERSION,
        content,
        shuffle,
        lanes: 2,
        tail,
        mode: Mode::Deterministic,
        records,
        decoder,
    }
}

/// A session `w` and a dynamic job of 4 groups with 10 samples each.
pub(crate) fn dynamic_job() -> (Fixture, SessionId) {
    let mut fixture = Fixture::default();
    let session = fixture.join("w");
    let identity = JobIdentity { mode: Mode::Dynamic, lanes: 1, ..identity(Tail::Uneven) };
    let (name, dataset) = (JOB.to_owned(), String::new());
    fixture.done(Change::RegisterJob(RegisterJob {
        name,
        identity,
        dataset,
        record_spec_chunks: vec![],
        mixture: None,
    }));
    (fixture, session)
}

pub(crate) fn facts() -> PoolFacts {
    PoolFacts { groups: 4, samples: 40, at: 0, next: vec![10; 4] }
}

/// A claim of a rank of the current generation that has reported nothing yet.
pub(crate) fn take_of(fixture: &Fixture, rank: u64, wants: u64) -> Claim {
    let lease = fixture.lease(rank);
    let (epoch, step, started, known, ahead) = (0, 0, 0, 0, 0);
    let (released, version) = (None, None);
    Claim { lease, epoch, step, started, known, wants, ahead, released, version, facts: facts() }
}

pub(crate) fn takes(fixture: &mut Fixture, takes: Vec<Claim>) -> Vec<Result<ClaimResult, Refusal>> {
    match fixture.apply(Change::ClaimGroups { takes }).unwrap() {
        Answer::Taken(taken) => taken,
        other => panic!("{other:?}"),
    }
}

/// Claims for a rank of the current generation that knows its list and has begun `started` samples
/// of it.
pub(crate) fn taken(fixture: &mut Fixture, rank: u64, started: u64, wants: u64) -> ClaimResult {
    let pool = fixture.current().pools.get(&0);
    let share = pool.and_then(|pool| pool.shares.get(&rank));
    let known = share.map_or(0, |share| share.list.pieces().len() as u64);
    let step = fixture.cursor(rank).step;
    let take = Claim { started, known, step, ..take_of(fixture, rank, wants) };
    takes(fixture, vec![take]).remove(0).unwrap()
}

pub(crate) fn register(tail: Tail) -> Change {
    let (name, dataset) = (JOB.to_owned(), DATASET.to_owned());
    Change::RegisterJob(RegisterJob {
        name,
        identity: identity(tail),
        dataset,
        record_spec_chunks: vec![],
        mixture: None,
    })
}

pub(crate) fn segment(steps: u64) -> Segment {
    Segment { lanes: 2, global_batch: 8, steps: Steps::All(steps) }
}

/// A start from a loader state.
pub(crate) fn from(state_generation: u64, epoch: u64, steps: u64) -> Intent {
    let state_generation = Some(state_generation);
    Intent::Start { state_generation, epoch, segments: vec![segment(steps)], is_reshard: false }
}

/// A start without a loader state.
pub(crate) fn fresh() -> Intent {
    Intent::Start {
        state_generation: None,
        epoch: 0,
        segments: vec![segment(0)],
        is_reshard: false,
    }
}

/// Rank 0 of 2 in run `r1`, served by `session`, without a loader state.
pub(crate) fn first_of_two(session: SessionId) -> StartRank {
    StartRank {
        job: JOB.to_owned(),
        run: Some("r1".to_owned()),
        rank: 0,
        world_size: 2,
        limit: None,
        session,
        trainer: "t".to_owned(),
        intent: fresh(),
        left: None,
        doubt: DoubtPolicy::default(),
        mixture: None,
        left_out: LeftOut::default(),
        peer: None,
        replaces: None,
    }
}
