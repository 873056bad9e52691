//! What the ranks of a dynamic job were granted of one epoch, and what is free.
//! Source: docs/ORDER.md, section 10; docs/ARCHITECTURE.md, Dynamic jobs.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardfeed_plan::Tail;
use shardfeed_plan::dynamic::{FreePieces, Piece, RankList, quota};

use crate::command::Fencing;
use crate::history::{Returned, Returns};

/// The groups of one epoch in one generation: each sample is free, or in one rank's list, or was
/// consumed before the generation began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Groups of the epoch.
    pub groups: u64,
    /// Samples of the epoch.
    pub samples: u64,
    /// Step of the epoch at which its lists begin.
    pub first_step: u64,
    /// Samples of a full batch of one rank.
    pub batch_size: u64,
    /// Samples that every rank has; `None` with `tail="uneven"`.
    pub quota: Option<u64>,
    /// Whether lists that lack samples are padded up to the quota.
    pub padded: bool,
    /// Samples consumed before the generation began, by other lists than these.
    pub before: u64,
    /// The first group of which nothing was ever granted.
    pub next: u64,
    /// Samples of the groups before that one.
    pub begun: u64,
    /// Parts of these that are free again.
    pub returned: FreePieces,
    /// What each rank was granted.
    pub shares: BTreeMap<u64, Share>,
    /// Ranks that nobody serves and whose lists stay for a while, for their trainers to come back; the
    /// leases that had them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<u64, Fencing>,
    /// What came back from lists.
    #[serde(default, skip_serializing_if = "Returns::is_empty")]
    pub returns: Returns,
    /// Samples delivered twice, as far as reported.
    pub duplicated: u64,
    /// Samples of the lists that were consumed, each counted once.
    #[serde(skip)]
    pub(crate) consumed: u64,
}

/// What one rank was granted of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Its pieces, in the order in which it delivers them.
    pub list: RankList,
    /// Position in the list up to which it was consumed, as far as reported.
    pub consumed: u64,
    /// Position up to which its worker may have begun to deliver.
    pub started: u64,
    /// Position from which its worker is asked to give back what it has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoke_from: Option<u64>,
    /// Whether the rank has left this epoch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// Pieces that its lease was told of.
    #[serde(default)]
    pub(crate) told: u64,
    /// What was taken from it when its session ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<Box<Lost>>,
    /// Positions of the list whose samples other lists have too, ascending and disjoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) doubled: Vec<Range<u64>>,
}

/// The end of a list that returned to the pool when nobody served the rank any more. Its trainer
/// may have consumed more of it than was known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lost {
    /// The lease that had it.
    pub(crate) fencing: Fencing,
    /// Position in the list at which it was cut off.
    pub(crate) at: u64,
    /// What was cut off; its first step is the first one that was not known to be consumed.
    pub(crate) rest: RankList,
    /// Samples of it that were counted as delivered twice.
    pub(crate) counted: u64,
}

/// Numbers of an epoch of a dynamic job, as far as reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Samples of the epoch.
    pub total: u64,
    /// Consumed, each counted once.
    pub delivered: u64,
    /// In no list.
    pub free: u64,
    /// In lists and not consumed.
    pub granted: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// What the quotas leave out.
    pub dropped: u64,
    /// Steps of every rank; `None` without quotas.
    pub steps: Option<u64>,
}

impl Tally {
    /// What is neither delivered nor dropped; at the end of an epoch, lost.
    pub fn missing(&self) -> u64 {
        self.total.saturating_sub(self.delivered).saturating_sub(self.dropped)
    }
}

impl Share {
    fn new(batch_size: u64, first_step: u64) -> Self {
        Self {
            list: RankList::new(batch_size, first_step),
            consumed: 0,
            started: 0,
            revoke_from: None,
            left: false,
            told: 0,
            lost: None,
            doubled: vec![],
        }
    }

    /// Samples that its worker has not begun.
    pub fn unstarted(&self) -> u64 {
        self.list.samples().saturating_sub(self.started)
    }

