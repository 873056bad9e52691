//! Epoch of a dynamic job: the group ranges granted to its ranks, and the consumed part of them.

use std::cmp::Ordering;

use shardfeed_plan::dynamic::GroupRange;
use shardfeed_proto::WireError;
use shardfeed_proto::coordinator::v1::RankInDoubt;
use shardfeed_scheduler::{EPOCHS_KEPT, Generation, Pool, RankAssignment, Tally};

use super::Picture;
use super::counts::Counts;
use crate::error::{Result, not_found};
use crate::leader::core::Core;

#[derive(Clone, Copy, Debug)]
pub(super) struct Granted<'a> {
    picture: &'a Picture,
    epoch: u64,
    /// Generation in which the epoch continues, or ended.
    pub(super) generation: &'a Generation,
    /// Its pool; `None` if nothing was granted yet.
    pub(super) pool: Option<&'a Pool>,
}

impl<'a> Granted<'a> {
    /// Returns the grants of an epoch; `None` if they existed and are no longer kept.
    ///
    /// # Errors  `NotFound`: the epoch precedes the kept generations of the job.
    pub(super) fn of(picture: &'a Picture, epoch: u64) -> Result<Option<Self>> {
        let (generation, _) = picture.epoch_of(epoch)?;
        Ok(Self::in_generation(picture, generation, epoch))
    }

    /// Like [`Granted::of`], in a generation of the lineage.
    pub(super) fn in_generation(
        picture: &'a Picture,
        generation: &'a Generation,
        epoch: u64,
    ) -> Option<Self> {
        let pool = generation.pools.get(&epoch);
        // Epochs are granted in order: one without a pool was, if the ranks or lists are beyond it.
        let is_past = generation.number != picture.generation.number
            || generation.cursor().epoch > epoch
            || generation.pools.last_key_value().is_some_and(|(last, _)| *last > epoch);
        (pool.is_some() || !is_past).then_some(Self { picture, epoch, generation, pool })
    }

    /// True if the epoch continues in the current generation, whose ranks report on it.
    pub(super) fn is_current(&self) -> bool {
        self.generation.number == self.picture.generation.number
    }

    /// Returns the position up to which a rank's list was consumed, including heartbeats' reports.
    pub(super) fn consumed(&self, rank: u64, share: &RankAssignment) -> u64 {
        let joined = self.is_current() && self.generation.ranks.contains_key(&rank);
        let cursor = self.picture.cursor(rank);
        if !joined || share.left || cursor.epoch != self.epoch {
            return share.consumed;
        }
        share.consumed.max(share.list.position_of_step(cursor.step).unwrap_or(0))
    }

    pub(super) fn in_doubt(&self) -> Vec<RankInDoubt> {
        let shares =
            self.pool.filter(|_| self.is_current()).into_iter().flat_map(|pool| &pool.shares);
        let in_doubt = shares.filter_map(|(&rank, share)| {
            let age_ms = self.picture.now_ms.saturating_sub(share.doubt.as_ref()?.since_ms);
            Some(RankInDoubt { rank, samples: share.in_doubt(), age_ms })
        });
        in_doubt.collect()
    }

