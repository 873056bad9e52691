//! Claims of groups by ranks of dynamic jobs, and the return of groups that they have not begun.
//! Source: docs/ORDER.md, section 10; docs/ARCHITECTURE.md, Dynamic jobs.

use std::collections::{BTreeMap, BTreeSet};

use shardfeed_plan::dynamic::GroupRange;

use crate::dynamic::pool::Pool;
use crate::job::generation::Generation;
use crate::log::{
    Answer, CLAIMS_MAX, Claim, ClaimResult, PIECES_TOLD_MAX, PoolFacts, REVOKES_MAX, RankCursor,
    Refusal, Result, Revoke, SIZES_TOLD_MAX,
};
use crate::state::{Moment, State};

/// Number of group ranges at the end of a rank's list whose shards its worker probably has at hand.
const PIECES_NEAR: usize = 16;

/// Facts of the claims of one command, by job, generation and epoch: those that reach furthest.
type Told<'a> = BTreeMap<(&'a str, u64, u64), &'a PoolFacts>;

impl State {
    pub(crate) fn claim_groups(&mut self, moment: Moment, takes: &[Claim]) -> Result<Answer> {
        if takes.is_empty() || takes.len() > CLAIMS_MAX {
            let reason =
                format!("{} claims in one command; 1 to {CLAIMS_MAX} are allowed", takes.len());
            return Err(Refusal::Invalid(reason));
        }
        let ranks =
            takes.iter().map(|take| (&take.lease.job, take.lease.generation, take.lease.rank));
        if ranks.collect::<BTreeSet<_>>().len() < takes.len() {
            let reason = "two claims of one rank in one command; combine claims of different ranks";
            return Err(Refusal::Invalid(reason.to_owned()));
        }
        let mut told = Told::new();
        for take in takes {
            let pool = (take.lease.job.as_str(), take.lease.generation, take.epoch);
            let facts = told.entry(pool).or_insert(&take.facts);
            if end_of(&take.facts) > end_of(facts) {
                *facts = &take.facts;
            }
        }
        // Facts that fit one claim fit the others: the sizes are the same.
        let mut fitting = vec![];
        let taken = takes.iter().map(|take| {
            let pool = (take.lease.job.as_str(), take.lease.generation, take.epoch);
            let facts = told.get(&pool).copied();
            self.take(moment, take, facts.unwrap_or(&take.facts), &mut fitting)
        });
        Ok(Answer::Taken(taken.collect()))
    }

    /// Applies one rank's claim. A refused claim changes nothing.
    /// - `fitting`: pools, by job, generation and epoch, that the facts are known to fit.
    fn take<'a>(
        &mut self,
        moment: Moment,
        take: &'a Claim,
        facts: &PoolFacts,
        fitting: &mut Vec<(&'a str, u64, u64)>,
    ) -> Result<ClaimResult> {
        self.verdict(&take.lease)?;
        let lease = &take.lease;
        let may_get = !self.is_cordoned_rank(lease);
        let job = self.jobs.get_mut(&lease.job)?;
        if !job.identity.is_dynamic() {
            let reason = format!(
                "claiming groups requires mode=\"dynamic\", but job `{}` is deterministic",
                job.name
            );
            return Err(Refusal::Invalid(reason));
        }
        check_facts(&take.facts)?;
        let Some(generation) = job.generations.get_mut(&lease.generation) else {
            return Err(Refusal::NotFound { what: "generation".to_owned(), name: String::new() });
        };
        let pool = (lease.job.as_str(), lease.generation, take.epoch);
        let fits = fitting.contains(&pool);
        let asking = ClaimCheck { rank: lease.rank, take, facts, fits, may_get };
        let Some(known) = asking.check(generation)? else {
            // Other ranks are epochs behind; the worker repeats the claim.
            let nothing = asking.nothing(generation);
            let sealed = generation.give_up_oldest(moment.now_ms);
            job.seal(sealed, &mut self.events);
            return Ok(nothing);
        };
        if known == ClaimPosition::Beyond {
            return Ok(ClaimResult { ended: true, ..asking.nothing(generation) });
        }
        if !fits {
            fitting.push(pool);
        }
        let before = generation.ranks.get(&lease.rank).map(|rank| rank.cursor);
        let to = RankCursor { epoch: take.epoch, step: take.step };
        if before.is_some_and(|before| before < to && asking.is_in_epoch(before, generation)) {
            let sealed = generation.advance(lease.rank, to, moment.now_ms);
            job.seal(sealed, &mut self.events);
        }
        let pool = job.generations.get_mut(&lease.generation);
        let pool = pool.and_then(|generation| generation.pools.get_mut(&take.epoch));
        let taken = pool.map(|pool| asking.grant(pool, moment.now_ms));
        Ok(taken.expect("the pool was made when the take was checked"))
    }

