//! Samples in doubt: a rank's worker or trainer is gone, and only the trainer knows which of them
//! it consumed. No other rank gets them while the trainer may still come back and report.
//! Source: docs/ORDER.md, section 10; docs/ARCHITECTURE.md, Dynamic jobs.

use shardfeed_plan::dynamic::{FreeRanges, GroupRange};

use crate::dynamic::history::Returned;
use crate::dynamic::pool::{Decided, Doubt, Pool, RankAssignment};
use crate::log::{DoubtPolicy, Fencing, InDoubt};

/// Maximum waiting time that one command counts, ms: a stopped leader does not know what happened.
const WAITED_MS_MAX: u64 = 5_000;

/// A decision: the rank and the number of samples.
pub(super) type Decision = (u64, u64);

impl Pool {
    pub(crate) fn in_doubt(&self) -> u64 {
        self.shares.values().map(RankAssignment::in_doubt).sum()
    }

    /// Samples in doubt then granted to others, which their first trainers may have consumed.
    pub(crate) fn redelivered(&self) -> u64 {
        let decided = self.shares.values().filter_map(|share| share.decided.as_ref());
        decided.filter(|decided| !decided.is_dropped).map(|decided| decided.rest.samples()).sum()
    }

    /// Ends the service of a rank.
    ///
    /// Samples beyond its horizon were not delivered and become free. Samples before it that are
    /// not known to be consumed become in doubt.
    /// - `is_told`: its trainer has reported its final position, so that nothing is in doubt.
    pub(crate) fn release(&mut self, rank: u64, fencing: Fencing, (now_ms, is_told): (u64, bool)) {
        let Some(share) = self.shares.get_mut(&rank).filter(|share| !share.left) else {
            return;
        };
        let end = if is_told { share.consumed } else { share.horizon };
        let is_in_doubt = end > share.consumed;
        share.revoke_from = None;
        let rest = share.cut(end);
        share.started = end;
        share.doubt = is_in_doubt.then(|| Box::new(Doubt { fencing, since_ms: now_ms }));
        self.waited_ms = 0;
        self.take_back(&rest, rank, Returned::Unserved, now_ms);
    }

    /// True if some samples are in doubt and all others were consumed.
    pub fn waits_for_doubt(&self) -> bool {
        let settled = |share: &RankAssignment| {
            share.doubt.is_some() || share.left || share.consumed == share.list.samples()
        };
        self.free() == 0 && self.in_doubt() > 0 && self.shares.values().all(settled)
    }

    /// Counts `ms` of waiting; at the end of the grace period the policy decides.
    pub(super) fn wait(&mut self, ms: u64, policy: DoubtPolicy, now_ms: u64) -> Vec<Decision> {
        if !self.waits_for_doubt() {
            self.waited_ms = 0;
            return vec![];
        }
        self.waited_ms = self.waited_ms.saturating_add(ms.min(WAITED_MS_MAX));
        if self.waited_ms < policy.grace_ms {
            return vec![];
        }
        let ranks: Vec<u64> = self.shares.keys().copied().collect();
        ranks.into_iter().filter_map(|rank| self.decide(rank, policy.in_doubt, now_ms)).collect()
    }

    /// Applies the policy to a rank's samples in doubt, if there are any.
    pub(super) fn decide(&mut self, rank: u64, policy: InDoubt, now_ms: u64) -> Option<Decision> {
        let share = self.shares.get_mut(&rank)?;
        let doubt = share.doubt.take()?;
        let (fencing, at) = (doubt.fencing, share.consumed);
        let rest = share.cut(at);
        let samples = rest.samples();
        let is_dropped = policy == InDoubt::Drop;
        share.decided = Some(Box::new(Decided { fencing, at, rest: rest.clone(), is_dropped }));
        self.waited_ms = 0;
        if is_dropped {
            rest.pieces().iter().for_each(|&piece| self.dropped.insert(piece));
            self.returns.file(now_ms, rank, Returned::Dropped, rest.pieces().to_vec());
        } else {
            self.take_back(&rest, rank, Returned::InDoubt, now_ms);
        }
        Some((rank, samples))
    }

