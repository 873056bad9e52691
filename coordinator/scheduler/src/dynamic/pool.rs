//! Pools: the samples of one epoch of a dynamic job that are granted to ranks or free.
//! Source: docs/ORDER.md, section 10; docs/ARCHITECTURE.md, Dynamic jobs.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardfeed_plan::dynamic::{FreeRanges, GroupRange, RankList};

use crate::dynamic::history::{Returned, Returns};
use crate::log::{Fencing, is_zero};

/// The groups of one epoch in one generation.
///
/// Each sample is free, or in one rank's list, or was consumed before the generation began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    pub groups: u64,
    pub samples: u64,
    /// Step of the epoch at which its lists begin.
    pub first_step: u64,
    /// Number of samples of a full batch of one rank.
    pub batch_size: u64,
    /// Number of samples consumed before the generation began, from earlier lists.
    pub before: u64,
    /// First group that was never granted, not even in part.
    pub next: u64,
    /// Number of samples of the groups before `next`.
    pub begun: u64,
    /// Ranges of these groups that are free again.
    pub returned: FreeRanges,
    pub shares: BTreeMap<u64, RankAssignment>,
    /// Samples that were in doubt and that no rank will deliver, because of `in_doubt="drop"`.
    #[serde(default, skip_serializing_if = "FreeRanges::is_empty")]
    pub dropped: FreeRanges,
    /// Time that the epoch has waited only for samples in doubt, ms.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waited_ms: u64,
    #[serde(default, skip_serializing_if = "Returns::is_empty")]
    pub returns: Returns,
    /// Number of samples delivered twice, as far as reported.
    pub duplicated: u64,
    /// Number of samples of the lists that were consumed, each counted once.
    #[serde(skip)]
    pub(crate) consumed: u64,
}

/// List and progress of one rank in an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankAssignment {
    /// The rank's group ranges, in the order in which it delivers them.
    pub list: RankList,
    /// Position in the list up to which samples were consumed, as far as reported.
    pub consumed: u64,
    /// Position up to which the worker has begun to read; samples beyond it can be asked back.
    pub started: u64,
    /// Position up to which samples may be given to the trainer; later ones were not delivered.
    pub horizon: u64,
    /// Increases with every cut of the list: a horizon applies to one version.
    pub version: u64,
    /// Position from which on the worker is asked to give back samples that it has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoke_from: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// Number of group ranges that were reported to the holder of the lease.
    #[serde(default)]
    pub(crate) told: u64,
    /// Set while the samples between `consumed` and the end of the list are in doubt: the rank is
    /// not served, and its trainer has not reported how many of them it consumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Box<Doubt>>,
    /// Samples that were in doubt, once the policy has decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) decided: Option<Box<Decided>>,
    /// Positions of the list whose samples are also in other lists, ascending and disjoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) doubled: Vec<Range<u64>>,
}

/// Reason why the end of a rank's list is in doubt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// Fencing token of the rank's last lease.
    pub(crate) fencing: Fencing,
    /// Time since which it is in doubt, Unix ms.
    pub since_ms: u64,
}

/// The end of a list that was in doubt until the policy decided. Its trainer may still come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Decided {
    /// Fencing token of the rank's last lease.
    pub(crate) fencing: Fencing,
    /// Position in the list at which it was cut off.
    pub(crate) at: u64,
    /// The part that was cut off; its first step is the first one not known to be consumed.
    pub(crate) rest: RankList,
    /// True if the samples were dropped instead of granted to other ranks.
    pub(crate) is_dropped: bool,
}

/// Counts of an epoch of a dynamic job, as far as reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub total: u64,
    /// Consumed samples, each counted once.
    pub delivered: u64,
    /// Samples in no list.
    pub free: u64,
    /// Samples in lists, not consumed and not in doubt.
    pub granted: u64,
    /// Samples in doubt: a trainer that is gone may have consumed them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_doubt: u64,
    /// Samples delivered twice, as far as reported.
    pub duplicated: u64,
    /// Samples that were in doubt and went to other ranks: at most as many were delivered twice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redelivered: u64,
    /// Samples that were in doubt and that no rank will deliver.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
}

impl Tally {
    /// Number of samples neither delivered nor dropped; at the end of an epoch, lost.
    pub fn missing(&self) -> u64 {
        self.total.saturating_sub(self.delivered).saturating_sub(self.dropped)
    }
}

