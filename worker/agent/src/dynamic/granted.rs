//! What a rank was granted of one epoch, as far as its worker knows, and how much of it was begun.
//! Pure: answers go in, batches to read and the next request come out.

use std::ops::Range;
use std::time::Duration;

use shardfeed_plan::Tail;
use shardfeed_plan::dynamic::{Piece, RankList};

use crate::control::{Grant, Take};

/// A request may wait so long for something to tell; who hangs costs a rank that waits so much more.
const WAIT: Duration = Duration::from_secs(1);

/// One rank's part of one epoch.
#[derive(Debug)]
pub(crate) struct Granted {
    epoch: u64,
    is_padded: bool,
    list: RankList,
    /// The first step that was not begun.
    step: u64,
    /// Position in the list up to which batches were begun.
    started: u64,
    /// Whether `started` is known: it follows from the step once the list reaches so far.
    is_placed: bool,
    /// Whether anything was told.
    is_told: bool,
    /// Samples of the list, also those that were not told yet.
    samples: u64,
    quota: Option<u64>,
    ended: bool,
    /// The list was given back from here on, and that is not known yet.
    release: Option<u64>,
    /// The list as it was before it was told anew from its start.
    before: Option<RankList>,
}

/// What comes next in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Upcoming {
    /// A batch.
    Step(Step),
    /// More has to be granted first.
    Waiting,
    /// Nothing more in this epoch, which has so many steps for this rank.
    Ended {
        /// Steps of the whole epoch.
        steps: u64,
    },
}

/// What a batch is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Step of the epoch.
    pub(crate) step: u64,
    /// Its samples, in order.
    pub(crate) pieces: Vec<Piece>,
    /// Then these padded slots of the list.
    pub(crate) padding: Range<u64>,
    /// The piece of another group that comes next, if it was granted already.
    pub(crate) then: Option<Piece>,
}

/// The list is no longer the one that batches were made of: the lease lapsed in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lapsed;