    /// Samples before a position that no other list has.
    fn own(&self, position: u64) -> u64 {
        let doubled = self.doubled.iter();
        position - doubled.map(|d| d.end.min(position) - d.start.min(position)).sum::<u64>()
    }

    /// Its pieces at these positions that no other list has.
    pub(crate) fn own_pieces(&self, positions: Range<u64>) -> Vec<Piece> {
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

    /// Position at which a step begins, in what it has and what it lost: the part in its list, and
    /// the part of what it lost.
    fn reach(&self, step: u64) -> Option<(u64, u64)> {
        if let Some(position) = self.list.position_of_step(step) {
            return Some((position, 0));
        }
        let end = self.list.samples();
        let lost = self.lost.as_ref().filter(|lost| lost.at == end)?;
        Some((end, lost.rest.position_of_step(step)?))
    }

    /// Moves what is known to be consumed up; what was consumed was begun.
    fn consume_to(&mut self, position: u64) {
        self.consumed = self.consumed.max(position);
        self.start_to(self.consumed);
    }

    /// Moves up to where its worker has begun; what was begun is not asked back.
    pub(crate) fn start_to(&mut self, position: u64) {
        self.started = self.started.max(position);
        let end = self.list.samples();
        self.revoke_from = self.revoke_from.map(|from| from.max(self.started));
        self.revoke_from = self.revoke_from.filter(|from| *from < end);
    }

    /// Cuts the list; what came after is no longer known to its worker.
    fn cut(&mut self, position: u64) -> RankList {
        let rest = self.list.split_off(position);
        self.told = self.told.min(self.list.pieces().len() as u64);
        self.start_to(0);
        rest
    }
}

impl Pool {
    /// A pool of which nothing was granted.
    pub(crate) fn new(groups: u64, samples: u64, tail: Tail, ranks: u64, batch_size: u64) -> Self {
        Self {
            groups,
            samples,
            first_step: 0,
            batch_size,
            quota: quota(tail, samples, ranks, batch_size),
            padded: tail == Tail::Pad,
            before: 0,
            next: 0,
            begun: 0,
            returned: FreePieces::default(),
            shares: BTreeMap::new(),
            held: BTreeMap::new(),
            returns: Returns::default(),
            duplicated: 0,
            consumed: 0,
        }
    }

    /// Samples that nobody was granted, or that are free again.
    pub fn free(&self) -> u64 {
        self.returned.samples() + self.samples.saturating_sub(self.begun)
    }

    /// Samples consumed, each counted once, as far as reported.
    pub fn delivered(&self) -> u64 {
        self.before + self.consumed
    }

    /// Whether every sample was consumed.
    pub fn is_done(&self) -> bool {
        self.delivered() == self.samples
    }

    /// Its numbers.
    pub fn tally(&self, world_size: u64) -> Tally {
        let lists: u64 = self.shares.values().map(|share| share.own(share.list.samples())).sum();
        let left = self.samples - self.before;
        let dropped = self.quota.map_or(0, |quota| left.saturating_sub(quota * world_size));
        Tally {
            total: self.samples,
            delivered: self.delivered(),
            free: self.free(),
            granted: lists - self.consumed,
            duplicated: self.duplicated,
            dropped,
            steps: self.quota.map(|quota| self.first_step + quota / self.batch_size.max(1)),
        }
    }

    /// Whether this rank gets nothing more of the epoch.
    pub fn has_ended(&self, rank: u64) -> bool {
        let share = self.shares.get(&rank);
        let samples = share.map_or(0, |share| share.list.samples());
        share.is_some_and(|share| share.left)
            || match self.quota {
                None => self.is_done(),
                Some(quota) => samples >= quota || (self.padded && self.free() == 0),
            }
    }

    /// Pieces that it keeps.
    pub(crate) fn pieces(&self) -> u64 {
        let lists = self.shares.values().map(|share| share.list.pieces().len() as u64);
        lists.sum::<u64>() + self.returned.len() as u64
    }