    /// Extends the list of a rank up to a step beyond the known cursor, after the policy decided.
    ///
    /// Samples up to there that are free or dropped are taken out again; those that were granted to
    /// other ranks are then in two lists.
    pub(crate) fn restore(&mut self, rank: u64, step: u64) {
        let Some(share) = self.shares.get_mut(&rank) else {
            return;
        };
        let Some((_, more @ 1..)) = share.reach(step) else {
            return;
        };
        let Some(decided) = share.decided.take() else {
            return;
        };
        let Decided { at, mut rest, is_dropped, .. } = *decided;
        rest.split_off(more);
        let place = if is_dropped { &mut self.dropped } else { &mut self.returned };
        for piece in rest.pieces() {
            let mut from = piece.from;
            let ours = place.remove(*piece);
            let end = GroupRange { from: piece.to, to: piece.to, ..*piece };
            for own in ours.into_iter().chain([end]) {
                let theirs = GroupRange { from, to: own.from, ..*piece };
                if theirs.samples() > 0 {
                    let start = share.list.samples();
                    share.list.append(theirs);
                    share.doubled.push(start..share.list.samples());
                    self.duplicated += theirs.samples();
                }
                share.list.append(own);
                from = own.to;
            }
        }
        rest.closed().into_iter().for_each(|end| share.list.close_at(at + end));
    }

    /// Adds a rank with a list that an earlier generation left, at a step.
    ///
    /// The list ends before the first later sample that another list has too; the rest is free.
    pub(crate) fn take_over(&mut self, rank: u64, step: u64, now_ms: u64) {
        self.restore(rank, step);
        self.consume(rank, step);
        let Some(share) = self.shares.get_mut(&rank) else {
            return;
        };
        share.horizon = share.consumed;
        share.doubt = None;
        let at = share.consumed;
        let ahead = share.doubled.iter().find(|doubled| doubled.end > at);
        if let Some(first) = ahead.map(|doubled| doubled.start.max(at)) {
            let rest = share.own_pieces(first..share.list.samples());
            share.cut(first);
            share.doubled.retain_mut(|doubled| {
                doubled.end = doubled.end.min(first);
                doubled.start < doubled.end
            });
            rest.iter().for_each(|piece| self.returned.insert(*piece));
            self.returns.file(now_ms, rank, Returned::TakenOver, rest);
        }
    }

    /// True if the rank's list is in doubt and this was its last lease.
    ///
    /// Its worker may still report the rank's minimum progress, which does not end the doubt.
    pub(crate) fn is_in_doubt_of(&self, rank: u64, fencing: Fencing) -> bool {
        let doubt = self.shares.get(&rank).and_then(|share| share.doubt.as_ref());
        doubt.is_some_and(|doubt| doubt.fencing == fencing)
    }

    /// True if some samples are in two lists, or were decided on: the positions of all ranks
    /// determine which rank consumed them.
    pub(crate) fn has_moved(&self) -> bool {
        let mut shares = self.shares.values();
        shares.any(|share| !share.doubled.is_empty() || share.decided.is_some())
    }

    /// Returns the samples left for other ranks if each rank is at its step of `step_of`, and how
    /// many samples were then delivered twice.
    ///
    /// These are all samples except those that some rank's list holds before its step. `None` if
    /// one of the ranks cannot be at its step.
    pub(crate) fn left_after(
        &self,
        step_of: impl Fn(u64) -> Option<u64>,
    ) -> Option<(FreeRanges, u64)> {
        let mut free = self.returned.clone();
        self.dropped.iter().for_each(|piece| free.insert(piece));
        let mut taken = vec![];
        for (rank, share) in &self.shares {
            let step = step_of(*rank)?;
            let (position, more) = share.reach(step)?;
            let rest = share.own_pieces(position..share.list.samples());
            rest.into_iter().for_each(|piece| free.insert(piece));
            let doubled = share.doubled.iter();
            let doubled = doubled.map(|d| d.start.min(position)..d.end.min(position));
            taken.extend(doubled.flat_map(|positions| share.list.pieces_in(positions)));
            let decided = share.decided.as_ref().filter(|_| more > 0);
            taken.extend(decided.into_iter().flat_map(|decided| decided.rest.pieces_in(0..more)));
        }
        let mut duplicated = 0;
        for piece in taken {
            let was_free: u64 = free.remove(piece).iter().map(GroupRange::samples).sum();
            duplicated += piece.samples() - was_free;
        }
        Some((free, duplicated))
    }
}
