//! Commands that mostly fit the state that they are applied to, and sometimes do not fit at all.

use proptest::collection::vec;
use proptest::prelude::*;
use shardfeed_plan::{
    Digest, Intent, JobIdentity, LeftOut, Mode, ORDER_VERSION, Records, Sample, Segment, Shuffle,
    Steps, Tail,
};
use shardfeed_scheduler::{
    AddDataset, Change, Claim, Cordon, CursorReport, Dataset, DoubtPolicy, FailDataset, FailScan,
    Failure, FinishDataset, Generation, Hold, JoinSession, LeaseRef, LeasedScan, Part, PartState,
    Phase, PoolFacts, RankCursor, RankRevoke, RegisterJob, ReportListing, ReportScan,
    ReportSkipped, Revoke, ScanRef, SessionId, SkippedRecord, StartRank, State, WaitForDoubt,
};

const DATASETS: [&str; 2] = ["d0", "d1"];
const JOBS: [&str; 5] = ["drop", "uneven", "later", "shared", "other"];
/// Number of samples of each group of the dynamic jobs.
const GROUPS: [u64; 5] = [3, 5, 2, 7, 4];

/// An action; its numbers pick from the existing objects.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Join(u64, u64),
    Leave(u64),
    Expire(u64),
    Add(usize, bool),
    Claim(u64, u32),
    List(u64, u8),
    Scan(u64, u64),
    FailScan(u64),
    Stall(u64),
    Finish(usize, u64),
    FailDataset(usize, u64),
    Register(usize, bool),
    Start(Start),
    End(u64, u64),
    Report(Vec<(u64, u64, u64)>),
    ClaimGroups(Vec<Grab>),
    Revoke(u64, u64),
    /// A pick of a lease, for its job and generation, and a duration.
    Wait(u64, u64),
    Gone(usize, u64),
    Balance(u64),
    Cordon(u64, Cordon),
    Hold(usize, Option<Hold>),
    RemoveDataset(usize),
    RemoveJob(usize),
    Skip(u64, usize, Vec<(u32, u64)>),
}

/// A claim: lease, epochs ahead, further steps, and samples begun, wanted and given back.
type Grab = (u64, u64, u64, u64, u64, Option<u64>);

/// A start of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    job: usize,
    run: u64,
    rank: u64,
    world_size: u64,
    session: u64,
    trainer: u64,
    place: Place,
}

/// Position from which a rank starts.
#[derive(Clone, Debug)]
enum Place {
    Fresh,
    Origin,
    Live,
    /// As `Live`, by a reshard of all ranks.
    Reshard,
    /// As `Live`, with so many steps left out.
    Skip(u64),
    Anywhere(u64, u64, u64, bool),
    Move(u64, u64),
    Reconnect(u64, u64),
    Odd(u64, u64, u64),
}

/// Up to `most` actions, each with a gap in the log, a clock and a request id.
pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<(Action, u64, u64, u64)>> {
    let clock = prop_oneof![30 => 0u64..900_000, 1 => Just(u64::MAX / 2)];
    let any = vec((action(), 0u64..3, clock, 0u64..60), 1..most);
    let ready = prop::bool::weighted(0.8);
    (ready, any).prop_map(|(ready, any)| {
        let first = if ready { jobs() } else { vec![] };
        first.into_iter().map(|action| (action, 0, 0, 60)).chain(any).collect()
    })
}

/// Two workers and all jobs, which random actions alone would rarely reach.
fn jobs() -> Vec<Action> {
    let mut actions = vec![Action::Join(0, 0), Action::Join(1, 0)];
    for dataset in [0, 1] {
        let (list, scan) = (Action::Claim(0, 1), Action::Claim(1, 1));
        actions.extend([Action::Add(dataset, false), list, Action::List(0, 1), scan]);
        actions.extend([Action::Scan(0, 0), Action::Finish(dataset, 1)]);
    }
    actions.extend([0, 1, 2, 3, 4].map(|job| Action::Register(job, false)));
    actions
}

