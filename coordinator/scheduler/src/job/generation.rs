//! Generations: periods of a job with one run, world size and global batch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardfeed_plan::{Digest, LeftOut, Segment, Steps};

use crate::dynamic::pool::{Pool, Tally};
use crate::job::lease::{LeaseEnded, PastLease, PastLeases, RankLease};
use crate::job::origin::{Origin, at_step};
use crate::log::{
    DoubtPolicy, EPOCHS_BEGUN_KEPT, EPOCHS_KEPT, Fencing, RankCursor, RankRef, Refusal,
    SEALED_KEPT, SessionId,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Number of the generation; it grows along a lineage.
    pub number: u64,
    /// Previous generation of the lineage, if it was known here.
    pub parent: Option<u64>,
    pub run: String,
    /// True if no launcher named the run.
    pub implicit: bool,
    /// True if its ranks came from the parent one by one, by a move.
    pub by_move: bool,
    pub world_size: u64,
    /// Maximum number of entries in an epoch.
    pub limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixture: Option<Digest>,
    pub origin: Origin,
    /// Steps before the origin, in its epoch, that all ranks left out.
    #[serde(default, skip_serializing_if = "LeftOut::is_empty")]
    pub left_out: LeftOut,
    pub opened_by: u64,
    pub started_ms: u64,
    pub ranks: BTreeMap<u64, Rank>,
    pub superseded_by: Option<Successor>,
    /// For a dynamic job: the pools of the last epochs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<u64, Pool>,
    /// For a dynamic job: the policy for samples in doubt.
    #[serde(default)]
    pub doubt: DoubtPolicy,
    /// Start times of the epochs that are not sealed, as far as kept, Unix ms.
    pub(crate) begun: BTreeMap<u64, u64>,
    /// All epochs below this one are sealed.
    pub(crate) sealed_to: u64,
    /// Number of joined ranks by cursor.
    #[serde(skip)]
    pub(crate) cursors: BTreeMap<RankCursor, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Id of the rank's loader.
    pub trainer: String,
    /// Lease of the rank; `None`: it is not served.
    pub lease: Option<RankLease>,
    pub start: RankCursor,
    /// First step that it has not consumed, as far as reported.
    pub cursor: RankCursor,
    /// Time at which the cursor last moved, Unix ms.
    pub cursor_ms: u64,
    /// True if its trainer ended, and its final position is known.
    pub ended: bool,
    /// Error with which it ended, until it starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    pub moved_to: Option<u64>,
    #[serde(default, skip_serializing_if = "PastLeases::is_empty")]
    pub past: PastLeases,
}

/// The generation that took over from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    pub generation: u64,
    pub rank: u64,
    pub cursor: RankCursor,
}

/// An epoch that every rank of a generation has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedEpoch {
    pub epoch: u64,
    pub generation: u64,
    /// Time at which the first rank began it in that generation, as far as reported, Unix ms.
    pub began_ms: u64,
    /// Time at which the last rank left it, Unix ms.
    pub sealed_ms: u64,
    /// For a dynamic job: its counts, kept longer than the lists. Others follow from the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tally: Option<Tally>,
}

impl Rank {
    /// Removes the lease, and keeps it among the past ones.
    pub(crate) fn end_lease(
        &mut self,
        worker: String,
        (ended_ms, why): (u64, LeaseEnded),
    ) -> Option<RankLease> {
        let RankLease { fencing, session, granted_ms } = self.lease.take()?;
        let cursor = self.cursor;
        let past = PastLease { fencing, session, worker, granted_ms, ended_ms, why, cursor };
        self.past.file(past);
        Some(RankLease { fencing, session, granted_ms })
    }

    pub(crate) fn is_served_by(&self, fencing: Fencing) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.fencing == fencing)
    }

    /// True if its trainer reported its final position. One that was killed has not finished.
    pub fn has_finished(&self) -> bool {
        let last = self.past.kept.last();
        self.ended && last.is_none_or(|lease| lease.why != LeaseEnded::TrainerGone)
    }
}

impl Successor {
    /// Returns the refusal for a rank of the earlier generation.
    pub(crate) fn refusal(&self, job: &str, generation: u64) -> Refusal {
        let RankCursor { epoch: by_epoch, step: by_step } = self.cursor;
        let (job, by, by_rank) = (job.to_owned(), self.generation, self.rank);
        Refusal::Superseded { job, generation, by, by_rank, by_epoch, by_step }
    }
}

impl Generation {
    /// Segments with which `epoch` began, or, for the generation's first epoch, the origin's.
    ///
    /// `None` for an earlier epoch.
    pub fn segments_of(&self, epoch: u64) -> Option<Vec<Segment>> {
        if epoch == self.origin.epoch {
            return Some(self.origin.segments.clone());
        }
        let open = self.origin.segments.last().filter(|_| epoch > self.origin.epoch)?;
        Some(vec![Segment { steps: Steps::All(0), ..*open }])
    }