    /// Returns the time, ms, until the policy decides about samples in doubt.
    ///
    /// `None` if the epoch also waits for something else, or if the wait is not counted.
    pub(super) fn decides_in_ms(&self) -> Option<u64> {
        let is_counted = self.is_current() && !self.picture.is_held;
        let pool = self.pool.filter(|pool| is_counted && pool.waits_for_doubt())?;
        Some(self.generation.doubt.grace_ms.saturating_sub(pool.waited_ms))
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the consumed ranges, for many lookups.
    pub(super) fn consumed_pieces(&self) -> ConsumedPieces {
        let mut pieces: Vec<(GroupRange, u64)> = vec![];
        for (rank, share) in self.pool.iter().flat_map(|pool| &pool.shares) {
            let (consumed, mut start) = (self.consumed(*rank, share), 0);
            for piece in share.list.pieces() {
                let taken = consumed.saturating_sub(start).min(piece.samples());
                pieces.push((*piece, piece.from + taken));
                start += piece.samples();
            }
        }
        let free = self.pool.iter().flat_map(|pool| pool.returned.iter());
        pieces.extend(free.map(|piece| (piece, piece.from)));
        pieces.sort_unstable_by_key(|(piece, _)| piece.group);
        ConsumedPieces { next: self.pool.map_or(0, |pool| pool.next), pieces }
    }

    /// Returns the epoch's counts. Blocks on the disk.
    pub(super) fn counts(&self, core: &Core) -> Result<Counts> {
        let Some(pool) = self.pool else {
            let total = self.picture.order.manifest(core)?.records();
            return Ok(Counts { total, ..Counts::default() });
        };
        let Tally { total, delivered, duplicated, redelivered, dropped, .. } = pool.tally();
        let shares = pool.shares.iter();
        let ahead = shares.map(|(rank, share)| self.consumed(*rank, share) - share.consumed);
        let ranks = 0..self.generation.world_size;
        Ok(Counts {
            total,
            delivered: total.min(delivered + ahead.sum::<u64>()),
            dropped,
            left_out: 0,
            duplicated,
            redelivered,
            steps: 0,
            steps_done: ranks.map(|rank| self.steps_done(rank)).min().unwrap_or(0),
        })
    }

    fn steps_done(&self, rank: u64) -> u64 {
        let cursor = self.picture.cursor(rank);
        let place =
            if self.is_current() { cursor.epoch.cmp(&self.epoch) } else { Ordering::Greater };
        match place {
            Ordering::Less => 0,
            Ordering::Equal => cursor.step,
            Ordering::Greater => {
                let share = self.pool.and_then(|pool| pool.shares.get(&rank));
                share.map_or(0, |share| share.list.end_step())
            }
        }
    }

    /// Returns the ranks that the epoch waits for. Any served rank consumes the ranges of the
    /// others, except those that a rank which has not joined brought from the previous generation.
    pub(super) fn waiting_for(&self, counts: &Counts) -> impl Iterator<Item = u64> + '_ {
        let ranks = 0..self.generation.world_size;
        let is_left = counts.left() > 0;
        let is_in = |rank: &u64| self.picture.cursor(*rank).epoch <= self.epoch;
        let serves = |rank: u64| is_in(&rank) && self.picture.worker(rank).is_some();
        let is_awaited = self.is_current() && is_left;
        let waits = is_awaited && !ranks.clone().any(serves);
        let unserved = move |rank: &u64| self.picture.worker(*rank).is_none();
        let brings = move |rank: &u64| {
            let share = self.pool.and_then(|pool| pool.shares.get(rank));
            let has_rest = share.is_some_and(|share| share.consumed < share.list.samples());
            has_rest && !self.generation.ranks.contains_key(rank)
        };
        ranks.filter(move |rank| {
            is_awaited && brings(rank) || waits && is_in(rank) && unserved(rank)
        })
    }
}

#[derive(Debug)]
pub(super) struct ConsumedPieces {
    /// First group that was not granted.
    next: u64,
    /// Ranges in a list or free, by group, and the offset up to which each was consumed.
    pieces: Vec<(GroupRange, u64)>,
}

impl ConsumedPieces {
    /// True if the sample at an offset of a group was consumed.
    pub(super) fn contains(&self, group: u64, offset: u64) -> bool {
        if group >= self.next {
            return false;
        }
        let first = self.pieces.partition_point(|(piece, _)| piece.group < group);
        let of_group = self.pieces[first..].iter().take_while(|(piece, _)| piece.group == group);
        let mut is_held = false;
        for (_, end) in of_group.filter(|(piece, _)| (piece.from..piece.to).contains(&offset)) {
            if offset < *end {
                return true;
            }
            is_held = true;
        }
        // Ranges in no list and not free were consumed before the generation began.
        !is_held
    }
}

/// Returns the error that the grants of an epoch are no longer kept.
pub(super) fn gone(picture: &Picture, epoch: u64) -> WireError {
    let message = format!(
        "the grants of epoch {epoch} of the dynamic job `{}` are no longer kept; those of its last \
         {EPOCHS_KEPT} epochs are",
        picture.job
    );
    not_found(message)
}
