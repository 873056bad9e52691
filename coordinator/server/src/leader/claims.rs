//! Claims of groups by ranks of dynamic jobs: many at once, and often before groups are available.
//! One loop collects the claims into commands, and delays those that would get nothing.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use shardfeed_plan::dynamic::Groups;
use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1::{ClaimGroupsResponse, GroupRange};
use shardfeed_scheduler::{
    Answer, CLAIMS_MAX, Change, Claim, ClaimResult, EPOCHS_KEPT, Pool, PoolFacts, RankAssignment,
    Refusal, SIZES_TOLD_MAX, State,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::error::{self, Result};
use crate::leader::claim_queue::ClaimRequest;
use crate::leader::core::Core;

/// Interval between checks for new groups and other changes for waiting claims.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval between requests to ranks with much work to return some of it, for waiting ranks.
const BALANCE_EVERY: Duration = Duration::from_millis(200);

/// Time for which an answer is repeated to the same request id; longer than any caller retries.
const ANSWERS_KEPT: Duration = Duration::from_secs(60);

/// Maximum answers kept: those of 10,000 ranks, twice.
const ANSWERS_MAX: usize = 20_000;

/// Maximum commands in flight: while some are being replicated, others are prepared.
const FLIGHTS_MAX: usize = 4;

/// Maximum repeated proposals of a claim whose cursor was outdated when it was applied.
const TRIES_MAX: u32 = 4;

#[derive(Debug)]
struct PendingClaim {
    ask: ClaimRequest,
    tries: u32,
    /// Last answer, which had nothing new; sent when the wait ends.
    last: Option<ClaimGroupsResponse>,
    /// Number of closed positions of its list, before it was proposed.
    closed: usize,
    /// Horizon of its list, before it was proposed.
    horizon: u64,
    /// Free samples of the pool, before it was last proposed.
    free: u64,
}

/// A rank of a generation of a job.
type RankKey = (String, u64, u64);

/// A job, its generation, and an epoch.
type PoolKey = (String, u64, u64);

type WantedSamples = BTreeMap<PoolKey, u64>;

type InFlightProposal = BoxFuture<'static, Landed>;

/// A command after its flight, with the result of each of its claims.
struct Landed {
    cases: Vec<PendingClaim>,
    taken: Result<Vec<Result<ClaimResult, Refusal>>>,
}

/// Answers that may be requested again.
#[derive(Default)]
struct Answered {
    by_id: BTreeMap<String, ClaimGroupsResponse>,
    /// Oldest first.
    ids: VecDeque<(Instant, String)>,
}

impl Answered {
    fn insert(&mut self, id: &str, answer: &ClaimGroupsResponse, now: Instant) {
        if !id.is_empty() && self.by_id.insert(id.to_owned(), answer.clone()).is_none() {
            self.ids.push_back((now, id.to_owned()));
        }
    }

    fn age(&mut self, now: Instant) {
        let old = |at: &Instant| now.saturating_duration_since(*at) >= ANSWERS_KEPT;
        while self.ids.len() > ANSWERS_MAX || self.ids.front().is_some_and(|(at, _)| old(at)) {
            let oldest = self.ids.pop_front();
            oldest.and_then(|(_, id)| self.by_id.remove(&id));
        }
    }
}

pub(crate) struct ClaimBatcher {
    core: Arc<Core>,
    asks: mpsc::Receiver<ClaimRequest>,
    queue: VecDeque<PendingClaim>,
    waiting: Vec<PendingClaim>,
    /// Ranks whose claims are in flight: the epoch, and the samples that they want of it.
    flying: BTreeMap<RankKey, (u64, u64)>,
    answered: Answered,
    balanced: Instant,
    balancing: Option<JoinHandle<()>>,
}

impl ClaimBatcher {
    pub(crate) fn new(core: Arc<Core>, asks: mpsc::Receiver<ClaimRequest>) -> Self {
        let balanced = core.host.now();
        Self {
            core,
            asks,
            queue: VecDeque::new(),
            waiting: vec![],
            flying: BTreeMap::new(),
            answered: Answered::default(),
            balanced,
            balancing: None,
        }
    }

    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut flights = FuturesUnordered::<InFlightProposal>::new();
        while !*stop.borrow() {
            while flights.len() < FLIGHTS_MAX
                && let Some(flight) = self.take_off()
            {
                flights.push(flight);
            }
            tokio::select! {
                ask = self.asks.recv() => {
                    let Some(ask) = ask else { return };
                    self.take_in(ask);
                    while let Ok(ask) = self.asks.try_recv() {
                        self.take_in(ask);
                    }
                }
                Some(landed) = flights.next(), if !flights.is_empty() => self.land(landed),
                _ = ticks.tick() => self.look(),
                _ = stop.changed() => {}
            }
        }
    }

    fn take_in(&mut self, ask: ClaimRequest) {
        if let Some(answer) = self.answered.by_id.get(&ask.request_id) {
            // The caller may have gone.
            let _ = ask.reply.send(Ok(answer.clone()));
            return;
        }
        // A rank has one claim at a time: a new one ends the wait of its earlier one.
        let same = |case: &PendingClaim| {
            case.ask.take.lease == ask.take.lease && case.ask.take.epoch == ask.take.epoch
        };
        let earlier = self.waiting.iter().position(same).map(|at| self.waiting.swap_remove(at));
        if let Some(earlier) = earlier {
            self.answer_last(earlier);
        }
        let (last, free) = (None, u64::MAX);
        self.queue.push_back(PendingClaim { ask, tries: 0, last, closed: 0, horizon: 0, free });
    }

    /// Returns the next command, if there is one: claims of different ranks.
    fn take_off(&mut self) -> Option<InFlightProposal> {
        if self.queue.is_empty() {
            return None;
        }
        if let Err(error) = self.core.available() {
            self.refuse_all(&error);
            return None;
        }
        let (mut cases, mut blocked) = (vec![], vec![]);
        let others = self.under_way();
        while cases.len() < CLAIMS_MAX
            && let Some(case) = self.queue.pop_front()
        {
            // The caller has gone.
            if case.ask.reply.is_closed() {
                continue;
            }
            match self.flying.entry(rank_of(&case)) {
                Entry::Occupied(_) => blocked.push(case),
                Entry::Vacant(vacant) => {
                    vacant.insert((case.ask.take.epoch, case.ask.take.wants));
                    cases.push(case);
                }
            }
        }
        for case in blocked.into_iter().rev() {
            self.queue.push_front(case);
        }
        if cases.is_empty() {
            return None;
        }
        let takes = self.core.read(|state| prepare(state, &mut cases, &others));
        let core = Arc::clone(&self.core);
        let flight = async move {
            let taken = match core.propose_own(Change::ClaimGroups { takes }).await {
                Ok(Answer::Taken(taken)) if taken.len() == cases.len() => Ok(taken),
                Ok(_) => Err(error::lost("a take")),
                Err(error) => Err(error),
            };
            Landed { cases, taken }
        };
        Some(flight.boxed())
    }

    fn under_way(&self) -> WantedSamples {
        let mut wanted = WantedSamples::new();
        for ((job, generation, _), (epoch, wants)) in &self.flying {
            let all = wanted.entry((job.clone(), *generation, *epoch)).or_default();
            *all = all.saturating_add(*wants);
        }
        wanted
    }

    fn land(&mut self, Landed { cases, taken }: Landed) {
        for case in &cases {
            self.flying.remove(&rank_of(case));
        }
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => return refuse(cases, &error),
        };
        let core = Arc::clone(&self.core);
        let now = core.host.now();
        core.read(|state| {
            for (case, taken) in cases.into_iter().zip(taken) {
                self.land_one(state, case, taken, now);
            }
        });
    }

    fn land_one(
        &mut self,
        state: &State,
        mut case: PendingClaim,
        taken: Result<ClaimResult, Refusal>,
        now: Instant,
    ) {
        let taken = match taken {
            Ok(taken) => taken,
            // Its cursor was written while the claim was in flight.
            Err(Refusal::Invalid(_)) if case.tries < TRIES_MAX && is_behind(state, &case.ask) => {
                case.tries += 1;
                self.queue.push_back(case);
                return;
            }
            Err(refusal) => {
                let _ = case.ask.reply.send(Err(error::refusal(&refusal)));
                return;
            }
        };
        self.core.metrics.grants.inc_by(taken.pieces.len() as u64);
        let take = &mut case.ask.take;
        let news = !taken.pieces.is_empty()
            || taken.truncated.is_some()
            || taken.revoke_from.is_some()
            || taken.ended
            || taken.horizon > case.horizon
            || taken.closed.len() != case.closed;
        let waits = take.wants > 0 && now < case.ask.until;
        let answer = response(state, take, taken);
        if news || !waits {
            return self.answer(case, answer, now);
        }
        // The rank returned it with this claim; at the next proposal other ranks may have it.
        take.released = None;
        (case.closed, case.horizon) = (answer.closed.len(), answer.horizon);
        case.last = Some(answer);
        self.waiting.push(case);
    }

    fn answer(&mut self, case: PendingClaim, answer: ClaimGroupsResponse, now: Instant) {
        self.answered.insert(&case.ask.request_id, &answer, now);
        let _ = case.ask.reply.send(Ok(answer));
    }

    fn answer_last(&mut self, mut case: PendingClaim) {
        let now = self.core.host.now();
        if let Some(last) = case.last.take() {
            self.answer(case, last, now);
        }
    }

    /// Proposes waiting claims for which there is something new, and ends waits that have expired.
    fn look(&mut self) {
        let now = self.core.host.now();
        self.answered.age(now);
        if self.waiting.is_empty() {
            return;
        }
        if let Err(error) = self.core.available() {
            self.refuse_all(&error);
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let core = Arc::clone(&self.core);
        let mut over = vec![];
        // Only as many claims are proposed as may get some of the free samples.
        let mut left: BTreeMap<PoolKey, u64> = BTreeMap::new();
        core.read(|state| {
            for case in waiting {
                if case.ask.reply.is_closed() {
                    continue;
                }
                let is_told = match news(state, &case) {
                    News::Nothing => false,
                    News::Own => true,
                    News::Free(free) => {
                        let left = left.entry(pool_key(&case)).or_insert(free);
                        let is_told = *left > 0;
                        *left = left.saturating_sub(case.ask.take.wants.max(1));
                        is_told
                    }
                };
                if is_told {
                    self.queue.push_back(case);
                } else if now >= case.ask.until {
                    over.push(case);
                } else {
                    self.waiting.push(case);
                }
            }
        });
        over.into_iter().for_each(|case| self.answer_last(case));
        let due = now.saturating_duration_since(self.balanced) >= BALANCE_EVERY;
        if due && !self.waiting.is_empty() {
            self.balanced = now;
            self.balance();
        }
    }

    /// Requests work back for waiting ranks, from the ranks that would finish last.
    fn balance(&mut self) {
        let mut revokes = vec![];
        if self.balancing.as_ref().is_some_and(|balancing| !balancing.is_finished()) {
            return;
        }
        let starved = self.waiting.iter().map(|case| case.ask.take.lease.job.clone());
        let starved: BTreeSet<String> = starved.collect();
        for job in starved {
            let speeds = self.core.live().progress.speeds(&job);
            revokes.extend(self.core.read(|state| state.balance(&job, &speeds)));
        }
        if revokes.is_empty() {
            return;
        }
        let core = Arc::clone(&self.core);
        // Claims continue meanwhile.
        self.balancing = Some(tokio::spawn(async move {
            for revoke in revokes {
                let (job, ranks) = (revoke.job.clone(), revoke.revokes.len() as u64);
                match core.propose_own(Change::Revoke(revoke)).await {
                    Ok(_) => {
                        core.metrics.revocations.inc_by(ranks);
                        tracing::debug!(job, ranks, "revoked work for ranks that wait");
                    }
                    Err(error) => tracing::warn!(job, %error, "cannot revoke work"),
                }
            }
        }));
    }

    fn refuse_all(&mut self, error: &WireError) {
        refuse(std::mem::take(&mut self.waiting), error);
        refuse(std::mem::take(&mut self.queue), error);
    }
}