fn action() -> impl Strategy<Value = Action> {
    let pick = || 0u64..8;
    let odd = || prop::bool::weighted(0.1);
    prop_oneof![
        3 => (0u64..3, 0u64..2).prop_map(|(worker, start)| Action::Join(worker, start)),
        1 => pick().prop_map(Action::Leave),
        1 => pick().prop_map(Action::Expire),
        2 => (0usize..2, odd()).prop_map(|(name, odd)| Action::Add(name, odd)),
        4 => (pick(), 0u32..4).prop_map(|(session, most)| Action::Claim(session, most)),
        4 => (pick(), 0u8..3).prop_map(|(session, parts)| Action::List(session, parts)),
        5 => (pick(), pick()).prop_map(|(session, scan)| Action::Scan(session, scan)),
        1 => pick().prop_map(Action::FailScan),
        2 => pick().prop_map(Action::Stall),
        4 => (0usize..2, 0u64..8).prop_map(|(name, attempt)| Action::Finish(name, attempt)),
        1 => (0usize..2, 0u64..8).prop_map(|(name, attempt)| Action::FailDataset(name, attempt)),
        4 => (0usize..5, odd()).prop_map(|(job, odd)| Action::Register(job, odd)),
        20 => vec(grab(), 1..4).prop_map(Action::ClaimGroups),
        3 => (pick(), 0u64..20).prop_map(|(lease, from)| Action::Revoke(lease, from)),
        2 => pick().prop_map(Action::Balance),
        3 => (pick(), 0u64..70_000).prop_map(|(lease, ms)| Action::Wait(lease, ms)),
        8 => (JOBS.len() - 2..JOBS.len(), 0u64..3).prop_map(|(job, rank)| Action::Gone(job, rank)),
        2 => (0u64..3, cordon()).prop_map(|(worker, state)| Action::Cordon(worker, state)),
        2 => (0..JOBS.len(), hold()).prop_map(|(job, hold)| Action::Hold(job, hold)),
        1 => (0usize..2).prop_map(Action::RemoveDataset),
        1 => (0usize..5).prop_map(Action::RemoveJob),
        2 => (pick(), 0usize..5, vec((0u32..3, 0u64..4), 0..4))
            .prop_map(|(session, job, records)| Action::Skip(session, job, records)),
        20 => start().prop_map(Action::Start),
        2 => (pick(), 0u64..9).prop_map(|(lease, off)| Action::End(lease, off)),
        20 => vec((pick(), 0u64..3, 0u64..8), 1..7).prop_map(Action::Report),
    ]
}

fn grab() -> impl Strategy<Value = Grab> {
    let ahead = prop_oneof![12 => Just(0u64), 2 => 1u64..6];
    (0u64..8, ahead, 0u64..4, 0u64..8, 0u64..12, prop::option::weighted(0.3, 0u64..20))
}

fn hold() -> impl Strategy<Value = Option<Hold>> {
    prop_oneof![4 => Just(None), 2 => Just(Some(Hold::Paused)), 1 => Just(Some(Hold::Cancelled))]
}

fn cordon() -> impl Strategy<Value = Cordon> {
    prop_oneof![4 => Just(Cordon::Open), 1 => Just(Cordon::Cordoned), 2 => Just(Cordon::Draining)]
}

fn start() -> impl Strategy<Value = Start> {
    let number = || prop_oneof![9 => 0u64..4, 1 => any::<u64>()];
    let place = prop_oneof![
        3 => Just(Place::Fresh),
        6 => Just(Place::Origin),
        4 => Just(Place::Live),
        2 => Just(Place::Reshard),
        3 => (0u64..3).prop_map(Place::Skip),
        2 => (0u64..4, 0u64..3, 0u64..5, any::<bool>())
            .prop_map(|(token, epoch, step, cut)| Place::Anywhere(token, epoch, step, cut)),
        3 => (0u64..8, 0u64..2).prop_map(|(back, epoch)| Place::Move(back, epoch)),
        3 => (0u64..8, 0u64..3).prop_map(|(back, steps)| Place::Reconnect(back, steps)),
        1 => (number(), number(), number()).prop_map(|(a, b, c)| Place::Odd(a, b, c)),
    ];
    let world_size = prop_oneof![20 => Just(2u64), 1 => Just(1u64), 1 => any::<u64>()];
    let job = prop_oneof![3 => 0usize..3, 2 => 3usize..5];
    (job, 0u64..20, 0u64..2, world_size, 0u64..8, 0u64..3, place).prop_map(
        |(job, run, rank, world_size, session, trainer, place)| Start {
            job,
            run,
            rank,
            world_size,
            session,
            trainer,
            place,
        },
    )
}

