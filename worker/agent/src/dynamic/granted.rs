//! What a rank was granted of one epoch, as far as its worker knows, and how much of it was begun.
//! Pure: answers go in, batches to read and the next request come out.

use std::time::Duration;

use shardfeed_plan::dynamic::{Piece, RankList};

use crate::control::{Grant, Take};
use crate::dynamic::pace;

/// A request may wait so long for something to tell; who hangs costs a rank that waits so much more.
const WAIT: Duration = Duration::from_secs(1);

/// One rank's part of one epoch.
#[derive(Debug)]
pub(crate) struct Granted {
    epoch: u64,
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
    /// Position up to which the trainer consumed.
    consumed: u64,
    /// Position up to which batches may be delivered, and the version of the list that it counts for.
    horizon: u64,
    version: u64,
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
    /// The piece of another group that comes next, if it was granted already.
    pub(crate) then: Option<Piece>,
}

/// The list is no longer the one that batches were made of: the lease lapsed in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lapsed;

impl Granted {
    /// Nothing was told of `epoch`, of which `step` is the first step to read.
    pub(crate) fn new(batch_size: u64, (epoch, step): (u64, u64)) -> Self {
        Self {
            epoch,
            list: RankList::new(batch_size, 0),
            step,
            started: 0,
            is_placed: false,
            is_told: false,
            samples: 0,
            consumed: 0,
            horizon: 0,
            version: 0,
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

    /// Whether a step may be delivered.
    pub(crate) fn is_open(&self, step: u64) -> bool {
        self.list.positions_of(step).is_some_and(|positions| positions.end <= self.horizon)
    }

    /// The trainer consumed everything before a step. Returns how many samples more than was known.
    pub(crate) fn consume(&mut self, step: u64) -> u64 {
        let position = self.list.position_of_step(step).filter(|_| self.is_placed);
        let more = position.map_or(0, |position| position.saturating_sub(self.consumed));
        self.consumed += more;
        more
    }

    /// Whether more shall lie before the horizon than what is left of `ahead`.
    pub(crate) fn wants_horizon(&self, ahead: u64) -> bool {
        let left = self.horizon.saturating_sub(self.consumed);
        self.is_placed && self.horizon < self.samples && left < pace::low(ahead)
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
            return Upcoming::Step(Step { step: self.step, pieces, then });
        }
        if !self.ended || !self.is_complete() {
            return Upcoming::Waiting;
        }
        Upcoming::Ended { steps: self.step }
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

    /// Whether all that there is of the list was told.
    fn is_complete(&self) -> bool {
        self.is_told && self.before.is_none() && self.list.samples() >= self.samples
    }

    /// The request that is due.
    /// - `lookahead`: samples that shall be granted and not begun.
    /// - `ahead`: samples that shall lie between what was consumed and the horizon.
    /// - `is_asked`: control has something to tell.
    pub(crate) fn due(&self, lookahead: u64, ahead: u64, is_asked: bool) -> Option<Take> {
        let is_short = self.rest() < lookahead && !self.ended;
        let is_told = self.release.is_some() || (self.is_told && !self.is_complete());
        let is_urgent = is_asked || is_told || self.wants_horizon(ahead);
        if !is_short && !is_urgent {
            return None;
        }
        Some(Take {
            epoch: self.epoch,
            started: self.started,
            known: self.list.pieces().len() as u64,
            wants: if is_short { lookahead } else { 0 },
            ahead,
            released: self.release,
            wait: if is_urgent { Duration::ZERO } else { WAIT },
        })
    }

    /// Takes the answer to a request; returns whether it said anything new.
    pub(crate) fn answer(&mut self, asked: &Take, grant: &Grant) -> Result<bool, Lapsed> {
        if asked.epoch != self.epoch {
            return Ok(false);
        }
        let was = self.seen();
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
        (self.samples, self.ended) = (grant.samples, grant.ended);
        if grant.version >= self.version {
            (self.horizon, self.version) = (grant.horizon, grant.version);
        }
        self.compare()?;
        if let Some(from) = grant.revoke_from {
            self.release(from);
        }
        self.place()?;
        Ok(self.seen() != was || self.release.is_some())
    }

    /// What an answer may change.
    fn seen(&self) -> (usize, usize, [bool; 2], u64) {
        let flags = [self.ended, self.is_told];
        (self.list.pieces().len(), self.list.closed().len(), flags, self.horizon)
    }

    /// Gives back what was not begun from a position on.
    fn release(&mut self, from: u64) {
        if !self.is_complete() {
            return;
        }
        let kept = from.max(self.started).min(self.list.samples());
        drop(self.list.truncate_to(kept));
        self.samples = kept;
        // What is granted there next was not opened.
        self.horizon = self.horizon.min(kept);
        self.release = Some(kept);
    }

    /// Finds where the first step begins, once the list reaches so far.
    fn place(&mut self) -> Result<(), Lapsed> {
        if self.is_placed || self.before.is_some() {
            return Ok(());
        }
        if let Some(position) = self.list.position_of_step(self.step) {
            (self.started, self.consumed, self.is_placed) = (position, position, true);
        } else if self.is_complete() && self.ended {
            // Others consumed the rest, and its lists may be gone.
            let end = self.list.samples();
            (self.started, self.consumed, self.is_placed) = (end, end, true);
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
