//! Generations: stretches of a job with one run, world size and global batch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardfeed_plan::{Segment, Steps};

use crate::answer::Refusal;
use crate::bound::{EPOCHS_BEGUN_KEPT, EPOCHS_KEPT};
use crate::cursor::{RankCursor, SealedEpoch};
use crate::doubt::DoubtPolicy;
use crate::history::{LeaseEnd, PastLeases};
use crate::lease::RankLease;
use crate::origin::{Origin, at_step};
use crate::pool::{Pool, Tally};

/// A generation of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number; it grows along a lineage.
    pub number: u64,
    /// The one before it in the lineage, if it was known here.
    pub parent: Option<u64>,
    /// Name of its run.
    pub run: String,
    /// Whether no launcher named the run.
    pub implicit: bool,
    /// Whether its ranks came from the parent one by one, by a move.
    pub by_move: bool,
    /// Data-parallel ranks.
    pub world_size: u64,
    /// Slots of an epoch that exist at most.
    pub limit: Option<u64>,
    /// Where it began.
    pub origin: Origin,
    /// Rank that opened it.
    pub opened_by: u64,
    /// When, Unix ms.
    pub started_ms: u64,
    /// Its ranks, as far as they have joined.
    pub ranks: BTreeMap<u64, Rank>,
    /// What took over.
    pub superseded_by: Option<Successor>,
    /// Of a dynamic job: what was granted of each epoch, the last ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<u64, Pool>,
    /// Of a dynamic job: what becomes of samples in doubt.
    #[serde(default)]
    pub doubt: DoubtPolicy,
    /// When each epoch began that is not sealed, as far as kept, Unix ms.
    pub(crate) begun: BTreeMap<u64, u64>,
    /// Epochs below are sealed.
    pub(crate) sealed_to: u64,
    /// Joined ranks by their cursor.
    #[serde(skip)]
    pub(crate) cursors: BTreeMap<RankCursor, u64>,
    /// Ranks that are served.
    #[serde(skip)]
    pub(crate) served: u64,
}

/// A rank of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// The loader that it is.
    pub trainer: String,
    /// Who serves it; `None`: nobody.
    pub lease: Option<RankLease>,
    /// Where it began.
    pub start: RankCursor,
    /// The first step that it has not consumed, as far as reported.
    pub cursor: RankCursor,
    /// When the cursor last moved, Unix ms.
    pub cursor_ms: u64,
    /// Whether its trainer was done with it.
    pub ended: bool,
    /// The error with which it ended, until it starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The generation that its trainer moved to.
    pub moved_to: Option<u64>,
    /// Its leases that ended.
    #[serde(default, skip_serializing_if = "PastLeases::is_empty")]
    pub past: PastLeases,
}

/// The generation that took over from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    /// Its number.
    pub generation: u64,
    /// Rank that opened it.
    pub rank: u64,
    /// Where it began.
    pub cursor: RankCursor,
}

impl Successor {
    /// Tells a rank of the earlier generation.
    pub(crate) fn refusal(&self, job: &str, generation: u64) -> Refusal {
        let RankCursor { epoch: by_epoch, step: by_step } = self.cursor;
        let (job, by, by_rank) = (job.to_owned(), self.generation, self.rank);
        Refusal::Superseded { job, generation, by, by_rank, by_epoch, by_step }
    }
}

impl Generation {
    /// Segments with which `epoch` began, or goes on where the generation started; `None` for an
    /// epoch before that.
    pub fn segments_of(&self, epoch: u64) -> Option<Vec<Segment>> {
        if epoch == self.origin.epoch {
            return Some(self.origin.segments.clone());
        }
        let open = self.origin.segments.last().filter(|_| epoch > self.origin.epoch)?;
        Some(vec![Segment { steps: Steps::All(0), ..*open }])
    }

    /// As [`Generation::segments_of`], with the steps that this rank had taken at its start.
    pub(crate) fn segments_for(&self, rank: u64, epoch: u64) -> Option<Vec<Segment>> {
        let start = self.ranks.get(&rank)?.start;
        let segments = self.segments_of(epoch)?;
        Some(if epoch == start.epoch { at_step(segments, start.step) } else { segments })
    }

    /// Whether a rank that names no run may still join.
    pub fn run_is_open(&self) -> bool {
        self.implicit && !self.is_complete()
    }

    /// Whether all ranks have joined.
    pub fn is_complete(&self) -> bool {
        self.ranks.len() as u64 >= self.world_size
    }

    /// Ranks that a live session serves.
    pub fn ranks_served(&self) -> u64 {
        self.served
    }

    /// The first step that some rank has not consumed; ranks that have not joined stand at the
    /// origin.
    pub fn cursor(&self) -> RankCursor {
        match self.cursors.first_key_value() {
            Some((least, _)) if self.is_complete() => *least,
            _ => self.start(),
        }
    }

    /// Position of its origin.
    pub fn start(&self) -> RankCursor {
        RankCursor { epoch: self.origin.epoch, step: self.origin.step() }
    }

    pub(crate) fn as_successor(&self) -> Successor {
        let (generation, rank, cursor) = (self.number, self.opened_by, self.start());
        Successor { generation, rank, cursor }
    }

    /// Adds a rank.
    pub(crate) fn join(&mut self, number: u64, rank: Rank) {
        if let Some(pool) = self.pools.get_mut(&rank.cursor.epoch) {
            pool.take_over(number, rank.cursor.step, rank.cursor_ms);
        }
        *self.cursors.entry(rank.cursor).or_default() += 1;
        self.served += u64::from(rank.lease.is_some());
        self.begin(rank.cursor.epoch, rank.cursor_ms);
        self.ranks.insert(number, rank);
    }