fn digest(byte: u8) -> Digest {
    Digest::from_bytes([byte; 32])
}

fn identity(job: usize, odd: bool) -> JobIdentity {
    let (seed, content) = (u64::from(odd), digest(job.min(1) as u8));
    let shuffle = Shuffle {
        digest: content,
        seed,
        enabled: true,
        window: 10,
        interleave: 4,
        block_length: 1,
    };
    let tail = match job {
        1 | 3 | 4 => Tail::Uneven,
        _ => Tail::Drop,
    };
    let (mode, lanes) = if job > 2 { (Mode::Dynamic, 1) } else { (Mode::Deterministic, 2) };
    let (records, decoder) = (Records::Operators(String::new()), "none".to_owned());
    JobIdentity { order: ORDER_VERSION, content, shuffle, lanes, tail, mode, records, decoder }
}

fn failure() -> Failure {
    let (kind, message) = ("ERROR_KIND_CORRUPT".to_owned(), "damaged".to_owned());
    Failure { kind, message, ..Failure::default() }
}

/// Mostly an existing session.
fn session(state: &State, pick: u64) -> SessionId {
    let sessions: Vec<_> = state.sessions().map(|session| session.id).collect();
    match sessions.len() as u64 {
        0 => pick,
        _ if pick == 7 => 3,
        live => sessions[(pick % live) as usize],
    }
}

/// A listing or scan of a session, with its fencing token.
fn held(state: &State, pick: u64, of_listing: bool) -> (SessionId, ScanRef, u64) {
    let sessions = state
        .sessions()
        .flat_map(|session| session.scans.iter().map(|scan| (session.id, scan.clone())));
    let held: Vec<_> = sessions.filter(|(_, scan)| scan.part.is_none() == of_listing).collect();
    let nothing = ScanRef { dataset: DATASETS[0].to_owned(), part: Some(0) };
    let Some((session, scan)) = held.get(pick as usize % held.len().max(1)) else {
        return (session(state, pick), nothing, 1);
    };
    let fencing = state.dataset(&scan.dataset).map_or(0, |dataset| fencing(dataset, scan.part));
    (*session, scan.clone(), fencing - u64::from(pick == 6))
}

fn fencing(dataset: &Dataset, part: Option<u64>) -> u64 {
    match (&dataset.phase, part) {
        (Phase::Listing { lease: Some(lease) }, None) => lease.fencing,
        (Phase::Scanning(scan), Some(part)) => match &scan.parts[part as usize].state {
            PartState::Leased(lease) => lease.fencing,
            _ => 1,
        },
        _ => 1,
    }
}

/// A granted lease, with its rank's cursor.
fn lease(state: &State, pick: u64) -> Option<(LeaseRef, u64, u64)> {
    let ranks = state.jobs().flat_map(|job| {
        job.generations.values().flat_map(move |generation| {
            generation.ranks.iter().filter_map(move |(number, rank)| {
                let fencing = rank.lease.as_ref()?.fencing;
                let (job, generation) = (job.name.clone(), generation.number);
                let lease = LeaseRef { job, generation, rank: *number, fencing };
                Some((lease, rank.cursor.epoch, rank.cursor.step))
            })
        })
    });
    let leases: Vec<_> = ranks.collect();
    // The last leases are of the current generations.
    leases.iter().rev().nth(pick as usize % leases.len().max(1)).cloned()
}