    pub(crate) fn revoke(&mut self, revoke: &Revoke) -> Result<Answer> {
        let Revoke { job, generation: number, epoch, revokes } = revoke;
        let job = self.jobs.get_mut(job)?;
        if revokes.len() > REVOKES_MAX {
            let (len, most) = (revokes.len(), REVOKES_MAX);
            return Err(Refusal::Invalid(format!(
                "{len} revocations in one command; at most {most}"
            )));
        }
        if let Some(refusal) = job.superseded(*number) {
            return Err(refusal);
        }
        let pool = job.generations.get_mut(number).and_then(|known| known.pools.get_mut(epoch));
        let Some(pool) = pool else {
            let name = &job.name;
            let reason =
                format!("generation {number} of job `{name}` shares nothing out in epoch {epoch}");
            return Err(Refusal::Invalid(reason));
        };
        for one in revokes {
            pool.revoke(one.rank, one.from);
        }
        Ok(Answer::Done)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimPosition {
    /// The rank is in the epoch or before it.
    Here,
    Beyond,
}

/// A claim of one rank, with its facts and limits.
struct ClaimCheck<'a> {
    rank: u64,
    take: &'a Claim,
    /// Facts of this claim or of another one in the same command.
    facts: &'a PoolFacts,
    /// True if these facts are known to fit the groups that were begun.
    fits: bool,
    may_get: bool,
}

impl ClaimCheck<'_> {
    /// Checks the claim, and creates the epoch's pool if there is none.
    ///
    /// `None` while the maximum number of pools is reached.
    fn check(&self, generation: &mut Generation) -> Result<Option<ClaimPosition>> {
        let Claim { epoch, step, facts, .. } = self.take;
        let cursor =
            generation.ranks.get(&self.rank).map_or(generation.start(), |rank| rank.cursor);
        let is_forgotten = generation.is_over(*epoch) && !generation.pools.contains_key(epoch);
        if *epoch < cursor.epoch || is_forgotten {
            return Ok(Some(ClaimPosition::Beyond));
        }
        let to = RankCursor { epoch: *epoch, step: *step };
        if !to.is_possible() || !generation.can_stand_at(self.rank, to, false) {
            return Err(self.invalid(&format!("was not granted the batches before step {step}")));
        }
        if *epoch == cursor.epoch && *step < cursor.step {
            let known = cursor.step;
            let reason =
                format!("claims at step {step}, but has consumed everything before {known}");
            return Err(self.invalid(&reason));
        }
        let known = generation.pools.get(epoch);
        if let Some(pool) = known {
            self.check_positions(pool)?;
            if !self.fits {
                check_sizes(pool, self.facts)?;
            }
        } else if self.take.started > 0 || self.take.released.is_some() {
            return Err(self.invalid("began groups that it was not granted"));
        }
        let mut new = Pool::new(facts.groups, facts.samples, generation.batch_size());
        new.first_step = generation.first_step(*epoch);
        if known.is_none() {
            check_sizes(&new, self.facts)?;
        }
        Ok(generation.pool_mut(*epoch, || new).map(|_| ClaimPosition::Here))
    }