    /// Steps of an epoch, before the origin, that all ranks left out.
    pub fn left_out_of(&self, epoch: u64) -> LeftOut {
        if epoch == self.origin.epoch { self.left_out.clone() } else { LeftOut::default() }
    }

    /// As [`Generation::segments_of`], with the steps that this rank had consumed at its start.
    pub(crate) fn segments_for(&self, rank: u64, epoch: u64) -> Option<Vec<Segment>> {
        let start = self.ranks.get(&rank)?.start;
        let segments = self.segments_of(epoch)?;
        Some(if epoch == start.epoch { at_step(segments, start.step) } else { segments })
    }

    /// True if a rank that names no run may still join.
    pub fn run_is_open(&self) -> bool {
        self.implicit && !self.is_complete()
    }

    /// True if a rank may continue here: no later start took over, and some rank has neither moved
    /// on nor finished.
    pub(crate) fn may_continue(&self) -> bool {
        let mut ranks = self.ranks.values();
        self.superseded_by.is_none()
            && ranks.any(|rank| rank.moved_to.is_none() && !rank.has_finished())
    }

    pub fn is_complete(&self) -> bool {
        self.ranks.len() as u64 >= self.world_size
    }

    pub fn ranks_served(&self) -> u64 {
        self.leases().count() as u64
    }

    /// First step that some rank has not consumed; ranks that have not joined are at the origin.
    pub fn cursor(&self) -> RankCursor {
        match self.cursors.first_key_value() {
            Some((least, _)) if self.is_complete() => *least,
            _ => self.start(),
        }
    }

    /// Cursor of the origin.
    pub fn start(&self) -> RankCursor {
        self.origin.cursor()
    }

    pub(crate) fn as_successor(&self) -> Successor {
        let (generation, rank, cursor) = (self.number, self.opened_by, self.start());
        Successor { generation, rank, cursor }
    }

    pub(crate) fn join(&mut self, number: u64, rank: Rank) {
        if let Some(pool) = self.pools.get_mut(&rank.cursor.epoch) {
            pool.take_over(number, rank.cursor.step, rank.cursor_ms);
        }
        *self.cursors.entry(rank.cursor).or_default() += 1;
        self.begin(rank.cursor.epoch, rank.cursor_ms);
        self.ranks.insert(number, rank);
    }

    /// Frees a rank that its session or trainer no longer has.
    ///
    /// Its unconsumed samples become free or in doubt, unless the generation was superseded.
    pub(crate) fn free(&mut self, number: u64, worker: String, (at_ms, why): (u64, LeaseEnded)) {
        let rank = self.ranks.get_mut(&number);
        let Some(before) = rank.and_then(|rank| rank.end_lease(worker, (at_ms, why))) else {
            return;
        };
        if self.superseded_by.is_none() {
            for pool in self.pools.values_mut() {
                pool.release(number, before.fencing, (at_ms, why.is_told()));
            }
        }
    }

    /// True if a rank of a dynamic job can be at a cursor that is not before the known one.
    /// - `decided`: also counts the samples that the policy has decided on.
    pub(crate) fn can_stand_at(&self, number: u64, cursor: RankCursor, decided: bool) -> bool {
        match self.pools.get(&cursor.epoch) {
            Some(pool) => pool.can_stand_at(number, cursor.step, decided),
            None if self.is_over(cursor.epoch) => true,
            None => cursor.step == self.first_step(cursor.epoch),
        }
    }

    /// True if an epoch of a dynamic job is sealed: no rank gets anything of it.
    pub fn is_over(&self, epoch: u64) -> bool {
        epoch < self.sealed_to
    }

    /// First step of the lists of an epoch that has no pool yet.
    pub(crate) fn first_step(&self, epoch: u64) -> u64 {
        if epoch == self.origin.epoch { self.origin.step() } else { 0 }
    }

    /// Number of samples of one rank's full batch.
    pub fn batch_size(&self) -> u64 {
        self.origin.global_batch() / self.world_size.max(1)
    }

    /// Returns the pool of an epoch, created by `new` if there is none.
    ///
    /// `None` if the maximum number of pools is reached and the oldest epoch is not over.
    pub(crate) fn pool_mut(&mut self, epoch: u64, new: impl FnOnce() -> Pool) -> Option<&mut Pool> {
        if !self.pools.contains_key(&epoch) {
            while self.pools.len() >= EPOCHS_KEPT {
                let first = *self.pools.first_key_value()?.0;
                if !self.is_over(first) {
                    return None;
                }
                self.pools.remove(&first);
            }
            self.pools.insert(epoch, new());
        }
        self.pools.get_mut(&epoch)
    }