/// A claim of a rank of a dynamic job, with mostly correct values.
fn take(state: &State, grab: &Grab) -> Option<Claim> {
    let (pick, ahead, steps, begun, wants, released) = *grab;
    let mut leases: Vec<_> = (0..40).filter_map(|pick| lease(state, pick)).collect();
    leases.retain(|(lease, ..)| state.job(&lease.job).is_some_and(|job| job.identity.is_dynamic()));
    let (mut lease, epoch, step) = leases.get(pick as usize % leases.len().max(1)).cloned()?;
    let generation = &state.job(&lease.job)?.generations[&lease.generation];
    let epoch = epoch + ahead;
    let pool = generation.pools.get(&epoch);
    let share = pool.and_then(|pool| pool.shares.get(&lease.rank));
    let samples = share.map_or(0, |share| share.list.samples());
    let started = share.map_or(0, |share| share.started);
    let at = pool.map_or(0, |pool| pool.next);
    lease.fencing -= u64::from(wants == 11);
    Some(Claim {
        lease,
        epoch,
        step: if ahead == 0 { step + steps.saturating_sub(1) } else { 0 },
        started: (started + begun.saturating_sub(1)).min(samples + u64::from(begun == 7)),
        known: share.map_or(0, |share| share.list.pieces().len() as u64)
            / (1 + u64::from(pick == 5)),
        wants,
        ahead: pick,
        released: released.map(|released| (started + released).min(samples)),
        version: share
            .filter(|_| released.is_some())
            .map(|share| share.version - share.version.min(u64::from(pick == 6))),
        facts: PoolFacts {
            groups: GROUPS.len() as u64,
            samples: GROUPS.iter().sum(),
            at,
            next: GROUPS[at as usize..].iter().take(1 + pick as usize).copied().collect(),
        },
    })
}