impl RankAssignment {
    fn new(batch_size: u64, first_step: u64) -> Self {
        Self {
            list: RankList::new(batch_size, first_step),
            consumed: 0,
            started: 0,
            horizon: 0,
            version: 0,
            revoke_from: None,
            left: false,
            told: 0,
            doubt: None,
            decided: None,
            doubled: vec![],
        }
    }

    pub fn unstarted(&self) -> u64 {
        self.list.samples().saturating_sub(self.started)
    }

    pub fn in_doubt(&self) -> u64 {
        let rest = self.own(self.list.samples()) - self.own(self.consumed);
        self.doubt.as_ref().map_or(0, |_| rest)
    }

    /// Number of samples before a position that are in no other list.
    fn own(&self, position: u64) -> u64 {
        let doubled = self.doubled.iter();
        position - doubled.map(|d| d.end.min(position) - d.start.min(position)).sum::<u64>()
    }

    /// Group ranges at these positions that are in no other list.
    pub(crate) fn own_pieces(&self, positions: Range<u64>) -> Vec<GroupRange> {
        let (mut pieces, mut at) = (vec![], positions.start);
        for doubled in self.doubled.iter().chain([&(positions.end..positions.end)]) {
            let (start, end) = (doubled.start.min(positions.end), doubled.end);
            if start > at {
                pieces.extend(self.list.pieces_in(at..start));
            }
            at = at.max(end);
        }
        pieces
    }

    /// Position at which a step begins.
    ///
    /// A step in the list: its position and 0. A step beyond the list: the position of the list's
    /// end, and the offset in the samples that the policy decided on.
    pub(crate) fn reach(&self, step: u64) -> Option<(u64, u64)> {
        if let Some(position) = self.list.position_of_step(step) {
            return Some((position, 0));
        }
        let end = self.list.samples();
        let decided = self.decided.as_ref().filter(|decided| decided.at == end)?;
        Some((end, decided.rest.position_of_step(step)?))
    }

    /// Moves the consumed position forward; consumed samples were begun and lay before the horizon.
    fn consume_to(&mut self, position: u64) {
        self.consumed = self.consumed.max(position);
        self.horizon = self.horizon.max(self.consumed);
        self.start_to(self.consumed);
    }

    /// Moves the horizon to at least `ahead` samples, or one batch, beyond the consumed position.
    pub(crate) fn open(&mut self, ahead: u64) {
        let ahead = ahead.max(self.list.batch_size());
        let to = self.consumed.saturating_add(ahead).min(self.list.samples());
        self.horizon = self.horizon.max(to);
    }

    /// Moves the begun position forward; samples that were begun are not asked back.
    pub(crate) fn start_to(&mut self, position: u64) {
        self.started = self.started.max(position);
        let end = self.list.samples();
        self.revoke_from = self.revoke_from.map(|from| from.max(self.started));
        self.revoke_from = self.revoke_from.filter(|from| *from < end);
    }

    /// Cuts the list and returns the rest.
    ///
    /// The worker no longer counts as knowing the rest, and no horizon lies beyond the cut.
    pub(crate) fn cut(&mut self, position: u64) -> RankList {
        let rest = self.list.split_off(position);
        self.version += 1;
        self.horizon = self.horizon.min(self.list.samples());
        self.started = self.started.min(self.list.samples());
        self.told = self.told.min(self.list.pieces().len() as u64);
        self.start_to(0);
        rest
    }
}

impl Pool {
    pub(crate) fn new(groups: u64, samples: u64, batch_size: u64) -> Self {
        Self { groups, samples, batch_size, ..Self::default() }
    }

    /// Number of samples that were never granted, or that are free again.
    pub fn free(&self) -> u64 {
        self.returned.samples() + self.samples.saturating_sub(self.begun)
    }

    pub fn delivered(&self) -> u64 {
        self.before + self.consumed
    }

    /// True if every sample was consumed or dropped.
    pub fn is_done(&self) -> bool {
        self.delivered() + self.dropped.samples() == self.samples
    }

    pub fn tally(&self) -> Tally {
        let lists: u64 = self.shares.values().map(|share| share.own(share.list.samples())).sum();
        let in_doubt = self.in_doubt();
        Tally {
            total: self.samples,
            delivered: self.delivered(),
            free: self.free(),
            granted: lists - self.consumed - in_doubt,
            in_doubt,
            duplicated: self.duplicated,
            redelivered: self.redelivered(),
            dropped: self.dropped.samples(),
        }
    }