fn refuse(cases: impl IntoIterator<Item = PendingClaim>, error: &WireError) {
    for case in cases {
        let _ = case.ask.reply.send(Err(error.clone()));
    }
}

fn rank_of(case: &PendingClaim) -> RankKey {
    let lease = &case.ask.take.lease;
    (lease.job.clone(), lease.generation, lease.rank)
}

fn pool_key(case: &PendingClaim) -> PoolKey {
    let take = &case.ask.take;
    (take.lease.job.clone(), take.lease.generation, take.epoch)
}

/// Returns the claims of a command, with the facts that they need from the current state.
/// - `others`: samples wanted by claims in flight, which come first.
fn prepare(state: &State, cases: &mut [PendingClaim], others: &WantedSamples) -> Vec<Claim> {
    let mut told = WantedSamples::new();
    for case in cases.iter() {
        let wanted = told.entry(pool_key(case)).or_default();
        *wanted = wanted.saturating_add(case.ask.take.wants);
    }
    for (pool, wants) in others {
        if let Some(wanted) = told.get_mut(pool) {
            *wanted = wanted.saturating_add(*wants);
        }
    }
    let prepare = |case: &mut PendingClaim| {
        let key = pool_key(case);
        let (take, groups) = (&mut case.ask.take, &case.ask.groups);
        if let Some(cursor) = cursor_of(state, take)
            && cursor.0 == take.epoch
        {
            take.step = take.step.max(cursor.1);
        }
        let pool = pool_of(state, take);
        let at = pool.map_or(0, |pool| pool.next);
        let share = pool.and_then(|pool| pool.shares.get(&take.lease.rank));
        // The state before the claim, so that samples freed during its flight count as new.
        case.free = pool.map_or(u64::MAX, Pool::free);
        case.closed = share.map_or(0, |share| share.list.closed().len());
        case.horizon = share.map_or(0, |share| share.horizon);
        // The first claim of an epoch carries the sizes for all.
        let wanted = told.remove(&key);
        let next = wanted.map(|wanted| sizes(groups, at, wanted)).unwrap_or_default();
        take.facts = PoolFacts { groups: groups.count(), samples: groups.samples(), at, next };
        let is_other = share.is_some_and(|share| knows_another(&case.ask, share));
        let take = &case.ask.take;
        // A worker that knows more than was ever reported to it gets the whole list.
        let known = if is_other { u64::MAX } else { take.known };
        Claim { known, ..take.clone() }
    };
    cases.iter_mut().map(prepare).collect()
}