impl Action {
    /// Returns the change, built for the current state.
    pub(crate) fn change(&self, state: &State) -> Change {
        match self {
            Self::Join(worker, start) => Change::JoinSession(JoinSession {
                worker: format!("w{worker}"),
                host: "h".to_owned(),
                incarnation: format!("i{start}"),
                version: String::new(),
                in_process: false,
                ttl_ms: 1,
                endpoint: String::new(),
                decoders: vec![],
                proved: false,
                data_roots: vec![],
            }),
            Self::Leave(pick) => Change::LeaveSession { session: session(state, *pick) },
            Self::Expire(pick) => {
                Change::ExpireSessions { sessions: vec![session(state, *pick), *pick] }
            }
            Self::Start(start) => Change::StartRank(start.start(state)),
            Self::End(pick, off) => {
                let nothing = LeaseRef { job: String::new(), generation: 0, rank: 0, fencing: 0 };
                let (mut lease, ..) = lease(state, *pick).unwrap_or((nothing, 0, 0));
                lease.fencing -= (*off == 0) as u64 * lease.fencing.min(1);
                Change::EndRank { lease, is_told: pick % 2 == 0, failure: None, position: None }
            }
            Self::Report(reports) => {
                let report = |(pick, epochs, steps): &(u64, u64, u64)| {
                    let (mut lease, epoch, step) = lease(state, *pick)?;
                    lease.fencing -= u64::from(*pick == 7);
                    // One step back, forward, or into the next epoch.
                    Some(match epochs {
                        0 => CursorReport { lease, epoch: epoch + 1, step: *steps },
                        _ => CursorReport { lease, epoch, step: (step + steps).saturating_sub(1) },
                    })
                };
                Change::Report { cursors: reports.iter().filter_map(report).collect() }
            }
            Self::Register(job, odd) => {
                let (name, dataset) = (JOBS[*job].to_owned(), DATASETS[(*job).min(1)].to_owned());
                Change::RegisterJob(RegisterJob {
                    name,
                    identity: identity(*job, *odd),
                    dataset,
                    mixture: None,
                    record_spec_chunks: vec![],
                })
            }
            Self::ClaimGroups(grabs) => {
                let mut takes: Vec<Claim> = grabs.iter().filter_map(|g| take(state, g)).collect();
                takes.sort_by(|left, right| left.lease.cmp(&right.lease));
                takes.dedup_by(|left, right| left.lease.rank == right.lease.rank);
                Change::ClaimGroups { takes }
            }
            Self::Revoke(pick, from) => {
                let nothing = LeaseRef { job: String::new(), generation: 0, rank: 0, fencing: 0 };
                let (lease, epoch, _) = lease(state, *pick).unwrap_or((nothing, 0, 0));
                let LeaseRef { job, generation, rank, .. } = lease;
                let revokes = vec![RankRevoke { rank, from: *from }];
                Change::Revoke(Revoke { job, generation, epoch, revokes })
            }
            Self::Wait(pick, ms) => {
                let nothing = LeaseRef { job: String::new(), generation: 0, rank: 0, fencing: 0 };
                let (lease, epoch, _) = lease(state, *pick).unwrap_or((nothing, 0, 0));
                let (LeaseRef { job, generation, .. }, ms) = (lease, *ms);
                Change::WaitForDoubt(WaitForDoubt { job, generation, epochs: vec![epoch], ms })
            }
            Self::Gone(job, rank) => {
                Change::DeclareGone { job: JOBS[*job].to_owned(), rank: *rank }
            }
            Self::Balance(speed) => {
                let mut all = state.balance(JOBS[3], &(0..).zip([1 + speed, 3]).collect());
                let nothing =
                    Revoke { job: String::new(), generation: 0, epoch: 0, revokes: vec![] };
                Change::Revoke(all.pop().unwrap_or(nothing))
            }
            Self::Cordon(worker, cordon) => {
                Change::CordonWorker { worker: format!("w{worker}"), state: *cordon }
            }
            Self::Hold(job, hold) => {
                let (name, reason) = (JOBS[*job].to_owned(), "for a reason".to_owned());
                Change::HoldJob { name, hold: *hold, reason }
            }
            Self::Skip(pick, job, records) => {
                let record = |&(shard, ordinal): &(u32, u64)| SkippedRecord {
                    sample: Sample { shard, ordinal },
                    offset: 16 * ordinal,
                    reason: "damaged".to_owned(),
                };
                let (session, job) = (session(state, *pick), JOBS[*job].to_owned());
                let records = records.iter().map(record).collect();
                Change::ReportSkipped(ReportSkipped { session, job, records, mixture: None })
            }
            Self::RemoveJob(job) => Change::RemoveJob { name: JOBS[*job].to_owned() },
            _ => self.dataset_change(state),
        }
    }

    fn dataset_change(&self, state: &State) -> Change {
        match self {
            Self::Add(name, odd) => Change::AddDataset(AddDataset {
                name: DATASETS[*name].to_owned(),
                patterns: vec![if *odd { "/odd" } else { "/data" }.to_owned()],
                compression: "auto".to_owned(),
                corrupt: shardfeed_plan::Corrupt::Error,
                listing: None,
                program: None,
            }),
            Self::List(pick, parts) => {
                let (session, scan, fencing) = held(state, *pick, true);
                let part = |part| Part { chunk: digest(part), files: 2, bytes: 10 };
                let (dataset, root) = (scan.dataset, "/data".to_owned());
                let parts = (0..*parts).map(part).collect();
                Change::ReportListing(ReportListing { session, dataset, fencing, root, parts })
            }
            Self::Scan(pick, part) => {
                let (session, scan, fencing) = held(state, *pick, false);
                let part = scan.part.unwrap_or(*part);
                let (dataset, chunk, records) = (scan.dataset, digest(part as u8), 5);
                // Without a program, too: the state does not interpret them.
                let maps = vec![digest(200); (part % 3) as usize];
                let report = ReportScan { session, dataset, part, fencing, chunk, records, maps };
                Change::ReportScan(report)
            }
            Self::FailScan(pick) => {
                let (session, scan, fencing) = held(state, *pick, pick % 2 == 0);
                let (dataset, failure) = (scan.dataset, failure());
                Change::FailScan(FailScan { session, dataset, fencing, failure })
            }
            Self::Stall(pick) => {
                let (_, ScanRef { dataset, part }, fencing) = held(state, *pick, pick % 2 == 0);
                Change::ReleaseScans { scans: vec![LeasedScan { dataset, part, fencing }] }
            }
            Self::Finish(name, attempt) => {
                let (dataset, content) = (DATASETS[*name].to_owned(), digest(*name as u8));
                let known = state.dataset(&dataset);
                let progress = known.map(Dataset::progress).unwrap_or_default();
                let attempt = known.map_or(1, |known| known.attempt) + u64::from(*attempt == 0);
                let (shards, records) = (progress.files, progress.records);
                let finish = FinishDataset { dataset, attempt, content, shards, records };
                Change::FinishDataset(finish)
            }
            Self::FailDataset(name, attempt) => {
                let (dataset, failure) = (DATASETS[*name].to_owned(), failure());
                let known = state.dataset(&dataset);
                let attempt = known.map_or(1, |known| known.attempt) + u64::from(*attempt == 0);
                Change::FailDataset(FailDataset { dataset, attempt, failure })
            }
            Self::RemoveDataset(name) => Change::RemoveDataset { name: DATASETS[*name].to_owned() },
            Self::Claim(pick, most) => {
                Change::ClaimScans { session: session(state, *pick), most: *most }
            }
            other => unreachable!("{other:?} is no change of a dataset"),
        }
    }
}