impl Granted {
    /// Nothing was told of `epoch`, of which `step` is the first step to read.
    pub(crate) fn new(tail: Tail, batch_size: u64, (epoch, step): (u64, u64)) -> Self {
        Self {
            epoch,
            is_padded: tail == Tail::Pad,
            list: RankList::new(batch_size, 0),
            step,
            started: 0,
            is_placed: false,
            is_told: false,
            samples: 0,
            quota: None,
            ended: false,
            release: None,
            before: None,
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Position up to which batches were begun.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Samples that are known and not begun.
    pub(crate) fn rest(&self) -> u64 {
        self.list.samples().saturating_sub(self.started)
    }

    /// Whether this epoch has no step for any rank.
    pub(crate) fn is_empty_for_all(&self) -> bool {
        self.quota == Some(0)
    }

    /// What comes next.
    pub(crate) fn upcoming(&self) -> Upcoming {
        if !self.is_placed {
            return Upcoming::Waiting;
        }
        if let Some(positions) = self.list.positions_of(self.step) {
            let last = self.list.at(positions.end - 1).map(|(group, _)| group);
            let later = &self.list.pieces()[self.list.pieces_before(positions.end)..];
            let then = later.iter().find(|piece| Some(piece.group) != last).copied();
            let pieces = self.list.pieces_in(positions).collect();
            return Upcoming::Step(Step { step: self.step, pieces, padding: 0..0, then });
        }
        if !self.ended || !self.is_complete() {
            return Upcoming::Waiting;
        }
        match self.quota.filter(|_| self.is_padded) {
            Some(quota) if self.position() < quota => Upcoming::Step(self.padded(quota)),
            _ => Upcoming::Ended { steps: self.step },
        }
    }

    /// Takes what comes next.
    pub(crate) fn begin(&mut self) -> Upcoming {
        let upcoming = self.upcoming();
        if let Upcoming::Step(step) = &upcoming {
            self.started += step.pieces.iter().map(Piece::samples).sum::<u64>();
            self.step += 1;
        }
        upcoming
    }

    /// A batch at the end of a list that the pool had not enough for.
    fn padded(&self, quota: u64) -> Step {
        let (start, samples) = (self.position(), self.list.samples());
        let end = start.saturating_add(self.list.batch_size()).min(quota);
        let pieces = self.list.pieces_in(start.min(samples)..end.min(samples)).collect();
        let padding = start.max(samples) - samples..end.max(samples) - samples;
        Step { step: self.step, pieces, padding, then: None }
    }

    /// Position at which the next step begins, where no run is closed.
    fn position(&self) -> u64 {
        let steps = self.step.saturating_sub(self.list.first_step());
        steps.saturating_mul(self.list.batch_size())
    }

    /// Whether all that there is of the list was told.
    fn is_complete(&self) -> bool {
        self.is_told && self.before.is_none() && self.list.samples() >= self.samples
    }

    /// The request that is due.
    /// - `lookahead`: samples that shall be granted and not begun.
    /// - `is_asked`: control has something to tell.
    pub(crate) fn due(&self, lookahead: u64, is_asked: bool) -> Option<Take> {
        let is_short = self.rest() < lookahead && !self.ended;
        let is_urgent = self.release.is_some() || is_asked || (self.is_told && !self.is_complete());
        if !is_short && !is_urgent {
            return None;
        }
        Some(Take {
            epoch: self.epoch,
            started: self.started,
            known: self.list.pieces().len() as u64,
            wants: if is_short { lookahead } else { 0 },
            released: self.release,
            wait: if is_urgent { Duration::ZERO } else { WAIT },
        })
    }

    /// Takes the answer to a request; returns whether it said anything new.
    pub(crate) fn answer(&mut self, asked: &Take, grant: &Grant) -> Result<bool, Lapsed> {
        if asked.epoch != self.epoch {
            return Ok(false);
        }
        let was = (self.list.pieces().len(), self.list.closed().len(), self.ended, self.is_told);
        if self.release == asked.released {
            self.release = None;
        }
        if !self.is_told {
            self.list = RankList::new(self.list.batch_size(), grant.first_step);
            self.is_told = true;
        }
        if grant.first < asked.known {
            // Told anew: it must go on from what was begun of it.
            let empty = RankList::new(self.list.batch_size(), grant.first_step);
            let known = std::mem::replace(&mut self.list, empty);
            self.before.get_or_insert(known);
        }
        if grant.first == self.list.pieces().len() as u64 {
            grant.pieces.iter().for_each(|piece| self.list.append(*piece));
        }
        grant.closed.iter().for_each(|&end| self.list.close_at(end));
        (self.samples, self.quota, self.ended) = (grant.samples, grant.quota, grant.ended);
        self.compare()?;
        if let Some(from) = grant.revoke_from {
            self.release(from);
        }
        self.place()?;
        let is = (self.list.pieces().len(), self.list.closed().len(), self.ended, self.is_told);
        Ok(is != was || self.release.is_some())
    }

    /// Gives back what was not begun from a position on.
    fn release(&mut self, from: u64) {
        if self.quota.is_some() || !self.is_complete() {
            return;
        }
        let kept = from.max(self.started).min(self.list.samples());
        drop(self.list.truncate_to(kept));
        self.samples = kept;
        self.release = Some(kept);
    }

    /// Finds where the first step begins, once the list reaches so far.
    fn place(&mut self) -> Result<(), Lapsed> {
        if self.is_placed || self.before.is_some() {
            return Ok(());
        }
        if let Some(position) = self.list.position_of_step(self.step) {
            (self.started, self.is_placed) = (position, true);
        } else if self.is_complete() && self.is_padded && self.step >= self.list.first_step() {
            // Among the padded steps, unless more is granted first.
            (self.started, self.is_placed) = (self.list.samples(), self.ended);
        } else if self.is_complete() {
            return Err(Lapsed);
        }
        Ok(())
    }

    /// Whether a list that was told anew is the old one as far as that was begun.
    fn compare(&mut self) -> Result<(), Lapsed> {
        let Some(before) = &self.before else {
            return Ok(());
        };
        if self.list.samples() < self.started {
            return if self.list.samples() >= self.samples { Err(Lapsed) } else { Ok(()) };
        }
        let same = joined(&self.list, self.started) == joined(before, self.started)
            && self.list.step_of(self.started) == before.step_of(self.started);
        self.before = None;
        if same { Ok(()) } else { Err(Lapsed) }
    }
}

/// What a list begins with, however it is divided in pieces.
fn joined(list: &RankList, end: u64) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::new();
    for piece in list.pieces_in(0..end) {
        match joined.last_mut() {
            Some(last) if last.group == piece.group && last.to == piece.from => last.to = piece.to,
            _ => joined.push(piece),
        }
    }
    joined
}

#[cfg(test)]
mod tests;