    /// A rank's share, which begins empty.
    pub(crate) fn share_mut(&mut self, rank: u64) -> &mut Share {
        let (batch_size, first_step) = (self.batch_size, self.first_step);
        self.shares.entry(rank).or_insert_with(|| Share::new(batch_size, first_step))
    }

    /// Whether a rank can stand at a step; `lost`: also by what it had when its session ended.
    pub(crate) fn can_stand_at(&self, rank: u64, step: u64, lost: bool) -> bool {
        let Some(share) = self.shares.get(&rank) else {
            return step == self.first_step || self.is_padding(step);
        };
        self.is_padding(step) || share.reach(step).is_some_and(|(_, more)| lost || more == 0)
    }

    /// Whether a step may be padded: not before everything was granted.
    fn is_padding(&self, step: u64) -> bool {
        let steps = self.quota.unwrap_or(0) / self.batch_size;
        let is_there = step >= self.first_step && step - self.first_step <= steps;
        self.padded && is_there && self.free() == 0
    }

    /// A rank has consumed everything before a step.
    pub(crate) fn consume(&mut self, rank: u64, step: u64) {
        let padding = self.is_padding(step);
        let Some(share) = self.shares.get_mut(&rank) else {
            return;
        };
        let whole = padding.then(|| share.list.samples());
        let Some(position) = share.list.position_of_step(step).or(whole) else {
            return;
        };
        let before = share.own(share.consumed);
        share.consume_to(position);
        self.consumed += share.own(share.consumed) - before;
    }

    /// A rank goes on to a later epoch: with a quota it has consumed all if it was given all;
    /// otherwise what it did not consume is free.
    pub(crate) fn leave(&mut self, rank: u64, now_ms: u64) {
        let has_all = self.quota.is_some() && self.has_ended(rank);
        let is_shared = self.quota.is_none();
        self.held.remove(&rank);
        let share = self.share_mut(rank);
        share.left = true;
        share.revoke_from = None;
        if has_all {
            let before = share.own(share.consumed);
            share.consume_to(share.list.samples());
            self.consumed += share.own(share.consumed) - before;
        } else if is_shared {
            // What it had begun and not consumed is for others, too.
            share.started = share.consumed;
            let rest = share.cut(share.consumed);
            self.take_back(&rest, rank, Returned::Left, now_ms);
        }
    }

    /// Nobody serves a rank any more: with `uneven` what it is not known to have consumed is free.
    pub(crate) fn release(&mut self, rank: u64, fencing: Fencing, now_ms: u64) {
        self.held.remove(&rank);
        let is_shared = self.quota.is_none();
        let Some(share) = self.shares.get_mut(&rank).filter(|share| is_shared && !share.left)
        else {
            return;
        };
        let at = share.consumed;
        share.started = at;
        let rest = share.cut(at);
        if rest.samples() > 0 {
            self.take_back(&rest, rank, Returned::Unserved, now_ms);
            let lost = Lost { fencing, at, rest, counted: 0 };
            self.share_mut(rank).lost = Some(Box::new(lost));
        }
    }

    /// Nobody serves a rank any more, but its trainer lives: its list is free when it is asked for.
    pub(crate) fn hold(&mut self, rank: u64, fencing: Fencing) {
        let share = self.shares.get(&rank).filter(|share| !share.left);
        if self.quota.is_none() && share.is_some_and(|share| share.consumed < share.list.samples())
        {
            self.held.insert(rank, fencing);
        }
    }

    /// Another lease has the rank: its worker knows nothing, and has begun nothing.
    pub(crate) fn hand_over(&mut self, rank: u64) {
        self.held.remove(&rank);
        if let Some(share) = self.shares.get_mut(&rank) {
            share.told = 0;
            share.started = share.consumed;
        }
    }

    /// A worker gives back what it has not begun from a position on.
    pub(crate) fn give_back(&mut self, rank: u64, position: u64, now_ms: u64) {
        let share = self.share_mut(rank);
        share.revoke_from = None;
        let rest = share.cut(position.max(share.started));
        self.take_back(&rest, rank, Returned::AskedBack, now_ms);
    }