impl Start {
    fn start(&self, state: &State) -> StartRank {
        let job = JOBS[self.job].to_owned();
        let current = state.job(&job).and_then(|job| job.current());
        let run = match self.run {
            0 => None,
            // Mostly the current run.
            1..18 => current.filter(|current| !current.implicit).map(|current| current.run.clone()),
            other => Some(format!("r{other}-{}", current.map_or(0, |current| current.number / 4))),
        };
        StartRank {
            job,
            run,
            rank: self.rank,
            world_size: self.world_size,
            limit: None,
            session: session(state, self.session),
            trainer: self.trainer(state),
            intent: self.intent(state, current),
            left: self.left(state),
            doubt: DoubtPolicy::default(),
            mixture: None,
            left_out: self.left_out(current),
            peer: None,
            replaces: self.replaces(current),
        }
    }

    /// A loader that is ahead of its last report; its lease is mostly of another session.
    fn replaces(&self, current: Option<&Generation>) -> Option<CursorReport> {
        let (current, rank) = (current?, current?.ranks.get(&self.rank)?);
        let fencing = rank.lease.as_ref().filter(|_| self.trainer > 0)?.fencing;
        let (job, generation) = (JOBS[self.job].to_owned(), current.number);
        let lease = LeaseRef { job, generation, rank: self.rank, fencing };
        let RankCursor { epoch, step } = rank.cursor;
        Some(CursorReport { lease, epoch, step: step + self.trainer - 1 })
    }

    /// A rank that comes back is mostly the known trainer.
    fn trainer(&self, state: &State) -> String {
        let back = match self.place {
            Place::Move(back, _) | Place::Reconnect(back, _) if self.trainer > 0 => Some(back),
            _ => None,
        };
        let generation = back.and_then(|back| self.believed(state, back));
        let rank = generation.and_then(|generation| generation.ranks.get(&self.rank));
        rank.map_or_else(|| format!("t{}", self.trainer), |rank| rank.trainer.clone())
    }

    /// A rank that comes back or moves sometimes reports the position that it leaves.
    fn left(&self, state: &State) -> Option<RankCursor> {
        let (Place::Move(back, ahead) | Place::Reconnect(back, ahead)) = self.place else {
            return None;
        };
        let generation = self.believed(state, back).filter(|_| self.trainer.is_multiple_of(2))?;
        let RankCursor { epoch, step } = generation.ranks.get(&self.rank)?.cursor;
        Some(RankCursor { epoch, step: step + ahead % 2 })
    }