/// Returns the sizes of enough groups for the wanted samples, and one more for each rank in flight.
fn sizes(groups: &Groups, at: u64, wanted: u64) -> Vec<u64> {
    let (mut next, mut samples, mut beside) = (vec![], 0_u64, 0);
    for group in (at..groups.count()).take(SIZES_TOLD_MAX) {
        if samples >= wanted {
            beside += 1;
        }
        if beside > CLAIMS_MAX * FLIGHTS_MAX {
            break;
        }
        let size = groups.samples_of(group);
        samples = samples.saturating_add(size);
        next.push(size);
    }
    next
}

fn pool_of<'a>(state: &'a State, take: &Claim) -> Option<&'a Pool> {
    state.generation(&take.lease.job, take.lease.generation)?.pools.get(&take.epoch)
}

/// Returns epoch and step of the rank in the state.
fn cursor_of(state: &State, take: &Claim) -> Option<(u64, u64)> {
    let cursor = state.rank(&take.lease.job, take.lease.generation, take.lease.rank)?.cursor;
    Some((cursor.epoch, cursor.step))
}

fn is_behind(state: &State, ask: &ClaimRequest) -> bool {
    cursor_of(state, &ask.take).is_some_and(|cursor| cursor > (ask.take.epoch, ask.take.step))
}