    /// Checks the positions in the list that the claim reports.
    fn check_positions(&self, pool: &Pool) -> Result<()> {
        let Claim { started, released, .. } = self.take;
        let share = pool.shares.get(&self.rank);
        let samples = share.map_or(0, |share| share.list.samples());
        if *started > samples {
            return Err(
                self.invalid(&format!("began {started} samples, but was granted {samples}"))
            );
        }
        let Some(released) = released else {
            return Ok(());
        };
        if *released < *started || *released > samples {
            let reason =
                format!("returns samples from {released} on, but began {started} of {samples}");
            return Err(self.invalid(&reason));
        }
        Ok(())
    }

    fn invalid(&self, what: &str) -> Refusal {
        let Claim { lease, epoch, .. } = self.take;
        let (rank, job) = (self.rank, &lease.job);
        Refusal::Invalid(format!("rank {rank} of job `{job}` in epoch {epoch} {what}"))
    }

    /// True if the rank is already in the claim's epoch, or reports that it is: at the epoch's
    /// first step it may still be in the previous one.
    fn is_in_epoch(&self, cursor: RankCursor, generation: &Generation) -> bool {
        let Claim { epoch, step, .. } = self.take;
        cursor.epoch == *epoch || *step > generation.first_step(*epoch)
    }

    /// Records the rank's progress and grants it the samples that it lacks.
    fn grant(&self, pool: &mut Pool, now_ms: u64) -> ClaimResult {
        let Claim { started, released, version, wants, .. } = self.take;
        let share = pool.share_mut(self.rank);
        share.start_to((*started).min(share.list.samples()));
        let samples = share.list.samples();
        let mut truncated = None;
        // After another cut the rank may have begun samples that were granted at this position.
        let is_current = version.is_none_or(|version| version == share.version);
        if let Some(released) = released.filter(|released| is_current && *released < samples) {
            let position = released.max(share.started);
            pool.give_back(self.rank, position, now_ms);
            truncated = Some(position);
        }
        // Samples that a rank gives back are for other ranks.
        if self.may_get && truncated.is_none() && !pool.has_ended(self.rank) {
            pool.fill(self.rank, *wants, self.facts);
        }
        if *wants > 0 {
            pool.close_exhausted(self.rank, self.may_get);
        }
        pool.share_mut(self.rank).open(self.take.ahead);
        self.tell(pool, truncated)
    }

    /// Returns the changes that the worker does not know yet.
    fn tell(&self, pool: &mut Pool, truncated: Option<u64>) -> ClaimResult {
        let ended = pool.has_ended(self.rank);
        let (first_step, batch_size) = (pool.first_step, pool.batch_size);
        let share = pool.share_mut(self.rank);
        let pieces = share.list.pieces();
        // A worker that knows more than was reported to it knows another list.
        let is_known = self.take.known <= share.told;
        let truncated = if is_known { truncated } else { Some(0) };
        let known = usize::try_from(self.take.known).unwrap_or(usize::MAX);
        let known = if is_known { known.min(pieces.len()) } else { 0 };
        let told: Vec<GroupRange> = pieces[known..].iter().take(PIECES_TOLD_MAX).copied().collect();
        let end = known + told.len();
        let more = end < pieces.len();
        share.told = share.told.max(end as u64);
        ClaimResult {
            truncated,
            pieces: told,
            more,
            horizon: share.horizon,
            version: share.version,
            closed: share.list.closed(),
            revoke_from: share.revoke_from,
            ended,
            first_step,
            batch_size,
        }
    }

    fn nothing(&self, generation: &Generation) -> ClaimResult {
        ClaimResult {
            first_step: generation.first_step(self.take.epoch),
            batch_size: generation.batch_size(),
            ..ClaimResult::default()
        }
    }
}

