//! What a rank of a dynamic job was granted of an epoch, as far as its worker knows. Pure.

use shardfeed_plan::dynamic::{Piece, RankList};
use shardfeed_proto::coordinator::v1::{TakeGroupsRequest, TakeGroupsResponse};

/// One rank's part of one epoch, under one lease.
#[derive(Debug)]
pub struct Share {
    batch_size: u64,
    list: RankList,
    /// The first step that was not begun.
    step: u64,
    /// Position up to which batches were begun; it follows from the step once the list reaches so far.
    started: Option<u64>,
    is_told: bool,
    /// Samples of the list, also those that were not told yet.
    samples: u64,
    ended: bool,
    /// Position up to which batches may be delivered, and the version of the list that it counts for.
    horizon: u64,
    version: u64,
    /// The list was given back from here on, and that is not known yet.
    release: Option<u64>,
}

/// The list is no longer the one that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed;

impl Share {
    /// Nothing was told; `step` is the first step to begin.
    pub fn new(batch_size: u64, step: u64) -> Self {
        Self {
            batch_size,
            list: RankList::new(batch_size, 0),
            step,
            started: None,
            is_told: false,
            samples: 0,
            ended: false,
            horizon: 0,
            version: 0,
            release: None,
        }
    }

    /// What to ask, if anything: all of the request that the list decides.
    /// - `ahead`: samples that shall be granted and not begun. `is_asked`: there is something to hear.
    /// - `next`: the step that is delivered next; a batch after it shall lie before the horizon, too.
    pub fn due(&self, ahead: u64, is_asked: bool, next: u64) -> Option<TakeGroupsRequest> {
        let started = self.started.unwrap_or(0);
        let is_short = self.list.samples() < started + ahead && !self.ended;
        let is_shut = self.list.positions_of(next).is_some_and(|batch| batch.end > self.horizon);
        let is_told = self.release.is_some() || (self.is_told && !self.is_complete());
        let is_urgent = is_asked || is_told || is_shut;
        (is_short || is_urgent).then(|| TakeGroupsRequest {
            started,
            known: self.list.pieces().len() as u64,
            wants: if is_short { ahead } else { 0 },
            ahead: 3 * self.batch_size,
            released: self.release,
            wait_ms: if is_urgent { 0 } else { 300 },
            ..TakeGroupsRequest::default()
        })
    }

    fn is_complete(&self) -> bool {
        self.is_told && self.list.samples() >= self.samples
    }

    /// Takes an answer.
    ///
    /// # Errors  What was begun is not of the list any more.
    pub fn answer(
        &mut self,
        asked: &TakeGroupsRequest,
        told: &TakeGroupsResponse,
    ) -> Result<(), Lapsed> {
        if self.release == asked.released {
            self.release = None;
        }
        if !self.is_told {
            self.list = RankList::new(self.batch_size, told.steps_before);
            self.is_told = true;
        }
        if told.first < asked.known {
            return Err(Lapsed);
        }
        if told.first == self.list.pieces().len() as u64 {
            for piece in &told.pieces {
                let (group, from, to) = (piece.group, piece.from, piece.to);
                self.list.append(Piece { group, from, to });
            }
        }
        told.closed.iter().for_each(|end| self.list.close_at(*end));
        (self.samples, self.ended) = (told.samples, told.ended);
        if told.version >= self.version {
            (self.horizon, self.version) = (told.horizon, told.version);
        }
        if let Some(from) = told.revoke_from.filter(|_| self.is_complete()) {
            let kept = from.max(self.started.unwrap_or(0)).min(self.list.samples());
            drop(self.list.truncate_to(kept));
            (self.samples, self.release) = (kept, Some(kept));
            self.horizon = self.horizon.min(kept);
        }
        if self.started.is_none() {
            self.started = self.list.position_of_step(self.step);
            if self.started.is_none() && self.is_complete() {
                if !self.ended {
                    return Err(Lapsed);
                }
                self.started = Some(self.list.samples());
            }
        }
        Ok(())
    }

    /// Begins the next batch, if it was granted: its step and its pieces.
    pub fn begin(&mut self) -> Option<(u64, Vec<Piece>)> {
        let started = self.started?;
        let positions = self.list.positions_of(self.step)?;
        let begun = (self.step, self.list.pieces_in(positions.clone()).collect());
        (self.started, self.step) = (Some(started.max(positions.end)), self.step + 1);
        Some(begun)
    }

    /// Whether a step may be delivered.
    pub fn is_open(&self, step: u64) -> bool {
        self.list.positions_of(step).is_some_and(|batch| batch.end <= self.horizon)
    }

    /// Samples of the list, as far as it was told.
    pub fn samples_told(&self) -> Option<u64> {
        self.is_told.then_some(self.samples)
    }

    /// Samples that are granted and not begun.
    pub fn ahead(&self) -> u64 {
        self.samples.saturating_sub(self.started.unwrap_or(0))
    }

    /// Whether the epoch ended for the rank, and everything that it has was begun.
    pub fn has_ended(&self) -> bool {
        self.ended && self.is_complete() && self.list.positions_of(self.step).is_none()
    }
}