    /// Sets who serves a rank; returns who did before.
    pub(crate) fn lend(&mut self, number: u64, lease: Option<RankLease>) -> Option<RankLease> {
        let rank = self.ranks.get_mut(&number)?;
        self.served += u64::from(lease.is_some());
        self.served -= u64::from(rank.lease.is_some());
        std::mem::replace(&mut rank.lease, lease)
    }

    /// Frees a rank that its session or trainer no longer has. What it was granted is free or in doubt, unless
    /// the generation is over.
    pub(crate) fn free(&mut self, number: u64, end: &LeaseEnd) -> Option<RankLease> {
        let is_told = end.why.is_told();
        let before = self.lend(number, None)?;
        self.file_end(number, &before, end);
        if self.superseded_by.is_none() {
            for pool in self.pools.values_mut() {
                pool.release(number, before.fencing, (end.at_ms, is_told));
            }
        }
        Some(before)
    }

    /// Remembers a lease that ended.
    pub(crate) fn file_end(&mut self, number: u64, lease: &RankLease, end: &LeaseEnd) {
        if let Some(rank) = self.ranks.get_mut(&number) {
            rank.past.file(lease, rank.cursor, end);
        }
    }

    /// Whether a rank of a dynamic job can stand at a cursor that is not before the known one;
    /// `decided`: also by what it had when its session ended.
    pub(crate) fn can_stand_at(&self, number: u64, cursor: RankCursor, decided: bool) -> bool {
        match self.pools.get(&cursor.epoch) {
            Some(pool) => pool.can_stand_at(number, cursor.step, decided),
            None if self.is_over(cursor.epoch) => true,
            None => cursor.step == self.first_step(cursor.epoch),
        }
    }

    /// Whether an epoch of a dynamic job is sealed: no rank gets anything of it.
    pub fn is_over(&self, epoch: u64) -> bool {
        epoch < self.sealed_to
    }

    /// Step at which the lists of an epoch begin that has no pool yet.
    pub(crate) fn first_step(&self, epoch: u64) -> u64 {
        if epoch == self.origin.epoch { self.origin.step() } else { 0 }
    }

    /// Samples of one rank's full batch.
    pub fn batch_size(&self) -> u64 {
        self.origin.global_batch() / self.world_size.max(1)
    }

    /// The pool of an epoch, which begins as `new` if there was none. `None` while too many
    /// earlier epochs are not over.
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

    /// Numbers of an epoch of a dynamic job of which nothing is left to deliver; `None`: something is, or they are
    /// not kept.
    pub fn consumed_tally(&self, epoch: u64) -> Option<Tally> {
        self.pools.get(&epoch).filter(|pool| pool.is_done()).map(Pool::tally)
    }

    /// Pieces that its pools keep.
    pub(crate) fn pieces(&self) -> u64 {
        self.pools.values().map(Pool::pieces).sum()
    }

    /// What a cursor's way up means for the pools of its epochs.
    fn consume(&mut self, number: u64, from: RankCursor, to: RankCursor, now_ms: u64) {
        let left = self.pools.range_mut(from.epoch..to.epoch);
        left.for_each(|(_, pool)| pool.leave(number, now_ms));
        if let Some(pool) = self.pools.get_mut(&to.epoch) {
            pool.consume(number, to.step);
        }
    }

    /// Moves a rank's cursor up; returns the epochs that are sealed by that, of which at most
    /// `most` last ones.
    pub(crate) fn advance(
        &mut self,
        number: u64,
        to: RankCursor,
        now_ms: u64,
        most: usize,
    ) -> Vec<SealedEpoch> {
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
        self.seal(now_ms, most)
    }

    fn begin(&mut self, epoch: u64, now_ms: u64) {
        if epoch >= self.sealed_to {
            self.begun.entry(epoch).or_insert(now_ms);
        }
        if self.begun.len() > EPOCHS_BEGUN_KEPT {
            self.begun.pop_last();
        }
    }

    /// Seals the epochs that all ranks have left, and those of dynamic jobs of which nothing is left to deliver;
    /// returns at most `most` last ones.
    pub(crate) fn seal(&mut self, sealed_ms: u64, most: usize) -> Vec<SealedEpoch> {
        let mut to = self.cursor().epoch.max(self.sealed_to);
        while self.pools.get(&to).is_some_and(Pool::is_done) {
            to += 1;
        }
        let first = self.sealed_to.max(to.saturating_sub(most as u64));
        let sealed = (first..to).map(|epoch| {
            // An epoch that no rank was seen in began no later than the one before it ended.
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

    /// Sessions with the ranks that they serve.
    pub fn leases(&self) -> impl Iterator<Item = (u64, u64)> {
        let served = |(number, rank): (&u64, &Rank)| {
            rank.lease.as_ref().map(|lease| (lease.session, *number))
        };
        self.ranks.iter().filter_map(served)
    }

    /// Computes anew what the ranks imply.
    pub(crate) fn index(&mut self) {
        self.cursors.clear();
        for rank in self.ranks.values() {
            *self.cursors.entry(rank.cursor).or_default() += 1;
        }
        self.served = self.leases().count() as u64;
        self.pools.values_mut().for_each(Pool::index);
    }
}