impl Pool {
    /// Appends free group ranges in plan order until a rank has `wants` samples not begun.
    fn fill(&mut self, rank: u64, wants: u64, facts: &PoolFacts) {
        // Near the end, free samples are for ranks that have none: a rank with a batch left would
        // only be asked to give them back.
        let is_tail = self.next == self.groups;
        let has_batch = self.share_mut(rank).unstarted() >= self.batch_size;
        let most = if is_tail && has_batch { 0 } else { u64::MAX };
        let mut granted = 0;
        loop {
            let share = self.share_mut(rank);
            // A rank that is asked to give back samples gets none first.
            let has_enough = share.unstarted() >= wants.min(most) || share.revoke_from.is_some();
            if has_enough || granted == PIECES_TOLD_MAX {
                return;
            }
            if self.returned.is_empty() && !self.begin_next(facts) {
                return;
            }
            // The worker has the shards of the last grants at hand.
            let last = self.share_mut(rank).list.pieces().iter().rev().take(PIECES_NEAR);
            let near: Vec<u64> = last.map(|piece| piece.group).collect();
            let piece = self.returned.take_first_of(near);
            let Some(piece) = piece.or_else(|| self.returned.take_first()) else {
                return;
            };
            self.share_mut(rank).list.append(piece);
            granted += 1;
        }
    }

    /// Frees the first group that was never granted, if its size is known.
    fn begin_next(&mut self, facts: &PoolFacts) -> bool {
        let Some(size) = size_of(facts, self.next).filter(|_| self.next < self.groups) else {
            return false;
        };
        self.returned.insert(GroupRange { group: self.next, from: 0, to: size });
        self.next += 1;
        self.begun += size;
        true
    }

    /// Closes the run of a rank that has less than a batch left and can get nothing now.
    fn close_exhausted(&mut self, rank: u64, may_get: bool) {
        if may_get && self.free() > 0 {
            return;
        }
        let batch_size = self.batch_size;
        let share = self.share_mut(rank);
        let run = share.list.samples() - share.list.open_from();
        if share.unstarted() < batch_size && !run.is_multiple_of(batch_size) {
            share.list.close();
        }
    }
}

/// First group whose size the facts do not contain.
fn end_of(facts: &PoolFacts) -> u64 {
    facts.at.saturating_add(facts.next.len() as u64)
}

fn size_of(facts: &PoolFacts, group: u64) -> Option<u64> {
    let index = usize::try_from(group.checked_sub(facts.at)?).ok()?;
    facts.next.get(index).copied()
}

fn check_facts(facts: &PoolFacts) -> Result<()> {
    let PoolFacts { groups, samples, next, .. } = facts;
    let is_sound = *groups > 0 && samples >= groups && next.len() <= SIZES_TOLD_MAX;
    if is_sound && !next.contains(&0) && end_of(facts) <= *groups {
        return Ok(());
    }
    let (sizes, at) = (next.len(), facts.at);
    Err(Refusal::Invalid(format!(
        "an epoch of {groups} groups and {samples} samples cannot have {sizes} reported sizes from \
         group {at} on"
    )))
}

/// Checks that the sizes match the known counts of the epoch.
fn check_sizes(pool: &Pool, facts: &PoolFacts) -> Result<()> {
    let known = |group: u64| usize::try_from(group.saturating_sub(facts.at)).unwrap_or(usize::MAX);
    let new = facts.next.get(known(pool.next)..).filter(|_| facts.at <= pool.next);
    let mut begun = Some(pool.begun);
    for size in new.unwrap_or_default() {
        begun = begun.and_then(|begun| begun.checked_add(*size));
    }
    let groups = pool.next + new.map_or(0, |new| new.len() as u64);
    let left = pool.groups.saturating_sub(groups);
    let fits = begun.is_some_and(|begun| match left {
        0 => begun == pool.samples,
        left => begun.checked_add(left).is_some_and(|least| least <= pool.samples),
    });
    if fits && (pool.groups, pool.samples) == (facts.groups, facts.samples) {
        return Ok(());
    }
    let (PoolFacts { groups, samples, .. }, Pool { groups: of, samples: all, .. }) = (facts, pool);
    Err(Refusal::Invalid(format!(
        "an epoch of {groups} groups and {samples} samples does not fit the one that was begun, of \
         {of} groups and {all} samples"
    )))
}

#[cfg(test)]
mod tests;