    /// A rank whose session had ended stands at a step beyond what was known: the list goes on up
    /// to there. What is free of that is taken out; what others were granted is in two lists.
    pub(crate) fn restore(&mut self, rank: u64, step: u64) {
        let Some(share) = self.shares.get_mut(&rank) else {
            return;
        };
        let Some((_, more @ 1..)) = share.reach(step) else {
            return;
        };
        let Some(lost) = share.lost.take() else {
            return;
        };
        let Lost { at, mut rest, counted, .. } = *lost;
        rest.split_off(more);
        self.duplicated = self.duplicated.saturating_sub(counted);
        for piece in rest.pieces() {
            let mut from = piece.from;
            let ours = self.returned.remove(*piece);
            let end = Piece { from: piece.to, to: piece.to, ..*piece };
            for own in ours.into_iter().chain([end]) {
                let theirs = Piece { from, to: own.from, ..*piece };
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

    /// A rank joins with a list that another generation left: it stands at a step. From the first
    /// sample after it that another list has too, the list ends and the rest is free.
    pub(crate) fn take_over(&mut self, rank: u64, step: u64, now_ms: u64) {
        self.restore(rank, step);
        self.consume(rank, step);
        let Some(share) = self.shares.get_mut(&rank) else {
            return;
        };
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

    /// A late word of a lease that is no longer good: what it consumed beyond what was known will
    /// be delivered again, or was.
    pub(crate) fn count_late(&mut self, rank: u64, fencing: Fencing, step: u64) {
        let lost = self.shares.get_mut(&rank).and_then(|share| share.lost.as_mut());
        let Some(lost) = lost.filter(|lost| lost.fencing == fencing) else {
            return;
        };
        if let Some(consumed) = lost.rest.position_of_step(step) {
            self.duplicated += consumed.saturating_sub(lost.counted);
            lost.counted = lost.counted.max(consumed);
        }
    }

    /// The same lists, for the same ranks in a generation after this one.
    pub(crate) fn copied(&self) -> Self {
        let mut copy = self.clone();
        copy.consumed = 0;
        copy.held.clear();
        copy.returns = Returns::default();
        for share in copy.shares.values_mut() {
            (share.consumed, share.started, share.told) = (0, 0, 0);
            (share.revoke_from, share.left) = (None, false);
        }
        copy
    }

    /// What is left for other ranks, where each of these stands at a step of its own. `None` if
    /// one of them cannot stand there.
    pub(crate) fn left_after(&self, step_of: impl Fn(u64) -> Option<u64>) -> Option<FreePieces> {
        let mut free = self.returned.clone();
        let mut taken = vec![];
        for (rank, share) in &self.shares {
            let step = step_of(*rank)?;
            let whole = self.is_padding(step).then(|| (share.list.samples(), 0));
            let (position, more) = share.reach(step).or(whole)?;
            let rest = share.own_pieces(position..share.list.samples());
            rest.into_iter().for_each(|piece| free.insert(piece));
            let doubled = share.doubled.iter();
            let doubled = doubled.map(|d| d.start.min(position)..d.end.min(position));
            taken.extend(doubled.flat_map(|positions| share.list.pieces_in(positions)));
            let lost = share.lost.as_ref().filter(|_| more > 0);
            taken.extend(lost.into_iter().flat_map(|lost| lost.rest.pieces_in(0..more)));
        }
        taken.into_iter().for_each(|piece| drop(free.remove(piece)));
        Some(free)
    }

    /// Files a cut-off end of a list as free.
    fn take_back(&mut self, rest: &RankList, rank: u64, why: Returned, now_ms: u64) {
        rest.pieces().iter().for_each(|&piece| self.returned.insert(piece));
        self.returns.file(now_ms, rank, why, rest.pieces().to_vec());
    }

    /// Computes anew what the shares imply.
    pub(crate) fn index(&mut self) {
        self.consumed = self.shares.values().map(|share| share.own(share.consumed)).sum();
    }
}