    /// True if this rank gets nothing more of the epoch.
    pub fn has_ended(&self, rank: u64) -> bool {
        self.is_done() || self.shares.get(&rank).is_some_and(|share| share.left)
    }

    /// Number of group ranges that the pool keeps.
    pub(crate) fn pieces(&self) -> u64 {
        let lists = self.shares.values().map(|share| share.list.pieces().len() as u64);
        lists.sum::<u64>() + self.returned.len() as u64
    }

    /// Returns a rank's share, which is empty at first.
    pub(crate) fn share_mut(&mut self, rank: u64) -> &mut RankAssignment {
        let (batch_size, first_step) = (self.batch_size, self.first_step);
        self.shares.entry(rank).or_insert_with(|| RankAssignment::new(batch_size, first_step))
    }

    /// True if a rank can be at a step.
    /// - `decided`: also counts the samples that the policy has decided on.
    pub(crate) fn can_stand_at(&self, rank: u64, step: u64, decided: bool) -> bool {
        let Some(share) = self.shares.get(&rank) else {
            return step == self.first_step;
        };
        share.reach(step).is_some_and(|(_, more)| decided || more == 0)
    }

    /// Marks all samples of a rank before a step as consumed.
    pub(crate) fn consume(&mut self, rank: u64, step: u64) {
        let Some(share) = self.shares.get_mut(&rank) else {
            return;
        };
        let Some(position) = share.list.position_of_step(step) else {
            return;
        };
        let before = share.own(share.consumed);
        share.consume_to(position);
        self.consumed += share.own(share.consumed) - before;
    }

    /// Ends a rank's part in the epoch: it moved on, and its unconsumed samples become free.
    pub(crate) fn leave(&mut self, rank: u64, now_ms: u64) {
        let share = self.share_mut(rank);
        share.left = true;
        (share.revoke_from, share.doubt) = (None, None);
        // Samples that were begun and not consumed are also free for other ranks.
        share.started = share.consumed;
        let rest = share.cut(share.consumed);
        self.take_back(&rest, rank, Returned::Left, now_ms);
    }

    /// Resets a rank's share for a new lease whose trainer has reported its position: the new
    /// worker knows no list and has begun nothing.
    pub(crate) fn hand_over(&mut self, rank: u64) {
        if let Some(share) = self.shares.get_mut(&rank) {
            (share.doubt, share.decided) = (None, None);
            (share.told, share.started, share.horizon) = (0, share.consumed, share.consumed);
            share.version += 1;
        }
        self.waited_ms = 0;
    }

    /// Asks a rank to give back the samples from a position on that it has not begun.
    pub(crate) fn revoke(&mut self, rank: u64, from: u64) {
        let share = self.shares.get_mut(&rank).filter(|share| !share.left && share.doubt.is_none());
        if let Some(share) = share.filter(|share| from < share.list.samples()) {
            let from = from.max(share.started);
            let earlier = share.revoke_from.unwrap_or(from);
            share.revoke_from = Some(from.min(earlier)).filter(|from| *from < share.list.samples());
        }
    }

    /// Frees the samples from a position on that a worker gives back because it has not begun them.
    pub(crate) fn give_back(&mut self, rank: u64, position: u64, now_ms: u64) {
        let share = self.share_mut(rank);
        share.revoke_from = None;
        let rest = share.cut(position.max(share.started));
        self.take_back(&rest, rank, Returned::AskedBack, now_ms);
    }

    /// Copies the lists for the same ranks in a later generation.
    ///
    /// Each horizon stays until its rank joins: the rank may have consumed samples before it.
    pub(crate) fn copied(&self) -> Self {
        let mut copy = self.clone();
        (copy.consumed, copy.waited_ms) = (0, 0);
        copy.returns = Returns::default();
        let dropped = std::mem::take(&mut copy.dropped);
        dropped.iter().for_each(|piece| copy.returned.insert(piece));
        for share in copy.shares.values_mut() {
            (share.consumed, share.started, share.told) = (0, 0, 0);
            (share.revoke_from, share.left, share.doubt) = (None, false, None);
        }
        copy
    }

    /// Frees the end that was cut off a list.
    pub(crate) fn take_back(&mut self, rest: &RankList, rank: u64, why: Returned, now_ms: u64) {
        rest.pieces().iter().for_each(|&piece| self.returned.insert(piece));
        self.returns.file(now_ms, rank, why, rest.pieces().to_vec());
    }

    pub(crate) fn index(&mut self) {
        self.consumed = self.shares.values().map(|share| share.own(share.consumed)).sum();
    }
}
