//! An epoch of a dynamic job: what its ranks were granted of it, and how much of that they consumed.

use std::cmp::Ordering;

use shardfeed_plan::dynamic::{Piece, quota};
use shardfeed_proto::{ErrorKind, WireError};
use shardfeed_scheduler::{EPOCHS_KEPT, Generation, Pool, Share, Tally};

use super::Picture;
use super::epoch::Counts;
use crate::core::Core;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted<'a> {
    picture: &'a Picture,
    epoch: u64,
    /// The generation in which it goes on, or ended.
    pub(super) generation: &'a Generation,
    /// Its pool; `None`: nothing was granted yet.
    pub(super) pool: Option<&'a Pool>,
}

impl<'a> Granted<'a> {
    /// What is known of an epoch; `None`: it was granted, and that is no longer kept.
    ///
    /// # Errors  `NotFound`: the epoch lies before what is kept of the job.
    pub(super) fn of(picture: &'a Picture, epoch: u64) -> Result<Option<Self>, WireError> {
        let (generation, _) = picture.epoch_of(epoch)?;
        Ok(Self::in_generation(picture, generation, epoch))
    }

    /// As [`Granted::of`], in a generation of the lineage.
    pub(super) fn in_generation(
        picture: &'a Picture,
        generation: &'a Generation,
        epoch: u64,
    ) -> Option<Self> {
        let pool = generation.pools.get(&epoch);
        // Epochs are granted one after the other: one without a pool was, if the ranks or their
        // lists are beyond it.
        let is_past = generation.number != picture.generation.number
            || generation.cursor().epoch > epoch
            || generation.pools.last_key_value().is_some_and(|(last, _)| *last > epoch);
        (pool.is_some() || !is_past).then_some(Self { picture, epoch, generation, pool })
    }

    /// Whether it goes on in the current generation, so that ranks tell of it.
    pub(super) fn is_current(&self) -> bool {
        self.generation.number == self.picture.generation.number
    }

    /// Position of a rank's list up to which it was consumed, as far as heartbeats told.
    pub(super) fn consumed(&self, rank: u64, share: &Share) -> u64 {
        let joined = self.is_current() && self.generation.ranks.contains_key(&rank);
        let Some(pool) = self.pool.filter(|_| joined && !share.left) else {
            return share.consumed;
        };
        let (cursor, whole) = (self.picture.cursor(rank), share.list.samples());
        let told = match cursor.epoch.cmp(&self.epoch) {
            Ordering::Less => None,
            Ordering::Equal => {
                let is_padded = pool.padded && pool.free() == 0 && cursor.step > pool.first_step;
                let position = share.list.position_of_step(cursor.step);
                position.or(is_padded.then_some(whole))
            }
            Ordering::Greater => (pool.quota.is_some() && pool.has_ended(rank)).then_some(whole),
        };
        share.consumed.max(told.unwrap_or(0))
    }

    /// Which epoch it is.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether what stands at an offset of a group was consumed.
    pub(super) fn has_consumed(&self, group: u64, offset: u64) -> bool {
        let Some(pool) = self.pool.filter(|pool| group < pool.next) else {
            return false;
        };
        let holds =
            |piece: &Piece| piece.group == group && (piece.from..piece.to).contains(&offset);
        let mut is_held = false;
        for (rank, share) in &pool.shares {
            let (consumed, mut start) = (self.consumed(*rank, share), 0);
            for piece in share.list.pieces() {
                if holds(piece) {
                    is_held = true;
                    if start + (offset - piece.from) < consumed {
                        return true;
                    }
                }
                start += piece.samples();
            }
        }
        // What is in no list and not free was consumed before the generation began.
        !is_held && !pool.returned.iter().any(|piece| holds(&piece))
    }