    /// Steps that a rank leaves out, or that its generation left out before; sometimes none of them.
    fn left_out(&self, current: Option<&Generation>) -> LeftOut {
        let Some(current) = current.filter(|_| self.trainer != 1) else {
            return LeftOut::default();
        };
        match self.place {
            Place::Origin => current.left_out.clone(),
            Place::Live | Place::Reshard | Place::Skip(_) => {
                let Some(rank) = current.ranks.get(&self.rank) else { return LeftOut::default() };
                let RankCursor { epoch, step } = rank.cursor;
                let mut left_out = current.left_out_of(epoch);
                if let Place::Skip(steps) = self.place {
                    left_out.add(step, step + steps);
                }
                left_out
            }
            // Not all of these are steps before the start.
            Place::Anywhere(0, _, step, _) => LeftOut::new(vec![(0, step)]),
            Place::Odd(a, b, _) => LeftOut::new(vec![(a, b)]),
            _ => LeftOut::default(),
        }
    }

    /// A generation that a rank may assume to be in: mostly the current one.
    fn believed<'a>(&self, state: &'a State, back: u64) -> Option<&'a Generation> {
        let generations = &state.job(JOBS[self.job])?.generations;
        generations.values().rev().nth(if back < 5 { 0 } else { back as usize - 4 })
    }

    fn intent(&self, state: &State, current: Option<&Generation>) -> Intent {
        let segment = |steps| Segment { lanes: 2, global_batch: 4, steps: Steps::All(steps) };
        let fresh = Intent::Start {
            state_generation: None,
            epoch: 0,
            segments: vec![segment(0)],
            is_reshard: false,
        };
        let rank = current.and_then(|current| current.ranks.get(&self.rank));
        match (&self.place, current) {
            (Place::Origin, Some(current)) => Intent::Start {
                state_generation: current.parent,
                epoch: current.origin.epoch,
                segments: current.origin.segments.clone(),
                is_reshard: false,
            },
            (Place::Live | Place::Reshard | Place::Skip(_), Some(current)) if rank.is_some() => {
                let cursor = rank.unwrap().cursor;
                let mut segments = current.segments_of(cursor.epoch).unwrap();
                let (open, closed) = segments.split_last_mut().unwrap();
                let before: u64 = closed.iter().map(|segment| segment.steps.most()).sum();
                let skipped = if let Place::Skip(steps) = self.place { steps } else { 0 };
                open.steps = Steps::All(cursor.step - before + skipped);
                let state_generation = Some(current.number);
                let is_reshard = matches!(self.place, Place::Reshard);
                Intent::Start { state_generation, epoch: cursor.epoch, segments, is_reshard }
            }
            (Place::Anywhere(token, epoch, step, cut), _) => {
                let mut segments = vec![segment(*step)];
                segments.extend(cut.then(|| Segment { lanes: 4, ..segment(1) }));
                Intent::Start {
                    state_generation: Some(*token),
                    epoch: *epoch,
                    segments,
                    is_reshard: false,
                }
            }
            (Place::Move(back, epoch), _) => {
                let from =
                    self.believed(state, *back).map_or(*back, |generation| generation.number);
                Intent::Move { from, epoch: *epoch, segments: vec![segment(0)] }
            }
            (Place::Reconnect(back, steps), _) => {
                let generation = self.believed(state, *back);
                let rank = generation.and_then(|generation| generation.ranks.get(&self.rank));
                let (epoch, step) = rank.map_or((0, 0), |r| (r.cursor.epoch, r.cursor.step));
                let generation = generation.map_or(*back, |generation| generation.number);
                Intent::Reconnect { generation, epoch, step: (step + steps).saturating_sub(1) }
            }
            (Place::Odd(a, b, c), _) => match a % 3 {
                0 => Intent::Reconnect { generation: *a, epoch: *b, step: *c },
                1 => Intent::Move { from: *a, epoch: *b, segments: vec![segment(*c); 3] },
                _ => Intent::Start {
                    state_generation: Some(*a),
                    epoch: *b,
                    segments: vec![Segment { lanes: *b, global_batch: *c, steps: Steps::All(*a) }],
                    is_reshard: false,
                },
            },
            _ => fresh,
        }
    }
}