    /// Number of group ranges that its pools keep.
    pub(crate) fn pieces(&self) -> u64 {
        self.pools.values().map(Pool::pieces).sum()
    }

    /// Applies a rank's progress to the pools of its epochs.
    fn consume(&mut self, number: u64, from: RankCursor, to: RankCursor, now_ms: u64) {
        let left = self.pools.range_mut(from.epoch..to.epoch);
        left.for_each(|(_, pool)| pool.leave(number, now_ms));
        if let Some(pool) = self.pools.get_mut(&to.epoch) {
            pool.consume(number, to.step);
        }
    }

    /// Moves a rank's cursor forward; returns the epochs that this seals, as [`Generation::seal`].
    pub(crate) fn advance(&mut self, number: u64, to: RankCursor, now_ms: u64) -> Vec<SealedEpoch> {
        let Some(rank) = self.ranks.get_mut(&number).filter(|rank| rank.cursor < to) else {
            return vec![];
        };
        let from = std::mem::replace(&mut rank.cursor, to);
        rank.cursor_ms = now_ms;
        self.consume(number, from, to, now_ms);
        if let Some(ranks) = self.cursors.get_mut(&from) {
            *ranks -= 1;
            if *ranks == 0 {
                self.cursors.remove(&from);
            }
        }
        *self.cursors.entry(to).or_default() += 1;
        self.begin(to.epoch, now_ms);
        self.seal(now_ms)
    }

    fn begin(&mut self, epoch: u64, now_ms: u64) {
        if epoch >= self.sealed_to {
            self.begun.entry(epoch).or_insert(now_ms);
        }
        if self.begun.len() > EPOCHS_BEGUN_KEPT {
            self.begun.pop_last();
        }
    }

    /// Seals epochs that all ranks have left, and dynamic ones with nothing left to deliver.
    ///
    /// Returns at most the last [`SEALED_KEPT`] of them.
    pub(crate) fn seal(&mut self, sealed_ms: u64) -> Vec<SealedEpoch> {
        let mut to = self.cursor().epoch.max(self.sealed_to);
        while self.pools.get(&to).is_some_and(Pool::is_done) {
            to += 1;
        }
        self.seal_to(to, sealed_ms)
    }

    /// Seals the oldest kept epoch if all ranks that a worker serves have left it: it would keep
    /// them from later epochs for as long as another rank is gone.
    ///
    /// Returns the epochs as [`Generation::seal`].
    pub(crate) fn give_up_oldest(&mut self, sealed_ms: u64) -> Vec<SealedEpoch> {
        let oldest = self.pools.first_key_value().map(|(epoch, _)| *epoch);
        let Some(oldest) = oldest.filter(|oldest| !self.is_over(*oldest)) else {
            return vec![];
        };
        let mut ranks = self.ranks.values();
        let is_left = ranks.all(|rank| rank.cursor.epoch > oldest || rank.lease.is_none());
        if !is_left || !self.is_complete() {
            return vec![];
        }
        self.seal_to(oldest + 1, sealed_ms)
    }

    fn seal_to(&mut self, to: u64, sealed_ms: u64) -> Vec<SealedEpoch> {
        let first = self.sealed_to.max(to.saturating_sub(SEALED_KEPT as u64));
        let sealed = (first..to).map(|epoch| {
            // An epoch that no rank reported began no later than the previous one ended.
            let begun = self.begun.range(..=epoch).next_back();
            let began_ms = begun.map_or(self.started_ms, |(_, began_ms)| *began_ms);
            let tally = self.pools.get(&epoch).map(Pool::tally);
            SealedEpoch { epoch, generation: self.number, began_ms, sealed_ms, tally }
        });
        let sealed = sealed.collect();
        self.sealed_to = to;
        self.begun.retain(|epoch, _| *epoch >= to);
        sealed
    }

    /// Sessions, each with a rank that it serves.
    pub fn leases(&self) -> impl Iterator<Item = (SessionId, u64)> {
        let served = |(number, rank): (&u64, &Rank)| {
            rank.lease.as_ref().map(|lease| (lease.session, *number))
        };
        self.ranks.iter().filter_map(served)
    }

    /// As [`Generation::leases`], with the whole names of the ranks.
    pub(crate) fn leases_of(&self, job: &str) -> impl Iterator<Item = (SessionId, RankRef)> {
        self.leases().map(move |(session, rank)| {
            let (job, generation) = (job.to_owned(), self.number);
            (session, RankRef { job, generation, rank })
        })
    }

    pub(crate) fn index(&mut self) {
        self.cursors.clear();
        for rank in self.ranks.values() {
            *self.cursors.entry(rank.cursor).or_default() += 1;
        }
        self.pools.values_mut().for_each(Pool::index);
    }
}