    /// Its numbers. Blocks on the disk.
    pub(super) fn counts(&self, core: &Core) -> Result<Counts, WireError> {
        let world_size = self.generation.world_size;
        let Some(pool) = self.pool else {
            let total = self.picture.order.manifest(core)?.records();
            let (tail, rows) = (self.picture.order.identity.tail, self.generation.batch_size());
            let quota = quota(tail, total, world_size, rows);
            let delivered = quota.map_or(total, |quota| quota.saturating_mul(world_size));
            let steps = quota.map_or(0, |quota| quota / rows.max(1));
            let dropped = total.saturating_sub(delivered);
            return Ok(Counts { total, dropped, steps, ..Counts::default() });
        };
        let Tally { total, delivered, duplicated, dropped, .. } = pool.tally(world_size);
        let shares = pool.shares.iter();
        let ahead = shares.map(|(rank, share)| self.consumed(*rank, share) - share.consumed);
        Ok(Counts {
            total,
            delivered: total.min(delivered + ahead.sum::<u64>()),
            dropped,
            duplicated,
            steps: self.steps().unwrap_or(0),
            steps_done: (0..world_size).map(|rank| self.steps_done(rank)).min().unwrap_or(0),
        })
    }

    /// Steps of every rank; `None` if that is not known before the epoch ends, or nothing was
    /// granted.
    pub(super) fn steps(&self) -> Option<u64> {
        let pool = self.pool?;
        Some(pool.first_step + pool.quota? / pool.batch_size.max(1))
    }

    /// Steps that a rank consumed.
    fn steps_done(&self, rank: u64) -> u64 {
        let cursor = self.picture.cursor(rank);
        let place =
            if self.is_current() { cursor.epoch.cmp(&self.epoch) } else { Ordering::Greater };
        match place {
            Ordering::Less => 0,
            Ordering::Equal => self.steps().map_or(cursor.step, |steps| cursor.step.min(steps)),
            Ordering::Greater => {
                let share = self.pool.and_then(|pool| pool.shares.get(&rank));
                let ends = share.map_or(0, |share| share.list.end_step());
                self.steps().unwrap_or(ends)
            }
        }
    }

    /// Ranks that the epoch waits for: with a quota those that are not served and lack samples.
    /// Otherwise others consume what they do not, if any is served, except what a rank that has not
    /// joined yet brought from the generation before.
    pub(super) fn waiting_for(&self, counts: &Counts) -> impl Iterator<Item = u64> + '_ {
        let ranks = 0..self.generation.world_size;
        let is_left = counts.left() > 0;
        let is_in = |rank: &u64| self.picture.cursor(*rank).epoch <= self.epoch;
        let serves = |rank: u64| is_in(&rank) && self.picture.worker(rank).is_some();
        let is_shared = self.pool.is_none_or(|pool| pool.quota.is_none())
            && self.picture.order.identity.tail == shardfeed_plan::Tail::Uneven;
        let waits = self.is_current() && is_left && !(is_shared && ranks.clone().any(serves));
        let has_steps =
            move |rank: &u64| self.steps().is_none_or(|steps| self.steps_done(*rank) < steps);
        let unserved = move |rank: &u64| self.picture.worker(*rank).is_none();
        let brings = move |rank: &u64| {
            let share = self.pool.and_then(|pool| pool.shares.get(rank));
            let has_rest = share.is_some_and(|share| share.consumed < share.list.samples());
            has_rest && !self.generation.ranks.contains_key(rank)
        };
        let is_awaited = self.is_current() && is_left;
        ranks.filter(move |rank| {
            is_awaited && brings(rank) || waits && is_in(rank) && unserved(rank) && has_steps(rank)
        })
    }
}

/// What was granted of an epoch is not kept any more.
pub(super) fn gone(picture: &Picture, epoch: u64) -> WireError {
    let message = format!(
        "what was granted of epoch {epoch} of the dynamic job `{}` is no longer kept; its last {EPOCHS_KEPT} \
         epochs are",
        picture.job
    );
    WireError::new(ErrorKind::NotFound, message)
}