/// True if the worker knows a list of another version: the answer with this one was lost, and what
/// was reported to it counts as known.
fn knows_another(ask: &ClaimRequest, share: &RankAssignment) -> bool {
    ask.take.known > 0 && ask.known_version.is_some_and(|version| version != share.version)
}

/// Change that would now be new in the answer to a waiting claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    Own,
    Free(u64),
}

fn news(state: &State, case: &PendingClaim) -> News {
    let take = &case.ask.take;
    if state.verdict(&take.lease).is_err() {
        return News::Own;
    }
    let Some(generation) = state.generation(&take.lease.job, take.lease.generation) else {
        return News::Own;
    };
    let Some(pool) = generation.pools.get(&take.epoch) else {
        let may_begin = generation.pools.len() < EPOCHS_KEPT || generation.is_over(take.epoch);
        return if may_begin { News::Own } else { News::Nothing };
    };
    let rank = take.lease.rank;
    let share = pool.shares.get(&rank);
    let own = share.is_some_and(|share| {
        share.list.pieces().len() as u64 != take.known
            || knows_another(&case.ask, share)
            || share.revoke_from.is_some()
            || share.list.closed().len() != case.closed
    });
    match pool.free() {
        _ if own || pool.has_ended(rank) => News::Own,
        free if free > 0 && free != case.free => News::Free(free),
        _ => News::Nothing,
    }
}

fn response(state: &State, take: &Claim, taken: ClaimResult) -> ClaimGroupsResponse {
    let pool = pool_of(state, take);
    let share = pool.and_then(|pool| pool.shares.get(&take.lease.rank));
    let piece = |piece: shardfeed_plan::dynamic::GroupRange| GroupRange {
        group: piece.group,
        from: piece.from,
        to: piece.to,
    };
    ClaimGroupsResponse {
        pieces: taken.pieces.into_iter().map(piece).collect(),
        // If a cut leaves less than the worker knows, the answer has the whole list.
        first: if taken.truncated == Some(0) { 0 } else { take.known },
        samples: share.map_or(0, |share| share.list.samples()),
        horizon: taken.horizon,
        version: taken.version,
        closed: taken.closed,
        revoke_from: taken.revoke_from,
        ended: taken.ended,
        steps_before: taken.first_step,
    }
}
