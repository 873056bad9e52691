//! Grants of one rank in one epoch, as known to its worker, and the part that was begun.
//! Pure: answers go in, batches to read and the next claim come out.

use std::time::Duration;

use shardfeed_plan::dynamic::{GroupRange, RankList};

use crate::control::{Claim, Grant, Release};
use crate::dynamic::pace;

/// Maximum wait of a claim for a change to report, by which a hung coordinator delays a rank.
const WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) epoch: u64,
    list: RankList,
    /// First step that was not begun.
    step: u64,
    /// Position in the list up to which batches were begun.
    pub(crate) started: u64,
    /// True if `started` is known: it follows from the step once the list is long enough.
    is_placed: bool,
    /// True if any answer was received.
    is_told: bool,
    /// Samples of the list, including those not received yet.
    samples: u64,
    /// Position up to which the trainer consumed.
    consumed: u64,
    /// Position up to which batches may be delivered, and the version of its list.
    horizon: u64,
    version: u64,
    ended: bool,
    /// Position from which the list was released, until that is acknowledged.
    release: Option<Release>,
    /// The list before it was sent again from its start.
    before: Option<RankList>,
}

/// Next item to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    Step(GrantedStep),
    /// No more samples in this epoch.
    Ended {
        /// Steps of the whole epoch for this rank.
        steps: u64,
    },
}

/// Contents of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantedStep {
    pub(crate) step: u64,
    /// Its samples, in order.
    pub(crate) pieces: Vec<GroupRange>,
    /// The next group range of another group, if it was granted already.
    pub(crate) then: Option<GroupRange>,
}

/// The list differs from the one that batches were made of: the lease lapsed in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lapsed;

impl Granted {
    /// Creates an empty list for `epoch`; `step` is the first step to read.
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

    /// Returns the number of known samples that are not begun.
    pub(crate) fn rest(&self) -> u64 {
        self.list.samples().saturating_sub(self.started)
    }

    /// True if a step may be delivered.
    pub(crate) fn is_open(&self, step: u64) -> bool {
        self.list.positions_of(step).is_some_and(|positions| positions.end <= self.horizon)
    }

    /// Records that everything before a step was consumed. Returns the newly consumed samples.
    pub(crate) fn consume(&mut self, step: u64) -> u64 {
        let position = self.list.position_of_step(step).filter(|_| self.is_placed);
        let more = position.map_or(0, |position| position.saturating_sub(self.consumed));
        self.consumed += more;
        more
    }

    /// True if the distance to the horizon is below the threshold for `ahead`.
    pub(crate) fn wants_horizon(&self, ahead: u64) -> bool {
        let left = self.horizon.saturating_sub(self.consumed);
        self.is_placed && self.horizon < self.samples && left < pace::low(ahead)
    }

    /// Returns the next item; `None` if more samples must be granted first.
    pub(crate) fn upcoming(&self) -> Option<NextStep> {
        if !self.is_placed {
            return None;
        }
        if let Some(positions) = self.list.positions_of(self.step) {
            let last = self.list.at(positions.end - 1).map(|(group, _)| group);
            let later = &self.list.pieces()[self.list.pieces_before(positions.end)..];
            let then = later.iter().find(|piece| Some(piece.group) != last).copied();
            let pieces = self.list.pieces_in(positions).collect();
            return Some(NextStep::Step(GrantedStep { step: self.step, pieces, then }));
        }
        if !self.ended || !self.is_complete() {
            return None;
        }
        Some(NextStep::Ended { steps: self.step })
    }

    /// Takes the next item.
    pub(crate) fn begin(&mut self) -> Option<NextStep> {
        let upcoming = self.upcoming();
        if let Some(NextStep::Step(step)) = &upcoming {
            self.started += step.pieces.iter().map(GroupRange::samples).sum::<u64>();
            self.step += 1;
        }
        upcoming
    }

    fn is_complete(&self) -> bool {
        self.is_told && self.before.is_none() && self.list.samples() >= self.samples
    }

    /// Returns the claim that is due.
    /// - `lookahead`: target number of samples granted and not begun.
    /// - `ahead`: target distance in samples between the consumed position and the horizon.
    /// - `is_asked`: control has an event to report.
    pub(crate) fn due(&self, lookahead: u64, ahead: u64, is_asked: bool) -> Option<Claim> {
        let is_short = self.rest() < lookahead && !self.ended;
        let is_told = self.release.is_some() || (self.is_told && !self.is_complete());
        let is_urgent = is_asked || is_told || self.wants_horizon(ahead);
        if !is_short && !is_urgent {
            return None;
        }
        Some(Claim {
            epoch: self.epoch,
            started: self.started,
            known: self.list.pieces().len() as u64,
            wants: if is_short { lookahead } else { 0 },
            ahead,
            released: self.release,
            version: self.version,
            wait: if is_urgent { Duration::ZERO } else { WAIT },
        })
    }

    /// Applies the answer to a claim; returns true if it changed anything.
    pub(crate) fn answer(&mut self, asked: &Claim, grant: &Grant) -> Result<bool, Lapsed> {
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
            // The list is sent again: its begun part must be the same.
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

    /// Returns the parts of the state that an answer may change.
    fn seen(&self) -> (usize, usize, [bool; 2], u64) {
        let flags = [self.ended, self.is_told];
        (self.list.pieces().len(), self.list.closed().len(), flags, self.horizon)
    }

    /// Releases the samples that were not begun from a position on.
    fn release(&mut self, from: u64) {
        if !self.is_complete() {
            return;
        }
        let kept = from.max(self.started).min(self.list.samples());
        drop(self.list.truncate_to(kept));
        self.samples = kept;
        // Samples granted there next are not open yet.
        self.horizon = self.horizon.min(kept);
        self.release = Some(Release { from: kept, version: self.version });
    }

    /// Finds the position of the first step, once the list is long enough.
    fn place(&mut self) -> Result<(), Lapsed> {
        if self.is_placed || self.before.is_some() {
            return Ok(());
        }
        if let Some(position) = self.list.position_of_step(self.step) {
            (self.started, self.consumed, self.is_placed) = (position, position, true);
        } else if self.is_complete() && self.ended {
            // Other ranks consumed the rest, and its lists may be gone.
            let end = self.list.samples();
            (self.started, self.consumed, self.is_placed) = (end, end, true);
        } else if self.is_complete() {
            return Err(Lapsed);
        }
        Ok(())
    }

    /// Checks that a list that was sent again equals the old one in its begun part.
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

/// Returns the beginning of a list, independent of its division into group ranges.
fn joined(list: &RankList, end: u64) -> Vec<GroupRange> {
    let mut joined: Vec<GroupRange> = Vec::new();
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
